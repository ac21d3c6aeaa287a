"""Collect one rollout of one block of environments.

Shapes: ``T`` steps, ``n`` environments of the block, ``D`` observation features, ``A``
action dimensions. A rollout is stored features first with its ``T * n`` samples last.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lockstep.agents.normalizer import (
    Moments,
    RunningMoments,
    batch_moments,
    normalize,
    standard_deviation,
)
from lockstep.algorithms.returns import gae
from lockstep.envs.wrappers import VectorEnv, VectorState, VectorTransition
from lockstep.protocols import Decision, Minibatch, OnPolicyAgent, Params


class BlockState(NamedTuple):
    """A block of environments; every leaf leads with ``n``."""

    envs: VectorState
    discounted_return: jax.Array  # [n]: what reward normalisation is measured on
    env_id: jax.Array  # [n] global index of the environment, the source of its keys


class Statistics(NamedTuple):
    """Running statistics that all environments share."""

    obs: RunningMoments  # over D features
    returns: RunningMoments  # over 1 feature


class Learner(NamedTuple):
    """What a rollout needs of the state of learning."""

    params: Params
    statistics: Statistics


class BadTransition(NamedTuple):
    """The first transition of the rollout with a NaN or infinity; ``step`` -1: none."""

    step: jax.Array
    env_id: jax.Array
    obs: jax.Array  # [D]
    action: jax.Array  # [A] or [1]
    reward: jax.Array
    final_obs: jax.Array  # [D]


class RolloutSums(NamedTuple):
    """What a block adds to global statistics and metrics (all float32)."""

    obs: Moments
    returns: Moments
    advantage: Moments  # 2 features: the advantage and the value target
    reward_sum: jax.Array
    episodes: jax.Array
    return_sum: jax.Array
    return_square_sum: jax.Array
    length_sum: jax.Array
    nan_envs: jax.Array
    bad: BadTransition


class RolloutSettings(NamedTuple):
    """Static numbers of a rollout."""

    length: int
    gamma: float
    gae_lambda: float
    normalize_obs: bool
    normalize_reward: bool


class _Step(NamedTuple):
    """One step as stored by the scan."""

    obs: jax.Array  # [D, n] as the environment gave it
    decision: Decision
    seen: VectorTransition
    truncation_value: jax.Array  # [n]
    discounted_return: jax.Array  # [n]


def env_keys(key: jax.Array, env_id: jax.Array) -> jax.Array:
    """One key an environment ``[n]`` by its global index, whatever device holds it."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, env_id)


def flatten_time(x: jax.Array) -> jax.Array:
    """``[T, ..., n]`` to ``[..., T * n]``."""
    x = jnp.moveaxis(x, 0, -2)
    return x.reshape(*x.shape[:-2], -1)


def no_bad_transition(obs_size: int, action_size: int) -> BadTransition:
    """The record of a rollout in which every number was finite."""
    none = jnp.full((), -1.0)
    zeros = jnp.zeros(obs_size)
    return BadTransition(none, none, zeros, jnp.zeros(action_size), jnp.zeros(()), zeros)


def _note_bad(
    bad: BadTransition, t: jax.Array, block: BlockState, action: jax.Array, seen: VectorTransition
) -> BadTransition:
    """Keep the first invalid transition of the block for the report."""

    def note(_: None) -> BadTransition:
        i = jnp.argmin(seen.valid)
        return BadTransition(
            step=t.astype(jnp.float32),
            env_id=block.env_id[i].astype(jnp.float32),
            obs=block.envs.obs[i],
            action=action[i].reshape(-1).astype(jnp.float32),
            reward=seen.raw_reward[i],
            final_obs=seen.raw_obs[i],
        )

    is_first = ~jnp.all(seen.valid) & (bad.step < 0)
    return jax.lax.cond(is_first, note, lambda _: bad, None)


