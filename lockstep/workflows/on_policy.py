"""Collect with the current policy, then learn from just that: PPO, A2C and their kin.

One update on every device of the mesh:

1. ``collect``: each block of environments is stepped ``T`` times (``rollout.py``).
2. ``digest``: sums of all blocks become global statistics and metrics.
3. ``learn``: for each epoch, a shuffle inside each block; for each minibatch, the gradient
   summed over blocks, one vector over the mesh, one optimiser step (``learning.py``).

Shapes: ``B`` blocks in total, ``b`` on this device, ``n`` environments a block, ``T`` steps.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec

from lockstep.agents.normalizer import init_moments, merge_blocks, update_moments
from lockstep.distributed.mesh import DP_AXIS_NAME, replicated, sharded
from lockstep.distributed.reduction import Reduction, vectors
from lockstep.envs.wrappers import vectorize
from lockstep.protocols import Environment, OnPolicyAgent, Params
from lockstep.workflows.evaluation import Evaluator
from lockstep.workflows.learning import (
    LearnerState,
    Learning,
    LearningRate,
    LearningSettings,
    learn,
)
from lockstep.workflows.rollout import (
    BlockState,
    Learner,
    RolloutSettings,
    RolloutSums,
    Statistics,
    collect,
    env_keys,
)

# Domains of the keys folded from the run's key, and from an update's.
_INIT, _RESET, _UPDATE, _COLLECT, _SHUFFLE = range(5)


class OnPolicyState(NamedTuple):
    """All that changes. Leaves of ``blocks`` lead with ``[B, n]`` and are split over DP."""

    key: jax.Array
    update: jax.Array  # [] int32: updates done
    params: Params
    opt_state: optax.OptState
    learning_rate: jax.Array  # []: what the next gradient step uses
    statistics: Statistics
    blocks: BlockState


class OnPolicySettings(NamedTuple):
    """Static numbers of the workflow, all of them global."""

    num_blocks: int
    envs_per_block: int
    num_epochs: int
    num_minibatches: int
    shuffle: str  # environments | samples
    normalize_advantage: bool
    rollout: RolloutSettings


class OnPolicyWorkflow:
    """Built of an environment, an agent, an optimiser and an evaluator on a mesh.

    ``optimizer`` yields a descent direction without the rate (for Adam:
    ``optax.scale_by_adam``); the rate is part of the state.
    """

    def __init__(
        self,
        *,
        env: Environment,
        agent: OnPolicyAgent,
        optimizer: optax.GradientTransformation,
        learning_rate: LearningRate,
        evaluator: Evaluator,
        settings: OnPolicySettings,
        mesh: Mesh,
        reduction: Reduction,
    ) -> None:
        self.mesh = mesh
        self._env = vectorize(env)
        self._obs_size = int(env.observation_space.shape[0])  # type: ignore[index]
        self._agent = agent
        self._optimizer = optimizer
        self._learning_rate = learning_rate
        self._evaluator = evaluator
        self._settings = settings
        self._reduction = reduction
        num_envs = settings.num_blocks * settings.envs_per_block
        self.steps_per_update = num_envs * settings.rollout.length
        self._learning = Learning(
            agent,
            optimizer,
            learning_rate,
            LearningSettings(
                settings.rollout.length,
                settings.envs_per_block,
                num_envs,
                settings.num_epochs,
                settings.num_minibatches,
                settings.shuffle,
            ),
            reduction,
        )
        specs = self._specs()
        self.program: Any = jax.jit(
            jax.shard_map(
                self._update, mesh=mesh, in_specs=(specs,), out_specs=(Spec(), specs),
                check_vma=False,
            ),
            donate_argnums=0,
            compiler_options=reduction.compiler_options,
        )  # fmt: skip

    def step(self, state: OnPolicyState) -> tuple[dict[str, Any], OnPolicyState]:
        """One update; the state given is consumed."""
        return self.program(state)

    def compile(self, state: OnPolicyState) -> None:
        """Compile the update for states like ``state``, ahead of the first ``step``."""
        self.program = self.program.lower(state).compile()

    @property
    def enable_multi_devices(self) -> bool:
        """Whether the mesh has more than one device."""
        return self.mesh.size > 1

    def _specs(self) -> OnPolicyState:
        """How each part of the state is split (a tree prefix)."""
        whole: Any = Spec()
        split: Any = Spec(DP_AXIS_NAME)
        return OnPolicyState(whole, whole, whole, whole, whole, whole, split)

    def setup(self, key: jax.Array) -> OnPolicyState:
        """The state before the first update, placed on the mesh."""
        s = self._settings

        def learner(key: jax.Array) -> OnPolicyState:
            params = self._agent.init(jax.random.fold_in(key, _INIT))
            statistics = Statistics(init_moments(self._obs_size), init_moments(1))
            return OnPolicyState(
                key, jnp.int32(0), params, self._optimizer.init(params),
                jnp.float32(self._learning_rate.initial), statistics, None,  # type: ignore[arg-type]
            )  # fmt: skip

        def reset_block(key: jax.Array, block_id: jax.Array) -> BlockState:
            env_id = block_id * s.envs_per_block + jnp.arange(s.envs_per_block)
            envs = self._env.reset(env_keys(jax.random.fold_in(key, _RESET), env_id))
            return BlockState(envs, jnp.zeros(s.envs_per_block), env_id)

        def blocks(key: jax.Array, block_ids: jax.Array) -> BlockState:
            isolated = self._reduction.isolate(reset_block)
            return jax.lax.map(lambda block_id: isolated(key, block_id), block_ids)

        split = Spec(DP_AXIS_NAME)
        all_blocks = jax.shard_map(
            blocks, mesh=self.mesh, in_specs=(Spec(), split), out_specs=split, check_vma=False
        )
        options = self._reduction.compiler_options
        block_ids = jax.jit(
            lambda: jnp.arange(s.num_blocks, dtype=jnp.int32), out_shardings=sharded(self.mesh)
        )()
        state = jax.jit(learner, out_shardings=replicated(self.mesh))(key)
        blocks_of = jax.jit(all_blocks, compiler_options=options)
        return state._replace(blocks=blocks_of(state.key, block_ids))

    def evaluate(self, state: OnPolicyState) -> tuple[dict[str, Any], OnPolicyState]:
        """Full episodes with the best actions; the state is returned as it was."""
        metrics = self._evaluator(state.key, state.params, state.statistics.obs)
        return metrics, state

    def learn(self, state: OnPolicyState, updates: int) -> OnPolicyState:
        """``updates`` updates without looking at the metrics.

        Two are in flight at most: CPU devices that are given some tens of updates at once
        wait for each other in a collective for ever (seen with jax 0.10.2).
        """
        last: dict[str, Any] = {}
        for _ in range(updates):
            metrics, state = self.step(state)
            jax.block_until_ready(last)
            last = metrics
        return state

    def _update(self, state: OnPolicyState) -> tuple[dict[str, jax.Array], OnPolicyState]:
        """One update as a device sees it."""
        key = jax.random.fold_in(jax.random.fold_in(state.key, _UPDATE), state.update)
        collect_block = self._reduction.isolate(
            partial(collect, self._env, self._agent, self._settings.rollout)
        )
        learner = Learner(state.params, state.statistics)
        collect_key = jax.random.fold_in(key, _COLLECT)
        groups, batches, sums = jax.lax.map(
            lambda block: collect_block(learner, collect_key, block),
            self._reduction.group(state.blocks),
        )
        flat, unflatten = vectors(sums)
        gathered = self._reduction.gather_blocks(flat)
        digest = self._reduction.isolate(lambda g, old: self._digest(unflatten(g), old))
        statistics, scale, metrics = digest(gathered, state.statistics)
        steps = self._settings.num_epochs * self._settings.num_minibatches
        learned, learning_metrics = learn(
            self._learning,
            LearnerState(state.params, state.opt_state, state.learning_rate, state.update * steps),
            batches,
            state.blocks.env_id[:, 0] // self._settings.envs_per_block,
            scale,
            jax.random.fold_in(key, _SHUFFLE),
        )
        new_state = OnPolicyState(
            state.key,
            state.update + 1,
            learned.params,
            learned.opt_state,
            learned.rate,
            statistics,
            self._reduction.ungroup(groups, state.blocks),
        )
        return metrics | learning_metrics, new_state

    def _digest(
        self, sums: RolloutSums, old: Statistics
    ) -> tuple[Statistics, jax.Array, dict[str, jax.Array]]:
        """Sums of all blocks ``[B, ...]`` to statistics, advantage scale and metrics."""
        rollout = self._settings.rollout
        obs, returns = old
        if rollout.normalize_obs:
            obs = update_moments(obs, merge_blocks(sums.obs))
        if rollout.normalize_reward:
            returns = update_moments(returns, merge_blocks(sums.returns))
        advantage = merge_blocks(sums.advantage)
        variance = advantage.m2 / jnp.maximum(advantage.samples, 1.0)
        scale = jnp.stack([advantage.mean[0], 1.0 / (jnp.sqrt(variance[0]) + 1e-8)])
        if not self._settings.normalize_advantage:
            scale = jnp.array([0.0, 1.0])
        first_bad = jnp.argmin(jnp.where(sums.bad.step < 0, jnp.inf, sums.bad.step))
        total = partial(jnp.sum, axis=0)
        metrics = {
            "episodes": total(sums.episodes),
            "return_sum": total(sums.return_sum),
            "return_square_sum": total(sums.return_square_sum),
            "length_sum": total(sums.length_sum),
            "reward_mean": total(sums.reward_sum) / jnp.maximum(advantage.samples, 1.0),
            "nan_envs": total(sums.nan_envs),
            "explained_variance": 1.0 - variance[0] / jnp.maximum(variance[1], 1e-8),
            "bad": jax.tree.map(lambda x: x[first_bad], sums.bad)._asdict(),
        }
        return Statistics(obs, returns), scale, metrics
