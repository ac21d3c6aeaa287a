"""Evaluation by full episodes, with no bias towards short ones.

Every episode is one environment run once from its start to its end, counted whatever its
length: a fixed set of episodes, numbered globally, whose keys do not depend on the device.
Shapes: ``E`` episodes, ``b`` blocks of ``n`` episodes on this device, ``D`` features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec

from lockstep.agents.normalizer import RunningMoments, normalize
from lockstep.distributed.mesh import DP_AXIS_NAME
from lockstep.distributed.reduction import Reduction
from lockstep.envs.wrappers import vectorize
from lockstep.protocols import Environment, OnPolicyAgent, Params

_EVALUATE = 0x5EED  # domain of the evaluation's keys
EPISODES_PER_BLOCK = 16


class _Episodes(NamedTuple):
    """Carry of the loop over steps."""

    state: Any
    alive: jax.Array  # [n] bool
    total: jax.Array  # [n]
    length: jax.Array  # [n]
    nan: jax.Array  # [n] bool
    t: jax.Array


class Evaluator:
    """``evaluator(key, params, obs_statistics) -> metrics`` on the mesh; counts are global.

    The statistics are frozen: nothing of the state changes. An episode that yields a NaN
    ends there and is counted in ``nan_episodes``; one that has not ended after ``max_steps``
    counts with the return it has by then, and in ``unfinished_episodes``.
    """

    def __init__(
        self,
        *,
        env: Environment,
        agent: OnPolicyAgent,
        episodes: int,
        normalize_obs: bool,
        stochastic: bool,
        max_steps: int,
        mesh: Mesh,
        reduction: Reduction,
    ) -> None:
        self._env = vectorize(env)
        self._agent = agent
        self._episodes = episodes
        self._normalize_obs = normalize_obs
        self._stochastic = stochastic
        self._max_steps = max_steps
        self._reduction = reduction
        per_round = EPISODES_PER_BLOCK * mesh.size
        self._blocks_per_device = -(-episodes // per_round)
        self._run = jax.jit(
            jax.shard_map(
                self._evaluate, mesh=mesh, in_specs=(Spec(), Spec(), Spec()), out_specs=Spec(),
                check_vma=False,
            ),
            compiler_options=reduction.compiler_options,
        )  # fmt: skip

    def __call__(
        self, key: jax.Array, params: Params, obs_statistics: RunningMoments
    ) -> dict[str, jax.Array]:
        """Metrics over exactly the configured number of episodes."""
        return self._run(key, params, obs_statistics)

    def _evaluate(
        self, key: jax.Array, params: Params, obs_statistics: RunningMoments
    ) -> dict[str, jax.Array]:
        n = EPISODES_PER_BLOCK
        key = jax.random.fold_in(key, _EVALUATE)
        run = self._reduction.isolate(self._run_block)
        first = jax.lax.axis_index(DP_AXIS_NAME) * self._blocks_per_device
        ids = (first + jnp.arange(self._blocks_per_device))[:, None] * n + jnp.arange(n)
        columns = jax.lax.map(lambda block: run(key, params, obs_statistics, block), ids)
        table = jnp.stack([column.astype(jnp.float32) for column in columns], axis=-1)
        table = table.reshape(-1, len(columns))
        everything = self._reduction.gather_blocks(table)[: self._episodes]
        returns, lengths, nan, unfinished = everything.T
        return {
            "return_mean": jnp.mean(returns),
            "return_std": jnp.std(returns),
            "return_min": jnp.min(returns),
            "return_max": jnp.max(returns),
            "length_mean": jnp.mean(lengths),
            "nan_episodes": jnp.sum(nan),
            "unfinished_episodes": jnp.sum(unfinished),
        }

    def _run_block(
        self, key: jax.Array, params: Params, statistics: RunningMoments, ids: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Run the episodes ``ids [n]`` to their ends; padding (``id >= E``) is over at once."""
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, ids)
        pairs = jax.vmap(jax.random.split)(keys)
        reset_keys, step_keys = pairs[:, 0], pairs[:, 1]
        state = self._env.reset(reset_keys)
        zeros = jnp.zeros(ids.shape)

        def going(c: _Episodes) -> jax.Array:
            return jnp.any(c.alive) & (c.t < self._max_steps)

        def step(c: _Episodes) -> _Episodes:
            fold = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(k, c.t), 3))
            keys = fold(step_keys)
            obs = c.state.obs.T
            if self._normalize_obs:
                obs = normalize(statistics, obs)
            if self._stochastic:
                action = self._agent.sample_actions(params, obs, keys[:, 0])
            else:
                action = self._agent.evaluate_actions(params, obs)
            state, seen = self._env.step(c.state, action, keys[:, 1], keys[:, 2])
            return _Episodes(
                state,
                c.alive & ~seen.done,
                c.total + jnp.where(c.alive, seen.reward, 0.0),
                c.length + c.alive,
                c.nan | (c.alive & ~seen.valid),
                c.t + 1,
            )

        start = _Episodes(state, ids < self._episodes, zeros, zeros, zeros > 0, jnp.int32(0))
        end = jax.lax.while_loop(going, step, start)
        return end.total, end.length, end.nan, end.alive
