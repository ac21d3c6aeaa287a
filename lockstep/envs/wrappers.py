"""From one environment to a block of them that resets itself and survives NaN.

Shapes: ``n`` environments of one block, ``D`` observation features. Observations leave
the wrapper feature-major, ``[D, n]``; everything else has the environments first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lockstep.protocols import Environment


class VectorState(NamedTuple):
    """State of ``n`` environments: theirs, what they show, and the running episode."""

    env: Any
    obs: jax.Array  # [n, D], finite
    sound: jax.Array  # [n] bool: whether it was finite as the environment gave it
    episode_return: jax.Array  # [n]
    episode_length: jax.Array  # [n]


class VectorTransition(NamedTuple):
    """One step of ``n`` environments, with the reset already done.

    ``valid`` is False where the environment yielded a NaN or an infinity: that one was
    reset, its transition is to be masked. ``raw_reward`` and ``raw_obs`` are what it
    really gave. ``finished_return`` and ``finished_length`` count where ``done``.
    """

    reward: jax.Array  # [n]
    terminated: jax.Array  # [n] bool
    truncated: jax.Array  # [n] bool
    done: jax.Array  # [n] bool
    valid: jax.Array  # [n] bool
    final_obs: jax.Array  # [D, n]
    raw_reward: jax.Array  # [n]
    raw_obs: jax.Array  # [n, D]
    finished_return: jax.Array  # [n]
    finished_length: jax.Array  # [n]


def select(mask: jax.Array, if_true: Any, if_false: Any) -> Any:
    """Choose whole environments ``[n, ...]`` of two trees by ``mask [n]``."""

    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, if_true, if_false)


def _finite(obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Observations ``[n, D]`` with 0 for what is not finite, and which had nothing of it."""
    finite = jnp.isfinite(obs)
    return jnp.where(finite, obs, 0.0), jnp.all(finite, axis=1)


class VectorEnv(NamedTuple):
    """``reset(keys [n]) -> VectorState``; ``step(state, action, step keys, reset keys)``."""

    reset: Callable[[jax.Array], VectorState]
    step: Callable[..., tuple[VectorState, VectorTransition]]


def vectorize(env: Environment) -> VectorEnv:
    """Batch ``env``, reset finished episodes, and isolate environments that yield NaN.

    A new episode starts from a fresh ``env.reset`` with its own key: goals and start
    states are never repeated. With ``env.expensive_reset`` the reset is computed only in
    steps in which an episode of the block ended.
    """

    def reset(keys: jax.Array) -> VectorState:
        state, obs = jax.vmap(env.reset)(keys)
        zeros = jnp.zeros(obs.shape[0])
        return VectorState(state, *_finite(obs), zeros, zeros)

    def step(
        state: VectorState, action: jax.Array, step_keys: jax.Array, reset_keys: jax.Array
    ) -> tuple[VectorState, VectorTransition]:
        inner, seen = jax.vmap(env.step)(state.env, action, step_keys)
        valid = jnp.isfinite(seen.reward) & jnp.all(jnp.isfinite(seen.final_obs), axis=1)
        valid = valid & state.sound  # nor can an action follow from a broken reset
        terminated = seen.terminated & valid
        truncated = seen.truncated & valid & ~terminated
        done = terminated | truncated | ~valid
        reward = jnp.where(valid, seen.reward, 0.0)
        final_obs = jnp.where(valid[:, None], seen.final_obs, 0.0)

        def fresh(_: None) -> tuple[Any, jax.Array]:
            return select(done, jax.vmap(env.reset)(reset_keys), (inner, final_obs))

        if env.expensive_reset:
            inner, obs = jax.lax.cond(jnp.any(done), fresh, lambda _: (inner, final_obs), None)
        else:
            inner, obs = fresh(None)

        total = state.episode_return + reward
        length = state.episode_length + valid
        going = 1.0 - done
        new_state = VectorState(inner, *_finite(obs), total * going, length * going)
        return new_state, VectorTransition(
            reward, terminated, truncated, done, valid, final_obs.T,
            seen.reward, seen.final_obs, total, length,
        )  # fmt: skip

    return VectorEnv(reset, step)
