"""The catalogue names what the suites have, and refuses what they have not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep import envs
from lockstep.envs import catalog
from lockstep.errors import UsageError


def test_every_gymnax_environment_is_a_task() -> None:
    import gymnax

    ids = [info.env_id for info in catalog.TASKS.values() if info.suite == "gymnax"]
    assert sorted(ids) == sorted(gymnax.registered_envs)


def test_every_playground_environment_is_a_task() -> None:
    from mujoco_playground import dm_control_suite, registry

    tasks = [info for info in catalog.TASKS.values() if info.suite == "playground"]
    assert sorted(info.env_id for info in tasks) == sorted(registry.ALL_ENVS)
    offline = [info.env_id for info in tasks if info.download is None]
    assert sorted(offline) == sorted(dm_control_suite.ALL_ENVS)


@pytest.mark.parametrize(
    ("asked", "suite", "env_id", "name"),
    [
        ("cartpole", "gymnax", "CartPole-v1", "cartpole"),
        ("CartPole-v1", "gymnax", "CartPole-v1", "cartpole"),
        ("gymnax:CartPole-v1", "gymnax", "CartPole-v1", "cartpole"),
        ("gymnax:cartpole", "gymnax", "CartPole-v1", "cartpole"),
        ("mountaincar", "gymnax", "MountainCar-v0", "mountaincar"),
        ("space_invaders", "gymnax", "SpaceInvaders-MinAtar", "space_invaders"),
        ("reacher", "brax", "reacher", "reacher"),
        ("brax:reacher", "brax", "reacher", "reacher"),
        ("Reacher-misc", "gymnax", "Reacher-misc", "reacher_misc"),
        ("gymnax:reacher", "gymnax", "Reacher-misc", "reacher_misc"),
        ("swimmer_misc", "gymnax", "Swimmer-misc", "swimmer_misc"),
        ("ant", "brax", "ant", "ant"),
        ("CartpoleBalance", "playground", "CartpoleBalance", "CartpoleBalance"),
        ("cartpole_balance", "playground", "CartpoleBalance", "CartpoleBalance"),
        ("playground:CartpoleBalance", "playground", "CartpoleBalance", "CartpoleBalance"),
    ],
)
def test_names(asked: str, suite: str, env_id: str, name: str) -> None:
    info = catalog.resolve(asked)
    assert (info.suite, info.env_id, info.name) == (suite, env_id, name)


def test_names_lead_back_to_their_task() -> None:
    names = [alias for info in catalog.TASKS.values() for alias in (info.name, *info.aliases)]
    assert len(names) == len(set(names))
    for info in catalog.TASKS.values():
        assert catalog.resolve(info.name) is info
        assert catalog.resolve(f"{info.suite}:{info.name}") is info


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        ("cartpol", ["unknown task 'cartpol'", "'cartpole'"]),
        ("Ant", ["unknown task 'Ant'", "'ant'"]),
        ("brax:antt", ["unknown brax task 'antt'", "'brax:ant'"]),
        ("brax:cartpole", ["unknown brax task 'cartpole'"]),
        ("barx:ant", ["'barx'", "gymnax, brax, playground", "'ant'"]),
        ("no_such_package.envs:make", ["importable module 'no_such_package'"]),
        ("", ["a task is a name", "''"]),
    ],
)
def test_unknown_tasks_are_refused_in_one_line(asked: str, parts: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        catalog.resolve(asked)
    assert all(part in str(error.value) for part in parts)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("task", "backend", "options", "parts"),
    [
        ("cartpole", "spring", {}, ["no back-ends", "'spring'"]),
        (
            "ant",
            "sprnig",
            {},
            ["'sprnig'", "did you mean 'spring'", "generalized, positional, mjx"],
        ),
        ("swimmer", "spring", {}, ["'spring'", "back-ends: generalized"]),
        ("CheetahRun", "warp", {}, ["'warp'", "back-ends: jax"]),
        ("cartpole", None, {"gravty": 1.0}, ["'gravty'", "did you mean 'gravity'"]),
        ("cartpole", None, {"max_steps_in_episode": 9}, ["did you mean 'max_episode_steps'"]),
        ("cartpole", None, {"max_episode_steps": 0}, ["at least 1", "got 0"]),
        ("cartpole", None, {"max_episode_steps": 2.5}, ["whole number", "got 2.5"]),
        ("cartpole", None, {"gravity": "up"}, ["'gravity'", "a number", "'up'"]),
        ("catch", None, {"rows": 2.5}, ["'rows'", "a whole number"]),
        ("frozen_lake", None, {"map_name": "9x9"}, ["map_name='9x9'", "'4x4' or '8x8'"]),
        ("acrobot", None, {"available_torque": [1.0]}, ["3 numbers", "[1.0]"]),
        ("ant", None, {"helthy_reward": 1.0}, ["did you mean 'healthy_reward'"]),
        ("ant", None, {"ctrl_cost_weight": "a"}, ["'ctrl_cost_weight'", "a number"]),
        ("ant", None, {"action_repeat": 0}, ["'action_repeat'", "at least 1"]),
        ("CheetahRun", None, {"ctrl_dtt": 0.02}, ["did you mean 'ctrl_dt'"]),
        ("CheetahRun", None, {"ctrl_dt": "a"}, ["ctrl_dt='a'"]),
        ("CartpoleBalance", None, {"vision": True}, ["no option 'vision'"]),
        ("Go1Getup", None, {}, ["git clone", "mujoco_menagerie"]),
        ("mnist_bandit", None, {}, ["MNIST"]),
    ],
)
def test_options_and_backends_are_refused_in_one_line(
    task: str,
    backend: str | None,
    options: dict[str, object],
    parts: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def offline(*_: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("gymnax.utils.load_mnist.load_mnist", offline)
    with pytest.raises(UsageError) as error:
        envs.make(task, backend, **options)
    assert all(part in str(error.value) for part in parts), str(error.value)
    assert "\n" not in str(error.value)


def test_options_reach_the_suite() -> None:
    assert envs.make("catch", rows=6).observation_space.shape == (30,)
    assert envs.make("pendulum", max_torque=3.0).action_space.high.tolist() == [3.0]
    plain = envs.make("ant", exclude_current_positions_from_observation=False)
    assert plain.observation_space.shape == (29,)
    assert envs.make("ant", max_episode_steps=7).max_episode_steps == 7


@pytest.mark.parametrize(
    ("module", "task", "extra"),
    [("brax", "ant", "brax"), ("mujoco_playground", "CheetahRun", "playground")],
)
def test_a_missing_extra_is_named(
    module: str, task: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import util

    real = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == module else real(name))
    with pytest.raises(UsageError, match=rf"pip install 'lockstep-rl\[{extra}\]'"):
        envs.make(task)


def test_the_catalogue_loads_no_environment_library() -> None:
    code = (
        "import sys, lockstep.envs.catalog as c; c.resolve('ant'); "
        "print([m for m in ('jax', 'gymnax', 'brax', 'mujoco', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


def test_brax_needs_no_training_code_and_writes_no_log(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom lockstep import envs\nenvs.make('ant')\n"
        "envs.make('CheetahRun')\n"
        "print([m for m in sys.modules if m.startswith('brax.training')])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert result.stdout.strip() == "[]", result.stderr
    assert "Brax System" not in result.stderr and "settotalmass" not in result.stderr
    assert list(tmp_path.iterdir()) == []
