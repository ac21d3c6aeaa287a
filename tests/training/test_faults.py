"""What goes wrong in mid-run: numbers that are not finite, disks that refuse."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import lockstep
from lockstep import cli
from lockstep.errors import TrainingFailed
from lockstep.telemetry import read_metrics
from tests.training import helpers
from tests.training.environments import Recording

# With this seed one of the 64 environments, the 39th, breaks at its twelfth step.
BREAKS = {"seed": 3, "env.kwargs": {"bad_step": 12, "limit": 30, "probability": 0.02}}
NAN = "tests.toy_envs:nan_at_step"
SENTENCE = "update 2, step 3 of its rollout: the reward of environment 39 (rank 0) is not finite"


def test_a_nan_that_fails_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["train", NAN, "--run-dir", "run", *helpers.words(nan_policy="fail", **BREAKS)]
    with pytest.raises(SystemExit) as left:
        cli.main(argv)
    assert left.value.code == 1
    told = capfd.readouterr().err.splitlines()[-1]
    assert told.startswith("lockstep: " + SENTENCE)
    assert told.endswith("(nan_policy=fail); the transition is in run/nan_transition.json")
    dump = helpers.read_json(tmp_path / "run" / "nan_transition.json")
    expected = {"update": 2, "step": 3, "environment": 39, "rank": 0, "leaf": "reward"}
    assert {name: dump[name] for name in expected} == expected
    assert dump["obs"] == [11.0]
    assert dump["action"] in ([0.0], [1.0])
    assert dump["reward"] == "nan"
    assert dump["final_obs"] == ["nan"]
    fault = helpers.read_json(tmp_path / "run" / "fault.json")
    assert (fault["rank"], fault["update"], fault["exception"]) == (0, 2, "TrainingFailed")
    assert f"lockstep: {fault['cause']}" == told
    assert fault["hint"] == "fix the cause and start a new run: there is no checkpoint yet"
    assert sorted(fault) == sorted("rank node update phase cause exception hint log".split())
    assert [line["nan_envs"] for line in read_metrics("run")] == [0, 1]
    assert not Path("run/summary.json").exists()


def test_a_nan_that_is_masked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = helpers.train(NAN, tmp_path / "run", **BREAKS)
    assert (result.status, result.updates) == ("completed", 20)
    lines = read_metrics(tmp_path / "run")
    assert [line["nan_envs"] for line in lines[:3]] == [0, 1, 0]
    assert "update 2: 1 transitions with NaN were masked" in capfd.readouterr().err
    for line in lines:
        assert "non_finite" not in line
        assert line["return_mean"] in (None, 30.0)  # broken episodes are not counted as ended
    state, _ = helpers.state_of(tmp_path / "run")
    for leaf in jax.tree.leaves((state.params, state.opt_state, state.statistics)):
        assert jnp.isfinite(leaf).all()
    rewards = state.statistics.returns.sample_words.tolist()[1]
    assert rewards == 20 * helpers.STEPS - sum(line["nan_envs"] for line in lines)


@contextlib.contextmanager
def after(update: int, hook: Callable[[Any], Any]) -> Iterator[dict[str, Any]]:
    """The keys of a run in which ``hook`` acts when ``update`` updates are done."""
    Recording.after = {update: hook}
    try:
        yield {"workflow_cls": "tests.training.environments.Recording", "num_devices": 2}
    finally:
        Recording.after = {}


def poison(state: Any) -> Any:
    """The same state with one weight that is not a number."""
    leaves, tree = jax.tree.flatten(state.params)
    leaves[0] = leaves[0].at[(0,) * leaves[0].ndim].set(jnp.nan)
    return state._replace(params=jax.tree.unflatten(tree, leaves))


@pytest.mark.parametrize("update", [10, 12])
def test_parameters_that_are_not_finite_are_never_committed(update: int, tmp_path: Path) -> None:
    """At the commit of update 10 itself, and between two commits."""
    run = tmp_path / "run"
    with after(update, poison) as keys, pytest.raises(TrainingFailed) as caught:
        helpers.train("cartpole", run, **keys)
    if update == 10:
        assert "checkpoint 10 not written: params" in str(caught.value)
        assert "not finite" in str(caught.value)
    else:
        assert str(caught.value).startswith("update 13: ")
        assert "is not finite" in str(caught.value)
    assert helpers.updates_committed(run) == ([5] if update == 10 else [5, 10])
    fault = helpers.read_json(run / "fault.json")
    assert fault["cause"] == str(caught.value)
    assert "NaN" not in (run / "metrics.jsonl").read_text()
    # The run can be resumed from the last sound commit.
    assert lockstep.train(resume=run).status == "completed"
    assert not (run / "fault.json").exists()


def test_a_run_folder_that_goes_away(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file stands where the folder of checkpoints was."""

    def replace(state: Any) -> Any:
        shutil.rmtree("run/checkpoints")
        Path("run/checkpoints").write_text("in the way")
        return state

    with after(7, replace) as keys, pytest.raises(SystemExit) as left:
        cli.main(["train", "cartpole", "--run-dir", "run", *helpers.words(**keys)])
    assert left.value.code == 1
    told = capfd.readouterr().err.splitlines()[-1]
    assert told.startswith(f"lockstep: checkpoint 10 not written to {tmp_path}/run/checkpoints")
    assert told.endswith("Not a directory (errno 20)")
    fault = helpers.read_json(tmp_path / "run" / "fault.json")
    assert (fault["update"], fault["phase"]) == (10, "save")


