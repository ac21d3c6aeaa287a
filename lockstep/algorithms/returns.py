"""Returns and advantages. Shapes: ``T`` steps, ``n`` environments."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def gae(
    rewards: jax.Array,
    values: jax.Array,
    next_values: jax.Array,
    done: jax.Array,
    gamma: float,
    lam: float,
) -> jax.Array:
    """Generalised advantage estimation (Schulman et al. 2016, equation 16), ``[T, n]``.

    ``next_values[t]`` is the value of the observation that step ``t`` led to: 0 where the
    episode terminated, the value of the *final* observation where it was truncated. The
    sum over lambda is cut wherever ``done`` (either end):
    ``delta_t = r_t + gamma next_values_t - values_t``,
    ``A_t = delta_t + gamma lam (1 - done_t) A_{t+1}``.
    """
    delta = rewards + gamma * next_values - values
    decay = gamma * lam * (1.0 - done)

    def backward(
        following: jax.Array, now: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        advantage = now[0] + now[1] * following
        return advantage, advantage

    _, advantages = jax.lax.scan(backward, jnp.zeros_like(values[0]), (delta, decay), reverse=True)
    return advantages
