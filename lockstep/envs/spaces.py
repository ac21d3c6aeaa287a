"""Observations as one flat vector, actions as one number or one flat vector.

``D`` is the number of features of the flat observation, ``A`` of the action. Spaces are
gymnasium's; the functions returned here are pure and may be jitted and vmapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from lockstep.errors import UsageError

Flatten = Callable[[Any], jax.Array]
ToEnvironment = Callable[[jax.Array], jax.Array]

_LARGEST = float(np.finfo(np.float32).max)


def flat_observation(task: str, space: spaces.Space) -> tuple[spaces.Box, Flatten]:
    """Return the flat form of ``space`` and the function that brings an observation into it.

    The flat form is a float32 ``Box`` of shape ``[D]``: a ``Box`` is ravelled in C order,
    ``Discrete`` and every entry of ``MultiDiscrete`` become one-hot, ``MultiBinary`` becomes
    zeros and ones, ``Dict`` (in the space's own order) and ``Tuple`` are concatenated.

    Raises:
        UsageError: a space of another kind.
    """
    low, high, flatten = _flat(task, space)
    # The largest finite number stands for "no bound" in many environments.
    low = np.where(low <= -_LARGEST, -np.inf, low).astype(np.float32)
    high = np.where(high >= _LARGEST, np.inf, high).astype(np.float32)
    return spaces.Box(low, high, dtype=np.float32), flatten


def _flat(task: str, space: spaces.Space) -> tuple[np.ndarray, np.ndarray, Flatten]:
    if isinstance(space, spaces.Box):
        low = np.asarray(space.low, np.float32).reshape(-1)
        high = np.asarray(space.high, np.float32).reshape(-1)
        return low, high, lambda obs: jnp.asarray(obs, jnp.float32).reshape(-1)
    if isinstance(space, spaces.Discrete):
        return _one_hot(np.array([space.n]), np.array([space.start]))
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(space.nvec.reshape(-1), space.start.reshape(-1))
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        ravel: Flatten = lambda obs: jnp.asarray(obs, jnp.float32).reshape(-1)  # noqa: E731
        return np.zeros(size, np.float32), np.ones(size, np.float32), ravel
    if isinstance(space, spaces.Dict):
        names = list(space.spaces)
        return _joined(task, names, [space.spaces[name] for name in names])
    if isinstance(space, spaces.Tuple):
        return _joined(task, list(range(len(space.spaces))), list(space.spaces))
    raise UsageError(
        f"task {task!r} observes a {type(space).__name__} space; lockstep takes Box, Discrete, "
        "MultiDiscrete, MultiBinary, and Dict or Tuple of these"
    )


def _one_hot(sizes: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, Flatten]:
    def flatten(obs: Any) -> jax.Array:
        values = jnp.asarray(obs, jnp.int32).reshape(-1)
        parts = [
            jax.nn.one_hot(values[i] - int(start), int(size), dtype=jnp.float32)
            for i, (size, start) in enumerate(zip(sizes, starts, strict=True))
        ]
        return jnp.concatenate(parts)

    total = int(sizes.sum())
    return np.zeros(total, np.float32), np.ones(total, np.float32), flatten


def _joined(
    task: str, keys: list[Any], children: list[spaces.Space]
) -> tuple[np.ndarray, np.ndarray, Flatten]:
    if not children:
        raise UsageError(f"task {task!r} observes an empty space; at least one feature is needed")
    parts = [_flat(task, child) for child in children]

    def flatten(obs: Any) -> jax.Array:
        flat = [part[2](obs[key]) for key, part in zip(keys, parts, strict=True)]
        return jnp.concatenate(flat)

    low = np.concatenate([part[0] for part in parts])
    high = np.concatenate([part[1] for part in parts])
    return low, high, flatten


def flat_action(
    task: str, space: spaces.Space
) -> tuple[spaces.Discrete | spaces.Box, ToEnvironment]:
    """Return the action space an agent sees and the function that maps its action back.

    ``Discrete(n)`` counts from 0; a float ``Box`` has shape ``[A]`` and finite bounds, and an
    action outside them is clipped, so that the environment never sees one.

    Raises:
        UsageError: an action space of another kind, or bounds that are not finite.
    """
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return spaces.Discrete(int(space.n)), lambda a: jnp.asarray(a, jnp.int32) + start
    if (
        not isinstance(space, spaces.Box)
        or len(space.shape) > 1
        or not np.issubdtype(space.dtype, np.floating)
    ):
        raise UsageError(
            f"task {task!r} acts in {space}; lockstep takes Discrete, or a float Box of at most "
            "one dimension"
        )
    low = np.asarray(space.low, np.float32).reshape(-1)
    high = np.asarray(space.high, np.float32).reshape(-1)
    if not (np.abs(low) < _LARGEST).all() or not (np.abs(high) < _LARGEST).all():
        raise UsageError(
            f"task {task!r} acts in {space}; lockstep needs finite low and high for every action"
        )
    shape = space.shape

    def to_environment(action: jax.Array) -> jax.Array:
        return jnp.clip(jnp.asarray(action, jnp.float32), low, high).reshape(shape)

    return spaces.Box(low, high, dtype=np.float32), to_environment


def abstract_action(space: spaces.Discrete | spaces.Box) -> jax.ShapeDtypeStruct:
    """Return shape and dtype of an agent's action: int32 ``[]`` or float32 ``[A]``."""
    dtype = jnp.int32 if isinstance(space, spaces.Discrete) else jnp.float32
    return jax.ShapeDtypeStruct(space.shape or (), dtype)
