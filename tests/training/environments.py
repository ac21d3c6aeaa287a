"""Environments and workflows of a user, named by their dotted paths in the tests."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from lockstep.protocols import FunctionalEnvironment, Transition
from lockstep.workflows.on_policy import OnPolicyWorkflow
from tests import toy_envs


class Steps:
    """How often environments were really stepped, counted on the host."""

    count = 0
    lock = threading.Lock()

    @classmethod
    def add(cls, _: Any) -> None:
        with cls.lock:
            cls.count += 1


def counting() -> FunctionalEnvironment:
    """``step_index`` that counts its own steps on the host."""
    plain = toy_envs.step_index()

    def step(t: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Transition]:
        jax.debug.callback(Steps.add, t)
        return plain.step(t, action, key)

    return plain._replace(name="counting", step=step)


def long_episodes(limit: int = 10 * 8) -> FunctionalEnvironment:
    """``step_index`` whose episodes last ten updates of eight steps."""
    return toy_envs.step_index(limit)._replace(name="long_episodes")


def slow(work: int = 2000) -> FunctionalEnvironment:
    """``step_index`` that needs ``work`` small matrix products a step."""
    plain = toy_envs.step_index()

    def step(t: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Transition]:
        x = jax.lax.fori_loop(0, work, lambda _, x: jnp.tanh(x @ x), jnp.full((8, 8), 0.1))
        state, seen = plain.step(t, action, key)
        return state, seen._replace(reward=seen.reward + 0.0 * x[0, 0])

    return plain._replace(name="slow", step=step)


def empty_leaf() -> FunctionalEnvironment:
    """``step_index`` with an array without elements in its state."""
    plain = toy_envs.step_index()

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        state, obs = plain.reset(key)
        return (state, jnp.zeros((0, 3))), obs

    def step(state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, Transition]:
        inner, seen = plain.step(state[0], action, key)
        return (inner, state[1]), seen

    return plain._replace(name="empty_leaf", reset=reset, step=step)


def broken_reset() -> FunctionalEnvironment:
    """``step_index`` of which every fifth reset or so yields a NaN."""
    plain = toy_envs.step_index()

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        key, broken_key = jax.random.split(key)
        state, obs = plain.reset(key)
        return state, jnp.where(jax.random.bernoulli(broken_key, 0.2), jnp.nan, obs)

    return plain._replace(name="broken_reset", reset=reset)


def endless() -> FunctionalEnvironment:
    """``step_index`` that never ends."""
    plain = toy_envs.step_index()

    def step(t: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Transition]:
        _, seen = plain.step(jnp.zeros_like(t), action, key)
        return t, seen._replace(truncated=jnp.zeros((), bool))

    return plain._replace(name="endless", step=step, max_episode_steps=None)


class Recording(OnPolicyWorkflow):
    """A user's own workflow: notes what the host loop asks of it, and may act after an update.

    ``after[update](state) -> state`` runs on the host when that many updates are done.
    """

    calls: ClassVar[list[str]] = []
    after: ClassVar[dict[int, Callable[[Any], Any]]] = {}

    def step(self, state: Any) -> Any:
        metrics, state = super().step(state)
        self.calls.append("step")
        hook = self.after.get(int(state.update))
        return metrics, state if hook is None else hook(state)

    def setup(self, key: jax.Array) -> Any:
        self.calls.append("setup")
        return super().setup(key)

    def evaluate(self, state: Any) -> Any:
        self.calls.append(f"evaluate {int(state.update)}")
        return super().evaluate(state)


class LosesCheckpoints(OnPolicyWorkflow):
    """After update 7 a file stands where the folder ``run/checkpoints`` was (rank 0)."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        compiled = self.step

        def step(state: Any) -> Any:
            metrics, state = compiled(state)
            if int(state.update) == 7 and jax.process_index() == 0:
                shutil.rmtree("run/checkpoints")
                Path("run/checkpoints").write_text("in the way")
            return metrics, state

        self.step = step


class NoWorkflow:
    """Has a ``step`` and nothing else."""

    def step(self) -> None: ...
