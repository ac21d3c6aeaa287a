"""What a run leaves in its folder and prints: figures that are counted, not guessed."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax
import pytest

import lockstep
from lockstep.checkpoint import params_sha256
from lockstep.compose import from_yaml
from lockstep.results import TrainResult
from lockstep.telemetry import read_metrics
from tests.training import helpers
from tests.training.environments import Recording, Steps
from tests.training.helpers import NUM_ENVS, STEPS

PROMISED = (
    "status task algorithm library seed devices processes nodes num_envs total_steps updates "
    "return_mean return_std eval_episodes params_sha256 compile_seconds train_seconds "
    "wall_seconds env_steps_per_second peak_rss_mb goodput restarts versions"
).split()
OF_AN_UPDATE = (
    "update steps episodes return_mean return_std episode_length_mean reward_mean nan_envs loss "
    "grad_norm learning_rate env_steps_per_second wall_seconds"
).split()


def test_summary(straight: tuple[Path, Any]) -> None:
    run, result = straight
    summary = helpers.read_json(run / "summary.json")
    assert [name for name in PROMISED if name not in summary] == []
    assert sorted(summary) == sorted(field.name for field in fields(TrainResult))
    assert summary == json.loads(json.dumps(result.__dict__))
    exact = {
        "status": "completed",
        "task": "cartpole",
        "algorithm": "ppo",
        "library": "lockstep",
        "seed": 0,
        "devices": 2,
        "processes": 1,
        "nodes": 1,
        "num_envs": NUM_ENVS,
        "total_steps": 20 * STEPS,
        "updates": 20,
        "eval_episodes": 8,
        "restarts": 0,
        "reduction": "exact",
    }
    assert {name: summary[name] for name in exact} == exact
    assert summary["params_sha256"] == params_sha256(helpers.state_of(run)[0].params)
    assert summary["versions"]["jax"] == jax.__version__
    assert 8.0 <= summary["return_mean"] <= 500.0
    assert summary["env_steps_per_second"] == pytest.approx(
        20 * STEPS / summary["train_seconds"], rel=0.02
    )
    parts = summary["compile_seconds"] + summary["train_seconds"]
    assert parts < summary["wall_seconds"]
    assert summary["goodput"] == pytest.approx(
        summary["train_seconds"] / summary["wall_seconds"], rel=0.02, abs=1e-3
    )
    assert 100 < summary["peak_rss_mb"] < 8000


def test_files(straight: tuple[Path, Any]) -> None:
    run, _ = straight
    assert sorted(path.name for path in run.iterdir()) == [
        "checkpoints",
        "config.yaml",
        "metrics.jsonl",
        "ranks",
        "summary.json",
        "tensorboard",
    ]
    assert helpers.updates_committed(run) == [5, 10, 15, 20]
    assert from_yaml(run / "config.yaml").num_envs == NUM_ENVS
    beat = helpers.read_json(run / "ranks" / "0.heartbeat")
    assert sorted(beat) == ["attempt", "host", "phase", "pid", "rank", "time", "update"]
    assert (beat["rank"], beat["update"], beat["phase"]) == (0, 20, "done")


def test_one_line_an_update(straight: tuple[Path, Any]) -> None:
    lines = read_metrics(straight[0])
    assert [line["update"] for line in lines] == list(range(1, 21))
    assert [line["steps"] for line in lines] == [u * STEPS for u in range(1, 21)]
    for line in lines:
        assert [name for name in OF_AN_UPDATE if name not in line] == []
        assert "non_finite" not in line
        assert line["nan_envs"] == 0
        assert (line["return_mean"] is None) == (line["episodes"] == 0)
    # CartPole pays 1 a step: a return is a length, and no episode is longer than the run.
    ended = [line for line in lines if line["episodes"]]
    assert len(ended) > 10
    for line in ended:
        assert line["return_mean"] == line["episode_length_mean"]
        assert line["reward_mean"] == 1.0
    assert sum(line["episodes"] * line["return_mean"] for line in ended) <= 20 * STEPS
    seconds = [line["wall_seconds"] for line in lines]
    assert seconds == sorted(seconds)


def test_tensorboard_holds_every_update(straight: tuple[Path, Any]) -> None:
    """Records of a length, a checksum, the event and a checksum; a first one names the format."""
    (file,) = (straight[0] / "tensorboard").iterdir()
    data, records = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        records.append(data[12 : 12 + length])
        data = data[16 + length :]
    assert len(records) == 1 + 20
    assert all(b"return_mean" in record or b"episodes" in record for record in records[1:])
    assert b"grad_norm" in records[-1]


def test_header_and_progress(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    helpers.train("cartpole", tmp_path / "run", num_devices=2)
    told = capfd.readouterr()
    assert told.out == ""
    lines = told.err.splitlines()
    assert lines[:8] == [
        "task:         cartpole",
        "algorithm:    ppo (lockstep), seed 0",
        lines[2],
        "environments: 32 per device x 2 = 64",
        "blocks:       4 per device x 2 = 8",
        "minibatch:    128 per device x 2 = 256 samples",
        "updates:      20 x 512 environment steps = 10240",
        "reduction:    exact",
    ]
    assert lines[2].startswith("devices:      2 cpu")
    (first,) = [line for line in lines if line.startswith("update 1/20")]
    assert first.startswith("update 1/20  512 steps")
    assert lines[-2].startswith("update 20/20  10.2k steps")
    assert lines[-1] == "evaluating:   8 episodes"


def test_no_return_before_an_episode_ends(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = helpers.train(
        "tests.training.environments:long_episodes", run, max_iterations=11, num_devices=2
    )
    lines = read_metrics(run)
    for line in lines[:9]:
        assert line["episodes"] == 0
        assert line["return_mean"] is line["return_std"] is line["episode_length_mean"] is None
    assert [line["episodes"] for line in lines[9:]] == [NUM_ENVS, 0]
    assert (lines[9]["return_mean"], lines[9]["return_std"]) == (80.0, 0.0)
    assert lines[9]["episode_length_mean"] == 80.0
    assert (result.return_mean, result.return_std) == (80.0, 0.0)
    assert "NaN" not in (run / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    "devices",
    [
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(4, marks=[pytest.mark.slow, pytest.mark.devices]),
    ],
)
def test_steps_are_those_the_environments_count(devices: int, tmp_path: Path) -> None:
    """A user's environment and workflow; counted up to the evaluation, which steps them too."""
    if devices > jax.device_count():
        pytest.skip(f"needs {devices} devices")
    counted: list[int] = []

    def note(state: Any) -> Any:
        jax.block_until_ready(state)
        jax.effects_barrier()
        counted.append(Steps.count)
        return state

    Steps.count, Recording.after = 0, {3: note}
    try:
        result = helpers.train(
            "tests.training.environments:counting",
            tmp_path / "run",
            workflow_cls="tests.training.environments.Recording",
            max_iterations=3,
            num_devices=devices,
        )
    finally:
        Recording.after = {}
    assert counted == [result.total_steps] == [3 * STEPS]
    assert [line["steps"] for line in read_metrics(tmp_path / "run")] == [
        STEPS,
        2 * STEPS,
        3 * STEPS,
    ]
    assert result.env_steps_per_second is not None
    assert math.isfinite(result.env_steps_per_second)


