"""The toy environments have the values that their docstrings tell."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tests import toy_envs
from tests.envs.contract import rollout


def play(env, action, key=0, steps=1):
    return rollout(env, steps, action)(jax.random.key(key))


def test_one_step_rewards() -> None:
    assert play(toy_envs.constant_reward(), 0)[1].reward.tolist() == [1.0]
    assert play(toy_envs.policy_reward(), 0)[1].reward.tolist() == [-1.0]
    assert play(toy_envs.policy_reward(), 1)[1].reward.tolist() == [1.0]
    seen = set()
    for key in range(8):
        obs, t = play(toy_envs.observation_reward(), 0, key)
        assert t.reward[0] == obs[0] and t.terminated[0]
        obs, t = play(toy_envs.policy_and_observation_reward(), 1, key)
        assert t.reward[0] == obs[0]
        obs, t = play(toy_envs.policy_and_observation_reward(), 0, key)
        assert t.reward[0] == -obs[0]
        seen.add(float(obs[0]))
    assert seen == {-1.0, 1.0}


def test_discounted_reward() -> None:
    obs, t = play(toy_envs.discounted_reward(), 0, steps=2)
    assert obs.tolist() == [0.0] and t.obs[0].tolist() == [1.0]
    assert t.reward.tolist() == [0.0, 1.0]
    assert t.terminated.tolist() == [False, True]


def test_step_index() -> None:
    obs, t = play(toy_envs.step_index(), 0, steps=5)
    assert obs.tolist() == [0.0]
    assert t.final_obs[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert t.reward.tolist() == [1.0] * 5
    assert t.truncated.tolist() == [False] * 4 + [True]
    assert not t.terminated.any()


def test_two_outcomes() -> None:
    env = toy_envs.two_outcomes()
    lengths, returns = [], []
    run = rollout(env, 100, jnp.int32(0))
    for key in range(40):
        _, t = run(jax.random.key(key))
        length = int(np.argmax(t.terminated)) + 1
        lengths.append(length)
        returns.append(float(t.reward[:length].sum()))
    assert set(zip(lengths, returns, strict=True)) == {(1, 0.0), (100, 100.0)}
    assert 10 <= lengths.count(1) <= 30


def test_random_goal() -> None:
    goals = []
    for key in range(4):
        obs, t = play(toy_envs.random_goal(), 0, key, steps=5)
        np.testing.assert_array_equal(t.obs[:, 0], t.info["goal"])
        np.testing.assert_array_equal(t.reward, t.info["goal"])
        assert (t.info["goal"] == obs[0]).all()
        assert t.obs[:, 1].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
        assert t.truncated.tolist() == [False] * 4 + [True]
        goals.append(float(obs[0]))
    assert len(set(goals)) == 4


def test_nan_at_step() -> None:
    _, t = play(toy_envs.nan_at_step(bad_step=3), 0, steps=5)
    assert np.isnan(t.reward).tolist() == [False, False, True, True, True]
    assert np.isnan(t.obs[:, 0]).tolist() == [False, False, True, True, True]
    _, t = play(toy_envs.nan_at_step(bad_step=1, in_obs=False), 0, steps=1)
    assert np.isnan(t.reward[0]) and t.obs[0, 0] == 1.0
    _, t = play(toy_envs.nan_at_step(probability=0.0), 0, steps=5)
    assert t.reward.sum() == 5.0 and t.truncated.tolist() == [False] * 4 + [True]


def test_target_action() -> None:
    env = toy_envs.target_action((0.5, -0.25))
    assert env.action_space.shape == (2,)
    assert play(env, [0.5, -0.25])[1].reward.tolist() == [0.0]
    np.testing.assert_allclose(play(env, [0.0, 0.0])[1].reward, [-0.3125])
