"""Tiny environments whose values are known by arithmetic, for tests of learning and contracts.

Each constructor returns a :class:`lockstep.protocols.FunctionalEnvironment`; each docstring
tells what a correct learner finds. ``gamma`` is the discount of the learner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from lockstep.protocols import FunctionalEnvironment, Transition

TWO_ACTIONS = spaces.Discrete(2)


def _box(size: int = 1, low: float = -np.inf, high: float = np.inf) -> spaces.Box:
    return spaces.Box(low, high, (size,), np.float32)


def _step(
    obs: jax.Array,
    reward: Any,
    terminated: Any = False,
    truncated: Any = False,
    info: dict[str, jax.Array] | None = None,
) -> Transition:
    terminated = jnp.asarray(terminated, bool)
    truncated = jnp.asarray(truncated, bool) & ~terminated
    return Transition(obs, jnp.float32(reward), terminated, truncated, obs, info or {})


def _sign(key: jax.Array) -> jax.Array:
    """A coin: [-1] or [1]."""
    return jnp.where(jax.random.bernoulli(key), 1.0, -1.0)[None]


def _one_step(
    name: str,
    observe: Callable[[jax.Array], jax.Array],
    reward: Callable[[jax.Array, jax.Array], Any],
) -> FunctionalEnvironment:
    """An episode of one step: ``observe(key)``, then ``reward(obs, action)`` and termination."""

    def reset(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        obs = observe(key)
        return obs, obs

    def step(obs: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Transition]:
        return obs, _step(obs, reward(obs, action), terminated=True)

    return FunctionalEnvironment(name, _box(), TWO_ACTIONS, reset, step)


def constant_reward() -> FunctionalEnvironment:
    """One step, observation 0, reward 1. The value of the observation 0 is 1."""
    return _one_step("constant_reward", lambda key: jnp.zeros(1), lambda obs, action: 1.0)


def observation_reward() -> FunctionalEnvironment:
    """One step, observation -1 or 1 by a coin, reward = observation. V(-1) = -1, V(1) = 1."""
    return _one_step("observation_reward", _sign, lambda obs, action: obs[0])


def discounted_reward() -> FunctionalEnvironment:
    """Two steps, observations 0 then 1, reward 1 in the second. V(1) = 1, V(0) = gamma."""

    def reset(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.int32(0), jnp.zeros(1)

    def step(t: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Transition]:
        return t + 1, _step(jnp.ones(1), t == 1, terminated=t == 1)

    return FunctionalEnvironment("discounted_reward", _box(), TWO_ACTIONS, reset, step)


def policy_reward() -> FunctionalEnvironment:
    """One step, observation 0, reward 1 for action 1 and -1 for action 0.

    The best policy takes action 1; V(0) = 1 under it, and 0 under the uniform one.
    """
    return _one_step("policy_reward", lambda key: jnp.zeros(1), lambda obs, action: 2 * action - 1)


def policy_and_observation_reward() -> FunctionalEnvironment:
    """One step, observation -1 or 1, reward 1 if the action matches it (1 for 1, 0 for -1).

    Otherwise the reward is -1. The best policy has V = 1 at both observations, and only one
    that reads the observation gets above 0 on average.
    """

    def reward(obs: jax.Array, action: jax.Array) -> jax.Array:
        return jnp.where((obs[0] > 0) == (action == 1), 1.0, -1.0)

    return _one_step("policy_and_observation_reward", _sign, reward)


def step_index(limit: int = 5) -> FunctionalEnvironment:
    """Observation = steps since the reset, reward 1, never terminates, truncated at ``limit``.

    A reset shows 0 and the last observation of an episode is ``limit``. Since nothing ever
    terminates, V = 1 / (1 - gamma) everywhere for a learner that bootstraps at truncation; one
    that bootstraps from the next episode's first observation uses V(0) where V(limit) belongs.
    """

    def reset(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.int32(0), jnp.zeros(1)

    def step(t: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Transition]:
        t = t + 1
        return t, _step(t.astype(jnp.float32)[None], 1.0, truncated=t >= limit)

    return FunctionalEnvironment("step_index", _box(), TWO_ACTIONS, reset, step, limit)


class _Outcome(NamedTuple):
    long: jax.Array
    t: jax.Array


def two_outcomes(long_length: int = 100) -> FunctionalEnvironment:
    """By a coin an episode of length 1 with return 0, or of length 100 with return 100.

    The mean return over episodes is 50 and the mean length 50.5, whatever the policy. An
    evaluation that counts the episodes that finish first sees far more short ones.
    """

    def reset(key: jax.Array) -> tuple[_Outcome, jax.Array]:
        state = _Outcome(jax.random.bernoulli(key), jnp.int32(0))
        return state, state.long.astype(jnp.float32)[None]

    def step(s: _Outcome, action: jax.Array, key: jax.Array) -> tuple[_Outcome, Transition]:
        s = _Outcome(s.long, s.t + 1)
        over = ~s.long | (s.t >= long_length)
        return s, _step(s.long.astype(jnp.float32)[None], s.long, terminated=over)

    return FunctionalEnvironment("two_outcomes", _box(), TWO_ACTIONS, reset, step)


class _Goal(NamedTuple):
    goal: jax.Array
    t: jax.Array


def random_goal(limit: int = 5) -> FunctionalEnvironment:
    """A goal, uniform in [0, 1), is drawn at every reset and stays for ``limit`` steps.

    It stands in ``obs[0]``, in ``info["goal"]`` and is the reward; ``obs[1]`` counts steps.
    The three agree in every step, and two episodes have the same goal with probability 0. The
    mean return is ``limit / 2``.
    """

    def observe(s: _Goal) -> jax.Array:
        return jnp.stack([s.goal, s.t.astype(jnp.float32)])

    def reset(key: jax.Array) -> tuple[_Goal, jax.Array]:
        state = _Goal(jax.random.uniform(key), jnp.int32(0))
        return state, observe(state)

    def step(s: _Goal, action: jax.Array, key: jax.Array) -> tuple[_Goal, Transition]:
        s = _Goal(s.goal, s.t + 1)
        return s, _step(observe(s), s.goal, truncated=s.t >= limit, info={"goal": s.goal})

    return FunctionalEnvironment("random_goal", _box(2), TWO_ACTIONS, reset, step, limit)


class _Broken(NamedTuple):
    breaks: jax.Array
    t: jax.Array


def nan_at_step(
    bad_step: int = 3,
    limit: int = 5,
    probability: float = 1.0,
    *,
    in_obs: bool = True,
    in_reward: bool = True,
) -> FunctionalEnvironment:
    """Reward 1 a step and observation = step index, but NaN at step ``bad_step`` (from 1).

    A coin of ``probability`` at the reset decides whether an episode breaks; the NaN stands in
    the observation, the reward or both, and lasts until the reset. An episode that does not
    break is truncated after ``limit`` steps and returns ``limit``; with ``probability=1`` no
    episode ever ends by itself if ``bad_step <= limit``, since only a reset leaves the NaN.
    """

    def reset(key: jax.Array) -> tuple[_Broken, jax.Array]:
        return _Broken(jax.random.bernoulli(key, probability), jnp.int32(0)), jnp.zeros(1)

    def step(s: _Broken, action: jax.Array, key: jax.Array) -> tuple[_Broken, Transition]:
        s = _Broken(s.breaks, s.t + 1)
        bad = s.breaks & (s.t >= bad_step)
        obs = jnp.where(bad & in_obs, jnp.nan, s.t.astype(jnp.float32))[None]
        reward = jnp.where(bad & in_reward, jnp.nan, 1.0)
        return s, _step(obs, reward, truncated=(s.t >= limit) & ~bad)

    return FunctionalEnvironment("nan_at_step", _box(), TWO_ACTIONS, reset, step, limit)


def target_action(target: tuple[float, ...] = (0.5,)) -> FunctionalEnvironment:
    """One step, observation 0, reward = -sum((action - target)^2), actions in [-1, 1].

    The best action is ``target`` with V(0) = 0; a Gaussian policy with mean ``m`` and standard
    deviation ``s`` a dimension expects ``-sum((m - target)^2 + s^2)``.
    """
    aim = jnp.asarray(target, jnp.float32)
    plain = _one_step(
        "target_action", lambda key: jnp.zeros(1), lambda obs, a: -jnp.sum((a - aim) ** 2)
    )
    return plain._replace(action_space=_box(len(target), -1.0, 1.0))


ALL: dict[str, Callable[[], FunctionalEnvironment]] = {
    "constant_reward": constant_reward,
    "observation_reward": observation_reward,
    "discounted_reward": discounted_reward,
    "policy_reward": policy_reward,
    "policy_and_observation_reward": policy_and_observation_reward,
    "step_index": step_index,
    "two_outcomes": two_outcomes,
    "random_goal": random_goal,
    "nan_at_step": nan_at_step,
    "target_action": target_action,
}
