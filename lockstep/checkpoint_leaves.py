"""The leaves of a tree as a commit stores them: by name, without typed keys, and checked.

A leaf's name is its key path with dots (``params.actor.0.kernel``). Shape letters: see
``lockstep.protocols``.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

PyTree = Any


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """The leaves by name, in the order in which JAX flattens the tree.

    Raises:
        ValueError: two leaves have the same name, or one is no array.
    """
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "value"
        if name in named:
            raise ValueError(f"two leaves of the state are called {name!r}: rename one")
        if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
            raise ValueError(
                f"state leaf {name!r} is {type(leaf).__name__}: only arrays are allowed "
                "(counters of the host belong into the host dict)"
            )
        named[name] = leaf
    return named


def is_key(leaf: Any) -> bool:
    """Whether a leaf (or its abstract form) is a typed PRNG key array."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def describe(leaf: Any) -> dict[str, Any]:
    """Shape, dtype and (of a typed key) implementation, as JSON."""
    described: dict[str, Any] = {"shape": list(leaf.shape), "dtype": str(leaf.dtype)}
    if is_key(leaf) and isinstance(leaf, jax.Array):
        described["key_impl"] = str(jax.random.key_impl(leaf))
    return described


def as_stored(leaf: Any) -> Any:
    """A typed key's data ``uint32[..., k]``; any other array as it is."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def stored_target(name: str, leaf: Any) -> jax.ShapeDtypeStruct:
    """Where the stored form of an abstract leaf has to go.

    Raises:
        ValueError: the leaf has no sharding; restoring would guess a device.
    """
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        raise ValueError(
            f"leaf {name!r} of the restore target has no sharding: "
            "give jax.ShapeDtypeStruct(shape, dtype, sharding=...)"
        )
    plain = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    if is_key(leaf):
        plain = jax.eval_shape(jax.random.key_data, plain)
    return jax.ShapeDtypeStruct(plain.shape, plain.dtype, sharding=sharding)


def empty_array(target: jax.ShapeDtypeStruct) -> jax.Array:
    """The array without elements of a target's shape, on its devices."""
    empty = np.zeros(target.shape, target.dtype)
    return jax.make_array_from_callback(target.shape, target.sharding, lambda index: empty[index])


def first_difference(saved: dict[str, dict[str, Any]], wanted: dict[str, Any]) -> str | None:
    """What the first differing leaf is and how it differs, or None."""
    for name, leaf in wanted.items():
        if name not in saved:
            return f"it has no leaf {name!r}"
        asked = describe(leaf)
        for what in ("shape", "dtype"):
            if saved[name][what] != asked[what]:
                return (
                    f"leaf {name!r} has {what} {_plain(saved[name][what])} there "
                    f"and {_plain(asked[what])} here"
                )
    for name in saved:
        if name not in wanted:
            return f"its leaf {name!r} is unknown here"
    return None


def _plain(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, list) else str(value)


def first_non_finite(leaves: dict[str, Any]) -> str | None:
    """The name of the first leaf with a NaN or an infinity, on any process.

    Each process looks at its own shards; then they agree by one collective, so every process
    has to call.
    """
    names = list(leaves)
    bad = (index for index, name in enumerate(names) if not _all_finite(leaves[name]))
    first = next(bad, len(names))
    if jax.process_count() > 1:
        first = int(np.min(multihost_utils.process_allgather(np.asarray(first))))
    return names[first] if first < len(names) else None


def _all_finite(leaf: Any) -> bool:
    """Whether this process's part of a leaf has finite values only (other kinds have)."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact) or not leaf.size:
        return True
    if isinstance(leaf, jax.Array):
        # Copies of the same part, on other devices, are looked at once.
        parts = {str(shard.index): shard.data for shard in leaf.addressable_shards}
        return all(_finite(np.asarray(part)) for part in parts.values())
    return _finite(np.asarray(leaf))


def _finite(values: np.ndarray) -> bool:
    if values.dtype.kind not in "fc":  # bfloat16 and the like
        values = values.astype(np.float32)
    return bool(np.isfinite(values).all())


def params_sha256(params: PyTree) -> str:
    """SHA-256 over the leaves in key-path order, their elements in C order, little-endian.

    The order is the one in which JAX flattens the tree (dict keys sorted). Only elements
    count, not names or shapes. Arrays sharded over several processes are gathered leaf by
    leaf: then every process has to call, and gets the same digest.
    """
    digest = hashlib.sha256()
    for leaf in named_leaves(params).values():
        values = np.asarray(_gathered(as_stored(leaf)))
        if sys.byteorder == "big":
            values = values.byteswap()
        digest.update(values.tobytes(order="C"))
    return digest.hexdigest()


def _gathered(leaf: Any) -> Any:
    """The whole array on this process."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
        return leaf
    assert isinstance(leaf.sharding, NamedSharding), leaf.sharding
    everywhere = NamedSharding(leaf.sharding.mesh, PartitionSpec())
    return jax.jit(lambda x: x, out_shardings=everywhere)(leaf)
