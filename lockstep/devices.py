"""How many devices a run will find, without loading JAX.

With NVIDIA devices in sight and a CUDA plugin of JAX installed these are the devices;
otherwise each CPU core is one. ``LOCKSTEP_CPU_DEVICES`` sets the number of CPU devices.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import UsageError, unknown

ENVIRONMENT_VARIABLES = {
    "LOCKSTEP_CPU_DEVICES": "Number of CPU devices; default: one for each core.",
    "LOCKSTEP_TEST_SESSION": "Set by the project's own tests, to find processes left behind.",
}

MOST_CPU_DEVICES = 1024


@dataclass(frozen=True)
class Devices:
    """The kind (``cpu`` or ``gpu``) and number of devices a run will find here."""

    kind: str
    count: int


def check_environment(environ: Mapping[str, str] = os.environ) -> None:
    """Refuse a variable that begins with ``LOCKSTEP_`` but means nothing."""
    for name in environ:
        if name.startswith("LOCKSTEP_") and name not in ENVIRONMENT_VARIABLES:
            raise unknown("environment variable", name, ENVIRONMENT_VARIABLES)


def cpu_cores() -> int:
    """The CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_devices(environ: Mapping[str, str] = os.environ) -> int:
    """The number of CPU devices: ``LOCKSTEP_CPU_DEVICES``, what ``XLA_FLAGS`` sets, or cores."""
    text = environ.get("LOCKSTEP_CPU_DEVICES", "")
    if text:
        if not text.isdecimal() or not 1 <= int(text) <= MOST_CPU_DEVICES:
            raise UsageError(
                f"LOCKSTEP_CPU_DEVICES={text} is not a whole number of 1 to {MOST_CPU_DEVICES}"
            )
        return int(text)
    flags = environ.get("XLA_FLAGS", "")
    set_by_flag = re.search(r"--xla_force_host_platform_device_count=(\d+)", flags)
    return int(set_by_flag[1]) if set_by_flag else cpu_cores()


def nvidia_devices(environ: Mapping[str, str] = os.environ, dev: Path = Path("/dev")) -> int:
    """The NVIDIA devices that CUDA will show to this process."""
    there = sum(1 for path in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not there:
        return there
    count = 0
    for entry in visible.split(","):  # CUDA stops at the first entry that is no device
        entry = entry.strip()
        if not entry or (entry.lstrip("-").isdecimal() and not 0 <= int(entry) < there):
            break
        count += 1
    return count


def expected_devices(environ: Mapping[str, str] = os.environ) -> Devices:
    """What JAX will find when the run starts."""
    platforms = environ.get("JAX_PLATFORMS", "")
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    if platforms in ("", "cuda", "gpu") or platforms.startswith(("cuda,", "gpu,")):
        count = nvidia_devices(environ)
        if count and any(importlib.util.find_spec(name) for name in plugins):
            return Devices("gpu", count)
    return Devices("cpu", cpu_devices(environ))
