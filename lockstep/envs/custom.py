"""A user's own environment, named by its dotted path.

``my_pkg.my_mod:make_env`` or ``my_pkg.my_mod.MyEnv``: a factory, a class, or an instance. What
it gives has ``observation_space``, ``action_space`` (gymnasium's), ``reset`` and ``step`` as
:class:`lockstep.protocols.Environment` tells, or is a gymnax ``Environment``. Its functions are
traced once here, so that a mistake is told before anything is compiled.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces

from lockstep.envs import adapt
from lockstep.envs.catalog import TaskInfo, import_from_working_directory
from lockstep.envs.spaces import abstract_action, flat_action, flat_observation
from lockstep.errors import UsageError, nearest
from lockstep.protocols import FunctionalEnvironment, PyTree, Transition

_NEEDED = ("observation_space", "action_space", "reset", "step")
_BOTH_FLAGS = "give terminated (a natural end) and truncated (a time limit) as two flags"


def make(info: TaskInfo, **options: Any) -> FunctionalEnvironment:
    """Build the environment whose dotted path is ``info.env_id``.

    All options are arguments of the factory or class; ``max_episode_steps``, where that does
    not take it, truncates episodes after that many steps, at most the environment's own limit.

    Raises:
        UsageError: it cannot be imported or built, or does not keep the contract.
    """
    task = info.name
    found = _load(task, info.env_id)
    limit = None
    if "max_episode_steps" in options:
        adapt.positive_int(task, "max_episode_steps", options["max_episode_steps"])
        if not _takes(found, "max_episode_steps"):
            limit = options.pop("max_episode_steps")
    env = _construct(task, found, options)
    if all(hasattr(env, name) for name in ("reset_env", "step_env", "default_params")):
        plain = _from_gymnax(task, env)
    else:
        plain = from_environment(task, env)
    if limit is None:
        return plain
    if plain.max_episode_steps is not None and limit > plain.max_episode_steps:
        raise UsageError(
            f"task {task!r} ends its episodes after {plain.max_episode_steps} steps itself and "
            f"takes no max_episode_steps: max_episode_steps={limit} cannot make them longer"
        )
    return adapt.time_limit(plain, limit)


def _takes(found: Any, name: str) -> bool:
    """Whether a factory or class has an argument of this name."""
    return callable(found) and name in inspect.signature(found).parameters


def _load(task: str, path: str) -> Any:
    """Import the module of ``path`` and return the object it names."""
    module_name, _, names = path.partition(":")
    if not names:
        module_name, _, names = path.rpartition(".")
    import_from_working_directory()
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise UsageError(f"task {task!r}: importing {module_name!r} failed: {error}") from error
    for name in names.split("."):
        if not hasattr(found, name):
            known = [n for n in dir(found) if not n.startswith("_")]
            hint = f": did you mean {nearest(name, known)!r}?" if known else ""
            raise UsageError(f"task {task!r}: {module_name!r} has no {name!r}{hint}")
        found = getattr(found, name)
    return found


def _construct(task: str, found: Any, options: dict[str, Any]) -> Any:
    is_factory = isinstance(found, type) or (callable(found) and not hasattr(found, "step"))
    if not is_factory:
        if options:
            raise UsageError(
                f"task {task!r} is an instance already and takes no options but "
                f"max_episode_steps, got {', '.join(options)}"
            )
        return found
    parameters = inspect.signature(found).parameters.values()
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        adapt.check_options(task, options, {"max_episode_steps", *(p.name for p in parameters)})
    try:
        return found(**options)
    except Exception as error:
        raise UsageError(f"task {task!r} cannot be built: {_first_line(error)}") from error


def _from_gymnax(task: str, env: Any) -> FunctionalEnvironment:
    from gymnax.environments.environment import Environment

    from lockstep.envs.gymnax import from_gymnax

    kind = type(env)
    own_terminal = getattr(kind, "is_terminal", None) is not Environment.is_terminal
    own_terminated = getattr(kind, "is_terminated", None) is not Environment.is_terminated
    if own_terminal and not own_terminated:
        raise UsageError(
            f"task {task!r} defines is_terminal alone, which cannot tell a time limit from a "
            "natural end: define is_terminated (and is_truncated), as gymnax 1.x asks"
        )
    return _traced(task, "it", lambda: from_gymnax(task, env, env.default_params))  # type: ignore[no-any-return]


def from_environment(task: str, env: Any) -> FunctionalEnvironment:
    """Check an object against the contract and return its plain form with flat observations.

    Raises:
        UsageError: an attribute is missing, a space is of an unknown kind, a shape or dtype
            differs from what the spaces tell, or there is only one ``done`` flag.
    """
    missing = [name for name in _NEEDED if not hasattr(env, name)]
    if missing:
        raise UsageError(f"task {task!r} ({type(env).__name__}) has no {', no '.join(missing)}")
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name), spaces.Space):
            raise UsageError(
                f"task {task!r}: {name} is a gymnasium space, got {getattr(env, name)!r}"
            )
    space, flatten = flat_observation(task, env.observation_space)
    actions, to_environment = flat_action(task, env.action_space)
    _check(task, env, actions, to_environment)

    def reset(key: jax.Array) -> tuple[PyTree, jax.Array]:
        state, obs = env.reset(key)
        return _strong(state), flatten(obs)

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Transition]:
        state, t = env.step(state, to_environment(action), key)
        told = adapt.transition(
            flatten(t.final_obs), t.reward, t.terminated, t.truncated, dict(t.info)
        )
        return _strong(state), told

    return FunctionalEnvironment(
        str(getattr(env, "name", task)),
        space,
        actions,
        reset,
        step,
        _limit_of(task, env),
        bool(getattr(env, "expensive_reset", False)),
    )


def _limit_of(task: str, env: Any) -> int | None:
    limit = getattr(env, "max_episode_steps", None)
    return None if limit is None else adapt.positive_int(task, "max_episode_steps", limit)


def _strong(state: PyTree) -> PyTree:
    """Make every leaf an array whose type is not weak, so that scans accept it."""
    return adapt.settle(state, jax.tree.map(lambda leaf: jnp.asarray(leaf).dtype, state))


def _check(task: str, env: Any, actions: spaces.Discrete | spaces.Box, to_environment: Any) -> None:
    """Trace one reset and one step and compare what they give with the contract."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    first = _traced(task, "reset", lambda: jax.eval_shape(env.reset, key))
    if not isinstance(first, tuple) or len(first) != 2:
        raise UsageError(f"task {task!r}: reset gives (state, obs), got {_kind(first)}")
    state, obs = first
    _check_observation(task, "reset", env.observation_space, obs)
    action = jax.eval_shape(to_environment, abstract_action(actions))
    # The result may hold what is no array (a string in info), so only the arrays are kept.
    result = _traced(task, "step", lambda: _shapes_of(env.step, state, action, key))
    if not isinstance(result, tuple) or len(result) != 2:
        single = isinstance(result, tuple) and len(result) in (4, 5)
        raise UsageError(
            f"task {task!r}: step gives (state, Transition), got {_kind(result)}"
            + (f"; {_BOTH_FLAGS}" if single else "")
        )
    later, t = result
    _check_transition(task, t)
    _check_observation(task, "step (final_obs)", env.observation_space, t.final_obs)
    _check_state(task, state, later)


