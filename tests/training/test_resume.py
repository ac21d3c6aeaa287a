"""A run that was stopped and resumed is the run that never stopped, bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import lockstep
from lockstep import cli
from lockstep.errors import UsageError
from lockstep.telemetry import read_metrics
from tests.training import helpers
from tests.training.helpers import STEPS, copy_stopped, different_leaves, state_of

# What differs between two runs of the same updates: the clock's readings.
CLOCK = ("env_steps_per_second", "wall_seconds")


def lines_of(run: Path) -> list[dict[str, Any]]:
    """``metrics.jsonl`` without the clock's readings."""
    return [
        {name: value for name, value in line.items() if name not in CLOCK}
        for line in read_metrics(run)
    ]


def test_resumed_is_bit_equal_to_never_stopped(
    straight: tuple[Path, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, result = straight
    half = copy_stopped(run, tmp_path / "half", 10)
    before, _ = state_of(half)
    resumed = lockstep.train(resume=half)  # the task is left out
    assert resumed.updates == 20
    assert resumed.total_steps == 20 * STEPS
    assert resumed.params_sha256 == result.params_sha256
    assert (resumed.return_mean, resumed.return_std) == (result.return_mean, result.return_std)
    told = capfd.readouterr().err
    assert f"resumed:      update 10 of 20 from {half}/checkpoints/10 (lockstep " in told

    (wanted, counters), (found, host) = state_of(run), state_of(half)
    assert host == counters
    assert (host["update"], host["steps"]) == (20, 20 * STEPS)
    assert different_leaves(found, wanted) == []
    # The comparison sees what it should: all of these moved since the stop.
    moved = different_leaves(found, before)
    for part in (
        ".params",
        ".opt_state",
        ".statistics.obs",
        ".statistics.returns",
        ".learning_rate",
        ".blocks.envs.env",
        ".blocks.envs.episode_return",
        ".blocks.discounted_return",
    ):
        assert any(name.startswith(part) for name in moved), part

    # No update is missing, none stands twice, and nothing dips after the stop.
    assert [line["update"] for line in lines_of(half)] == list(range(1, 21))
    assert lines_of(half) == lines_of(run)


def test_schedule_counters_and_statistics_go_on(straight: tuple[Path, Any]) -> None:
    """The rate falls linearly to 0 over the run's gradient steps; counts are those of samples."""
    run, _ = straight
    rates = [line["learning_rate"] for line in read_metrics(run)]
    np.testing.assert_allclose(rates, [1e-3 * (20 - u) / 20 for u in range(1, 21)], atol=1e-9)
    state, _ = state_of(run)
    for moments in state.statistics:
        assert moments.sample_words.tolist() == [0, 20 * STEPS]
    assert int(state.update) == 20


@pytest.mark.parametrize(
    "devices", [1, pytest.param(4, marks=[pytest.mark.devices, pytest.mark.slow])]
)
def test_resumed_on_other_device_counts_has_the_same_bits(
    devices: int, straight: tuple[Path, Any], tmp_path: Path
) -> None:
    """Two devices, then ``devices``, then two again."""
    if devices > jax.device_count():
        pytest.skip(f"needs {devices} devices")
    run, result = straight
    half = copy_stopped(run, tmp_path / "half", 10)
    other = lockstep.train("cartpole", resume=half, num_devices=devices)
    assert (result.devices, other.devices, other.reduction) == (2, devices, "exact")
    assert other.params_sha256 == result.params_sha256
    assert different_leaves(state_of(half)[0], state_of(run)[0]) == []
    back = copy_stopped(half, tmp_path / "back", 15)
    two = lockstep.train(resume=back, num_devices=2)
    assert (two.devices, two.params_sha256) == (2, result.params_sha256)
    assert different_leaves(state_of(back)[0], state_of(run)[0]) == []
    counts = [moments.sample_words.tolist() for moments in state_of(back)[0].statistics]
    assert counts == [[0, 20 * STEPS]] * 2


def test_a_finished_run_is_only_evaluated(
    straight: tuple[Path, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, result = straight
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    again = lockstep.train(resume=copy)
    assert "all 20 updates were done before" in capfd.readouterr().err
    assert (again.updates, again.return_mean) == (20, result.return_mean)
    assert again.params_sha256 == result.params_sha256
    assert lines_of(copy) == lines_of(run)


def test_latest_and_updates_counted_from_the_start(
    straight: tuple[Path, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    run, result = straight
    root = Path("runs/cartpole/ppo")
    copy_stopped(run, root / "20260101-000000-seed0", 15)
    newest = copy_stopped(run, root / "20260102-000000-seed0", 10)
    with pytest.raises(SystemExit) as left:
        cli.main(["train", "cartpole", "--resume", "latest", "--max-iterations", "20"])
    assert left.value.code == 0
    told = capfd.readouterr()
    assert f"resumed:      update 10 of 20 from {newest.absolute()}" in told.err
    assert f"run folder  {newest}" in told.out
    assert helpers.read_json(newest / "summary.json")["params_sha256"] == result.params_sha256


def test_a_run_without_a_whole_commit_is_refused(
    straight: tuple[Path, Any], tmp_path: Path
) -> None:
    half = copy_stopped(straight[0], tmp_path / "half", 5)
    (half / "checkpoints" / "5" / "commit.json").unlink()
    with pytest.raises(UsageError, match="has no whole checkpoint"):
        lockstep.train(resume=half)


def test_a_half_written_commit_is_told_and_passed_over(
    straight: tuple[Path, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, result = straight
    half = copy_stopped(run, tmp_path / "half", 10)
    broken = half / "checkpoints" / "15"
    shutil.copytree(half / "checkpoints" / "10", broken)
    (broken / "commit.json").unlink()
    resumed = lockstep.train(resume=half)
    told = capfd.readouterr().err
    assert "ignored the half-written checkpoint 15" in told
    assert "update 10 of 20" in told
    assert resumed.params_sha256 == result.params_sha256
    assert helpers.updates_committed(half) == [5, 10, 15, 20]
