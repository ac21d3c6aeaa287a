"""The same run on one device and on several: bits, data, parameters, counters."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

from lockstep.workflows.on_policy import OnPolicyState, OnPolicyWorkflow
from tests.workflows.parts import TINY, as_bytes, build, line, pendulum, replace, run

UPDATES = 5
NORMALISED = replace(TINY, normalize_obs=True, normalize_reward=True, learning_rate=1e-3)


@functools.cache
def trained(
    devices: int, exact: bool = True, merge: bool = False, num_blocks: int = 2
) -> tuple[OnPolicyWorkflow, list[dict[str, Any]], OnPolicyState]:
    workflow = build(
        pendulum(), NORMALISED, devices=devices, exact=exact, merge=merge, num_blocks=num_blocks,
        quick=not exact,
    )  # fmt: skip
    history, state = run(workflow, UPDATES)
    return workflow, history, state


def test_training_moves_the_parameters_and_stays_finite():
    workflow, history, state = trained(1)
    start = workflow.setup(jax.random.key(7))
    moved = [
        np.abs(a - b).max()
        for a, b in zip(jax.tree.leaves(start.params), jax.tree.leaves(state.params), strict=True)
    ]
    assert min(moved) > 1e-4
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(state.params))
    assert int(state.update) == UPDATES
    assert [h["episodes"] for h in history] == [0, 8, 8, 8, 8]  # limit 10, 8 steps an update


def test_one_block_a_device_has_the_bits_of_one_device():
    (_, one_history, one), (_, two_history, two) = trained(1), trained(2)
    assert as_bytes(one.params) == as_bytes(two.params)
    assert as_bytes(one) == as_bytes(two)
    for update, (a, b) in enumerate(zip(one_history, two_history, strict=True)):
        assert as_bytes(a) == as_bytes(b), f"update {update + 1}"


@pytest.mark.devices
@pytest.mark.skipif(len(jax.devices()) < 4, reason="wants four devices")
def test_four_devices_have_the_bits_of_one():
    (_, one_history, one), (_, four_history, four) = (
        trained(1, num_blocks=4),
        trained(4, num_blocks=4),
    )
    assert as_bytes(one) == as_bytes(four)
    assert as_bytes(one_history) == as_bytes(four_history)


@pytest.mark.parametrize("devices", [1, 2])
def test_fast_sums_are_close_to_exact_ones(devices: int):
    exact, fast = trained(1)[2], trained(devices, exact=False)[2]
    for a, b in zip(jax.tree.leaves(exact.params), jax.tree.leaves(fast.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_merged_blocks_are_close_to_blocks_one_by_one():
    (_, plain_history, plain), (_, merged_history, merged) = (
        trained(1, exact=False),
        trained(1, exact=False, merge=True),
    )
    for a, b in zip(jax.tree.leaves(plain.params), jax.tree.leaves(merged.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    for a, b in zip(plain_history, merged_history, strict=True):
        assert a["episodes"] == b["episodes"]
        assert a["return_sum"] == pytest.approx(b["return_sum"], rel=1e-4)
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-2, abs=1e-3)


def test_environments_are_split_and_parameters_are_on_every_device():
    workflow, _, state = trained(2)
    assert workflow.enable_multi_devices and not trained(1)[0].enable_multi_devices
    for leaf in jax.tree.leaves(state.blocks):
        assert [x.data.shape for x in leaf.addressable_shards] == [(1, *leaf.shape[1:])] * 2
    for leaf in jax.tree.leaves((state.params, state.opt_state, state.statistics)):
        assert leaf.sharding.is_fully_replicated
        first, second = (np.asarray(x.data) for x in leaf.addressable_shards)
        assert first.tobytes() == second.tobytes()


def test_every_environment_sees_data_of_its_own():
    state = trained(2)[2]
    env_ids = np.asarray(state.blocks.env_id)
    np.testing.assert_array_equal(env_ids, [[0, 1, 2, 3], [4, 5, 6, 7]])
    for obs in (trained(2)[0].setup(jax.random.key(7)).blocks.envs.obs, state.blocks.envs.obs):
        rows = {row.tobytes() for row in np.asarray(obs).reshape(8, -1)}
        assert len(rows) == 8


def test_statistics_count_every_sample_once():
    samples = UPDATES * 8 * 8
    for devices in (1, 2):
        statistics = trained(devices)[2].statistics
        assert statistics.obs.sample_words.tolist() == [0, samples]
        assert statistics.returns.sample_words.tolist() == [0, samples]


def test_reported_steps_do_not_depend_on_the_devices():
    for devices in (1, 2):
        workflow, history, _ = trained(devices)
        assert workflow.steps_per_update == 64
        assert line(workflow, history[-1], UPDATES)["steps"] == 320


def test_a_seed_gives_one_run_and_another_seed_another():
    workflow, history, state = trained(1)
    key = jax.random.key(7)
    start = workflow.setup(key)
    again_history, again = run(workflow, UPDATES)
    assert as_bytes(again) == as_bytes(state)
    assert as_bytes(again_history) == as_bytes(history)
    # The caller's key outlives the states that consumed it.
    workflow.learn(start, 1)
    assert as_bytes(workflow.setup(key).blocks) == as_bytes(workflow.setup(key).blocks)
    other_history, other = run(workflow, 1, seed=8)
    assert as_bytes(other.params) != as_bytes(workflow.learn(workflow.setup(key), 1).params)
    assert other_history[0]["reward_mean"] != history[0]["reward_mean"]


def test_learn_is_steps_without_metrics():
    workflow, _, state = trained(1)
    assert as_bytes(workflow.learn(workflow.setup(jax.random.key(7)), UPDATES)) == as_bytes(state)
