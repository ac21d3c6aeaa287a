"""Learn from one rollout: epochs of shuffled minibatches, one reduction each.

Shapes: ``b`` blocks of this device, ``n`` environments a block, ``T`` steps, ``M``
minibatches an epoch, ``s = T n / M`` samples of a block in a minibatch, ``P`` parameters,
``K`` metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from lockstep.distributed.reduction import Reduction
from lockstep.protocols import Minibatch, OnPolicyAgent, Params

PACKED_SIZE = 2**14  # most indices that one sort of 32-bit words shuffles fairly


class LearningRate(NamedTuple):
    """``initial``; then ``next(gradient steps done, rate, mean KL) -> rate``."""

    initial: float
    next: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class LearningSettings(NamedTuple):
    """Static numbers of the gradient steps, all of them global."""

    rollout_length: int
    envs_per_block: int
    num_envs: int
    num_epochs: int
    num_minibatches: int
    shuffle: str  # environments | samples


class LearnerState(NamedTuple):
    """What gradient steps change; ``done`` counts them over the whole run."""

    params: Params
    opt_state: optax.OptState
    rate: jax.Array
    done: jax.Array


class Learning(NamedTuple):
    """The parts of a gradient step."""

    agent: OnPolicyAgent
    optimizer: optax.GradientTransformation
    rate: LearningRate
    settings: LearningSettings
    reduction: Reduction


def shuffled(key: jax.Array, block_id: jax.Array, settings: LearningSettings) -> jax.Array:
    """Sample indices ``[M, s]`` into ``T * n`` of one epoch for one block.

    ``environments``: whole time rows of some environments; ``samples``: any sample. Up to
    ``PACKED_SIZE`` one sort of random words whose low bits are the index, so that no two are
    equal (at least 18 random bits are left); beyond it the usual sort of pairs.
    """
    T, n, M = settings.rollout_length, settings.envs_per_block, settings.num_minibatches
    whole_rows = settings.shuffle == "environments"
    size = n if whole_rows else T * n
    words = jax.random.bits(jax.random.fold_in(key, block_id), (size,))
    if size > PACKED_SIZE:
        order = jnp.argsort(words).reshape(M, -1)
    else:
        low_bits = jnp.uint32((1 << max(size - 1, 1).bit_length()) - 1)
        packed = (words & ~low_bits) | jnp.arange(size, dtype=jnp.uint32)
        order = (jnp.sort(packed) & low_bits).astype(jnp.int32).reshape(M, -1)
    if whole_rows:
        order = order[:, None, :] + jnp.arange(T)[:, None] * n
    return order.reshape(M, -1)


def merge_indices(index: jax.Array, n: int) -> jax.Array:
    """Indices ``[b, M, s]`` into blocks of ``n`` as ``[1, M, b s]`` into one of ``b n``."""
    b, M, _ = index.shape
    t, i = jnp.divmod(index, n)
    merged = t * (b * n) + jnp.arange(b)[:, None, None] * n + i
    return jnp.swapaxes(merged, 0, 1).reshape(1, M, -1)


def learn(
    parts: Learning,
    state: LearnerState,
    batches: Minibatch,
    block_ids: jax.Array,
    scale: jax.Array,
    key: jax.Array,
) -> tuple[LearnerState, dict[str, jax.Array]]:
    """All gradient steps of one update.

    ``batches`` leads with the groups of blocks that are computed together; ``block_ids [b]``
    are the global numbers of this device's blocks. Advantages become
    ``(advantage - scale[0]) * scale[1]``. Metrics are means over the gradient steps.
    """
    s = parts.settings
    names = _metric_names(parts, state.params, batches)
    apply = parts.reduction.isolate(lambda state, total: _apply(parts, names, state, total))

    def minibatch(state: LearnerState, index: jax.Array) -> tuple[LearnerState, jax.Array]:
        total = parts.reduction.sum_blocks(
            lambda fixed, x: _block_gradient(parts, *fixed, *x),
            (state.params, scale),
            (batches, index),
        )
        return apply(state, total)

    def epoch(state: LearnerState, epoch_key: jax.Array) -> tuple[LearnerState, jax.Array]:
        index = jax.vmap(lambda i: shuffled(epoch_key, i, s))(block_ids)
        if parts.reduction.merge:
            index = merge_indices(index, s.envs_per_block)
        return jax.lax.scan(minibatch, state, jnp.swapaxes(index, 0, 1))

    state, measured = jax.lax.scan(epoch, state, jax.random.split(key, s.num_epochs))
    means = jnp.mean(measured, axis=(0, 1))
    metrics = dict(zip([*names, "grad_norm"], means, strict=True))
    return state, metrics | {"learning_rate": state.rate}


def _metric_names(parts: Learning, params: Params, batches: Minibatch) -> list[str]:
    """Names of what the loss reports, in the order of their shares."""
    first = jax.tree.map(lambda x: x[0], batches)
    _, metrics = jax.eval_shape(parts.agent.loss, params, first)
    return ["loss", *sorted(metrics)]


def _block_gradient(
    parts: Learning, params: Params, scale: jax.Array, batch: Minibatch, index: jax.Array
) -> jax.Array:
    """A block's share of the global mean: gradient and metrics as one vector ``[P + K]``."""
    global_size = (
        parts.settings.num_envs * parts.settings.rollout_length // parts.settings.num_minibatches
    )
    part = jax.tree.map(lambda x: jnp.take(x, index, axis=-1), batch)
    part = part._replace(advantage=(part.advantage - scale[0]) * scale[1])

    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        value, metrics = parts.agent.loss(params, part)
        values = (value, *(metrics[name] for name in sorted(metrics)))
        shares = [jnp.sum(x * part.weight) / global_size for x in values]
        return shares[0], jnp.stack(shares)

    gradient, shares = jax.grad(loss, has_aux=True)(params)
    return jnp.concatenate([ravel_pytree(gradient)[0], shares])


def _apply(
    parts: Learning, names: list[str], state: LearnerState, total: jax.Array
) -> tuple[LearnerState, jax.Array]:
    """One optimiser step on the summed vector; also its metrics and the gradient's norm."""
    _, unravel = ravel_pytree(state.params)
    gradient, measured = unravel(total[: -len(names)]), total[-len(names) :]
    direction, opt_state = parts.optimizer.update(gradient, state.opt_state, state.params)
    params: Any = jax.tree.map(lambda p, d: p - state.rate * d, state.params, direction)
    kl = measured[names.index("approx_kl")] if "approx_kl" in names else jnp.zeros(())
    rate = parts.rate.next(state.done + 1, state.rate, kl)
    norm = optax.tree_utils.tree_norm(gradient)
    return LearnerState(params, opt_state, rate, state.done + 1), jnp.append(measured, norm)