def collect(
    env: VectorEnv,
    agent: OnPolicyAgent,
    settings: RolloutSettings,
    learner: Learner,
    key: jax.Array,
    block: BlockState,
) -> tuple[BlockState, Minibatch, RolloutSums]:
    """Step the block ``T`` times and compute advantages.

    Statistics stay as they were at the rollout's start, so that the stored
    log-probabilities are those of the same inputs that learning will see. ``key`` is the
    update's; advantages are not yet normalised.
    """
    params, statistics = learner
    keys = env_keys(key, block.env_id)
    reward_scale: jax.Array | float = 1.0
    if settings.normalize_reward:
        reward_scale = 1.0 / standard_deviation(statistics.returns)[0]

    def see(obs: jax.Array) -> jax.Array:
        return normalize(statistics.obs, obs) if settings.normalize_obs else obs

    def step(carry: tuple[BlockState, BadTransition], t: jax.Array) -> tuple[Any, _Step]:
        block, bad = carry
        step_keys = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(k, t), 3))(keys)
        obs = block.envs.obs.T
        decision = agent.compute_actions(params, see(obs), step_keys[:, 0])
        envs, seen = env.step(block.envs, decision.action, step_keys[:, 1], step_keys[:, 2])
        # The value of a final observation is needed where an episode was cut, which is
        # rare: elsewhere it is the next step's own value.
        truncation_value = jax.lax.cond(
            jnp.any(seen.truncated),
            lambda: agent.value(params, see(seen.final_obs)),
            lambda: jnp.zeros_like(seen.reward),
        )
        discounted = settings.gamma * block.discounted_return + seen.reward
        bad = _note_bad(bad, t, block, decision.action, seen)
        block = BlockState(envs, discounted * (1.0 - seen.done), block.env_id)
        return (block, bad), _Step(obs, decision, seen, truncation_value, discounted)

    action_size = jax.eval_shape(
        lambda: agent.compute_actions(params, see(block.envs.obs.T), keys).action[0].reshape(-1)
    ).size
    nothing_bad = no_bad_transition(block.envs.obs.shape[1], action_size)
    (block, bad), steps = jax.lax.scan(step, (block, nothing_bad), jnp.arange(settings.length))
    last_value = agent.value(params, see(block.envs.obs.T))
    batch = _to_batch(steps, last_value, reward_scale, settings)
    sums = _sums(steps, batch, bad)
    return block, batch._replace(obs=see(batch.obs)), sums


def _to_batch(
    steps: _Step, last_value: jax.Array, reward_scale: Any, settings: RolloutSettings
) -> Minibatch:
    """All ``T * n`` samples, observations as given, advantages and value targets."""
    seen, values = steps.seen, steps.decision.value
    following = jnp.concatenate([values[1:], last_value[None]])
    next_values = jnp.where(seen.truncated, steps.truncation_value, following)
    # Nothing lies beyond a termination; a masked transition has no advantage at all.
    next_values = jnp.where(seen.terminated | ~seen.valid, 0.0, next_values)
    advantage = gae(
        jnp.where(seen.valid, seen.reward * reward_scale, values),
        values,
        next_values,
        seen.done.astype(values.dtype),
        settings.gamma,
        settings.gae_lambda,
    )
    batch = Minibatch(
        obs=steps.obs,
        raw=steps.decision.raw,
        log_prob=steps.decision.log_prob,
        value=values,
        advantage=advantage,
        target=advantage + values,
        weight=seen.valid.astype(values.dtype),
    )
    return jax.tree.map(flatten_time, batch)


def _sums(steps: _Step, batch: Minibatch, bad: BadTransition) -> RolloutSums:
    """Everything of the block that is summed over all blocks."""
    seen = steps.seen
    ended = (seen.done & seen.valid).astype(jnp.float32)
    returns = seen.finished_return * ended
    weight = batch.weight
    return RolloutSums(
        obs=batch_moments(batch.obs, jnp.ones_like(weight)),
        returns=batch_moments(steps.discounted_return.reshape(1, -1), weight),
        advantage=batch_moments(jnp.stack([batch.advantage, batch.target]), weight),
        reward_sum=jnp.sum(seen.reward),
        episodes=jnp.sum(ended),
        return_sum=jnp.sum(returns),
        return_square_sum=jnp.sum(returns * returns),
        length_sum=jnp.sum(seen.finished_length * ended),
        nan_envs=jnp.sum(~seen.valid).astype(jnp.float32),
        bad=bad,
    )
