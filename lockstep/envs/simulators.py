"""Physics simulators whose ``step(state, action)`` returns one state object (brax, Playground).

These tell a natural end alone (``state.done``); the time limit is counted here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from lockstep.envs import adapt
from lockstep.envs.spaces import abstract_action, flat_action
from lockstep.errors import UsageError
from lockstep.protocols import FunctionalEnvironment, Transition


def from_simulator(
    name: str,
    simulator: Any,
    *,
    max_episode_steps: int,
    action_repeat: int = 1,
) -> FunctionalEnvironment:
    """Adapt a simulator with ``reset(key)``, ``step(state, action)`` and ``action_size``.

    Its state has ``obs`` (``[D]``, or a dictionary whose entry ``state`` is taken), ``reward``,
    ``done``, ``metrics`` and ``info``. Actions lie in [-1, 1]. Each step repeats its action
    ``action_repeat`` times, adds up the rewards and stops repeating at a natural end;
    ``max_episode_steps`` counts steps, not repeats.
    """
    bounds = spaces.Box(-1.0, 1.0, (int(simulator.action_size),), np.float32)
    actions, clip = flat_action(name, bounds)
    key = jax.eval_shape(lambda: jax.random.key(0))
    action = abstract_action(actions)
    first = jax.eval_shape(simulator.reset, key)
    later = jax.eval_shape(lambda inner, a: _step_copy(simulator, inner, clip(a)), first, action)
    dtypes = adapt.settled_dtypes(first, later)
    size = jax.eval_shape(lambda inner: _observation(name, inner), first).shape

    def advance(inner: Any, action: jax.Array) -> tuple[Any, jax.Array]:
        inner = adapt.settle(_step_copy(simulator, inner, clip(action)), dtypes)
        return inner, jnp.asarray(inner.reward, jnp.float32)

    move = advance if action_repeat == 1 else _repeated(advance, action_repeat)

    def reset(key: jax.Array) -> tuple[adapt.TimedState, jax.Array]:
        inner = adapt.settle(simulator.reset(key), dtypes)
        return adapt.TimedState(inner, jnp.int32(0)), _observation(name, inner)

    def step(
        state: adapt.TimedState, action: jax.Array, key: jax.Array
    ) -> tuple[adapt.TimedState, Transition]:
        del key  # Simulators are deterministic, or carry a key of their own in their state.
        inner, reward = move(state.inner, action)
        steps = state.steps + 1
        late = steps >= max_episode_steps
        info = adapt.scalars(inner.metrics)
        told = adapt.transition(_observation(name, inner), reward, inner.done, late, info)
        return adapt.TimedState(inner, steps), told

    space = spaces.Box(-np.inf, np.inf, size, np.float32)
    return FunctionalEnvironment(
        name, space, actions, reset, step, max_episode_steps, expensive_reset=True
    )


def _observation(task: str, inner: Any) -> jax.Array:
    """Return the flat observation ``[D]`` of a simulator's state."""
    obs = inner.obs
    if isinstance(obs, Mapping):
        if "state" not in obs:
            raise UsageError(
                f"task {task!r} observes {sorted(obs)}; lockstep takes the entry 'state'"
            )
        obs = obs["state"]
    return jnp.asarray(obs, jnp.float32).reshape(-1)


def _step_copy(simulator: Any, inner: Any, action: jax.Array) -> Any:
    """Step a copy: some simulators update these two dictionaries of their input in place."""
    inner = inner.replace(metrics=dict(inner.metrics), info=dict(inner.info))
    return simulator.step(inner, action)


Advance = Callable[[Any, jax.Array], tuple[Any, jax.Array]]


def _repeated(advance: Advance, times: int) -> Advance:
    """Return ``advance`` done ``times`` times, stopping at a natural end, rewards added up."""

    def advance_repeatedly(inner: Any, action: jax.Array) -> tuple[Any, jax.Array]:
        def once(carry: tuple[Any, jax.Array], _: None) -> tuple[tuple[Any, jax.Array], None]:
            inner, reward = carry
            over = jnp.asarray(inner.done, jnp.bool_)
            later, gained = advance(inner, action)
            kept = jax.tree.map(lambda old, new: jnp.where(over, old, new), inner, later)
            return (kept, reward + jnp.where(over, 0.0, gained)), None

        carry, _ = jax.lax.scan(once, advance(inner, action), None, length=times - 1)
        return carry

    return advance_repeatedly
