"""The contracts between the parts, as plain data and pure functions.

Shape letters used in every file that handles arrays:
``N`` environments in total, ``n`` environments of one block, ``B`` blocks,
``T`` steps of a rollout, ``D`` observation features, ``A`` action dimensions,
``P`` trained parameters, ``E`` episodes.

Batched network inputs are feature-major: observations are ``[D, n]``, so that a
layer is ``W.T @ x`` and the long batch dimension is contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from gymnasium import spaces

PyTree = Any
EnvState = PyTree
Params = PyTree


class Transition(NamedTuple):
    """What one environment step yields (no batch dimension).

    ``obs`` is the observation the next action is chosen from. ``final_obs`` is the
    observation the step itself led to. They differ only at an episode's end under
    auto-reset, where ``obs`` is the first observation of the new episode.
    """

    obs: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_obs: jax.Array
    info: dict[str, jax.Array]


@runtime_checkable
class Environment(Protocol):
    """One environment as pure functions, without a batch dimension.

    ``reset(key) -> (state, obs)``; ``step(state, action, key) -> (state, Transition)``.
    A bare environment does not reset itself: its ``obs`` equals ``final_obs``.
    ``max_episode_steps`` is the time limit that sets ``truncated`` (``None``: no limit).
    ``expensive_reset`` asks the vector wrapper to reset only when an episode ended.
    """

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def observation_space(self) -> spaces.Space:
        """The observations, a one-dimensional ``Box`` where an agent of ours learns."""
        ...

    @property
    def action_space(self) -> spaces.Space:
        """The actions, ``Discrete`` or a one-dimensional ``Box``."""
        ...

    @property
    def max_episode_steps(self) -> int | None:
        """The time limit in steps."""
        ...

    @property
    def expensive_reset(self) -> bool:
        """Whether a reset costs more than a step."""
        ...

    @property
    def reset(self) -> Callable[[jax.Array], tuple[EnvState, jax.Array]]:
        """A new episode's state and first observation."""
        ...

    @property
    def step(self) -> Callable[[EnvState, jax.Array, jax.Array], tuple[EnvState, Transition]]:
        """One step."""
        ...


class FunctionalEnvironment(NamedTuple):
    """The plain form of :class:`Environment` that every adapter returns."""

    name: str
    observation_space: spaces.Space
    action_space: spaces.Space
    reset: Callable[[jax.Array], tuple[EnvState, jax.Array]]
    step: Callable[[EnvState, jax.Array, jax.Array], tuple[EnvState, Transition]]
    max_episode_steps: int | None = None
    expensive_reset: bool = False


class Decision(NamedTuple):
    """What a policy decides for ``n`` observations while exploring.

    ``action [n, ...]`` is what the environment receives; ``raw [n]`` or ``[A, n]`` is the
    sample as drawn, of which ``log_prob [n]`` is the exact log-probability.
    """

    action: jax.Array
    raw: jax.Array
    log_prob: jax.Array
    value: jax.Array


class Minibatch(NamedTuple):
    """``s`` samples to learn from; samples are the last dimension everywhere."""

    obs: jax.Array  # [D, s]
    raw: jax.Array  # [s] or [A, s]
    log_prob: jax.Array  # [s]
    value: jax.Array  # [s]
    advantage: jax.Array  # [s]
    target: jax.Array  # [s]
    weight: jax.Array  # [s]: 0 where the transition is masked, else 1


class OnPolicyAgent(NamedTuple):
    """What an on-policy algorithm brings; the workflow does all else.

    ``init(key) -> params``; ``compute_actions(params, obs [D, n], keys [n]) -> Decision``
    explores; ``evaluate_actions(params, obs) -> action`` is the best action;
    ``sample_actions(params, obs, keys) -> action`` the exploring one alone;
    ``value(params, obs) -> [n]``; ``loss(params, minibatch) -> (loss [s], metrics)`` per
    sample, so that the workflow masks, sums and averages over all devices.
    """

    init: Callable[[jax.Array], Params]
    compute_actions: Callable[[Params, jax.Array, jax.Array], Decision]
    evaluate_actions: Callable[[Params, jax.Array], jax.Array]
    sample_actions: Callable[[Params, jax.Array, jax.Array], jax.Array]
    value: Callable[[Params, jax.Array], jax.Array]
    loss: Callable[[Params, Minibatch], tuple[jax.Array, dict[str, jax.Array]]]


class Workflow(Protocol):
    """How collecting and learning alternate; all that changes is in the state.

    ``step`` gives the metrics of one update, scalars by name (see ``docs/architecture.md``
    for those the host loop reads), and the next state; it may consume the state it is given.
    The state has the attribute ``params``. A method ``compile(state)``, if there is one, is
    called before the first ``step``.
    """

    steps_per_update: int

    @property
    def enable_multi_devices(self) -> bool:
        """Whether the mesh has more than one device."""
        ...

    def setup(self, key: jax.Array) -> Any:
        """The state before the first update."""
        ...

    def step(self, state: Any) -> tuple[dict[str, Any], Any]:
        """One update."""
        ...

    def evaluate(self, state: Any) -> tuple[dict[str, Any], Any]:
        """Metrics over full episodes, and the state as it was."""
        ...

    def learn(self, state: Any, updates: int) -> Any:
        """Many updates at once."""
        ...
