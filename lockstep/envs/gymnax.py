"""gymnax: classic control, MinAtar, bsuite and miscellaneous tasks in pure JAX.

gymnax 1.x tells natural ends (``step_env``) and time limits (``is_truncated``) apart; its
self-resetting ``step`` is not used.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnax.environments import spaces as gymnax_spaces

from lockstep.envs import adapt
from lockstep.envs.catalog import TaskInfo
from lockstep.envs.spaces import abstract_action, flat_action, flat_observation
from lockstep.errors import UsageError
from lockstep.protocols import FunctionalEnvironment, Transition

_LIMIT = "max_steps_in_episode"

# Where gymnax's bounds do not hold (a context of -1 below a bound of 0, rewards shown as
# observations, pixels read as signed bytes), the flat observation is declared unbounded.
_WRONG_BOUNDS = frozenset(
    {
        "MemoryChain-bsuite",
        "MNISTBandit-bsuite",
        "MetaMaze-misc",
        "GaussianBandit-misc",
    }
)


def make(info: TaskInfo, **options: Any) -> FunctionalEnvironment:
    """Build the gymnax task ``info``.

    Options are ``max_episode_steps``, the arguments of the environment's constructor and the
    fields of its parameters, by gymnax's names.

    Raises:
        UsageError: an option that does not exist or that gymnax refuses, or a missing download.
    """
    env, params = _build(info, {})
    arguments = inspect.signature(type(env)).parameters
    fields = {f.name for f in dataclasses.fields(params)} - {_LIMIT}
    adapt.check_options(info.name, options, {"max_episode_steps", *arguments, *fields})
    chosen = {
        name: adapt.like(info.name, name, arguments[name].default, options[name])
        for name in arguments.keys() & options.keys()
    }
    if chosen:
        env, params = _build(info, chosen)
    horizon = getattr(params, _LIMIT)
    changes = {
        name: adapt.like(info.name, name, getattr(params, name), options[name])
        for name in fields & options.keys()
    }
    if "max_episode_steps" in options:
        limit = adapt.positive_int(info.name, "max_episode_steps", options["max_episode_steps"])
        changes[_LIMIT] = type(horizon)(limit)
    return from_gymnax(
        info.name,
        env,
        dataclasses.replace(params, **changes),
        natural_end=_natural_end(info.env_id, horizon),
        bounded=info.env_id not in _WRONG_BOUNDS,
    )


def _build(info: TaskInfo, arguments: dict[str, Any]) -> tuple[Any, Any]:
    try:
        return gymnax.make(info.env_id, **arguments)
    except OSError as error:
        needs = info.download or "a file that could not be read"
        raise UsageError(f"task {info.name!r} needs {needs}: {error}") from error
    except (TypeError, ValueError, AssertionError) as error:
        told = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        raise UsageError(f"task {info.name!r} cannot be built with {told}: {error}") from error


NaturalEnd = Callable[[Any, Any], Any]


def _natural_end(env_id: str, horizon: float) -> NaturalEnd | None:
    """Return the natural end ``(state, terminated) -> terminated`` where gymnax's is wrong."""
    if env_id == "MetaMaze-misc":
        # Reaching the goal moves the agent to a random cell and the episode goes on (Miconi et
        # al. 2019); gymnax ends it if that cell happens to be the goal.
        return lambda state, terminated: jnp.zeros_like(terminated)
    if env_id == "DiscountingChain-bsuite":
        # The chain is over after its 100 steps, which the observation counts down: bsuite ends
        # it with a termination, gymnax with its time limit.
        return lambda state, terminated: terminated | (state.time >= horizon)
    return None


def from_gymnax(
    name: str,
    env: Any,
    params: Any,
    *,
    natural_end: NaturalEnd | None = None,
    bounded: bool = True,
) -> FunctionalEnvironment:
    """Adapt any gymnax ``Environment`` (1.x) with its parameters.

    ``natural_end(state, terminated)`` overrides when an episode terminates;
    ``bounded=False`` declares the flat observation without bounds.
    """
    space, flatten = flat_observation(name, to_gymnasium(name, env.observation_space(params)))
    actions, to_environment = flat_action(name, to_gymnasium(name, env.action_space(params)))
    if not bounded:
        space = spaces.Box(-np.inf, np.inf, space.shape, np.float32)

    def raw_step(key: jax.Array, state: Any, action: Any) -> tuple[Any, ...]:
        return env.step_env(key, state, to_environment(action), params)  # type: ignore[no-any-return]

    key = jax.eval_shape(lambda: jax.random.key(0))
    action = abstract_action(actions)
    _, first = jax.eval_shape(lambda k: env.reset_env(k, params), key)
    dtypes = adapt.settled_dtypes(first, jax.eval_shape(raw_step, key, first, action)[1])

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        obs, state = env.reset_env(key, params)
        return adapt.settle(state, dtypes), flatten(obs)

    def step(state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, Transition]:
        obs, state, reward, terminated, info = raw_step(key, state, action)
        if natural_end is not None:
            terminated = natural_end(state, terminated)
        truncated = env.is_truncated(state, params)
        # "discount" only repeats the flags.
        info = adapt.scalars({k: v for k, v in info.items() if k != "discount"})
        told = adapt.transition(flatten(obs), reward, terminated, truncated, info)
        return adapt.settle(state, dtypes), told

    limit = int(getattr(params, _LIMIT))
    return FunctionalEnvironment(name, space, actions, reset, step, limit)


def to_gymnasium(task: str, space: Any) -> spaces.Space:
    """Return gymnasium's form of a gymnax space; gymnasium's own pass unchanged."""
    if isinstance(space, spaces.Space):
        return space
    if isinstance(space, gymnax_spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, gymnax_spaces.Box):
        dtype = np.dtype(space.dtype)
        low = np.broadcast_to(np.asarray(space.low, dtype), space.shape)
        high = np.broadcast_to(np.asarray(space.high, dtype), space.shape)
        return spaces.Box(low, high, dtype=dtype.type)
    if isinstance(space, gymnax_spaces.Dict):
        return spaces.Dict({key: to_gymnasium(task, child) for key, child in space.spaces.items()})
    if isinstance(space, gymnax_spaces.Tuple):
        return spaces.Tuple([to_gymnasium(task, child) for child in space.spaces])
    raise UsageError(f"task {task!r} has the unknown gymnax space {space!r}")
