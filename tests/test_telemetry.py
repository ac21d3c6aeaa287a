"""Metrics files and trackers, heartbeat, timers; a fake ``wandb`` stands for the service."""

from __future__ import annotations

import errno
import json
import os
import resource
import struct
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from lockstep.errors import UsageError
from lockstep.telemetry import Heartbeat, MetricsWriter, Timers, read_metrics


def events(folder: Path) -> list[Any]:
    """All events below a folder, oldest file first, read from the record format itself."""
    found = []
    for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            found.append(event_pb2.Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return found


def scalars(folder: Path) -> list[tuple[int, str, float]]:
    return [
        (event.step, value.tag, round(value.simple_value, 6))
        for event in events(folder)
        for value in event.summary.value
    ]


def test_one_line_an_update(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    writer.write({"update": 1, "steps": 2**40, "return_mean": None, "episodes": 0, "loss": 0.5})
    writer.write({"update": 2, "steps": 2**41, "loss": np.float32(0.25), "note": "x"})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()  # on disk before close
    assert json.loads(lines[0]) == {
        "update": 1,
        "steps": 2**40,
        "return_mean": None,
        "episodes": 0,
        "loss": 0.5,
    }
    assert json.loads(lines[1]) == {"update": 2, "steps": 2**41, "loss": 0.25, "note": "x"}
    writer.close()
    writer.close()
    writer.write({"update": 3})
    assert len(read_metrics(tmp_path)) == 2
    assert scalars(tmp_path / "tensorboard") == [
        (2**40, "update", 1.0),
        (2**40, "steps", float(2**40)),
        (2**40, "episodes", 0.0),
        (2**40, "loss", 0.5),
        (2**41, "update", 2.0),
        (2**41, "steps", float(2**41)),
        (2**41, "loss", 0.25),
    ]


def test_what_is_not_finite_is_told_in_valid_json(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, tensorboard=False)
    writer.write({"update": 1, "loss": float("nan"), "kl": np.float32("inf"), "return": 2.0})
    writer.close()
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text) == {
        "update": 1,
        "loss": None,
        "kl": None,
        "return": 2.0,
        "non_finite": ["loss", "kl"],
    }
    assert not (tmp_path / "tensorboard").exists()


def test_metrics_without_update_are_refused(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, tensorboard=False)
    with pytest.raises(ValueError, match=r"metrics need an integer 'update', got \['loss'\]"):
        writer.write({"loss": 1.0})
    writer.close()


def test_resume_leaves_no_update_twice(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    for update in range(1, 6):
        writer.write({"update": update, "steps": 100 * update, "attempt": 0})
    writer.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"update": 6, "st')  # killed in the middle of a line
    writer = MetricsWriter(tmp_path, append=True, restored_update=3)
    writer.write({"update": 4, "steps": 400, "attempt": 1})
    writer.close()
    lines = read_metrics(tmp_path)
    assert [(line["update"], line["attempt"]) for line in lines] == [(1, 0), (2, 0), (3, 0), (4, 1)]
    starts = [event.step for event in events(tmp_path / "tensorboard") if event.session_log.status]
    assert starts == [301]

    writer = MetricsWriter(tmp_path, tensorboard=False, append=True)
    writer.close()
    assert [line["update"] for line in read_metrics(tmp_path)] == [1, 2, 3, 4]
    writer = MetricsWriter(tmp_path, tensorboard=False, append=True, restored_update=0)
    writer.close()
    assert read_metrics(tmp_path) == []


def test_a_disk_that_is_full_is_told_and_leaves_whole_lines(tmp_path: Path) -> None:
    """A file size limit stands for the full disk."""
    writer = MetricsWriter(tmp_path, tensorboard=False)
    writer.write({"update": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            writer.write({"update": 2, "note": "x" * 200})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(tmp_path / "metrics.jsonl")
    assert (tmp_path / "metrics.jsonl").read_text() == '{"update": 1}\n'
    writer.close()


def test_a_full_disk_under_tensorboard_is_told_not_waited_for(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            for update in range(1, 10_000):
                os.truncate(tmp_path / "metrics.jsonl", 0)
                writer.write({"update": update, "loss": 1.0})
            writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == str(tmp_path / "tensorboard")


@pytest.fixture
def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module that notes every call as ``(name, keyword arguments)``."""
    module = types.ModuleType("wandb")
    module.__spec__ = types.SimpleNamespace(name="wandb")  # type: ignore[assignment]
    calls: list[tuple[str, dict[str, Any]]] = []

    class Run:
        def log(self, data: dict[str, float], step: int) -> None:
            calls.append(("log", {"data": data, "step": step}))

        def finish(self) -> None:
            calls.append(("finish", {}))

    def init(**given: Any) -> Run:
        calls.append(("init", given))
        return Run()

    module.init = init  # type: ignore[attr-defined]
    module.calls = calls  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_one_tracker_run_for_all_ranks_and_resumes(
    tmp_path: Path, fake_wandb: types.ModuleType
) -> None:
    run_dir = tmp_path / "a-run"
    run_dir.mkdir()
    for append, first in ((False, 1), (True, 3)):
        ranks = [
            MetricsWriter(
                run_dir,
                tensorboard=False,
                wandb=True,
                append=append,
                restored_update=first - 1,
                rank=rank,
                config={"seed": 4},
            )
            for rank in range(4)
        ]
        for update in (first, first + 1):
            for writer in ranks:
                writer.write({"update": update, "steps": 10 * update, "return_mean": None})
        for writer in ranks:
            writer.close()
    calls = fake_wandb.calls
    assert [name for name, _ in calls] == ["init", "log", "log", "finish"] * 2
    first_init, second_init = (given for name, given in calls if name == "init")
    assert (
        first_init["id"]
        == second_init["id"]
        == json.loads((run_dir / "wandb.json").read_text())["id"]
    )
    assert first_init["resume"] == "allow"
    assert first_init["name"] == "a-run"
    assert first_init["config"] == {"seed": 4}
    logged = [given for name, given in calls if name == "log"]
    assert [given["step"] for given in logged] == [10, 20, 30, 40]
    assert logged[0]["data"] == {"update": 1, "steps": 10}
    assert [line["update"] for line in read_metrics(run_dir)] == [1, 2, 3, 4]


def test_missing_wandb_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"wandb=true needs .* pip install 'lockstep-rl\[wandb\]'"):
        MetricsWriter(tmp_path, tensorboard=False, wandb=True)


def test_heartbeat_tells_where_the_rank_is(tmp_path: Path) -> None:
    path = tmp_path / "3.heartbeat"
    heartbeat = Heartbeat(path, rank=3, attempt=1, interval=60.0)
    before = time.time()
    heartbeat.beat(0, "compile")
    first = json.loads(path.read_text())
    assert first["phase"] == "compile"
    assert before <= first["time"] <= time.time()
    heartbeat.beat(1, "train")  # another phase: at once
    heartbeat.beat(2, "train")  # the same phase too soon: not written
    last = json.loads(path.read_text())
    assert {name: last[name] for name in ("rank", "pid", "attempt", "update", "phase")} == {
        "rank": 3,
        "pid": os.getpid(),
        "attempt": 1,
        "update": 1,
        "phase": "train",
    }
    assert set(last) == {"rank", "pid", "host", "attempt", "update", "phase", "time"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["3.heartbeat"]
    eager = Heartbeat(path, rank=3, interval=0.0)
    eager.beat(2, "train")
    eager.beat(3, "train")
    assert json.loads(path.read_text())["update"] == 3


def test_heartbeat_failure_has_path_and_errno(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "0.heartbeat"
    with pytest.raises(OSError, match="No such file") as caught:
        Heartbeat(path, rank=0).beat(1, "train")
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == str(path)


def test_timers_sum_visits() -> None:
    timers = Timers()
    for _ in range(2):
        with timers.phase("compile"):
            time.sleep(0.02)
    with pytest.raises(KeyError), timers.phase("train"):
        raise KeyError
    timers.add("train", 2.0)
    assert 0.04 <= timers.seconds("compile") < 1.0
    assert 2.0 <= timers.seconds("train") < 2.1
    assert timers.seconds("never") == 0.0
    assert list(timers.totals()) == ["compile", "train"]


def test_telemetry_imports_no_jax() -> None:
    code = "import sys, lockstep.telemetry, lockstep.progress; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
