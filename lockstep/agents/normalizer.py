"""Running mean and variance that are the same for every split into devices.

A batch is described by its count, mean and sum of squared deviations (``Moments``).
Moments of blocks are merged by Chan, Golub and LeVeque (1983); what is merged into the
running statistics is always the new data alone, never a total.
Shapes: ``D`` features, ``n`` samples, ``B`` blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Moments(NamedTuple):
    """``samples []`` (how many), ``mean [D]`` and ``m2 [D]``, the sum of squared deviations."""

    samples: jax.Array
    mean: jax.Array
    m2: jax.Array


class RunningMoments(NamedTuple):
    """Moments of all data so far; their number is exact to 2^64 (``[high, low]`` words)."""

    sample_words: jax.Array
    mean: jax.Array
    m2: jax.Array

    @property
    def samples(self) -> jax.Array:
        """The number of samples as float32 (rounded; the words are exact)."""
        high, low = self.sample_words.astype(jnp.float32)
        return high * 2.0**32 + low


def init_moments(size: int) -> RunningMoments:
    """Statistics of no data over ``size`` features."""
    return RunningMoments(jnp.zeros(2, jnp.uint32), jnp.zeros(size), jnp.zeros(size))


def batch_moments(x: jax.Array, weight: jax.Array) -> Moments:
    """Moments of the samples ``x [D, n]`` whose ``weight [n]`` is 1 (others have 0)."""
    count = jnp.sum(weight)
    mean = jnp.sum(x * weight, axis=1) / jnp.maximum(count, 1.0)
    deviation = (x - mean[:, None]) * weight
    return Moments(count, mean, jnp.sum(deviation * deviation, axis=1))


def merge_blocks(blocks: Moments) -> Moments:
    """Merge moments with a leading block dimension ``[B, ...]`` into one."""
    count = jnp.sum(blocks.samples)
    weight = blocks.samples[:, None]
    mean = jnp.sum(weight * blocks.mean, axis=0) / jnp.maximum(count, 1.0)
    between = weight * (blocks.mean - mean) ** 2
    return Moments(count, mean, jnp.sum(blocks.m2 + between, axis=0))


def update_moments(running: RunningMoments, new: Moments) -> RunningMoments:
    """Add new data; adding none changes nothing."""
    old_count = running.samples
    total = jnp.maximum(old_count + new.samples, 1.0)
    delta = new.mean - running.mean
    mean = running.mean + delta * (new.samples / total)
    m2 = running.m2 + new.m2 + delta * delta * (old_count * new.samples / total)
    high, low = running.sample_words
    new_low = low + new.samples.astype(jnp.uint32)
    words = jnp.stack([high + (new_low < low).astype(jnp.uint32), new_low])
    return RunningMoments(words, mean, m2)


def standard_deviation(running: RunningMoments, epsilon: float = 1e-8) -> jax.Array:
    """Population standard deviation ``[D]``; 1 while there is no data."""
    variance = running.m2 / jnp.maximum(running.samples, 1.0)
    return jnp.where(running.samples > 0, jnp.sqrt(variance + epsilon), 1.0)


def normalize(running: RunningMoments, x: jax.Array, clip: float = 10.0) -> jax.Array:
    """Standardise ``x [D, n]`` and clip it to ``[-clip, clip]``; no data: no change."""
    scaled = (x - running.mean[:, None]) / standard_deviation(running)[:, None]
    return jnp.where(running.samples > 0, jnp.clip(scaled, -clip, clip), x)
