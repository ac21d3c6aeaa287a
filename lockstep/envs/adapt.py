"""What every adapter shares: stable dtypes, the two ends of an episode, options by name."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lockstep.errors import UsageError, nearest
from lockstep.protocols import FunctionalEnvironment, PyTree, Transition


def transition(
    obs: jax.Array,
    reward: Any,
    terminated: Any,
    truncated: Any,
    info: dict[str, jax.Array],
) -> Transition:
    """Return the transition of an environment that does not reset itself.

    ``obs [D]`` is also ``final_obs``; ``reward`` becomes a float32 scalar; the flags become
    boolean scalars of which at most one is set: an episode that terminates in its last allowed
    step has terminated.
    """
    terminated = jnp.asarray(terminated, jnp.bool_).reshape(())
    truncated = jnp.asarray(truncated, jnp.bool_).reshape(()) & ~terminated
    reward = jnp.asarray(reward, jnp.float32).reshape(())
    return Transition(obs, reward, terminated, truncated, obs, info)


def is_key(leaf: Any) -> bool:
    """Tell whether a leaf (array or shape) is a typed random key, which no cast may touch."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def settled_dtypes(first: PyTree, later: PyTree) -> PyTree:
    """Return the dtype of every state leaf that holds both after a reset and after a step.

    ``first`` and ``later`` are trees of shapes of the same structure.
    """
    return jax.tree.map(
        lambda a, b: a.dtype if is_key(a) else jnp.promote_types(a.dtype, b.dtype), first, later
    )


def settle(state: PyTree, dtypes: PyTree) -> PyTree:
    """Cast the leaves of ``state``, so that a scan over steps sees one type (none weak)."""
    return jax.tree.map(
        lambda leaf, dtype: (
            leaf
            if jnp.issubdtype(dtype, jax.dtypes.prng_key)
            else jax.lax.convert_element_type(leaf, dtype)
        ),
        state,
        dtypes,
    )


def scalars(values: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Return the entries that are one number each, as float32 scalars."""
    return {
        name: jnp.asarray(value, jnp.float32)
        for name, value in values.items()
        if jnp.shape(value) == () and not is_key(jnp.asarray(value))
    }


class TimedState(NamedTuple):
    """An environment's own state and the steps (int32) of the running episode."""

    inner: PyTree
    steps: jax.Array


def time_limit(env: FunctionalEnvironment, limit: int) -> FunctionalEnvironment:
    """Return ``env`` with every episode truncated after ``limit`` steps at the latest."""

    def reset(key: jax.Array) -> tuple[TimedState, jax.Array]:
        inner, obs = env.reset(key)
        return TimedState(inner, jnp.int32(0)), obs

    def step(state: TimedState, action: jax.Array, key: jax.Array) -> tuple[TimedState, Transition]:
        inner, t = env.step(state.inner, action, key)
        steps = state.steps + 1
        truncated = (t.truncated | (steps >= limit)) & ~t.terminated
        return TimedState(inner, steps), t._replace(truncated=truncated)

    shorter = limit if env.max_episode_steps is None else min(limit, env.max_episode_steps)
    return env._replace(reset=reset, step=step, max_episode_steps=shorter)


def check_options(task: str, given: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Refuse an option that the task does not have, with the nearest one that it has."""
    allowed = sorted(set(allowed))
    for name in given:
        if name not in allowed:
            raise UsageError(
                f"task {task!r} has no option {name!r}: did you mean {nearest(name, allowed)!r}? "
                f"(options: {', '.join(allowed)})"
            )


def positive_int(task: str, name: str, value: Any) -> int:
    """Return ``value`` if it is a whole number of at least 1, else refuse it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(
            f"option {name!r} of task {task!r} is a whole number of at least 1, got {value!r}"
        )
    return value


def like(task: str, name: str, default: Any, value: Any) -> Any:
    """Return ``value`` as the kind of thing ``default`` is; other kinds pass unchanged.

    The kinds are a flag, a whole number, a number, and as many numbers as ``default`` has.
    """
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        kind = "true or false"
    elif isinstance(default, int):
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):
            return int(value)
        kind = "a whole number"
    elif isinstance(default, float):
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            return float(value)
        kind = "a number"
    elif isinstance(default, jax.Array | tuple):
        like_default = jnp.asarray(default)
        kind = f"{like_default.size} numbers"
        try:
            array = jnp.asarray(value, like_default.dtype)
        except (TypeError, ValueError):
            array = None
        if array is not None and array.shape == like_default.shape:
            return tuple(array.tolist()) if isinstance(default, tuple) else array
    else:
        return value
    raise UsageError(f"option {name!r} of task {task!r} is {kind}, got {value!r}")
