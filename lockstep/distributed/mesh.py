"""The one mesh, and the settings that must stand before JAX starts.

The mesh has the axes ``POP`` (members of a population) and ``DP`` (environments). It is
there with one device too: an algorithm never asks how many there are.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

DP_AXIS_NAME = "DP"
POP_AXIS_NAME = "POP"


def prepare_devices(num_cpu_devices: int) -> None:
    """Make every CPU core a device; called before the first use of a JAX device.

    Does nothing for accelerators, nor where JAX has already started. A count set through
    ``XLA_FLAGS`` is left alone.
    """
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):  # JAX has started
            jax.config.update("jax_num_cpu_devices", num_cpu_devices)


def make_mesh(devices: Sequence[jax.Device], pop: int = 1) -> Mesh:
    """A mesh of ``pop`` x ``len(devices) / pop`` devices with the axes POP and DP."""
    grid = np.asarray(devices, dtype=object).reshape(pop, -1)
    return Mesh(grid, (POP_AXIS_NAME, DP_AXIS_NAME), axis_types=(AxisType.Auto,) * 2)


def sharded(mesh: Mesh) -> NamedSharding:
    """Leading dimension split over DP."""
    return NamedSharding(mesh, PartitionSpec(DP_AXIS_NAME))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole value on every device."""
    return NamedSharding(mesh, PartitionSpec())
