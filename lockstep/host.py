"""What belongs to the host process: its devices, signals, compile cache and versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import jax
import numpy as np
from jax.experimental import multihost_utils

from lockstep.config import RunConfig
from lockstep.devices import cpu_devices, expected_devices
from lockstep.distributed.mesh import prepare_devices
from lockstep.errors import UsageError
from lockstep.runs import claim_folder
from lockstep.sizes import plan_devices
from lockstep.version import VERSION

SHOWN_VERSIONS = ("jax", "jaxlib", "numpy", "optax", "orbax-checkpoint", "gymnax", "brax")
INTERRUPT_GRACE = 1.0  # seconds
_END = 0  # no signal's number


def start_devices(cfg: RunConfig) -> list[jax.Device]:
    """Start JAX and return the devices the run uses: the first that divide the blocks.

    On CPUs XLA's thread pool is fixed at one thread a device unless ``NPROC`` is set, since
    its size can change the last bits of large products.

    Raises:
        UsageError: more devices are asked for than there are, or several processes do not
            each bring the same part of them.
    """
    expected = expected_devices()
    if jax.__version_info__ >= (0, 11):
        # Its new partitioner crashes on a sharded array without elements, which environment
        # states have (seen with 0.11.2); shard_map leaves a partitioner nothing to decide.
        jax.config.update("jax_use_shardy_partitioner", False)
    if expected.kind == "cpu":
        os.environ.setdefault("NPROC", "1")
        if not jax.distributed.is_initialized():
            plan_devices(cfg, expected.count)  # refuses before JAX starts
            prepare_devices(cpu_devices())
    try:
        found = jax.devices()
    except (AssertionError, RuntimeError) as error:  # a platform that is not there
        platforms = f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}"
        told = str(error).partition("\n")[0] or platforms
        raise UsageError(f"JAX finds no devices: {told}") from error
    used = found[: plan_devices(cfg, len(found))]
    if jax.process_count() > 1 and len(used) < len(found):
        raise UsageError(
            f"num_blocks={cfg.blocks} does not divide over the {len(found)} devices of "
            f"{jax.process_count()} processes: every device must take part"
        )
    return used


def start_compile_cache(folder: str | None) -> None:
    """Keep compiled programs in ``folder`` (``default``: the user's cache; None: not at all).

    A cache that JAX was already told of, by its own variable, is left as it is.
    """
    if folder is None:
        jax.config.update("jax_enable_compilation_cache", False)
        return
    jax.config.update("jax_enable_compilation_cache", True)
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        path = Path(base) / "lockstep" / "jax" if folder == "default" else Path(folder)
        jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def claim_together(folder: Path) -> None:
    """Rank 0 makes the new run's folder; no rank writes in it before."""
    if jax.process_index() == 0:
        claim_folder(folder)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("the run's folder is there")


class StopSignals:
    """What signals have asked for since the training began.

    SIGTERM and SIGINT stop the run at the end of an update, SIGUSR1 asks for a commit. A
    second SIGINT interrupts at once: by ``KeyboardInterrupt`` where Python runs, and by the
    end of the process where it has waited ``INTERRUPT_GRACE`` for compiled code to return.
    """

    def __init__(self) -> None:
        self._stop_code = 0
        self._commit = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Note a signal; the work goes on to the end of the update."""
        if number == signal.SIGUSR1:
            self._commit = True
        elif number == signal.SIGINT and self._stop_code:
            raise KeyboardInterrupt
        else:
            self._stop_code = self._stop_code or 128 + number

    def agree(self) -> tuple[int, bool]:
        """The exit code asked for (0: go on) and whether to commit, the same on all ranks."""
        code, commit = self._stop_code, self._commit
        if jax.process_count() > 1:
            code, commit = multihost_utils.process_allgather(np.array([code, commit])).max(0)
        self._commit = False
        return int(code), bool(commit)


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Catch the signals while the context is open (in the main thread; elsewhere: none)."""
    signals = StopSignals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    old = {number: signal.signal(number, signals.handle) for number in numbers}
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    old_wakeup = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch_interrupts, args=(read_end,), daemon=True)
    watcher.start()
    try:
        yield signals
    finally:
        signal.set_wakeup_fd(old_wakeup)
        os.write(write_end, bytes([_END]))
        watcher.join()
        os.close(write_end)
        for number, handler in old.items():
            signal.signal(number, handler)


def _watch_interrupts(read_end: int) -> None:
    """End the process ``INTERRUPT_GRACE`` after a second SIGINT, unless ``_END`` comes first.

    Python's own handlers wait for compiled code to return; the bytes of the signals do not.
    """
    interrupts = 0
    with open(read_end, "rb", buffering=0) as pipe:
        while _END not in (arrived := pipe.read(64)):
            interrupts += arrived.count(signal.SIGINT)
            if interrupts > 1 and not select.select([pipe], [], [], INTERRUPT_GRACE)[0]:
                os._exit(128 + signal.SIGINT)


def versions() -> dict[str, str]:
    """Versions of Python, of this package (with its commit) and of what results depend on."""
    found = {"python": platform.python_version(), "lockstep": VERSION}
    commit = _git_commit()
    if commit:
        found["commit"] = commit
    return found | {name: _version(name) for name in SHOWN_VERSIONS if _version(name)}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _git_commit() -> str:
    """The short commit of this package's own checkout; empty if it is not in one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def peak_rss_mb() -> float:
    """The largest resident memory of this process so far, in MiB."""
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)
