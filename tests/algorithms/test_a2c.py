"""A2C's loss in literal numbers."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from lockstep.agents.actor_critic import ActorCriticParams
from lockstep.agents.networks import Layer
from lockstep.algorithms.a2c import make_a2c
from lockstep.config import A2CConfig
from lockstep.protocols import Minibatch


def test_whole_loss_and_its_gradient_by_hand():
    config = A2CConfig(hidden_sizes=(), value_coef=0.5, entropy_coef=0.1)
    agent = make_a2c(config, spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(2))
    params = ActorCriticParams(
        actor=[Layer(jnp.array([[0.0, math.log(3.0)]]), jnp.zeros(2))],
        critic=[Layer(jnp.array([[2.0]]), jnp.array([1.0]))],
        log_std=None,
    )
    # Probabilities 1/4 and 3/4 with value 3 at observation 1; 1/2, 1/2 with value 1 at 0.
    minibatch = Minibatch(
        obs=jnp.array([[1.0, 0.0]]),
        raw=jnp.array([1, 0]),
        log_prob=jnp.log(jnp.array([0.75, 0.5])),
        value=jnp.array([3.0, 1.0]),
        advantage=jnp.array([2.0, -1.0]),
        target=jnp.array([2.0, 4.0]),
        weight=jnp.ones(2),
    )
    loss, metrics = agent.loss(params, minibatch)
    policy = [-2.0 * math.log(0.75), math.log(0.5)]
    entropy = [0.25 * math.log(4) + 0.75 * math.log(4 / 3), math.log(2)]
    np.testing.assert_allclose(metrics["policy_loss"], policy, rtol=1e-6)
    np.testing.assert_allclose(metrics["value_loss"], [0.5, 4.5], rtol=1e-6)
    np.testing.assert_allclose(metrics["entropy"], entropy, rtol=1e-6)
    np.testing.assert_allclose(metrics["approx_kl"], [0.0, 0.0], atol=1e-6)
    expected = [policy[0] + 0.25 - 0.1 * entropy[0], policy[1] + 2.25 - 0.1 * entropy[1]]
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    gradient = jax.grad(lambda p: jnp.sum(agent.loss(p, minibatch)[0]))(params)
    # value_coef (V - target) = 0.5 (1, -3), summed for the bias, times the observation for the
    # weight: the advantage is a constant.
    np.testing.assert_allclose(gradient.critic[0].bias, [-1.0], rtol=1e-6)
    np.testing.assert_allclose(gradient.critic[0].weight, [[0.5]], rtol=1e-6)
