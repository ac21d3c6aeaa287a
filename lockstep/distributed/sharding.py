"""Functions of one member mapped over members that are split over a mesh, and placement.

Shapes: ``M`` members in total, ``m`` members of this device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

PyTree = Any


def shmap_vmap(
    fn: Callable, mesh: Mesh, in_specs: Any, out_specs: Any, **kwargs: Any
) -> Callable[..., Any]:
    """Map ``fn`` over members, all members of a device at once (``vmap``).

    ``fn`` sees one member, without the leading dimension. Every argument and result has the
    leading dimension ``M``, split as ``in_specs`` and ``out_specs`` say (what all members
    share belongs into a closure). ``kwargs`` go to ``jax.shard_map``.
    """
    return _shard_map(jax.vmap(fn), mesh, in_specs, out_specs, kwargs)


def shmap_map(
    fn: Callable, mesh: Mesh, in_specs: Any, out_specs: Any, **kwargs: Any
) -> Callable[..., Any]:
    """Map ``fn`` over members, one after the other on each device (``lax.map``).

    As :func:`shmap_vmap`, with the memory of one member at a time.
    """

    def one_by_one(*args: PyTree) -> PyTree:
        return lax.map(lambda member: fn(*member), args)

    return _shard_map(one_by_one, mesh, in_specs, out_specs, kwargs)


def _shard_map(
    fn: Callable, mesh: Mesh, in_specs: Any, out_specs: Any, kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """``jax.shard_map``, which also takes ``(spec,)`` for a result that is no tuple.

    A spec alone fits both a bare result and a tuple of one.
    """
    if isinstance(out_specs, tuple) and len(out_specs) == 1:
        (spec,) = out_specs
        out_specs = spec if isinstance(spec, PartitionSpec) else out_specs
    return jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **kwargs)


def put_global(leaf: Any, sharding: Sharding) -> jax.Array:
    """Put an array that every process holds whole on a sharding over devices of all processes."""
    if sharding.is_fully_addressable or isinstance(leaf, jax.core.Tracer):
        return jax.device_put(leaf, sharding)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = put_global(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    values = np.asarray(leaf)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def tree_device_put(tree: PyTree, device_or_sharding: Any) -> PyTree:
    """Put every leaf on a device, or as a sharding or a mesh says.

    Args:
        tree: arrays.
        device_or_sharding: a ``jax.Device``, a ``Sharding`` (or a tree of them), or a ``Mesh``:
            leading dimensions are then split over the mesh's first axis, and leaves without
            dimensions are put on every device.

    Raises:
        ValueError: a leading dimension does not divide over the mesh's first axis.
    """
    if not isinstance(device_or_sharding, Mesh):
        return jax.device_put(tree, device_or_sharding)
    mesh = device_or_sharding
    axis = mesh.axis_names[0]
    size = mesh.shape[axis]

    def put(path: Any, leaf: Any) -> jax.Array:
        shape = jnp.shape(leaf)
        if shape and shape[0] % size:
            lower = shape[0] - shape[0] % size
            nearest = f"{lower} or {lower + size}" if lower else f"{size}"
            name = jax.tree_util.keystr(path, simple=True, separator=".") or "the array"
            raise ValueError(
                f"leading dimension {shape[0]} of {name} does not divide over the {size} devices "
                f"of mesh axis {axis!r} (nearest: {nearest})"
            )
        spec = PartitionSpec(axis) if shape else PartitionSpec()
        return put_global(leaf, NamedSharding(mesh, spec))

    return jax.tree_util.tree_map_with_path(put, tree)
