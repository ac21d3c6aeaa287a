"""One rollout of one block: targets at a time limit, exact log-probabilities, NaN, keys."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from lockstep.agents.actor_critic import ActorCritic
from lockstep.agents.normalizer import batch_moments, init_moments, update_moments
from lockstep.algorithms.ppo import make_ppo
from lockstep.config import PPOConfig
from lockstep.envs.wrappers import vectorize
from lockstep.protocols import (
    Decision,
    Environment,
    FunctionalEnvironment,
    Minibatch,
    OnPolicyAgent,
    Transition,
)
from lockstep.workflows.rollout import (
    BlockState,
    Learner,
    RolloutSettings,
    RolloutSums,
    Statistics,
    collect,
)
from tests import toy_envs

T = 12
SETTINGS = RolloutSettings(
    length=T, gamma=0.9, gae_lambda=0.0, normalize_obs=False, normalize_reward=False
)
NO_DATA = Statistics(init_moments(1), init_moments(1))


def rollout(
    env: Environment,
    agent: OnPolicyAgent,
    settings: RolloutSettings = SETTINGS,
    *,
    params: Any = None,
    statistics: Statistics = NO_DATA,
    num_envs: int = 2,
    first_id: int = 0,
) -> tuple[BlockState, Minibatch, RolloutSums]:
    @jax.jit
    def both(params: Any, statistics: Statistics) -> tuple[BlockState, Minibatch, RolloutSums]:
        vector = vectorize(env)
        start = BlockState(
            vector.reset(jax.random.split(jax.random.key(1), num_envs)),
            jnp.zeros(num_envs),
            first_id + jnp.arange(num_envs),
        )
        learner = Learner(params, statistics)
        return collect(vector, agent, settings, learner, jax.random.key(2), start)

    return both(params, statistics)


def ten_times_obs() -> OnPolicyAgent:
    """Always action 0; the value of an observation is ten times its first feature."""

    def value(params: Any, obs: jax.Array) -> jax.Array:
        return 10.0 * obs[0]

    def decide(params: Any, obs: jax.Array, keys: jax.Array) -> Decision:
        none = jnp.zeros(obs.shape[1], jnp.int32)
        return Decision(none, none, jnp.zeros(obs.shape[1]), value(params, obs))

    def unused(*args: Any) -> Any:
        raise AssertionError("a rollout needs none of this")

    return OnPolicyAgent(unused, decide, unused, unused, value, unused)


def per_env(x: jax.Array, num_envs: int = 2) -> np.ndarray:
    """``[..., T * n]`` as ``[..., T, n]``."""
    return np.asarray(x).reshape(*x.shape[:-1], -1, num_envs)


def test_the_target_at_a_time_limit_uses_the_value_of_the_final_observation():
    block, batch, sums = rollout(toy_envs.step_index(5), ten_times_obs())
    obs = per_env(batch.obs[0])[:, 0]
    np.testing.assert_array_equal(obs, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1])
    # Reward 1 plus 0.9 x 10 x (obs + 1): also at the limit, 1 + 0.9 x 50 = 46, where the next
    # observation shown is 0; the rollout's last step bootstraps from 2.
    expected = 1.0 + 9.0 * (obs + 1.0)
    for env in range(2):
        np.testing.assert_allclose(per_env(batch.target)[:, env], expected, rtol=1e-6)
        np.testing.assert_allclose(per_env(batch.advantage)[:, env], expected - 10 * obs, rtol=1e-5)
    assert per_env(batch.target)[4, 0] == pytest.approx(46.0)
    assert float(sums.episodes) == 4 and float(sums.return_sum) == 20
    assert float(sums.return_square_sum) == 100 and float(sums.length_sum) == 20
    assert float(sums.reward_sum) == 24
    np.testing.assert_array_equal(block.envs.obs[:, 0], [2.0, 2.0])


def test_nothing_lies_beyond_a_termination():
    _, batch, _ = rollout(toy_envs.two_outcomes(3), ten_times_obs(), num_envs=8)
    obs, target = per_env(batch.obs[0], 8), per_env(batch.target, 8)
    # A short episode shows 0 and ends with reward 0: its target is 0 whatever comes next.
    assert (obs == 0).any() and (obs == 1).any()
    np.testing.assert_array_equal(target[obs == 0], 0.0)
    # A long one gives 1 + 0.9 x 10 in its first two steps and just 1 at its end.
    assert set(np.round(target[obs == 1], 4)) == {1.0, 10.0}


def test_lambda_carries_within_an_episode_and_not_across():
    settings = SETTINGS._replace(gae_lambda=0.5)
    _, batch, _ = rollout(toy_envs.step_index(5), ten_times_obs(), settings)
    advantage, obs = per_env(batch.advantage)[:, 0], per_env(batch.obs[0])[:, 0]
    delta = 1.0 + 9.0 * (obs + 1.0) - 10.0 * obs
    expected = np.zeros(T)
    for t in reversed(range(T)):
        cut = t == T - 1 or obs[t] == 4
        expected[t] = delta[t] + (0.0 if cut else 0.45 * expected[t + 1])
    np.testing.assert_allclose(advantage, expected, rtol=1e-5)


def test_a_masked_transition_has_no_weight_and_the_step_before_bootstraps():
    env = toy_envs.nan_at_step(3, limit=5)
    _, batch, sums = rollout(env, ten_times_obs(), SETTINGS._replace(gae_lambda=0.9), first_id=6)
    bad = np.tile([False, False, True], 4)
    for number in range(2):
        np.testing.assert_array_equal(per_env(batch.weight)[:, number], ~bad)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(batch))
    np.testing.assert_array_equal(per_env(batch.advantage)[bad], 0.0)
    # Two steps of reward 1 from obs 0 and 1; the state at obs 2 is still worth 20:
    # delta_1 = 1 + 18 - 10 = 9, delta_0 = 1 + 9 - 0 = 10, A_0 = 10 + 0.81 x 9 = 17.29.
    np.testing.assert_allclose(per_env(batch.advantage)[:2, 0], [17.29, 9.0], rtol=1e-6)
    assert float(sums.nan_envs) == 8
    assert float(sums.episodes) == 0 and float(sums.return_sum) == 0
    assert float(sums.advantage.samples) == 16
    assert (int(sums.bad.step), int(sums.bad.env_id)) == (2, 6)
    np.testing.assert_array_equal(sums.bad.obs, [2.0])
    assert np.isnan(sums.bad.reward) and np.isnan(sums.bad.final_obs).all()


def test_the_first_bad_transition_is_told_with_its_environment():
    env = toy_envs.nan_at_step(3, limit=5, probability=0.3)
    start = jax.vmap(env.reset)(jax.random.split(jax.random.key(1), 8))[0]
    breaks = np.flatnonzero(start.breaks)
    assert breaks.size and breaks[0] > 0  # so that the number says something
    _, _, sums = rollout(env, ten_times_obs(), num_envs=8, first_id=16)
    assert (int(sums.bad.step), int(sums.bad.env_id)) == (2, 16 + breaks[0])


def test_no_bad_transition_is_told_as_minus_one():
    _, _, sums = rollout(toy_envs.step_index(5), ten_times_obs())
    assert (int(sums.bad.step), int(sums.bad.env_id), float(sums.nan_envs)) == (-1, -1, 0.0)


def echo_env() -> FunctionalEnvironment:
    """Shows the action it received; actions in [-1, 1]."""

    def reset(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.int32(0), jnp.zeros(1)

    def step(t: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Transition]:
        obs = action.astype(jnp.float32).reshape(1)
        return t + 1, Transition(obs, obs[0], jnp.array(False), t >= 5, obs, {})

    box = spaces.Box(-1.0, 1.0, (1,))
    return FunctionalEnvironment("echo", spaces.Box(-1.0, 1.0, (1,)), box, reset, step)


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_ratio_is_one_before_the_first_update(squash: bool, normalize: bool):
    config = PPOConfig(hidden_sizes=(8,), tanh_squash=squash)
    env = echo_env()
    net = ActorCritic(
        env.observation_space, env.action_space, hidden_sizes=(8,), activation="tanh",
        tanh_squash=squash,
    )  # fmt: skip
    agent = make_ppo(config, env.observation_space, env.action_space)
    params = net.init(jax.random.key(0))
    last = params.actor[-1]
    params = params._replace(actor=[params.actor[0], last._replace(bias=jnp.full(1, 5.0))])
    seen = batch_moments(jnp.array([[-0.5, 0.0, 1.5]]), jnp.ones(3))
    statistics = NO_DATA._replace(obs=update_moments(init_moments(1), seen))
    _, batch, _ = rollout(
        env, agent, SETTINGS._replace(normalize_obs=normalize), params=params,
        statistics=statistics, num_envs=16,
    )  # fmt: skip
    raw = np.asarray(batch.raw[0])
    assert raw.mean() == pytest.approx(5.0, abs=0.3) and raw.std() == pytest.approx(1.0, abs=0.2)
    new = net.distribution.log_prob(net.policy(params, batch.obs), batch.raw)
    ratio = np.exp(np.asarray(new, np.float64) - np.asarray(batch.log_prob, np.float64))
    np.testing.assert_allclose(ratio, 1.0, atol=1e-6)
    _, metrics = agent.loss(params, batch)
    np.testing.assert_allclose(metrics["approx_kl"], 0.0, atol=1e-6)
    np.testing.assert_array_equal(metrics["clip_fraction"], 0.0)
    if not normalize:
        received = per_env(batch.obs[0], 16)[1:]
        unit = np.tanh(per_env(batch.raw[0], 16)) if squash else per_env(batch.raw[0], 16)
        over = np.arange(1, T) % 6 == 0  # the first observation of an episode is 0
        np.testing.assert_allclose(received[~over], np.clip(unit, -1, 1)[:-1][~over], atol=1e-6)
        assert np.abs(received).max() <= 1.0


def test_every_environment_acts_by_itself():
    agent = make_ppo(PPOConfig(hidden_sizes=(8,)), *echo_spaces())
    params = agent.init(jax.random.key(0))
    halves = [
        rollout(echo_env(), agent, params=params, num_envs=4, first_id=first)[1] for first in (0, 4)
    ]
    actions = np.concatenate([per_env(batch.raw[0], 4) for batch in halves], axis=1)
    assert len({column.tobytes() for column in actions.T}) == 8
    whole = rollout(echo_env(), agent, params=params, num_envs=8)[1]
    # An environment draws by its global number, however large the block that holds it.
    np.testing.assert_allclose(per_env(whole.raw[0], 8)[0], actions[0], rtol=1e-5)


def echo_spaces() -> tuple[spaces.Box, spaces.Space]:
    env = echo_env()
    return env.observation_space, env.action_space  # type: ignore[return-value]


def test_rewards_are_scaled_by_the_spread_of_the_return():
    spread = update_moments(init_moments(1), batch_moments(jnp.array([[-4.0, 4.0]]), jnp.ones(2)))
    statistics = NO_DATA._replace(returns=spread)
    settings = SETTINGS._replace(normalize_reward=True)
    env = toy_envs.step_index(5)
    _, batch, sums = rollout(env, ten_times_obs(), settings, statistics=statistics)
    # The spread is 4: a reward of 1 counts 0.25; what is reported stays as it was.
    obs = per_env(batch.obs[0])[:, 0]
    np.testing.assert_allclose(per_env(batch.target)[:, 0], 0.25 + 9.0 * (obs + 1.0), rtol=1e-6)
    assert float(sums.reward_sum) == 24 and float(sums.return_sum) == 20
    # Discounted returns 1, 1.9, 2.71, 3.439, 4.0951 in each episode, then anew.
    returns = np.array([1, 1.9, 2.71, 3.439, 4.0951] * 2 + [1, 1.9])
    assert float(sums.returns.mean[0]) == pytest.approx(returns.mean(), rel=1e-6)
    assert float(sums.returns.samples) == 24
