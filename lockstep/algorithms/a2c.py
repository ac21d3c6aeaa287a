"""Synchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783)."""

from __future__ import annotations

import jax
from gymnasium import spaces

from lockstep.agents.actor_critic import ActorCritic, ActorCriticParams
from lockstep.config import A2CConfig
from lockstep.protocols import Minibatch, OnPolicyAgent


def make_a2c(config: A2CConfig, obs_space: spaces.Box, action_space: spaces.Space) -> OnPolicyAgent:
    """A2C's agent for these spaces: ``-log pi(a) A + value_coef (V - target)^2 / 2 - H``."""
    net = ActorCritic.configured(config, obs_space, action_space)

    def loss(params: ActorCriticParams, batch: Minibatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        dist = net.policy(params, batch.obs)
        log_prob = net.distribution.log_prob(dist, batch.raw)
        entropy = net.distribution.entropy(dist)
        policy = -log_prob * batch.advantage
        value = 0.5 * (net.value(params, batch.obs) - batch.target) ** 2
        total = policy + config.value_coef * value - config.entropy_coef * entropy
        return total, {
            "policy_loss": policy,
            "value_loss": value,
            "entropy": entropy,
            "approx_kl": batch.log_prob - log_prob,
        }

    return OnPolicyAgent(
        net.init, net.compute_actions, net.evaluate_actions, net.sample_actions, net.value, loss
    )
