"""Action distributions on feature-major parameters.

Each is a NamedTuple of pure functions over network outputs. A sample is kept *raw* (an
integer, or a Gaussian value before any clipping or squashing): its log-probability is
then exact, and ``to_env`` alone turns it into what the environment receives.
Shapes: ``A`` action dimensions or choices, ``n`` samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

_HALF_LOG_TWO_PI = 0.5 * np.log(2 * np.pi)


class Distribution(NamedTuple):
    """Functions of the parameters ``dist`` that a policy head yields for ``n`` samples.

    ``sample(dist, keys [n]) -> raw``; ``mode(dist) -> raw``;
    ``log_prob(dist, raw) -> [n]``; ``entropy(dist) -> [n]``;
    ``to_env(raw) -> [n, ...]`` an action inside the bounds; ``outputs`` the head's size;
    ``scale`` whether the policy also holds a state-independent ``log_std [A]``.
    """

    outputs: int
    scale: bool
    sample: Callable[..., jax.Array]
    mode: Callable[..., jax.Array]
    log_prob: Callable[..., jax.Array]
    entropy: Callable[..., jax.Array]
    to_env: Callable[[jax.Array], jax.Array]


class Gaussian(NamedTuple):
    """Parameters of a diagonal normal: ``mean [A, n]`` and ``log_std [A]``."""

    mean: jax.Array
    log_std: jax.Array


def tanh_log_det(raw: jax.Array) -> jax.Array:
    """``log(1 - tanh(x)^2)`` without cancellation: ``2 (log 2 - x - softplus(-2 x))``.

    Finite with finite gradients for every finite ``x`` (Haarnoja et al. 2018, appendix C).
    """
    return 2.0 * (np.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))


def categorical(num_actions: int) -> Distribution:
    """Categorical over ``num_actions`` choices; ``dist`` is logits ``[A, n]``."""

    def sample(logits: jax.Array, keys: jax.Array) -> jax.Array:
        noise = jax.vmap(lambda k: jax.random.gumbel(k, (num_actions,)), out_axes=1)(keys)
        return jnp.argmax(logits + noise, axis=0).astype(jnp.int32)

    def log_prob(logits: jax.Array, raw: jax.Array) -> jax.Array:
        chosen = jax.nn.one_hot(raw, num_actions, axis=0, dtype=logits.dtype)
        return jnp.sum(jax.nn.log_softmax(logits, axis=0) * chosen, axis=0)

    def entropy(logits: jax.Array) -> jax.Array:
        log_p = jax.nn.log_softmax(logits, axis=0)
        return -jnp.sum(jnp.exp(log_p) * log_p, axis=0)

    return Distribution(
        outputs=num_actions,
        scale=False,
        sample=sample,
        mode=lambda logits: jnp.argmax(logits, axis=0).astype(jnp.int32),
        log_prob=log_prob,
        entropy=entropy,
        to_env=lambda raw: raw,
    )


def diagonal_gaussian(space: spaces.Box, squash: bool) -> Distribution:
    """Normal with a state-independent standard deviation over a box ``[A]``.

    Where the bounds are finite the policy works in units in which they are -1 and 1. The
    environment receives the sample clipped to the bounds, or with ``squash`` its tanh;
    the log-probability is that of the stored sample (with ``squash``: of its tanh).
    ``entropy`` is that of the normal before squashing, which has no closed form after it.
    """
    low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
    bounded = np.isfinite(low) & np.isfinite(high)
    if squash and not bounded.all():
        raise ValueError(
            f"algo.tanh_squash=true needs an action space with finite bounds, not {space}"
        )
    bottom, top = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
    center = ((bottom + top) / 2).astype(np.float32)
    half_width = ((top - bottom) / 2).astype(np.float32)

    def sample(dist: Gaussian, keys: jax.Array) -> jax.Array:
        size = (dist.mean.shape[0],)
        noise = jax.vmap(lambda k: jax.random.normal(k, size), out_axes=1)(keys)
        return dist.mean + jnp.exp(dist.log_std)[:, None] * noise

    def log_prob(dist: Gaussian, raw: jax.Array) -> jax.Array:
        z = (raw - dist.mean) * jnp.exp(-dist.log_std)[:, None]
        density = -0.5 * z * z - dist.log_std[:, None] - _HALF_LOG_TWO_PI
        if squash:
            density = density - tanh_log_det(raw)
        return jnp.sum(density, axis=0)

    def entropy(dist: Gaussian) -> jax.Array:
        total = jnp.sum(dist.log_std + 0.5 + _HALF_LOG_TWO_PI)
        return jnp.broadcast_to(total, dist.mean.shape[1:])

    def to_env(raw: jax.Array) -> jax.Array:
        unit = jnp.tanh(raw) if squash else raw
        return jnp.clip(unit.T * half_width + center, low, high)

    return Distribution(
        outputs=int(np.prod(space.shape)),
        scale=True,
        sample=sample,
        mode=lambda dist: dist.mean,
        log_prob=log_prob,
        entropy=entropy,
        to_env=to_env,
    )


def for_space(space: spaces.Space, squash: bool) -> Distribution:
    """The distribution that fits an action space.

    Raises:
        ValueError: the space is neither ``Discrete`` nor a one-dimensional ``Box``.
    """
    if isinstance(space, spaces.Discrete):
        if squash:
            raise ValueError("algo.tanh_squash=true needs continuous actions, not " + str(space))
        return categorical(int(space.n))
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return diagonal_gaussian(space, squash)
    raise ValueError(f"no action distribution fits {space}: Discrete and 1-D Box do")
