"""MuJoCo Playground: the DM Control Suite tasks need no network, the robots a model repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco_playground
from mujoco_playground import dm_control_suite, registry

from lockstep.envs import adapt
from lockstep.envs.catalog import TaskInfo
from lockstep.envs.quiet import quiet_mujoco
from lockstep.envs.simulators import from_simulator
from lockstep.errors import UsageError
from lockstep.protocols import FunctionalEnvironment

_MENAGERIE = "https://github.com/google-deepmind/mujoco_menagerie"
# Fixed by the adapter, or only for observations of pixels, which need another engine.
_NOT_OPTIONS = ("impl", "vision", "episode_length", "action_repeat")


def make(info: TaskInfo, backend: str, **options: Any) -> FunctionalEnvironment:
    """Build the Playground task ``info``; ``backend`` is MJX's implementation (``jax``).

    Options are ``max_episode_steps`` and ``action_repeat`` (by default the task's own) and the
    entries of the task's configuration, by Playground's names (``reward.scale`` for a nested
    one).

    Raises:
        UsageError: an option that does not exist or that Playground refuses, or a robot whose
            models have not been fetched.
    """
    if info.download:
        _require_models(info)
    config = registry.get_default_config(info.env_id)
    own = {
        "max_episode_steps": int(config.get("episode_length", 1000)),
        "action_repeat": int(config.get("action_repeat", 1)),
    }
    entries = {
        name
        for name in _flat_names(config.to_dict())
        if name.split(".")[0].removesuffix("_config") not in _NOT_OPTIONS
    }
    adapt.check_options(info.name, options, {*own, *entries})
    sizes = {k: adapt.positive_int(info.name, k, options.get(k, v)) for k, v in own.items()}
    changes = {name: value for name, value in options.items() if name not in own}
    # The robots' loader would fetch models by itself; the other one never does.
    load = registry.load if info.download else dm_control_suite.load
    try:
        with quiet_mujoco():
            simulator = load(info.env_id, config_overrides={**changes, "impl": backend})
    except (TypeError, ValueError, KeyError) as error:
        told = ", ".join(f"{name}={value!r}" for name, value in changes.items())
        raise UsageError(
            f"task {info.name!r} cannot be built with {told or backend}: {error}"
        ) from error
    return from_simulator(info.name, simulator, **sizes)


def _flat_names(config: dict[str, Any], prefix: str = "") -> list[str]:
    names = []
    for key, value in config.items():
        if isinstance(value, dict):
            names.extend(_flat_names(value, f"{prefix}{key}."))
        else:
            names.append(f"{prefix}{key}")
    return names


def _require_models(info: TaskInfo) -> None:
    """Refuse a robot task whose models are absent, before Playground tries to clone them."""
    folder = Path(mujoco_playground.__file__).parent / "external_deps" / "mujoco_menagerie"
    if not folder.is_dir() or not any(folder.iterdir()):
        raise UsageError(
            f"task {info.name!r} needs {info.download}, which is fetched once with: "
            f"git clone {_MENAGERIE} {folder}"
        )
