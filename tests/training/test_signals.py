"""A run that is asked to stop, to commit, or is killed, by signals to a real process."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep import cli
from lockstep.errors import StopRequested
from lockstep.telemetry import read_metrics
from tests.training import helpers
from tests.training.environments import Recording
from tests.training.helpers import Ended

ENDLESS = {"max_iterations": 1_000_000, "algo.lr_schedule": "constant"}
RUN = Path("run")


def start(task: str = "cartpole", **changes: Any) -> subprocess.Popen[str]:
    """A run without end in the folder ``run``, past its first update."""
    keys = ENDLESS | {"checkpoint_interval": 1_000_000} | changes
    child = helpers.start_lockstep("train", task, "--run-dir", "run", *helpers.words(**keys))
    wait_for(child, lambda: RUN.exists() and len(read_metrics(RUN)) > 0)
    return child


def wait_for(child: subprocess.Popen[str], there: Any, seconds: float = 90.0) -> None:
    """Wait until ``there()``; the child must live as long."""
    end = time.monotonic() + seconds
    while not there():
        if child.poll() is not None or time.monotonic() > end:
            child.kill()
            pytest.fail(f"exit code {child.poll()}: {child.communicate()[1]}")
        time.sleep(0.01)


def test_usr1_commits_and_term_stops(tmp_path: Path) -> None:
    child = start()
    child.send_signal(signal.SIGUSR1)
    wait_for(child, lambda: len(helpers.updates_committed(RUN)) == 1)
    seen = len(read_metrics(RUN))
    wait_for(child, lambda: len(read_metrics(RUN)) > seen + 2)  # it goes on
    child.send_signal(signal.SIGTERM)
    ended = Ended(child)
    assert (ended.code, ended.out) == (143, "")
    asked, stopped = helpers.updates_committed(RUN)
    assert stopped > asked
    assert ended.err.splitlines()[-1] == f"lockstep: stopped on request after update {stopped}"
    assert [line["update"] for line in read_metrics(RUN)] == list(range(1, stopped + 1))
    summary = helpers.read_json(RUN / "summary.json")
    assert (summary["status"], summary["updates"]) == ("stopped", stopped)
    assert (summary["return_mean"], summary["eval_episodes"]) == (None, 0)
    assert summary["train_seconds"] > 0
    assert summary["env_steps_per_second"] > 0
    assert not (RUN / "fault.json").exists()

    resumed = lockstep.train(resume=RUN, max_iterations=stopped + 3)
    assert (resumed.status, resumed.updates) == ("completed", stopped + 3)
    assert len(read_metrics(RUN)) == stopped + 3


def test_ctrl_c_stops_at_the_end_of_the_update(tmp_path: Path) -> None:
    child = start()
    child.send_signal(signal.SIGINT)
    ended = Ended(child)
    assert (ended.code, ended.out) == (130, "")
    (stopped,) = helpers.updates_committed(RUN)
    assert ended.err.splitlines()[-1] == f"lockstep: stopped on request after update {stopped}"


def test_a_second_ctrl_c_leaves_at_once(tmp_path: Path) -> None:
    """In the middle of an update that takes many seconds."""
    child = start("tests.training.environments:slow", **{"env.kwargs": {"work": 1_000_000}})
    child.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert child.poll() is None
    asked = time.monotonic()
    child.send_signal(signal.SIGINT)
    ended = Ended(child)
    assert time.monotonic() - asked < 4.0
    assert ended.code == 130
    assert helpers.updates_committed(RUN) == []
    assert "Traceback" not in ended.err


def committed_after(run: Path, update: int) -> bool:
    """Whether a commit later than ``update`` is there."""
    return run.exists() and max([0, *helpers.updates_committed(run)]) > update


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["TERM", "INT"]
)
def test_the_python_face_raises_and_resumes_to_the_same_bits(
    number: int, code: int, straight: tuple[Path, Any], tmp_path: Path
) -> None:
    """Stopped between two commits, after update 7; the caller's own handlers come back."""
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    keys = {"workflow_cls": "tests.training.environments.Recording", "num_devices": 2}

    def ask(state: Any) -> Any:
        signal.raise_signal(number)
        return state

    try:
        Recording.after = {7: ask}
        with pytest.raises(StopRequested) as caught:
            helpers.train("cartpole", RUN, **keys)
    finally:
        Recording.after = {}
    assert (caught.value.code, caught.value.update) == (code, 7)
    assert str(caught.value) == "stopped on request after update 7"
    assert helpers.updates_committed(RUN) == [5, 7]
    assert {n: signal.getsignal(n) for n in before} == before
    assert lockstep.train(resume=RUN).params_sha256 == straight[1].params_sha256
    assert (
        helpers.different_leaves(helpers.state_of(RUN)[0], helpers.state_of(straight[0])[0]) == []
    )


def test_a_signal_in_the_last_update_changes_nothing(
    straight: tuple[Path, Any], tmp_path: Path
) -> None:
    """All updates are done: the run ends as it would have, with its evaluation."""
    half = helpers.copy_stopped(straight[0], tmp_path / "half", 15)

    def ask(state: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return state

    text = (half / "config.yaml").read_text()
    own = "workflow_cls: tests.training.environments.Recording"
    (half / "config.yaml").write_text(text.replace("workflow_cls: null", own))
    try:
        Recording.after = {20: ask}
        result = lockstep.train(resume=half)
    finally:
        Recording.after = {}
    assert (result.status, result.params_sha256) == ("completed", straight[1].params_sha256)


def test_kills_at_random_moments(tmp_path: Path) -> None:
    """Five times: kill, resume the latest run, kill again; the bits are those of no kill."""
    rng = random.Random(5)
    root = Path("runs/cartpole/ppo/20260101-000000-seed0")
    keys = ENDLESS | {"checkpoint_interval": 1}
    argv = ["train", "cartpole", "--run-dir", str(root), *helpers.words(**keys)]
    seen = 0
    for _ in range(5):
        child = helpers.start_lockstep(*argv)
        wait_for(child, partial(committed_after, root, seen))
        time.sleep(rng.uniform(0.0, 0.3))
        child.kill()
        ended = Ended(child)
        assert ended.code == -signal.SIGKILL
        newest = max(helpers.updates_committed(root))
        assert newest > seen
        if seen:
            assert f"resumed:      update {seen} of 1000000" in ended.err
        seen = newest
        argv = ["train", "--resume", "latest"]
    with pytest.raises(SystemExit) as left:
        cli.main([*argv, "--max-iterations", str(seen + 2)])
    assert left.value.code == 0
    assert [line["update"] for line in read_metrics(root)] == list(range(1, seen + 3))
    digest = helpers.read_json(root / "summary.json")["params_sha256"]
    shutil.rmtree("runs")
    keys = {"algo.lr_schedule": "constant", "max_iterations": seen + 2}
    assert helpers.train("cartpole", RUN, **keys).params_sha256 == digest
