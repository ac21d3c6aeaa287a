"""PPO's losses in literal numbers."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from lockstep.agents.actor_critic import ActorCriticParams
from lockstep.agents.networks import Layer
from lockstep.algorithms.ppo import clipped_policy_loss, make_ppo, value_loss
from lockstep.config import PPOConfig
from lockstep.protocols import Minibatch

OBS = spaces.Box(-1.0, 1.0, (1,))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),  # inside the range: the plain surrogate
        (1.5, 2.0, -2.4, 0.0),  # a good action has become likelier than 1 + 0.2: clipped
        (0.5, 2.0, -1.0, -1.0),  # a good action has become rarer: not clipped
        (1.5, -2.0, 3.0, 3.0),  # a bad action has become likelier: not clipped
        (0.5, -2.0, 1.6, 0.0),  # a bad action has become rarer than 1 - 0.2: clipped
    ],
)
def test_policy_loss_is_clipped_on_the_side_that_gains(
    ratio: float, advantage: float, loss: float, slope: float
):
    def of(log_ratio: jax.Array) -> jax.Array:
        return clipped_policy_loss(log_ratio, jnp.float32(advantage), 0.2)

    value, gradient = jax.value_and_grad(of)(jnp.float32(math.log(ratio)))
    assert float(value) == pytest.approx(loss, rel=1e-6)
    # d(ratio)/d(log ratio) = ratio, so an unclipped slope is -ratio x advantage.
    assert float(gradient) == pytest.approx(slope, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize(
    ("value", "clip", "loss"),
    [
        (3.0, None, 2.0),  # (3 - 1)^2 / 2
        (3.0, 0.5, 2.0),  # kept within 2 +- 0.5: (2.5 - 1)^2 / 2 = 1.125 is smaller
        (1.0, 0.5, 0.125),  # the plain error is 0, that of 1.5 is 0.25 / 2
        (2.25, 0.5, 0.78125),  # inside the range both are (1.25)^2 / 2
    ],
)
def test_value_loss_takes_the_larger_error(value: float, clip: float | None, loss: float):
    got = value_loss(jnp.float32(value), jnp.float32(2.0), jnp.float32(1.0), clip)
    assert float(got) == pytest.approx(loss, rel=1e-6)


def linear_params(log_std: float | None = None) -> ActorCriticParams:
    """Policy outputs and value that are linear in one observation; no hidden layer."""
    critic = [Layer(jnp.array([[2.0]]), jnp.array([1.0]))]
    if log_std is None:
        actor = [Layer(jnp.array([[0.0, math.log(3.0)]]), jnp.zeros(2))]
        return ActorCriticParams(actor, critic, None)
    return ActorCriticParams(
        [Layer(jnp.array([[0.5]]), jnp.zeros(1))], critic, jnp.array([log_std])
    )


def batch(**parts: list[float]) -> Minibatch:
    values = {name: jnp.array(x) for name, x in parts.items()}
    return Minibatch(weight=jnp.ones(2), **values)


def test_whole_loss_by_hand_discrete():
    config = PPOConfig(
        hidden_sizes=(), value_coef=0.5, entropy_coef=0.1, clip_epsilon=0.2, clip_value_loss=False
    )
    agent = make_ppo(config, OBS, spaces.Discrete(2))
    # At observation 1 the probabilities are 1/4 and 3/4 and the value is 3, at 0 they are 1/2
    # and 1/2 and the value is 1. Old probabilities: 1/2 and 1/2, so the ratios are 1.5 and 1.
    half = math.log(0.5)
    minibatch = batch(
        obs=[[1.0, 0.0]],
        raw=[1, 0],
        log_prob=[half, half],
        value=[0.0, 0.0],
        advantage=[1.0, -2.0],
        target=[2.0, 1.0],
    )
    loss, metrics = agent.loss(linear_params(), minibatch)
    entropy = [0.25 * math.log(4) + 0.75 * math.log(4 / 3), math.log(2)]
    np.testing.assert_allclose(metrics["policy_loss"], [-1.2, 2.0], rtol=1e-6)
    np.testing.assert_allclose(metrics["value_loss"], [0.5, 0.0], rtol=1e-6)
    np.testing.assert_allclose(metrics["entropy"], entropy, rtol=1e-6)
    np.testing.assert_allclose(metrics["clip_fraction"], [1.0, 0.0])
    np.testing.assert_allclose(metrics["approx_kl"], [0.5 - math.log(1.5), 0.0], atol=1e-6)
    expected = [-1.2 + 0.25 - 0.1 * entropy[0], 2.0 - 0.1 * entropy[1]]
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    clipped = make_ppo(dataclasses.replace(config, clip_value_loss=True), OBS, spaces.Discrete(2))
    # The old value 0 may rise to 0.2: (0.2 - 2)^2 / 2 = 1.62 and (0.2 - 1)^2 / 2 = 0.32.
    _, metrics = clipped.loss(linear_params(), minibatch)
    np.testing.assert_allclose(metrics["value_loss"], [1.62, 0.32], rtol=1e-6)


def test_whole_loss_by_hand_continuous():
    config = PPOConfig(hidden_sizes=(), value_coef=1.0, entropy_coef=0.0)
    agent = make_ppo(config, OBS, spaces.Box(-1.0, 1.0, (1,)))
    # Means 0.5 and 0, standard deviation 1; samples 1.5 (beyond the bound, kept as drawn) and 0.
    density = [-0.5 - 0.5 * math.log(2 * math.pi), -0.5 * math.log(2 * math.pi)]
    minibatch = batch(
        obs=[[1.0, 0.0]],
        raw=[[1.5, 0.0]],
        log_prob=[density[0] - math.log(1.1), density[1]],
        value=[0.0, 0.0],
        advantage=[2.0, 3.0],
        target=[3.0, 3.0],
    )
    loss, metrics = agent.loss(linear_params(log_std=0.0), minibatch)
    np.testing.assert_allclose(metrics["policy_loss"], [-2.2, -3.0], rtol=1e-5)
    np.testing.assert_allclose(loss, [-2.2, -3.0 + 2.0], rtol=1e-5)
