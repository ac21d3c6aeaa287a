"""The same run on one device and on several: bits, data, parameters, counters."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lockstep.workflows.on_policy import OnPolicyState, OnPolicyWorkflow
from tests.workflows.parts import (
    SEED,
    TINY,
    as_bytes,
    build,
    go_on,
    line,
    pendulum,
    replace,
    run,
)

UPDATES = 5
NORMALISED = replace(TINY, normalize_obs=True, normalize_reward=True, learning_rate=1e-3)


class Trained(NamedTuple):
    workflow: OnPolicyWorkflow
    history: list[dict[str, Any]]
    state: OnPolicyState
    start: OnPolicyState


@functools.cache
def trained(devices: int, exact: bool = True, merge: bool = False, num_blocks: int = 2) -> Trained:
    workflow = build(
        pendulum(), NORMALISED, devices=devices, exact=exact, merge=merge, num_blocks=num_blocks,
        quick=not exact,
    )  # fmt: skip
    start = workflow.setup(jax.random.key(SEED))
    history, state = go_on(workflow, jax.tree.map(jnp.copy, start), UPDATES)
    return Trained(workflow, history, state, start)


def test_training_moves_the_parameters_and_stays_finite():
    _, history, state, start = trained(1)
    moved = [
        np.abs(a - b).max()
        for a, b in zip(jax.tree.leaves(start.params), jax.tree.leaves(state.params), strict=True)
    ]
    assert min(moved) > 1e-4
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(state.params))
    assert int(state.update) == UPDATES
    assert [h["episodes"] for h in history] == [0, 8, 8, 8, 8]  # limit 10, 8 steps an update


def test_one_block_a_device_has_the_bits_of_one_device():
    one, two = trained(1), trained(2)
    assert as_bytes(one.start) == as_bytes(two.start)
    assert as_bytes(one.state.params) == as_bytes(two.state.params)
    assert as_bytes(one.state) == as_bytes(two.state)
    for update, (a, b) in enumerate(zip(one.history, two.history, strict=True)):
        assert as_bytes(a) == as_bytes(b), f"update {update + 1}"


@pytest.mark.devices
@pytest.mark.skipif(len(jax.devices()) < 4, reason="wants four devices")
def test_four_devices_have_the_bits_of_one():
    one, four = trained(1, num_blocks=4), trained(4, num_blocks=4)
    assert as_bytes(one.state) == as_bytes(four.state)
    assert as_bytes(one.history) == as_bytes(four.history)


@pytest.mark.parametrize("devices", [1, 2])
def test_fast_sums_are_close_to_exact_ones(devices: int):
    exact, fast = trained(1).state, trained(devices, exact=False).state
    for a, b in zip(jax.tree.leaves(exact.params), jax.tree.leaves(fast.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_merged_blocks_are_close_to_blocks_one_by_one():
    plain, merged = trained(1, exact=False), trained(1, exact=False, merge=True)
    leaves = (jax.tree.leaves(x.state.params) for x in (plain, merged))
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    for a, b in zip(plain.history, merged.history, strict=True):
        assert a["episodes"] == b["episodes"]
        assert a["return_sum"] == pytest.approx(b["return_sum"], rel=1e-4)
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-2, abs=1e-3)


def test_environments_are_split_and_parameters_are_on_every_device():
    workflow, _, state, _ = trained(2)
    assert workflow.enable_multi_devices and not trained(1).workflow.enable_multi_devices
    for leaf in jax.tree.leaves(state.blocks):
        assert [x.data.shape for x in leaf.addressable_shards] == [(1, *leaf.shape[1:])] * 2
    for leaf in jax.tree.leaves((state.params, state.opt_state, state.statistics)):
        assert leaf.sharding.is_fully_replicated
        first, second = (np.asarray(x.data) for x in leaf.addressable_shards)
        assert first.tobytes() == second.tobytes()


def test_every_environment_sees_data_of_its_own():
    _, _, state, start = trained(2)
    env_ids = np.asarray(state.blocks.env_id)
    np.testing.assert_array_equal(env_ids, [[0, 1, 2, 3], [4, 5, 6, 7]])
    for obs in (start.blocks.envs.obs, state.blocks.envs.obs):
        rows = {row.tobytes() for row in np.asarray(obs).reshape(8, -1)}
        assert len(rows) == 8


def test_statistics_count_every_sample_once():
    samples = UPDATES * 8 * 8
    for devices in (1, 2):
        statistics = trained(devices).state.statistics
        assert statistics.obs.sample_words.tolist() == [0, samples]
        assert statistics.returns.sample_words.tolist() == [0, samples]


def test_reported_steps_do_not_depend_on_the_devices():
    for devices in (1, 2):
        workflow, history, *_ = trained(devices)
        assert workflow.steps_per_update == 64
        assert line(workflow, history[-1], UPDATES)["steps"] == 320


def test_a_seed_gives_one_run_and_another_seed_another():
    workflow, history, state, start = trained(1)
    key = jax.random.key(SEED)
    again = workflow.setup(key)
    assert as_bytes(again) == as_bytes(start)
    # learn() is the same updates without their metrics.
    assert as_bytes(workflow.learn(again, UPDATES)) == as_bytes(state)
    # The caller's key outlives the state that was made of it and consumed.
    assert as_bytes(key) == as_bytes(start.key)
    other_history, other = run(workflow, 1, seed=SEED + 1)
    assert as_bytes(other.params) != as_bytes(start.params)
    assert as_bytes(other.blocks.envs) != as_bytes(start.blocks.envs)
    assert other_history[0]["reward_mean"] != history[0]["reward_mean"]