def test_a_folder_of_ranks_that_goes_away(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The heartbeat is not part of a commit; it cannot be written either."""

    def remove(state: Any) -> Any:
        shutil.rmtree("run/ranks")
        return state

    with after(7, remove) as keys, pytest.raises(SystemExit) as left:
        cli.main(["train", "cartpole", "--run-dir", "run", *helpers.words(**keys)])
    assert left.value.code == 1
    told = capfd.readouterr().err.splitlines()[-1]
    assert (
        told == "lockstep: cannot write run/ranks/0.heartbeat: No such file or directory (errno 2)"
    )


def test_a_read_only_run_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The permission bits do not bind root: then the run acts as another user."""
    user = os.geteuid()

    def forbid(state: Any) -> Any:
        for folder in [tmp_path / "run", *(tmp_path / "run").iterdir()]:
            if folder.is_dir():
                folder.chmod(0o555)
        if user == 0:
            os.seteuid(65534)
        return state

    try:
        with after(7, forbid) as keys, pytest.raises(SystemExit) as left:
            cli.main(["train", "cartpole", "--run-dir", "run", *helpers.words(**keys)])
    finally:
        os.seteuid(user)
        for folder in [tmp_path / "run", *(tmp_path / "run").iterdir()]:
            if folder.is_dir():
                folder.chmod(0o755)
    assert left.value.code == 1
    told = capfd.readouterr().err.splitlines()[-1]
    assert "run/" in told
    assert told.endswith("Permission denied (errno 13)")
    assert helpers.updates_committed(tmp_path / "run") == [5]


def small_disk(folder: Path, size: str) -> bool:
    """Mount a tmpfs of ``size`` on ``folder``; False where that is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    return os.geteuid() == 0 and not subprocess.run(mount, capture_output=True).returncode


@pytest.mark.parametrize("filled", ["at a commit", "between commits"])
def test_a_full_disk(filled: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    disk = tmp_path / "disk"
    if not small_disk(disk, "2m"):
        pytest.skip("needs the right to mount a small tmpfs")

    def fill(state: Any) -> Any:
        room = 16384 if filled == "at a commit" else 0
        free = shutil.disk_usage(disk).free
        (disk / "filler").write_bytes(b"x" * max(0, free - room))
        return state

    try:
        argv = ["train", "cartpole", "--run-dir", str(disk / "run"), "tensorboard=true"]
        small = [word for word in helpers.words() if not word.startswith("tensorboard")]
        with after(7, fill) as keys, pytest.raises(SystemExit) as left:
            extra = [f"{key}={value}" for key, value in keys.items()]
            cli.main([*argv, *small, *extra])
        assert left.value.code == 1
        told = capfd.readouterr().err.splitlines()[-1]
        assert str(disk / "run") in told
        assert told.endswith("No space left on device (errno 28)")
        assert helpers.updates_committed(disk / "run") == [5]
        # With room again the run goes on from the last commit.
        (disk / "filler").unlink()
        Recording.after = {}
        assert lockstep.train(resume=disk / "run").status == "completed"
        assert [line["update"] for line in read_metrics(disk / "run")] == list(range(1, 21))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """A limit on the size of files stands for a quota; it needs no rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(state: Any) -> Any:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        return state

    try:
        with after(7, limit) as keys, pytest.raises(TrainingFailed) as caught:
            helpers.train("cartpole", tmp_path / "run", **keys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(tmp_path / "run") in str(caught.value)
    assert f"(errno {errno.EFBIG})" in str(caught.value)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["update"] for line in lines] == list(range(1, len(lines) + 1))
