"""Sums over blocks that do, or need not, depend on how blocks are split over devices.

``fast``: blocks are summed as they come, then one ``psum`` of one flat vector.

``exact``: the arithmetic of a block is compiled in isolation, blocks are summed in a fixed
binary tree, and only one partial sum a device travels (every block's, where a device's
number of blocks is no power of two). The result has the same bits on 1, 2, 4, ... devices
and on any split into processes, for one version of JAX and one kind of processor. Two
things make it so, and either alone does not: a call that XLA may not inline
(:meth:`Reduction.isolate`), and a compilation without the common-subexpression pass that
only programs for several partitions begin with (:attr:`Reduction.compiler_options`).

Shapes: ``b`` blocks of this device, ``B`` blocks in total, ``K`` numbers a block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata
from jax.flatten_util import ravel_pytree


def tree_sum(parts: jax.Array) -> jax.Array:
    """Sum ``[m, K]`` over ``m`` as a fixed binary tree of neighbours; an odd last one waits."""
    while parts.shape[0] > 1:
        even = parts.shape[0] // 2 * 2
        pairs = parts[0:even:2] + parts[1:even:2]
        parts = jnp.concatenate([pairs, parts[even:]]) if even < parts.shape[0] else pairs
    return parts[0]


class Reduction(NamedTuple):
    """How numbers of blocks become numbers of the whole mesh axis ``axis``."""

    exact: bool
    axis: str
    merge: bool = False  # compute all blocks of a device as one group (not with exact)

    @property
    def compiler_options(self) -> dict[str, Any]:
        """Options for the ``jax.jit`` around the whole update."""
        return {"xla_disable_hlo_passes": "cse"} if self.exact else {}

    def isolate(self, function: Callable) -> Callable:
        """Keep XLA from inlining ``function``, so that its bits depend on it alone."""
        if not self.exact:
            return function
        compiled = jax.jit(function)

        def call(*args: Any) -> Any:
            return set_xla_metadata(compiled(*args), inlineable="false")

        return call

    def group(self, blocks: Any) -> Any:
        """Blocks ``[b, n, ...]`` as the groups that are computed together."""
        if not self.merge:
            return blocks
        return jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), blocks)

    def ungroup(self, groups: Any, like: Any) -> Any:
        """Groups back to blocks shaped ``like`` those that were grouped."""
        return jax.tree.map(lambda x, y: x.reshape(y.shape), groups, like)

    def sum_blocks(self, function: Callable[..., jax.Array], fixed: Any, xs: Any) -> jax.Array:
        """``sum over all groups x of function(fixed, x) [K]``; ``xs`` leads with groups."""
        if self.exact:
            isolated = self.isolate(function)
            parts = jax.lax.map(lambda x: isolated(fixed, x), xs)
            if parts.shape[0].bit_count() == 1:
                # A whole subtree of the tree over all blocks: its sum alone travels.
                parts = tree_sum(parts)[None]
            return tree_sum(self.gather_blocks(parts))
        first = function(fixed, jax.tree.map(lambda x: x[0], xs))
        rest = jax.tree.map(lambda x: x[1:], xs)
        total, _ = jax.lax.scan(lambda s, x: (s + function(fixed, x), None), first, rest)
        return jax.lax.psum(total, self.axis)

    def gather_blocks(self, parts: jax.Array) -> jax.Array:
        """``[b, K]`` of every device, in the order of the blocks: ``[B, K]``."""
        return jax.lax.all_gather(parts, self.axis, tiled=True)


def vectors(tree: Any) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
    """Ravel a tree of float32 leaves ``[b, ...]`` to ``[b, K]``, and the way back."""
    template = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], jnp.float32), tree)
    _, unravel = ravel_pytree(template)
    flat = jax.vmap(lambda t: ravel_pytree(t)[0])(tree)
    return flat, jax.vmap(unravel)
