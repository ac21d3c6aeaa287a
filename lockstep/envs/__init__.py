"""Environments: one file a suite, each giving the same plain form. Imports no JAX by itself."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from lockstep.envs.catalog import TaskInfo, resolve
from lockstep.errors import UsageError, nearest

if TYPE_CHECKING:
    from lockstep.protocols import FunctionalEnvironment

__all__ = ["TaskInfo", "make", "resolve"]

# What must be importable for a suite, and the adapter that is imported when it is.
_MODULES = {"gymnax": "gymnax", "brax": "brax", "playground": "mujoco_playground"}


def make(task: str, backend: str | None = None, **options: Any) -> FunctionalEnvironment:
    """Build one environment: flat float32 observation ``[D]``, no batch, no automatic reset.

    ``task`` is a name of the catalogue or the dotted path of a user's own environment;
    ``backend`` a physics engine of that task (``None``: the task's default). Options reach the
    suite's own constructor; ``max_episode_steps`` (the time limit, in steps) works everywhere.

    Raises:
        UsageError: unknown task, back-end or option, a missing extra or a missing download.
    """
    info = resolve(task)
    backend = _choose_backend(info, backend)
    if info.suite == "custom":
        custom = importlib.import_module("lockstep.envs.custom")
        return custom.make(info, **options)  # type: ignore[no-any-return]
    if importlib.util.find_spec(_MODULES[info.suite]) is None:
        extra = f"lockstep-rl[{info.extra}]" if info.extra else "lockstep-rl"
        raise UsageError(
            f"task {info.name!r} needs {_MODULES[info.suite]}, which is not installed: "
            f"pip install '{extra}'"
        )
    adapter = importlib.import_module(f"lockstep.envs.{info.suite}")
    if info.backends:
        return adapter.make(info, backend, **options)  # type: ignore[no-any-return]
    return adapter.make(info, **options)  # type: ignore[no-any-return]


def _choose_backend(info: TaskInfo, backend: str | None) -> str | None:
    """Return the back-end to build with; ``None`` where the suite has none to choose."""
    if backend is None:
        return info.default_backend
    if not info.backends:
        raise UsageError(
            f"task {info.name!r} has no back-ends to choose from, got backend={backend!r}"
        )
    if backend not in info.backends:
        hint = nearest(str(backend), info.backends)
        raise UsageError(
            f"task {info.name!r} has no back-end {backend!r}: did you mean {hint!r}? "
            f"(back-ends: {', '.join(info.backends)})"
        )
    return backend
