"""Tiny workflows built by hand of the toy environments, and what tests ask of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from lockstep import recipes
from lockstep.config import OnPolicyConfig, PPOConfig
from lockstep.distributed.mesh import DP_AXIS_NAME, make_mesh
from lockstep.distributed.reduction import Reduction
from lockstep.protocols import Environment, FunctionalEnvironment, OnPolicyAgent, Transition
from lockstep.results import update_scalars
from lockstep.workflows.evaluation import Evaluator
from lockstep.workflows.on_policy import OnPolicySettings, OnPolicyState, OnPolicyWorkflow
from lockstep.workflows.rollout import RolloutSettings

TINY = PPOConfig(hidden_sizes=(8,), rollout_length=8, num_epochs=2, num_minibatches=2)
SEED = 7


class Quick(Reduction):
    """The same programs, compiled in a quarter of the time where the last bits do not matter."""

    @property
    def compiler_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"xla_backend_optimization_level": 0}
        if jax.__version_info__ < (0, 11):  # later versions have no such option
            options["xla_cpu_use_fusion_emitters"] = False
        return super().compiler_options | options


def build(
    env: Environment,
    algo: OnPolicyConfig = TINY,
    *,
    num_envs: int = 8,
    num_blocks: int = 2,
    devices: int = 1,
    exact: bool = True,
    merge: bool = False,
    updates: int = 100,
    eval_episodes: int = 16,
    stochastic: bool = False,
    agent: OnPolicyAgent | None = None,
    quick: bool = True,
) -> OnPolicyWorkflow:
    """The on-policy workflow of ``env`` on the first ``devices`` devices.

    ``quick=False`` compiles it as a run does.
    """
    mesh = make_mesh(jax.devices()[:devices])
    reduction = (Quick if quick else Reduction)(exact, DP_AXIS_NAME, merge)
    agent = agent or recipes.make_agent(algo, env)
    rollout = RolloutSettings(
        length=algo.rollout_length,
        gamma=algo.gamma,
        gae_lambda=algo.gae_lambda,
        normalize_obs=algo.normalize_obs,
        normalize_reward=algo.normalize_reward,
    )
    return OnPolicyWorkflow(
        env=env,
        agent=agent,
        optimizer=recipes.make_optimizer(algo),
        learning_rate=recipes.make_learning_rate(algo, updates),
        evaluator=Evaluator(
            env=env,
            agent=agent,
            episodes=eval_episodes,
            normalize_obs=algo.normalize_obs,
            stochastic=stochastic,
            max_steps=200,
            mesh=mesh,
            reduction=reduction,
        ),
        settings=OnPolicySettings(
            num_blocks=num_blocks,
            envs_per_block=num_envs // num_blocks,
            num_epochs=algo.num_epochs,
            num_minibatches=algo.num_minibatches,
            shuffle=algo.shuffle,
            normalize_advantage=algo.normalize_advantage,
            rollout=rollout,
        ),
        mesh=mesh,
        reduction=reduction,
    )


def run(
    workflow: OnPolicyWorkflow, updates: int, seed: int = SEED
) -> tuple[list[dict[str, Any]], OnPolicyState]:
    """The metrics of each update, on the host, and the last state."""
    return go_on(workflow, workflow.setup(jax.random.key(seed)), updates)


def go_on(
    workflow: OnPolicyWorkflow, state: OnPolicyState, updates: int
) -> tuple[list[dict[str, Any]], OnPolicyState]:
    """As :func:`run`, from a state that is consumed."""
    history = []
    for _ in range(updates):
        metrics, state = workflow.step(state)
        history.append(jax.device_get(metrics))
    return history, state


def line(workflow: OnPolicyWorkflow, metrics: dict[str, Any], update: int = 1) -> dict[str, Any]:
    """The update's line of ``metrics.jsonl``."""
    return update_scalars(metrics, update, workflow.steps_per_update)


def as_bytes(tree: Any) -> bytes:
    """All leaves of a tree, keys as their words."""
    leaves = jax.tree.leaves(tree)
    plain = [
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        for x in leaves
    ]
    return b"".join(np.ascontiguousarray(jax.device_get(x)).tobytes() for x in plain)


def replace(algo: OnPolicyConfig, **values: Any) -> OnPolicyConfig:
    return dataclasses.replace(algo, **values)


def pendulum(limit: int = 10) -> FunctionalEnvironment:
    """A swinging pole with a torque in [-2, 2], for arithmetic that rounds in every step."""
    high = np.array([1.0, 1.0, 8.0], np.float32)

    def observe(s: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return jnp.stack([jnp.cos(s[0]), jnp.sin(s[0]), s[1]])

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        angle, speed = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        state = (angle * np.pi, speed, jnp.int32(0))
        return state, observe(state)

    def step(s: Any, action: jax.Array, key: jax.Array) -> tuple[Any, Transition]:
        angle, speed, t = s
        speed = jnp.clip(speed + 0.05 * (15.0 * jnp.sin(angle) + 3.0 * action[0]), -8.0, 8.0)
        reward = -((jnp.mod(angle + np.pi, 2 * np.pi) - np.pi) ** 2) - 0.1 * speed**2
        state = (angle + 0.05 * speed, speed, t + 1)
        obs = observe(state)
        over = jnp.array(False)
        return state, Transition(obs, reward, over, t + 1 >= limit, obs, {})

    torque = spaces.Box(-2.0, 2.0, (1,))
    return FunctionalEnvironment(
        "toy_pendulum", spaces.Box(-high, high), torque, reset, step, limit
    )
