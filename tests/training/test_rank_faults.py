"""Two processes decide together: none goes on alone, none waits for one that has left."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.training import helpers
from tests.training.helpers import Ended

RUN = Path("run")


@pytest.mark.slow
def test_a_nan_on_one_rank_stops_both_with_one_message() -> None:
    """Environment 39 of 64 is the second process's; only its observation is not finite."""
    kwargs = {"bad_step": 12, "limit": 30, "probability": 0.02, "in_reward": False}
    keys = {"seed": 3, "env.kwargs": kwargs, "nan_policy": "fail"}
    ranks = helpers.run_ranks("tests.toy_envs:nan_at_step", RUN, **keys)
    left = time.time()
    assert [rank.code for rank in ranks] == [1, 1], ranks[0].err + ranks[1].err
    told = [helpers.last_json(rank.out) for rank in ranks]
    assert told[0]["failed"] == told[1]["failed"]
    assert told[0]["failed"] == (
        "update 2, step 3 of its rollout: the obs of environment 39 (rank 1) is not finite "
        "(nan_policy=fail); the transition is in run/nan_transition.json"
    )
    assert abs(told[0]["at"] - told[1]["at"]) < 5.0
    assert left - told[0]["at"] < 10.0
    dump = helpers.read_json(RUN / "nan_transition.json")
    assert (dump["rank"], dump["leaf"], dump["reward"], dump["obs"]) == (1, "obs", 1.0, [11.0])
    fault = helpers.read_json(RUN / "fault.json")
    assert (fault["update"], fault["cause"]) == (2, told[0]["failed"])


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_both_at_the_same_update() -> None:
    keys = {"max_iterations": 1_000_000, "algo.lr_schedule": "constant"}
    with helpers.started_ranks("cartpole", RUN, checkpoint_interval=1_000_000, **keys) as children:
        end = time.monotonic() + 120
        while not (RUN / "metrics.jsonl").exists() or not (RUN / "metrics.jsonl").stat().st_size:
            assert time.monotonic() < end
            assert children[1].poll() is None, children[1].communicate()
            time.sleep(0.05)
        children[1].send_signal(signal.SIGTERM)
        ranks = [Ended(child) for child in children]
    assert [rank.code for rank in ranks] == [143, 143]
    (stopped,) = helpers.updates_committed(RUN)
    for rank in ranks:
        told = helpers.last_json(rank.out)["failed"]
        assert told == f"stopped on request after update {stopped}"


@pytest.mark.slow
def test_a_commit_that_rank_0_cannot_write_stops_both() -> None:
    ranks = helpers.run_ranks(
        "cartpole", RUN, workflow_cls="tests.training.environments.LosesCheckpoints"
    )
    assert [rank.code for rank in ranks] == [1, 1], ranks[0].err + ranks[1].err
    told = [helpers.last_json(rank.out)["failed"] for rank in ranks]
    assert told[0].startswith("checkpoint 10 not written to ")
    assert told[0].endswith("Not a directory (errno 20)")
    assert told[1] == "checkpoint 10 not written: process 0 failed"
    assert helpers.read_json(RUN / "fault.json")["cause"] in told
