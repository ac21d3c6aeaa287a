"""One gradient step whose gradients and loss are averaged over a mesh axis.

All gradients and the loss travel as one flat vector (one for each dtype, in one collective),
because an operation between processes costs milliseconds whatever its size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from lockstep.distributed.comm import pmean

PyTree = Any


def gradient_update(
    loss_fn: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    dp_axis_name: str | None,
    has_aux: bool = False,
) -> Callable[..., tuple[Any, PyTree, PyTree]]:
    """Make ``f(opt_state, params, *args) -> (value, params, opt_state)``.

    Args:
        loss_fn: ``loss_fn(params, *args) -> loss``, or ``(loss, aux)`` with ``has_aux``.
        optimizer: its ``update`` gets the parameters too, so that weight decay works.
        dp_axis_name: mesh axis over which gradients and loss are averaged; None: no averaging.
        has_aux: then ``value`` is ``(loss, aux)``.

    Returns:
        The function. ``loss`` in its value is the mean over the axis, equal on all devices;
        ``aux`` is this device's own, because only its maker knows whether to sum, average or
        gather it. Parameters that are equal on all devices stay so.
    """
    value_and_grad = jax.value_and_grad(loss_fn, has_aux=has_aux)

    def update(opt_state: PyTree, params: PyTree, *args: Any) -> tuple[Any, PyTree, PyTree]:
        value, grads = value_and_grad(_local_copy(params, dp_axis_name), *args)
        loss, aux = value if has_aux else (value, None)
        loss, grads = _mean_flat((loss, grads), dp_axis_name)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return (loss, aux) if has_aux else loss, params, opt_state

    return update


def _attach_params_to_agent_state(agent_state: PyTree, params: PyTree) -> PyTree:
    """The agent's state with its field ``params`` replaced."""
    if isinstance(agent_state, dict):
        return {**agent_state, "params": params}
    for method in ("replace", "_replace"):
        if hasattr(agent_state, method):
            return getattr(agent_state, method)(params=params)
    if dataclasses.is_dataclass(agent_state) and not isinstance(agent_state, type):
        return dataclasses.replace(agent_state, params=params)
    raise ValueError(
        f"agent state {type(agent_state).__name__} is no dict, NamedTuple or dataclass: "
        "give attach_fn and detach_fn"
    )


def _detach_params_to_agent_state(agent_state: PyTree) -> PyTree:
    """The field ``params`` of the agent's state."""
    return agent_state["params"] if isinstance(agent_state, dict) else agent_state.params


def agent_gradient_update(
    loss_fn: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    dp_axis_name: str | None = None,
    has_aux: bool = False,
    attach_fn: Callable[[PyTree, PyTree], PyTree] = _attach_params_to_agent_state,
    detach_fn: Callable[[PyTree], PyTree] = _detach_params_to_agent_state,
) -> Callable[..., tuple[Any, PyTree, PyTree]]:
    """Make ``f(opt_state, agent_state, batch, key) -> (value, agent_state, opt_state)``.

    Args:
        loss_fn: ``loss_fn(agent_state, batch, key) -> loss``, or ``(loss, aux)``.
        optimizer: as in :func:`gradient_update`; its state is that of the detached part.
        dp_axis_name: as in :func:`gradient_update`.
        has_aux: as in :func:`gradient_update`.
        attach_fn: ``(agent_state, params) -> agent_state``.
        detach_fn: ``agent_state -> params``, the part that is trained; by default the field
            ``params`` of a dict, NamedTuple or dataclass.
    """

    def loss_of_params(params: PyTree, agent_state: PyTree, *args: Any) -> Any:
        return loss_fn(attach_fn(agent_state, params), *args)

    update_params = gradient_update(loss_of_params, optimizer, dp_axis_name, has_aux)

    def update(opt_state: PyTree, agent_state: PyTree, *args: Any) -> tuple[Any, PyTree, PyTree]:
        params = detach_fn(agent_state)
        value, params, opt_state = update_params(opt_state, params, agent_state, *args)
        return value, attach_fn(agent_state, params), opt_state

    return update


def _local_copy(params: PyTree, axis_name: str | None) -> PyTree:
    """Parameters whose gradient is this device's own.

    ``jax.shard_map`` with ``check_vma=True`` knows that a replicated value is equal on all
    devices and sums its gradient over them unasked; a mean of that would be too large by the
    number of devices. A value cast to "varying" has a local gradient.
    """
    if axis_name is None:
        return params

    def cast(leaf: jax.Array) -> jax.Array:
        try:
            return lax.pcast(leaf, axis_name, to="varying")
        except ValueError:  # it varies already, or the axis is that of a vmap
            return leaf

    return jax.tree.map(cast, params)


def _mean_flat(tree: PyTree, axis_name: str | None) -> PyTree:
    """Mean over the axis of all leaves, as one vector for each dtype in one collective."""
    if axis_name is None:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    groups: dict[Any, list[int]] = {}
    for index, leaf in enumerate(leaves):
        groups.setdefault(leaf.dtype, []).append(index)
    vectors = [
        jnp.concatenate([leaves[index].ravel() for index in indices]) for indices in groups.values()
    ]
    means = pmean(vectors, axis_name)
    for indices, vector in zip(groups.values(), means, strict=True):
        start = 0
        for index in indices:
            shape, size = leaves[index].shape, leaves[index].size
            leaves[index] = vector[start : start + size].reshape(shape)
            start += size
    return jax.tree.unflatten(structure, leaves)
