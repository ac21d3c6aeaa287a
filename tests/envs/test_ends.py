"""Natural ends, time limits and where the two meet, against known numbers."""

from __future__ import annotations

import dataclasses

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lockstep import envs
from lockstep.envs import adapt, simulators
from lockstep.protocols import FunctionalEnvironment
from tests import toy_envs
from tests.envs.contract import QUICK, rollout


def first_end(env: FunctionalEnvironment, steps: int, action: object = None) -> tuple[int, str]:
    """The step (from 1) at which an episode ends, and how."""
    _, t = rollout(env, steps, None if action is None else jnp.asarray(action))(jax.random.key(3))
    ended = np.flatnonzero(t.terminated | t.truncated)
    if not len(ended):
        return 0, "runs on"
    return int(ended[0]) + 1, "terminated" if t.terminated[ended[0]] else "truncated"


@pytest.mark.parametrize(
    ("task", "options", "expected"),
    [
        ("pendulum", {}, (200, "truncated")),
        ("mountaincar", {}, (200, "truncated")),
        ("mountaincar_continuous", {}, (999, "truncated")),
        ("freeway", {"max_episode_steps": 30}, (30, "truncated")),
        ("catch", {}, (9, "terminated")),
        ("deep_sea", {}, (8, "terminated")),  # its time limit is 8 as well
        ("deep_sea", {"size": 5}, (5, "terminated")),
        ("memory_chain", {}, (6, "terminated")),
        ("umbrella_chain", {}, (10, "terminated")),
        ("umbrella_chain", {"chain_length": 3}, (3, "terminated")),
        ("umbrella_chain", {"max_episode_steps": 2}, (2, "truncated")),
        ("discounting_chain", {}, (100, "terminated")),
        ("discounting_chain", {"max_episode_steps": 50}, (50, "truncated")),
        ("simple_bandit", {}, (1, "terminated")),
        ("bernoulli_bandit", {}, (100, "truncated")),
        ("point_robot", {}, (100, "truncated")),
    ],
)
def test_gymnax(task: str, options: dict[str, int], expected: tuple[int, str]) -> None:
    env = envs.make(task, **options)
    assert first_end(env, expected[0] + 2) == expected


def test_termination_wins_over_a_time_limit_in_the_same_step() -> None:
    falls = first_end(envs.make("cartpole"), 50)
    assert falls[1] == "terminated"
    assert first_end(envs.make("cartpole", max_episode_steps=falls[0]), 50) == falls
    sooner = first_end(envs.make("cartpole", max_episode_steps=falls[0] - 1), 50)
    assert sooner == (falls[0] - 1, "truncated")


def test_the_maze_never_terminates() -> None:
    env, params = gymnax.make("MetaMaze-misc")
    ours = envs.make("meta_maze")

    def one(key: jax.Array) -> tuple[jax.Array, ...]:
        state, _ = ours.reset(key)
        # One step to the right of the agent, the goal; stepping there moves the agent elsewhere.
        state = dataclasses.replace(state, goal=state.pos + jnp.array([0, 1]))
        _, _, _, theirs, _ = env.step_env(key, state, 1, params)
        _, t = ours.step(state, jnp.int32(1), key)
        return theirs, t.terminated, t.truncated, t.reward

    run = jax.jit(jax.vmap(one), compiler_options=QUICK)
    theirs, terminated, truncated, reward = run(jax.random.split(jax.random.key(0), 300))
    assert reward.min() == 10.0
    assert theirs.any() and not theirs.all()
    assert not terminated.any() and not truncated.any()


def test_brax_terminates_naturally() -> None:
    step, how = first_end(envs.make("inverted_pendulum"), 60, [1.0])
    assert how == "terminated" and 2 < step < 60


@pytest.mark.slow
def test_brax_repeats_an_action_and_adds_up_rewards() -> None:
    once = envs.make("inverted_pendulum", max_episode_steps=6)
    thrice = envs.make("inverted_pendulum", max_episode_steps=2, action_repeat=3)
    _, single = rollout(once, 6, jnp.array([0.1]))(jax.random.key(0))
    _, triple = rollout(thrice, 2, jnp.array([0.1]))(jax.random.key(0))
    np.testing.assert_allclose(triple.reward, [3.0, 3.0])
    np.testing.assert_allclose(triple.obs, single.obs[2::3], rtol=1e-4, atol=1e-5)
    assert triple.truncated.tolist() == [False, True]


class Countdown:
    """A simulator in brax's form: reward 1 a step, done when the count reaches 0."""

    action_size = 1

    def __init__(self, start: int) -> None:
        self.start = start

    def reset(self, key: jax.Array) -> _Counted:
        return self._state(jnp.int32(self.start), jnp.float32(0.0), {"seen": jnp.zeros(())})

    def step(self, state: _Counted, action: jax.Array) -> _Counted:
        state.metrics.update(seen=state.metrics["seen"] + action[0])
        return self._state(state.count - 1, jnp.float32(1.0), state.metrics)

    @staticmethod
    def _state(count: jax.Array, reward: jax.Array, metrics: dict[str, jax.Array]) -> _Counted:
        obs = {"state": count[None], "privileged_state": jnp.zeros(7)}
        return _Counted(count, obs, reward, (count <= 0).astype(jnp.float32), metrics, {})


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _Counted:
    count: jax.Array
    obs: dict[str, jax.Array]
    reward: jax.Array
    done: jax.Array
    metrics: dict[str, jax.Array]
    info: dict[str, jax.Array]

    def replace(self, **changes: object) -> _Counted:
        return dataclasses.replace(self, **changes)


def test_a_repeated_action_stops_at_a_natural_end() -> None:
    env = simulators.from_simulator("count", Countdown(5), max_episode_steps=9, action_repeat=3)
    assert env.observation_space.shape == (1,)
    obs, t = rollout(env, 2, jnp.array([7.0]))(jax.random.key(0))
    assert obs.tolist() == [5.0]
    assert t.obs[:, 0].tolist() == [2.0, 0.0]
    assert t.reward.tolist() == [3.0, 2.0]
    assert t.terminated.tolist() == [False, True]
    # The action was clipped to 1, and seen five times.
    assert t.info["seen"].tolist() == [3.0, 5.0]


def test_a_simulator_may_change_its_input_in_place() -> None:
    env = simulators.from_simulator("count", Countdown(5), max_episode_steps=9)
    state, _ = env.reset(jax.random.key(0))
    env.step(state, jnp.array([1.0]), jax.random.key(1))
    assert state.inner.metrics["seen"] == 0.0


def test_time_limit_wraps_any_environment() -> None:
    env = adapt.time_limit(toy_envs.step_index(limit=5), 3)
    assert env.max_episode_steps == 3
    assert first_end(env, 3) == (3, "truncated")
    longer = adapt.time_limit(toy_envs.step_index(limit=5), 8)
    assert longer.max_episode_steps == 5
    assert first_end(longer, 8) == (5, "truncated")
    assert first_end(adapt.time_limit(toy_envs.discounted_reward(), 2), 2) == (2, "terminated")


def test_actions_outside_the_bounds_are_clipped() -> None:
    env = envs.make("mountaincar_continuous", max_episode_steps=3)
    _, wild = rollout(env, 3, jnp.array([50.0]))(jax.random.key(0))
    _, tame = rollout(env, 3, jnp.array([1.0]))(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, wild, tame)
    np.testing.assert_allclose(wild.reward, -0.1, rtol=1e-6)
