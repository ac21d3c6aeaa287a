"""A policy and a value network side by side, for every on-policy algorithm.

Shapes: ``D`` observation features, ``A`` action dimensions, ``n`` samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from lockstep.agents import distributions
from lockstep.agents.networks import Layer, apply_mlp, init_mlp
from lockstep.config import OnPolicyConfig
from lockstep.protocols import Decision


class ActorCriticParams(NamedTuple):
    """Parameters; ``log_std [A]`` is None for discrete actions.

    Not an empty array: one of those as a sharded output crashes jax 0.11.2 on CPU devices.
    """

    actor: list[Layer]
    critic: list[Layer]
    log_std: jax.Array | None


class ActorCritic:
    """Two separate MLPs over flat observations; final and stateless."""

    def __init__(
        self,
        obs_space: spaces.Box,
        action_space: spaces.Space,
        *,
        hidden_sizes: Sequence[int],
        activation: str,
        tanh_squash: bool = False,
        init_log_std: float = 0.0,
    ) -> None:
        self.distribution = distributions.for_space(action_space, tanh_squash)
        self._inputs = int(obs_space.shape[0])
        self._hidden = tuple(hidden_sizes)
        self._activation = activation
        self._init_log_std = init_log_std

    @classmethod
    def configured(
        cls, config: OnPolicyConfig, obs_space: spaces.Box, action_space: spaces.Space
    ) -> ActorCritic:
        """The networks an algorithm's configuration asks for."""
        return cls(
            obs_space,
            action_space,
            hidden_sizes=config.hidden_sizes,
            activation=config.activation,
            tanh_squash=config.tanh_squash,
            init_log_std=config.init_log_std,
        )

    def init(self, key: jax.Array) -> ActorCriticParams:
        """Orthogonal initialisation: scale 0.01 for the policy's head, 1 for the value's."""
        actor_key, critic_key = jax.random.split(key)
        outputs = self.distribution.outputs
        sizes = (self._inputs, *self._hidden)
        return ActorCriticParams(
            actor=init_mlp(actor_key, (*sizes, outputs), output_scale=0.01),
            critic=init_mlp(critic_key, (*sizes, 1), output_scale=1.0),
            log_std=jnp.full(outputs, self._init_log_std) if self.distribution.scale else None,
        )

    def policy(self, params: ActorCriticParams, obs: jax.Array) -> Any:
        """Distribution parameters for ``obs [D, n]``."""
        head = apply_mlp(params.actor, obs, self._activation)
        return head if params.log_std is None else distributions.Gaussian(head, params.log_std)

    def value(self, params: ActorCriticParams, obs: jax.Array) -> jax.Array:
        """Values ``[n]`` of ``obs [D, n]``."""
        return apply_mlp(params.critic, obs, self._activation)[0]

    def compute_actions(
        self, params: ActorCriticParams, obs: jax.Array, keys: jax.Array
    ) -> Decision:
        """Explore: sample an action for ``obs [D, n]`` with ``keys [n]``."""
        dist = self.policy(params, obs)
        raw = self.distribution.sample(dist, keys)
        log_prob = self.distribution.log_prob(dist, raw)
        return Decision(self.distribution.to_env(raw), raw, log_prob, self.value(params, obs))

    def sample_actions(
        self, params: ActorCriticParams, obs: jax.Array, keys: jax.Array
    ) -> jax.Array:
        """The sampled action alone, as the environment receives it."""
        raw = self.distribution.sample(self.policy(params, obs), keys)
        return self.distribution.to_env(raw)

    def evaluate_actions(self, params: ActorCriticParams, obs: jax.Array) -> jax.Array:
        """The most likely action, as the environment receives it."""
        return self.distribution.to_env(self.distribution.mode(self.policy(params, obs)))
