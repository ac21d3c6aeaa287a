"""PPO and A2C find the values and returns that arithmetic knows, on one device and on two."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lockstep import recipes
from lockstep.config import A2CConfig, OnPolicyConfig, PPOConfig
from lockstep.protocols import FunctionalEnvironment
from tests import toy_envs
from tests.workflows.parts import build

GAMMA = 0.8
FOREVER = 1.0 / (1.0 - GAMMA)  # the value of reward 1 in every step without an end

PPO = PPOConfig(
    hidden_sizes=(8,), gamma=GAMMA, rollout_length=8, num_epochs=4, num_minibatches=2,
    learning_rate=1e-2, value_coef=1.0, max_grad_norm=10.0,
)  # fmt: skip
A2C = A2CConfig(
    hidden_sizes=(8,), gamma=GAMMA, rollout_length=8, learning_rate=1e-2, value_coef=1.0,
    max_grad_norm=10.0,
)  # fmt: skip


class Case(NamedTuple):
    """Observations with the values there under the best policy, and what an episode returns."""

    env: Callable[[], FunctionalEnvironment]
    obs: tuple[float, ...]
    values: tuple[float, ...]
    episode_return: float | None = None
    tolerance: float = 0.1


CASES = {
    "constant_reward": Case(toy_envs.constant_reward, (0.0,), (1.0,), 1.0),
    "observation_reward": Case(toy_envs.observation_reward, (-1.0, 1.0), (-1.0, 1.0)),
    "discounted_reward": Case(toy_envs.discounted_reward, (0.0, 1.0), (GAMMA, 1.0), 1.0),
    "policy_reward": Case(toy_envs.policy_reward, (0.0,), (1.0,), 1.0),
    "policy_and_observation_reward": Case(
        toy_envs.policy_and_observation_reward, (-1.0, 1.0), (1.0, 1.0), 1.0
    ),
    # A time limit is no end: every state is worth as much as without one.
    "step_index": Case(toy_envs.step_index, (0.0, 2.0, 4.0), (FOREVER,) * 3, 5.0, 0.5),
    # The best action is 0.5 with return 0; exploring costs the variance.
    "target_action": Case(toy_envs.target_action, (), (), 0.0),
    # Half the episodes break off with NaN, which must neither end nor poison what is learned.
    "nan_at_step": Case(
        lambda: toy_envs.nan_at_step(3, limit=5, probability=0.5),
        (0.0, 2.0, 4.0),
        (FOREVER,) * 3,
        None,
        0.5,
    ),
}


def check_learned(algo: OnPolicyConfig, name: str, devices: int, updates: int) -> None:
    case = CASES[name]
    env = case.env()
    agent = recipes.make_agent(algo, env)
    workflow = build(
        env, algo, agent=agent, num_envs=16, devices=devices, exact=devices > 1, eval_episodes=32
    )
    state = workflow.learn(workflow.setup(jax.random.key(0)), updates)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))
    if case.obs:
        values = agent.value(jax.device_get(state.params), jnp.array([case.obs]))
        np.testing.assert_allclose(values, case.values, atol=case.tolerance)
    if case.episode_return is not None:
        metrics, _ = workflow.evaluate(state)
        assert float(metrics["return_mean"]) == pytest.approx(case.episode_return, abs=0.05)


SLOW = pytest.mark.slow
PPO_FAST = {("policy_and_observation_reward", 1)} | {
    (name, 2)
    for name in (
        "discounted_reward", "policy_and_observation_reward", "step_index", "target_action",
        "nan_at_step",
    )
}  # fmt: skip
A2C_FAST = {("policy_and_observation_reward", 2), ("step_index", 1)}


def cells(fast: set[tuple[str, int]]) -> list:
    """Every environment on one device and two; marked slow but for ``fast``."""
    return [
        pytest.param(name, devices, marks=[] if (name, devices) in fast else [SLOW])
        for name in CASES
        for devices in (1, 2)
    ]


@pytest.mark.parametrize(("name", "devices"), cells(PPO_FAST))
def test_ppo_learns(name: str, devices: int) -> None:
    check_learned(PPO, name, devices, updates=100)


@pytest.mark.parametrize(("name", "devices"), cells(A2C_FAST))
def test_a2c_learns(name: str, devices: int) -> None:
    check_learned(A2C, name, devices, updates=500)
