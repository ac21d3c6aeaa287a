"""Settings that must stand before JAX's back-end starts, and a check for processes left behind.

``LOCKSTEP_CPU_DEVICES`` is 2 on Python 3.11 and 4 from 3.12 on unless the caller says
otherwise: four virtual devices on two cores can hang at a rendezvous with the jax (0.10.2)
that Python 3.11 gets.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

REPO = Path(__file__).resolve().parents[1]
CACHE = REPO / ".pytest_cache"
SESSION_VARIABLE = "LOCKSTEP_TEST_SESSION"
SESSION = uuid.uuid4().hex


def _set_environment() -> None:
    """Fix what tests and the processes they start depend on; no JAX has been imported yet."""
    os.environ.setdefault("LOCKSTEP_CPU_DEVICES", "4" if sys.version_info >= (3, 12) else "2")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # The size of XLA's CPU thread pool; another size can change the last bits of a gradient.
    os.environ["NPROC"] = "2"
    # Nothing is read from or written to the caller's own folders, but compiled programs stay
    # from one run of the tests to the next.
    os.environ["XDG_CACHE_HOME"] = str(CACHE / "xdg")
    os.environ["XDG_CONFIG_HOME"] = str(CACHE / "xdg-config")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE / "jax")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["WANDB_MODE"] = "disabled"
    # Subprocesses are started in temporary folders and must find this tree.
    path = [str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    # Inherited by every descendant, so that orphans are found as well as children.
    os.environ[SESSION_VARIABLE] = SESSION


_set_environment()


def pytest_configure() -> None:
    """Ask JAX for its CPU devices before any test module can start the back-end."""
    import jax

    jax.config.update("jax_num_cpu_devices", int(os.environ["LOCKSTEP_CPU_DEVICES"]))


@pytest.fixture(autouse=True)
def run_in_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test works in its own folder, so that a default ``runs/`` never lands in the tree."""
    monkeypatch.chdir(tmp_path)
    yield


def survivors() -> list[str]:
    """Return pid and command line of every live process that this session started."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            ours = process.environ().get(SESSION_VARIABLE) == SESSION
            if not ours or process.status() == psutil.STATUS_ZOMBIE:
                continue
            command = " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if "multiprocessing.resource_tracker" not in command:
            found.append(f"{process.pid}: {command[:200]}")
    return found


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a process that a test started is still alive."""
    psutil.wait_procs(psutil.Process().children(recursive=True), timeout=3)
    if left := survivors():
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        text = "processes left behind by the tests:\n  " + "\n  ".join(left)
        if reporter is not None:
            reporter.write_line(text, red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
