"""Automatic reset, NaN and episode sums of a block of environments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lockstep.envs.wrappers import VectorState, VectorTransition, vectorize
from lockstep.protocols import FunctionalEnvironment
from tests import toy_envs


def unroll(
    env: FunctionalEnvironment, num_envs: int, steps: int, seed: int = 0
) -> tuple[VectorState, VectorState, VectorTransition]:
    """The first state, then the states after each of ``steps`` steps and what they yielded."""
    vector = vectorize(env)
    keys = jax.random.split(jax.random.key(seed), 2)
    first = jax.jit(vector.reset)(jax.random.split(keys[0], num_envs))

    def step(state: VectorState, key: jax.Array) -> tuple[VectorState, tuple]:
        keys = jax.random.split(key, (2, num_envs))
        state, seen = vector.step(state, jnp.zeros(num_envs, jnp.int32), keys[0], keys[1])
        return state, (state, seen)

    scan = jax.jit(lambda first, keys: jax.lax.scan(step, first, keys))
    _, (states, seen) = scan(first, jax.random.split(keys[1], steps))
    return first, states, seen


def test_the_final_observation_survives_the_reset():
    first, states, seen = unroll(toy_envs.step_index(5), 2, 12)
    np.testing.assert_array_equal(first.obs, [[0.0], [0.0]])
    final = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
    shown = [1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2]
    for env in range(2):
        np.testing.assert_array_equal(seen.final_obs[:, 0, env], final)
        np.testing.assert_array_equal(states.obs[:, env, 0], shown)
        np.testing.assert_array_equal(seen.truncated[:, env], np.equal(final, 5))
        np.testing.assert_array_equal(seen.done[:, env], np.equal(final, 5))
    assert not seen.terminated.any() and seen.valid.all()
    # The same shapes after a reset and after a step, so that both can be scanned.
    assert jax.tree.map(lambda x: x.shape, first) == jax.tree.map(lambda x: x.shape[1:], states)
    assert jax.tree.map(lambda x: x.dtype, first) == jax.tree.map(lambda x: x.dtype, states)


def test_episode_sums_are_given_at_the_end_and_start_anew():
    _, states, seen = unroll(toy_envs.step_index(5), 2, 12)
    ends = np.asarray(seen.done[:, 0])
    np.testing.assert_array_equal(seen.finished_return[ends, 0], [5.0, 5.0])
    np.testing.assert_array_equal(seen.finished_length[ends, 0], [5.0, 5.0])
    running = [1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2]
    np.testing.assert_array_equal(states.episode_return[:, 0], running)
    np.testing.assert_array_equal(states.episode_length[:, 1], running)


@pytest.mark.parametrize("expensive", [False, True])
def test_every_episode_has_a_goal_of_its_own(expensive: bool):
    env = toy_envs.random_goal(limit=5)._replace(expensive_reset=expensive)
    first, states, seen = unroll(env, 3, 15)
    goals = [first.obs[:, 0], *states.obs[[4, 9, 14], :, 0]]
    assert len(set(np.asarray(goals).ravel().tolist())) == 12
    for episode in range(3):
        steps = slice(5 * episode, 5 * episode + 5)
        # What was the goal at the start is the reward and the goal to the last observation.
        expected = np.tile(goals[episode], (5, 1))
        np.testing.assert_array_equal(seen.reward[steps], expected)
        np.testing.assert_array_equal(seen.final_obs[steps, 0], expected)


def test_an_expensive_reset_yields_what_a_cheap_one_does():
    # Episodes of unlike lengths, so that some steps end none, some one and some several.
    runs = [
        unroll(env, 4, 20, seed=3)
        for cheap in (toy_envs.two_outcomes(4), toy_envs.random_goal(3))
        for env in (cheap, cheap._replace(expensive_reset=True))
    ]
    for plain, rare in (runs[:2], runs[2:]):
        for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(rare), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_termination_is_no_truncation():
    _, _, seen = unroll(toy_envs.two_outcomes(4), 8, 8)
    np.testing.assert_array_equal(seen.done, seen.terminated)
    assert seen.terminated.any() and not seen.truncated.any()
    ends = np.asarray(seen.done)
    lengths = np.asarray(seen.finished_length)[ends]
    np.testing.assert_array_equal(np.unique(lengths), [1.0, 4.0])
    expected = np.where(lengths == 4.0, 4.0, 0.0)
    np.testing.assert_array_equal(np.asarray(seen.finished_return)[ends], expected)


@pytest.mark.parametrize(("in_obs", "in_reward"), [(True, False), (False, True), (True, True)])
def test_an_environment_with_nan_is_reset_and_marked(in_obs: bool, in_reward: bool):
    env = toy_envs.nan_at_step(3, limit=5, in_obs=in_obs, in_reward=in_reward)
    _, states, seen = unroll(env, 2, 7)
    bad = np.array([0, 0, 1, 0, 0, 1, 0], bool)
    np.testing.assert_array_equal(seen.valid[:, 0], ~bad)
    np.testing.assert_array_equal(seen.done[:, 0], bad)
    assert not seen.terminated.any() and not seen.truncated.any()
    np.testing.assert_array_equal(seen.reward[:, 0], [1, 1, 0, 1, 1, 0, 1])
    np.testing.assert_array_equal(states.obs[:, 0, 0], [1, 2, 0, 1, 2, 0, 1])
    np.testing.assert_array_equal(states.episode_return[:, 0], [1, 2, 0, 1, 2, 0, 1])
    assert np.isfinite(seen.final_obs).all()
    # What the environment really gave is kept for the report.
    assert np.isnan(seen.raw_reward[bad]).all() == in_reward
    assert np.isnan(seen.raw_obs[bad]).all() == in_obs


def test_nan_in_one_environment_leaves_the_others_alone():
    _, states, seen = unroll(toy_envs.nan_at_step(3, 5, probability=0.5), 16, 5)
    broken = ~np.asarray(seen.valid).all(axis=0)
    assert 0 < broken.sum() < 16
    np.testing.assert_array_equal(seen.finished_return[4, ~broken], 5.0)
    assert np.asarray(seen.truncated)[4, ~broken].all()
    assert not np.asarray(seen.truncated)[4, broken].any()
    np.testing.assert_array_equal(states.obs[3, ~broken, 0], 4.0)
    np.testing.assert_array_equal(states.obs[3, broken, 0], 1.0)
