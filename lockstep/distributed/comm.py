"""Collectives over a mesh axis, keys for devices, and who this process is.

The collectives take trees. Inside ``jax.shard_map`` (or ``jax.vmap`` / ``jax.pmap`` with an
axis name) they act over ``axis_name``; with ``axis_name=None`` they return their argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lockstep.distributed.sharding import put_global

PyTree = Any


def psum(x: PyTree, axis_name: str | None = None) -> PyTree:
    """Sum over the axis; every device gets it."""
    return x if axis_name is None else lax.psum(x, axis_name)


def pmean(x: PyTree, axis_name: str | None = None) -> PyTree:
    """Mean over the axis; every device gets it."""
    return x if axis_name is None else lax.pmean(x, axis_name)


def pmax(x: PyTree, axis_name: str | None = None) -> PyTree:
    """Largest value over the axis, element by element; every device gets it."""
    return x if axis_name is None else lax.pmax(x, axis_name)


def pmin(x: PyTree, axis_name: str | None = None) -> PyTree:
    """Smallest value over the axis, element by element; every device gets it."""
    return x if axis_name is None else lax.pmin(x, axis_name)


def all_gather(x: PyTree, axis_name: str | None = None, **kwargs: Any) -> PyTree:
    """The values of all devices in the order of the axis: ``[...]`` becomes ``[devices, ...]``.

    ``kwargs`` go to ``jax.lax.all_gather``; ``tiled=True`` joins along the leading dimension
    instead of adding one. With ``axis_name=None`` ``x`` is returned as it is.
    """
    return x if axis_name is None else lax.all_gather(x, axis_name, **kwargs)


def split_key_to_devices(key: jax.Array, devices: Sequence[jax.Device]) -> jax.Array:
    """One key for each device, on that device.

    Args:
        key: a typed key ``[]`` or a raw one ``uint32[2]``.
        devices: ``n`` different devices, of other processes too (all processes then have to
            call with the same arguments).

    Returns:
        ``n`` keys, ``[n]`` or ``[n, 2]``, the leading dimension split over the devices. Key
        ``i`` is ``fold_in(key, i)``: it does not depend on how many devices there are.
    """
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(devices)))
    mesh = Mesh(np.asarray(devices, dtype=object), ("devices",))
    return put_global(keys, NamedSharding(mesh, PartitionSpec("devices")))


def is_dist_initialized() -> bool:
    """Whether this process has joined others through ``jax.distributed.initialize``."""
    return bool(jax.distributed.is_initialized())


def get_process_id() -> int:
    """This process's number among all processes; 0 when there is one."""
    return jax.process_index()


def get_global_ranks() -> np.ndarray:
    """Global ranks of the devices of this process, ``int[local devices]``, ascending.

    A device's rank is its place in ``jax.devices()``. The first one identifies the process:
    with one device a process it is the process's number.
    """
    process = jax.process_index()
    ranks = [rank for rank, device in enumerate(jax.devices()) if device.process_index == process]
    return np.asarray(ranks)
