"""From a configuration to a workflow: the one place where the parts meet."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from gymnasium import spaces
from jax.sharding import Mesh

from lockstep import envs
from lockstep.algorithms.a2c import make_a2c
from lockstep.algorithms.ppo import make_ppo
from lockstep.config import A2CConfig, OnPolicyConfig, PPOConfig, RunConfig
from lockstep.distributed.mesh import DP_AXIS_NAME
from lockstep.distributed.reduction import Reduction
from lockstep.errors import UsageError
from lockstep.protocols import Environment, OnPolicyAgent, Workflow
from lockstep.sizes import reduction_used
from lockstep.workflows.evaluation import Evaluator
from lockstep.workflows.learning import LearningRate
from lockstep.workflows.on_policy import OnPolicySettings, OnPolicyWorkflow
from lockstep.workflows.rollout import RolloutSettings

# An evaluation gives up on episodes longer than this and than their own time limit.
MAX_EVALUATION_STEPS = 10_000
# What a workflow's class is called with, as keywords.
WORKFLOW_PARTS = (
    "env", "agent", "optimizer", "learning_rate", "evaluator", "settings", "mesh", "reduction",
)  # fmt: skip
# Adaptive learning rate: factor of one change and the range it stays in.
RATE_FACTOR, RATE_RANGE = 1.5, (1e-5, 1e-2)


def make_environment(cfg: RunConfig) -> Environment:
    """The task's environment, one instance without a batch."""
    return envs.make(cfg.task, cfg.env.backend, **cfg.env.kwargs)


def make_agent(cfg: OnPolicyConfig, env: Environment) -> OnPolicyAgent:
    """The algorithm's agent for the environment's spaces."""
    if not isinstance(env.observation_space, spaces.Box) or len(env.observation_space.shape) != 1:
        raise UsageError(
            f"the observations of {env.name!r} are {env.observation_space}: {cfg.name} needs a "
            f"one-dimensional Box"
        )
    try:
        if isinstance(cfg, PPOConfig):
            return make_ppo(cfg, env.observation_space, env.action_space)
        if isinstance(cfg, A2CConfig):
            return make_a2c(cfg, env.observation_space, env.action_space)
    except ValueError as error:
        raise UsageError(f"{cfg.name} does not fit task {env.name!r}: {error}") from error
    raise AssertionError(f"no recipe for {type(cfg).__name__}")


def make_optimizer(cfg: OnPolicyConfig) -> optax.GradientTransformation:
    """Clipping by global norm, then Adam or AdamW; without the learning rate."""
    return optax.chain(
        optax.clip_by_global_norm(cfg.max_grad_norm),
        optax.scale_by_adam(eps=cfg.adam_eps),
        optax.add_decayed_weights(cfg.weight_decay) if cfg.weight_decay else optax.identity(),
    )


def make_learning_rate(cfg: OnPolicyConfig, updates: int) -> LearningRate:
    """The rate as a function of the gradient steps done out of those of the whole run.

    ``adaptive`` follows the KL divergence of the last minibatch (Schulman et al. 2017,
    section 4; the rule of RSL-RL): divided by 1.5 above twice ``desired_kl``, multiplied
    by it below half.
    """
    first, total = cfg.learning_rate, updates * cfg.num_epochs * cfg.num_minibatches

    def adaptive(done: jax.Array, rate: jax.Array, kl: jax.Array) -> jax.Array:
        low, high = RATE_RANGE
        slower = jnp.maximum(rate / RATE_FACTOR, min(low, first))
        faster = jnp.minimum(rate * RATE_FACTOR, max(high, first))
        rate = jnp.where(kl > 2.0 * cfg.desired_kl, slower, rate)
        return jnp.where((kl < 0.5 * cfg.desired_kl) & (kl > 0.0), faster, rate)

    def scheduled(schedule: optax.Schedule) -> Callable[..., jax.Array]:
        return lambda done, rate, kl: jnp.maximum(schedule(done), 0.0).astype(jnp.float32)

    rules: dict[str, Callable[..., jax.Array]] = {
        "constant": lambda done, rate, kl: rate,
        "linear": scheduled(optax.linear_schedule(first, 0.0, total)),
        "cosine": scheduled(optax.cosine_decay_schedule(first, total)),
        "adaptive": adaptive,
    }
    return LearningRate(first, rules[cfg.lr_schedule])


def make_reduction(cfg: RunConfig, mesh: Mesh) -> Reduction:
    """The sums over blocks; an accelerator takes all blocks of a device as one batch, if fast."""
    platform = mesh.devices.flat[0].platform
    exact = reduction_used(cfg.reduction, platform) == "exact"
    return Reduction(exact, DP_AXIS_NAME, merge=not exact and platform != "cpu")


def make_workflow(cfg: RunConfig, mesh: Mesh, *, stochastic_evaluation: bool = False) -> Workflow:
    """Everything of one run put together on ``mesh``.

    Raises:
        UsageError: the task, the algorithm and the sizes do not fit each other, or
            ``workflow_cls`` names no workflow.
    """
    env = make_environment(cfg)
    algo = cfg.algo
    agent = make_agent(algo, env)
    reduction = make_reduction(cfg, mesh)
    evaluator = Evaluator(
        env=env,
        agent=agent,
        episodes=cfg.eval_episodes,
        normalize_obs=algo.normalize_obs,
        stochastic=stochastic_evaluation,
        max_steps=max(env.max_episode_steps or 0, MAX_EVALUATION_STEPS),
        mesh=mesh,
        reduction=reduction,
    )
    settings = OnPolicySettings(
        num_blocks=cfg.blocks,
        envs_per_block=cfg.num_envs // cfg.blocks,
        num_epochs=algo.num_epochs,
        num_minibatches=algo.num_minibatches,
        shuffle=algo.shuffle,
        normalize_advantage=algo.normalize_advantage,
        rollout=RolloutSettings(
            length=algo.rollout_length,
            gamma=algo.gamma,
            gae_lambda=algo.gae_lambda,
            normalize_obs=algo.normalize_obs,
            normalize_reward=algo.normalize_reward,
        ),
    )
    workflow_class = _workflow_class(cfg.workflow_cls)
    try:
        inspect.signature(workflow_class).bind(**dict.fromkeys(WORKFLOW_PARTS))
    except TypeError as error:
        raise UsageError(
            f"workflow_cls={cfg.workflow_cls} does not take the keywords "
            f"{', '.join(WORKFLOW_PARTS)}: {error}"
        ) from error
    workflow = workflow_class(
        env=env,
        agent=agent,
        optimizer=make_optimizer(algo),
        learning_rate=make_learning_rate(algo, cfg.updates),
        evaluator=evaluator,
        settings=settings,
        mesh=mesh,
        reduction=reduction,
    )
    if not hasattr(workflow, "steps_per_update"):
        raise UsageError(f"workflow_cls={cfg.workflow_cls} has no steps_per_update")
    return workflow


def _workflow_class(path: str | None) -> Callable[..., Workflow]:
    """The on-policy workflow, or a user's own class by its dotted path."""
    if path is None:
        return OnPolicyWorkflow
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # behind everything installed
    module_name, _, name = path.replace(":", ".").rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"workflow_cls={path} names no class that can be imported: {error}"
        ) from error
    missing = [part for part in ("setup", "step", "evaluate", "learn") if not hasattr(found, part)]
    if missing or not isinstance(found, type):
        raise UsageError(
            f"workflow_cls={path} is no workflow: it has no {', '.join(missing) or 'class'} "
            f"(setup, step, evaluate and learn are needed)"
        )
    return found
