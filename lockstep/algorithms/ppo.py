"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from gymnasium import spaces

from lockstep.agents.actor_critic import ActorCritic, ActorCriticParams
from lockstep.config import PPOConfig
from lockstep.protocols import Minibatch, OnPolicyAgent


def clipped_policy_loss(log_ratio: jax.Array, advantage: jax.Array, epsilon: float) -> jax.Array:
    """Negative clipped surrogate (equation 7) per sample ``[s]``.

    ``-min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)`` with ``r = exp(log_ratio)``.
    """
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - epsilon, 1.0 + epsilon)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def value_loss(
    value: jax.Array, old_value: jax.Array, target: jax.Array, clip: float | None
) -> jax.Array:
    """Half the squared error per sample ``[s]``.

    With ``clip`` the larger of the plain error and that of a value kept within ``clip``
    of the old one.
    """
    error = (value - target) ** 2
    if clip is not None:
        near = old_value + jnp.clip(value - old_value, -clip, clip)
        error = jnp.maximum(error, (near - target) ** 2)
    return 0.5 * error


def make_ppo(config: PPOConfig, obs_space: spaces.Box, action_space: spaces.Space) -> OnPolicyAgent:
    """PPO's agent for these spaces; discrete and continuous actions."""
    net = ActorCritic.configured(config, obs_space, action_space)
    value_clip = config.clip_epsilon if config.clip_value_loss else None

    def loss(params: ActorCriticParams, batch: Minibatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        dist = net.policy(params, batch.obs)
        log_ratio = net.distribution.log_prob(dist, batch.raw) - batch.log_prob
        entropy = net.distribution.entropy(dist)
        policy = clipped_policy_loss(log_ratio, batch.advantage, config.clip_epsilon)
        value = value_loss(net.value(params, batch.obs), batch.value, batch.target, value_clip)
        total = policy + config.value_coef * value - config.entropy_coef * entropy
        ratio = jnp.exp(log_ratio)
        return total, {
            "policy_loss": policy,
            "value_loss": value,
            "entropy": entropy,
            "approx_kl": ratio - 1.0 - log_ratio,  # Schulman's k3 estimator
            "clip_fraction": (jnp.abs(ratio - 1.0) > config.clip_epsilon).astype(jnp.float32),
        }

    return OnPolicyAgent(
        net.init, net.compute_actions, net.evaluate_actions, net.sample_actions, net.value, loss
    )
