"""What is broken is told: resets, episodes without an end, files, terminals, early interrupts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep.errors import TrainingFailed, UsageError
from lockstep.runs import claim_folder
from lockstep.telemetry import read_metrics
from tests.training import helpers

ENVIRONMENTS = "tests.training.environments"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "lockstep", "train", "cartpole", *words]


def test_a_reset_that_yields_nan_is_masked_and_counted(tmp_path: Path) -> None:
    result = helpers.train(f"{ENVIRONMENTS}:broken_reset", tmp_path / "run", max_iterations=5)
    assert result.status == "completed"
    assert sum(line["nan_envs"] for line in read_metrics(tmp_path / "run")) > 0
    with pytest.raises(TrainingFailed, match="the obs of environment .* is not finite"):
        helpers.train(f"{ENVIRONMENTS}:broken_reset", tmp_path / "fail", nan_policy="fail")


def test_an_evaluation_that_meets_nan_says_so(tmp_path: Path) -> None:
    task = f"{ENVIRONMENTS}:broken_reset"
    result = helpers.train(task, tmp_path / "run", max_iterations=1, eval_episodes=64)
    assert 0 < result.nan_episodes < 64
    assert lockstep.evaluate(tmp_path / "run").nan_episodes == result.nan_episodes


def test_episodes_without_an_end_are_counted(tmp_path: Path) -> None:
    result = helpers.train(f"{ENVIRONMENTS}:endless", tmp_path / "run", max_iterations=1)
    assert (result.eval_episodes, result.unfinished_episodes) == (8, 8)


def test_a_damaged_checkpoint_is_passed_over(
    straight: tuple[Path, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(straight[0], tmp_path / "run"))
    files = [path for path in (run / "checkpoints" / "20").rglob("d/*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 0xFF
    largest.write_bytes(data)
    result = lockstep.train(resume=run)
    told = capfd.readouterr().err
    assert "ignored the checkpoint 20: state/" in told
    assert "resumed:      update 15 of 20" in told
    assert result.params_sha256 == straight[1].params_sha256


def test_fewer_updates_than_are_done_are_refused(
    straight: tuple[Path, Any], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(straight[0], tmp_path / "run"))
    before = (run / "config.yaml").read_text()
    with pytest.raises(UsageError, match="has done 20 updates: max_iterations=3 is less"):
        lockstep.train(resume=run, max_iterations=3)
    assert (run / "config.yaml").read_text() == before


def test_two_runs_cannot_take_one_folder(tmp_path: Path) -> None:
    claim_folder(tmp_path / "run")
    claim_folder(tmp_path / "run")  # empty: nobody has begun
    (tmp_path / "run" / "config.yaml").write_text("")
    with pytest.raises(UsageError, match="exists and is not empty"):
        claim_folder(tmp_path / "run")


def test_randomness_is_threefry_whatever_the_default(tmp_path: Path) -> None:
    import jax

    first = helpers.train("cartpole", tmp_path / "a", max_iterations=2)
    with jax.default_prng_impl("rbg"):
        second = helpers.train("cartpole", tmp_path / "b", max_iterations=2)
    assert first.params_sha256 == second.params_sha256


@pytest.mark.parametrize("delay", [0.2, 0.5, 0.9])
def test_an_interrupt_while_jax_loads_leaves_at_once(delay: float) -> None:
    words = command("--num-envs", "64", "--max-iterations", "100000")
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        time.sleep(delay)
        child.send_signal(signal.SIGINT)
        _, told = child.communicate(timeout=90)
    finally:
        child.kill()
    assert child.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in told or delay < 0.3  # before our own first line Python tells


def test_a_reader_that_goes_away_does_not_stop_the_training(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    words = command("--run-dir", "run", *helpers.words(max_iterations=3))
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=write_end, timeout=120)
    os.close(write_end)
    assert done.returncode == 0
    assert helpers.read_json(tmp_path / "run" / "summary.json")["updates"] == 3


@pytest.mark.parametrize("platform", ["cuda", "nonsense"])
def test_a_platform_that_is_not_there(platform: str, tmp_path: Path) -> None:
    environment = os.environ | {"JAX_PLATFORMS": platform}
    done = subprocess.run(command(), capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("lockstep: JAX finds no devices: ")
    assert not (tmp_path / "runs").exists()
