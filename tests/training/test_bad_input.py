"""Wrong requests end to end: exit 2, one sentence on standard error, nothing written."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep import cli
from lockstep.errors import UsageError
from tests.training import helpers

REFUSED = [
    ("train cartpol", "unknown task 'cartpol': did you mean 'cartpole'?"),
    ("train cartpole --algo ppa", "unknown algorithm 'ppa': did you mean 'ppo'?"),
    ("train cartpole algo.gama=0.9", "unknown key 'algo.gama': did you mean 'algo.gamma'?"),
    ("train cartpole --num_env 8", "unknown option '--num-env': did you mean '--num-envs'?"),
    ("train cartpole env.backend=spring", "task 'cartpole'"),
    ("train ant env.backend=sprin", "did you mean 'spring'?"),
    ("train cartpole num_envs=10", "num_envs=10 (global) does not divide into"),
    ("train cartpole num_envs=64 num_blocks=7", "num_envs=64 (global) does not divide into"),
    ("train cartpole num_devices=99", "num_devices=99 is more than the"),
    ("train cartpole algo.tanh_squash=true", "algo.tanh_squash=true needs continuous actions"),
    ("train cartpole env.kwargs.nothing=1", "task 'cartpole'"),
    ("train cartpole --run-dir full", "the run folder 'full' exists and is not empty"),
    ("train cartpole --run-dir full/file", "the run folder 'full/file' exists and is not a folder"),
    ("train --resume full", "'full' is no run: it has no config.yaml"),
    ("train --resume nowhere", "there is no run 'nowhere'"),
    ("train --resume latest", "there is no run under 'runs' to resume"),
    ("evaluate full", "'full' is no run: it has no config.yaml"),
    ("train cartpole workflow_cls=nowhere.Cls", "workflow_cls=nowhere.Cls names no class"),
    (
        "train cartpole workflow_cls=tests.training.environments.NoWorkflow",
        "workflow_cls=tests.training.environments.NoWorkflow is no workflow: it has no setup, "
        "evaluate, learn",
    ),
    ("train cartpole workflow_cls=tests.training.helpers.train", "is no workflow"),
    ("train nowhere:env", "unknown task 'nowhere:env': there is neither"),
    ("train tests.toy_envs:no_such", "task 'tests.toy_envs:no_such'"),
]
if importlib.util.find_spec("wandb") is None:
    REFUSED.append(("train cartpole wandb=true", "wandb=true needs the package wandb"))


@pytest.mark.parametrize(("line", "sentence"), REFUSED, ids=[line for line, _ in REFUSED])
def test_refused(
    line: str, sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("x")
    with pytest.raises(SystemExit) as left:
        cli.main(line.split())
    told = capfd.readouterr()
    assert left.value.code == 2
    assert told.out == ""
    assert told.err.startswith("lockstep: ")
    assert sentence in told.err
    assert told.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert [path.name for path in full.iterdir()] == ["file"]


def test_the_process_leaves_with_two_and_one_line(tmp_path: Path) -> None:
    """With JAX loaded and devices started, which the command line's own checks never do."""
    argv = ["train", "cartpole", "workflow_cls=nowhere.Cls"]
    ended = helpers.Ended(helpers.start_lockstep(*argv))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("lockstep: workflow_cls=nowhere.Cls names no class")
    assert ended.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_changed_on_resume(straight: tuple[Path, Any], tmp_path: Path) -> None:
    run = helpers.copy_stopped(straight[0], tmp_path / "half", 10)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    for changes in ({"num_envs": 128}, {"algo.gamma": 0.5}, {"seed": 1}, {"task": "pendulum"}):
        with pytest.raises(UsageError, match="cannot be changed on resume"):
            lockstep.train(resume=run, **changes)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
