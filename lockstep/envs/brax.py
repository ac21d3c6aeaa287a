"""brax: rigid-body tasks on four physics engines (``spring`` is the fastest on a CPU).

Only ``brax.envs`` is imported: ``brax.training`` no longer works with current JAX. brax's own
episode and auto-reset wrappers are not used; they reset to the first state of the run.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import jax.numpy as jnp
from brax import envs, fluid

from lockstep.envs import adapt
from lockstep.envs.catalog import TaskInfo
from lockstep.envs.quiet import quiet_mujoco
from lockstep.envs.simulators import from_simulator
from lockstep.errors import UsageError
from lockstep.protocols import FunctionalEnvironment


def make(info: TaskInfo, backend: str, **options: Any) -> FunctionalEnvironment:
    """Build the brax task ``info`` on the physics engine ``backend``.

    Options are ``max_episode_steps`` (1000), ``action_repeat`` (1), ``n_frames`` (physics steps
    in one step) and the arguments of the task's constructor, by brax's names.

    Raises:
        UsageError: an option that does not exist or that brax refuses.
    """
    own = {"max_episode_steps": info.max_episode_steps, "action_repeat": 1}
    factory = type(_build(info, backend, {}))
    defaults = {
        p.name: p.default
        for p in inspect.signature(factory).parameters.values()
        if p.kind is not inspect.Parameter.VAR_KEYWORD and p.name != "backend"
    }
    defaults["n_frames"] = 1
    adapt.check_options(info.name, options, {*own, *defaults})
    sizes = {k: adapt.positive_int(info.name, k, options.get(k, v)) for k, v in own.items()}
    passed = {
        name: adapt.like(info.name, name, defaults[name], value)
        for name, value in options.items()
        if name not in own
    }
    if "n_frames" in passed:
        adapt.positive_int(info.name, "n_frames", passed["n_frames"])
    return from_simulator(info.name, _build(info, backend, passed), **sizes)


def _build(info: TaskInfo, backend: str, arguments: dict[str, Any]) -> Any:
    _restore_clip()
    with warnings.catch_warnings(), quiet_mujoco():
        # At every construction brax warns that it is no longer developed.
        warnings.filterwarnings("ignore", message="Brax System", category=UserWarning)
        try:
            return envs.get_environment(info.env_id, backend=backend, **arguments)
        except (TypeError, ValueError, AssertionError) as error:
            told = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
            raise UsageError(
                f"task {info.name!r} cannot be built with {told or backend}: {error}"
            ) from error


class _NumpyWithOldClip:
    """``jax.numpy`` whose ``clip`` still takes ``a_min`` and ``a_max``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    @staticmethod
    def clip(x: Any, a_min: Any = None, a_max: Any = None) -> Any:
        return jnp.clip(x, a_min, a_max)


def _restore_clip() -> None:
    """Let brax's fluid forces (the swimmer) run: they call ``jnp.clip(a_min=)``, which is gone."""
    if "a_min" not in inspect.signature(jnp.clip).parameters and fluid.jp is jnp:
        fluid.jp = _NumpyWithOldClip()