@pytest.mark.slow
def test_the_compile_cache_is_filled_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    cache = tmp_path / "cache"
    argv = ["train", "tests.toy_envs:constant_reward", "--run-dir", "run", "--max-iterations", "1"]
    argv += [word for word in helpers.words() if not word.startswith("max_iterations")]
    ended = helpers.Ended(helpers.start_lockstep(*argv, XDG_CACHE_HOME=str(cache)))
    assert ended.code == 0, ended.err
    assert "return      1.00 +- 0.00" in ended.out
    assert ended.out.splitlines()[-1].split() == ["run", "folder", "run"]
    assert len(list((cache / "lockstep" / "jax").iterdir())) >= 3
    assert [path.name for path in cache.iterdir()] == ["lockstep"]


def test_evaluation_during_training(tmp_path: Path) -> None:
    """Every ``eval_interval`` updates a line has ``eval_`` figures; training is not changed."""
    run = tmp_path / "run"
    helpers.train("cartpole", run, num_devices=2, eval_interval=8)
    lines = read_metrics(run)
    with_figures = [line["update"] for line in lines if "eval_return_mean" in line]
    assert with_figures == [8, 16]
    figures = {name for name in lines[7] if name.startswith("eval_")}
    assert figures >= {"eval_return_mean", "eval_return_std", "eval_episodes"}
    assert lines[7]["eval_episodes"] == 8
    assert (
        lockstep.evaluate(run).params_sha256
        == helpers.read_json(run / "summary.json")["params_sha256"]
    )
