"""Evaluation over a fixed set of whole episodes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lockstep.config import RunConfig
from lockstep.protocols import FunctionalEnvironment
from lockstep.results import evaluation_scalars
from lockstep.workflows.on_policy import OnPolicyState, OnPolicyWorkflow
from tests import toy_envs
from tests.workflows.parts import TINY, as_bytes, build, replace

ALGO = replace(TINY, normalize_obs=True)
ENVS = {"two_outcomes": toy_envs.two_outcomes, "random_goal": toy_envs.random_goal}


@functools.cache
def evaluator(env: str = "two_outcomes", episodes: int = 64, devices: int = 1) -> OnPolicyWorkflow:
    # The returns of two_outcomes are whole numbers, those of random_goal have last bits.
    quick = env == "two_outcomes"
    return build(ENVS[env](), ALGO, devices=devices, eval_episodes=episodes, quick=quick)


@functools.cache
def evaluated(
    env: str = "two_outcomes", episodes: int = 64, devices: int = 1
) -> tuple[dict[str, Any], OnPolicyState]:
    workflow = evaluator(env, episodes, devices)
    metrics, state = workflow.evaluate(workflow.setup(jax.random.key(0)))
    return jax.device_get(metrics), state


def test_short_episodes_are_not_counted_more_often():
    metrics, _ = evaluated()
    # Returns 0 and 100 by a coin: the standard error over 64 episodes is 50 / 8.
    assert abs(float(metrics["return_mean"]) - 50.0) < 4 * 50.0 / 8.0
    # The long episodes are a whole number of the 64, and lengths and returns agree on it.
    long = float(metrics["return_mean"]) * 64 / 100
    assert long == pytest.approx(round(long), abs=1e-3)
    assert float(metrics["length_mean"]) == pytest.approx((64 - long + 100 * long) / 64)
    assert float(metrics["return_std"]) == pytest.approx(
        100 * np.sqrt(long / 64 * (1 - long / 64)), rel=1e-5
    )
    assert (float(metrics["return_min"]), float(metrics["return_max"])) == (0.0, 100.0)
    assert float(metrics["nan_episodes"]) == 0


def test_the_same_key_gives_the_same_bits_and_freezes_the_statistics():
    workflow = evaluator()
    state = workflow.learn(jax.tree.map(jnp.copy, evaluated()[1]), 1)
    before = as_bytes(state)
    assert state.statistics.obs.sample_words.tolist() == [0, 64]
    first, state = workflow.evaluate(state)
    second, state = workflow.evaluate(state)
    assert as_bytes(first) == as_bytes(second)
    assert as_bytes(state) == before
    # The episodes are the same set for every policy of the run.
    assert float(first["return_mean"]) == float(evaluated()[0]["return_mean"])


@pytest.mark.parametrize("env", sorted(ENVS))
def test_37_episodes_are_37_on_one_device_and_two(env: str):
    one, two = evaluated(env, 37, 1)[0], evaluated(env, 37, 2)[0]
    assert as_bytes(one) == as_bytes(two)
    if env == "two_outcomes":
        long = float(one["return_mean"]) * 37 / 100
        assert long == pytest.approx(round(long), abs=1e-3)
        assert float(one["length_mean"]) == pytest.approx((37 - long + 100 * long) / 37)
    else:
        assert float(one["length_mean"]) == 5.0
        assert float(one["return_mean"]) == pytest.approx(2.5, abs=4 * 5 / np.sqrt(12 * 37))


def test_more_episodes_begin_with_the_fewer():
    # Episodes are numbered: of 64 the first 37 are those of the evaluation over 37.
    few = float(evaluated(episodes=37)[0]["return_mean"]) * 37
    many = float(evaluated(episodes=64)[0]["return_mean"]) * 64
    assert 0 <= many - few <= 27 * 100


def test_sampled_actions_differ_from_the_best():
    env = toy_envs.target_action((0.5,))
    best, sampled = (build(env, TINY, stochastic=x, eval_episodes=32) for x in (False, True))
    state = best.setup(jax.random.key(0))
    actor = [*state.params.actor[:-1], jax.tree.map(jnp.zeros_like, state.params.actor[-1])]
    state = state._replace(params=state.params._replace(actor=actor))
    still, _ = best.evaluate(state)
    # The mean is 0: every episode returns -(0 - 0.5)^2.
    assert float(still["return_mean"]) == pytest.approx(-0.25)
    assert float(still["return_std"]) == pytest.approx(0.0, abs=1e-6)
    noisy, _ = sampled.evaluate(state)
    again, _ = sampled.evaluate(state)
    assert float(noisy["return_std"]) > 0.1
    assert as_bytes(noisy) == as_bytes(again)


def never_ends() -> FunctionalEnvironment:
    return toy_envs.step_index(10**6)


def test_an_episode_without_an_end_stops_at_the_most_steps():
    workflow = build(never_ends(), TINY, eval_episodes=3)
    metrics, _ = workflow.evaluate(workflow.setup(jax.random.key(0)))
    assert float(metrics["length_mean"]) == 200.0 and float(metrics["return_mean"]) == 200.0


def test_an_episode_with_nan_ends_there_and_is_counted():
    workflow = build(toy_envs.nan_at_step(3, limit=5), TINY, eval_episodes=5)
    metrics, _ = workflow.evaluate(workflow.setup(jax.random.key(0)))
    told = evaluation_scalars(metrics, RunConfig(eval_episodes=5))
    assert (told["nan_episodes"], told["eval_episodes"]) == (5, 5)
    assert told["length_mean"] == 3.0 and told["return_mean"] == 2.0