def _shapes_of(step: Callable[..., Any], *arguments: Any) -> Any:
    """Return what ``step`` returns, with shapes for arrays, without computing anything."""
    box: list[Any] = []

    def record(*traced: Any) -> None:
        result = step(*traced)
        box.append(jax.tree.map(lambda leaf: jax.typeof(leaf) if _is_array(leaf) else leaf, result))

    jax.eval_shape(record, *arguments)
    return box[0]


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | bool | int | float) or hasattr(leaf, "dtype")


def _traced(task: str, name: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"task {task!r}: {name} fails when JAX traces it: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _kind(value: Any) -> str:
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return f"a tuple of {len(value)}"
    return f"a {type(value).__name__}"


def _check_transition(task: str, t: Any) -> None:
    missing = [name for name in Transition._fields if not hasattr(t, name)]
    if missing:
        single = hasattr(t, "done") and {"terminated", "truncated"} & set(missing)
        raise UsageError(
            f"task {task!r}: the transition of step has no {', no '.join(missing)}"
            + (f"; a single done flag cannot be told apart: {_BOTH_FLAGS}" if single else "")
        )
    for name in ("reward", "terminated", "truncated"):
        value = getattr(t, name)
        if getattr(value, "shape", None) != ():
            raise UsageError(f"task {task!r}: {name} is one number, got {value}")
        wanted = jnp.floating if name == "reward" else jnp.bool_
        if not jnp.issubdtype(value.dtype, wanted):
            raise UsageError(
                f"task {task!r}: {name} is a {'float' if name == 'reward' else 'boolean'}, "
                f"got {value.dtype}"
            )
    if not isinstance(t.info, dict):
        raise UsageError(f"task {task!r}: info is a dict of arrays, got {_kind(t.info)}")
    for name, value in t.info.items():
        if not hasattr(value, "dtype"):
            raise UsageError(f"task {task!r}: info[{name!r}] is an array, got {value!r}")


def _check_observation(task: str, where: str, space: spaces.Space, obs: Any) -> None:
    """Compare the shapes of ``obs`` with those of ``space``, child by child."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        children = (
            space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        )
        for key, child in children:
            try:
                part = obs[key]
            except (KeyError, IndexError, TypeError):
                raise UsageError(
                    f"task {task!r}: the observation of {where} has no {key!r}, which its space has"
                ) from None
            _check_observation(task, where, child, part)
        return
    if getattr(obs, "shape", None) != space.shape:
        raise UsageError(
            f"task {task!r}: the observation of {where} has shape {space.shape} by its space, "
            f"got {getattr(obs, 'shape', obs)}"
        )


def _check_state(task: str, first: PyTree, later: PyTree) -> None:
    """Refuse a state that changes its structure, shapes or dtypes from reset to step."""
    if str(jax.tree.structure(first)) != str(jax.tree.structure(later)):
        raise UsageError(
            f"task {task!r}: the state of step has the structure of reset's state, "
            f"{jax.tree.structure(first)}, got {jax.tree.structure(later)}"
        )
    pairs = zip(jax.tree.leaves_with_path(first), jax.tree.leaves(later), strict=True)
    for (path, a), b in pairs:
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise UsageError(
                f"task {task!r}: the state's leaf {jax.tree_util.keystr(path)} is "
                f"{a.dtype}{list(a.shape)} after reset but {b.dtype}{list(b.shape)} after step"
            )
