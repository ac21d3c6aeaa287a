"""A user's own environment by its dotted path: what works and what is refused."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lockstep import envs
from lockstep.envs import catalog
from lockstep.errors import UsageError
from tests.envs.contract import check_episode, check_types, rollout

SOURCE = '''
import jax, jax.numpy as jnp, numpy as np
from gymnasium import spaces
from lockstep.protocols import Transition
from gymnax.environments import environment, classic_control
from gymnax.environments import spaces as gymnax_spaces


class Good:
    """Counts to the limit; observes the count and a coin."""

    observation_space = spaces.Dict({"count": spaces.Box(0, 9, (1,)), "coin": spaces.Discrete(2)})
    action_space = spaces.Box(-1.0, 1.0, ())
    max_episode_steps = 6
    name = "good"

    def __init__(self, limit=6):
        self.max_episode_steps = limit

    def observe(self, state):
        return {"count": state[0][None] * 1.0, "coin": state[1]}

    def reset(self, key):
        state = (0, jax.random.randint(key, (), 0, 2))
        return state, self.observe((jnp.int32(0), state[1]))

    def step(self, state, action, key):
        state = (state[0] + 1, state[1])
        obs = self.observe(state)
        return state, self.told(obs, state[0], action)

    def told(self, obs, count, action):
        late = count >= self.max_episode_steps
        return Transition(obs, action * 2, jnp.array(False), late, obs, {"count": count})


def make_good(limit: int = 6):
    return Good(limit)


good = Good()


class NoSpaces:
    action_space = spaces.Discrete(2)
    def reset(self, key): ...
    def step(self, state, action, key): ...


class GymnaxSpaces(Good):
    action_space = gymnax_spaces.Discrete(2)


class ManyActions(Good):
    action_space = spaces.MultiDiscrete([2, 2])


class Gym(Good):
    """One done flag, as gym had it."""
    def step(self, state, action, key):
        return self.observe(state), state, 1.0, jnp.array(False), {}


class OneFlag(Good):
    def told(self, obs, count, action):
        from collections import namedtuple
        Step = namedtuple("Step", "obs reward done final_obs info")
        return Step(obs, 1.0, jnp.array(False), obs, {})


class FloatFlag(Good):
    def told(self, obs, count, action):
        return super().told(obs, count, action)._replace(terminated=jnp.float32(0))


class VectorReward(Good):
    def told(self, obs, count, action):
        return super().told(obs, count, action)._replace(reward=jnp.zeros(3))


class TextInfo(Good):
    def told(self, obs, count, action):
        return super().told(obs, count, action)._replace(info={"text": "hello"})


class WrongShape(Good):
    observation_space = spaces.Dict({"count": spaces.Box(0, 9, (2,)), "coin": spaces.Discrete(2)})


class LostEntry(Good):
    observation_space = spaces.Dict({"count": spaces.Box(0, 9, (1,)), "x": spaces.Discrete(2)})


class ChangingState(Good):
    def step(self, state, action, key):
        state, t = super().step(state, action, key)
        return (state[0] * 1.5, state[1]), t


class GrowingState(Good):
    def step(self, state, action, key):
        state, t = super().step(state, action, key)
        return (*state, 1), t


class PythonBranch(Good):
    def step(self, state, action, key):
        if state[0] > 3:
            return super().step(state, action, key)
        return super().step(state, action, key)


class ResetAlone(Good):
    def reset(self, key):
        return jnp.zeros(1)


def fails():
    raise RuntimeError("no such file\\nmore")


cartpole = classic_control.CartPole()


class OldGymnax(classic_control.CartPole):
    def is_terminal(self, state, params):
        return jnp.array(state.time >= params.max_steps_in_episode)
    is_terminated = environment.Environment.is_terminated
'''


@pytest.fixture(autouse=True)
def own_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in the working directory, which is another one in every test."""
    folder = Path("own_package")
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "things.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.syspath_prepend(".")  # restores sys.path and forgets the modules afterwards
    for name in ("own_package", "own_package.things"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize(
    "path", ["own_package.things:make_good", "own_package.things.Good", "own_package.things:good"]
)
def test_factory_class_and_instance(path: str) -> None:
    info = catalog.resolve(path)
    assert (info.suite, info.action, info.extra) == ("custom", None, None)
    env = envs.make(path)
    check_types(env)
    check_episode(env)
    assert (env.name, env.max_episode_steps, env.expensive_reset) == ("good", 6, False)
    assert env.observation_space.shape == (3,) and env.action_space.shape == (1,)
    _, t = rollout(env, 6, jnp.array([0.25]))(jax.random.key(0))
    np.testing.assert_allclose(t.reward, 0.5)
    assert t.info["count"].tolist() == [1, 2, 3, 4, 5, 6]
    assert t.obs[:, 2].tolist() == t.info["count"].tolist()


def test_options_reach_the_factory() -> None:
    assert envs.make("own_package.things:make_good", limit=3).max_episode_steps == 3
    shorter = envs.make("own_package.things.Good", max_episode_steps=2)
    assert shorter.max_episode_steps == 2
    check_types(shorter)
    check_episode(shorter)


def test_a_gymnax_environment() -> None:
    env = envs.make("own_package.things:cartpole", max_episode_steps=5)
    check_types(env)
    check_episode(env)
    _, ours = rollout(env, 5)(jax.random.key(0))
    _, shipped = rollout(envs.make("cartpole", max_episode_steps=5), 5)(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, ours, shipped)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("Goood", ["has no 'Goood'", "did you mean 'Good'"]),
        ("NoSpaces", ["has no observation_space"]),
        ("GymnaxSpaces", ["action_space is a gymnasium space"]),
        ("ManyActions", ["acts in MultiDiscrete"]),
        ("Gym", ["tuple of 5", "terminated", "truncated"]),
        ("OneFlag", ["no terminated, no truncated", "single done flag"]),
        ("FloatFlag", ["terminated is a boolean", "float32"]),
        ("VectorReward", ["reward is one number", "3"]),
        ("TextInfo", ["info['text'] is an array", "'hello'"]),
        ("WrongShape", ["observation of reset", "(2,)", "(1,)"]),
        ("LostEntry", ["observation of reset has no 'x'"]),
        ("ChangingState", ["leaf [0]", "int32[] after reset", "float32[] after step"]),
        ("GrowingState", ["structure"]),
        ("PythonBranch", ["step fails when JAX traces it", "TracerBoolConversionError"]),
        ("ResetAlone", ["reset gives (state, obs)"]),
        ("fails", ["cannot be built", "RuntimeError: no such file"]),
        ("OldGymnax", ["is_terminal alone", "is_terminated"]),
    ],
)
def test_what_breaks_the_contract_is_refused_in_one_line(name: str, parts: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        envs.make(f"own_package.things:{name}")
    assert all(part in str(error.value) for part in parts), str(error.value)
    assert "own_package.things" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "options", "parts"),
    [
        ("own_package.thingz:Good", {}, ["importing 'own_package.thingz' failed"]),
        ("own_package.things:make_good", {"limt": 3}, ["'limt'", "did you mean 'limit'"]),
        ("own_package.things:good", {"limit": 3}, ["takes no options", "limit"]),
        ("own_package.things:good", {"max_episode_steps": -1}, ["at least 1"]),
    ],
)
def test_paths_and_options(path: str, options: dict[str, int], parts: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        envs.make(path, **options)
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_backend_is_refused() -> None:
    with pytest.raises(UsageError, match="no back-ends"):
        envs.make("own_package.things:good", "spring")


def test_the_working_directory_is_searched() -> None:
    code = "from lockstep import envs; print(envs.make('own_package.things.Good').name)"
    # -P leaves the working directory out of the search path, as an installed command does.
    command = [sys.executable, "-P", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.stdout.strip(), result.returncode) == ("good", 0), result.stderr


def test_the_example_of_the_guide() -> None:
    guide = Path(__file__).resolve().parents[2] / "docs" / "environments.md"
    code = guide.read_text().split("```python\n")[1].split("```")[0]
    Path("own_package/guide.py").write_text(code)
    env = envs.make("own_package.guide.Counter")
    check_types(env)
    check_episode(env)
    _, t = rollout(env, 10, jnp.int32(1))(jax.random.key(0))
    assert t.reward.sum() == 10.0


LIMITED = """
from tests import toy_envs


def taking(max_episode_steps=5):
    return toy_envs.step_index(max_episode_steps)
"""


def test_a_limit_is_never_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "limited.py").write_text(LIMITED)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert envs.make("limited:taking", max_episode_steps=7).max_episode_steps == 7
    assert envs.make("tests.toy_envs:step_index", max_episode_steps=3).max_episode_steps == 3
    with pytest.raises(UsageError, match="max_episode_steps=1000 cannot make them longer"):
        envs.make("tests.toy_envs:step_index", max_episode_steps=1000)
