"""Commits when the disk refuses or the process is killed in the middle of a save."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import resource
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import pytest

from lockstep.checkpoint import CheckpointError, Checkpoints
from tests.checkpoint_child import abstract, assert_same, state_of

CHILD = Path(__file__).with_name("checkpoint_child.py")


def test_a_file_in_the_way_is_told_with_path_and_errno(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("no folder")
    with pytest.raises(CheckpointError, match="not written to .*checkpoints.*Not a dir") as caught:
        Checkpoints(tmp_path / "checkpoints", keep=1).save(1, state_of(1), {})
    assert caught.value.errno == errno.ENOTDIR
    assert str(tmp_path / "checkpoints") in caught.value.path


def test_read_only_folder_is_told() -> None:
    """The permission bits do not bind root: then the test acts as another user."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), keep=1)
        checkpoints.save(1, state_of(1), {})
        os.chmod(folder, 0o555)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)
            with pytest.raises(CheckpointError, match=r"Permission denied \(errno 13\)") as caught:
                checkpoints.save(2, state_of(2), {})
        finally:
            os.seteuid(user)
            os.chmod(folder, 0o755)
        assert caught.value.errno == errno.EACCES
        assert caught.value.path == str(Path(folder) / "2.partial")
        assert checkpoints.updates() == [1]
        checkpoints.save(2, state_of(2), {})
        assert checkpoints.updates() == [2]


def test_a_write_that_fails_midway_is_told(tmp_path: Path) -> None:
    """A file size limit stands for a full disk: Orbax has begun to write when it strikes."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, state_of(1), {})
    noise = jax.random.bits(jax.random.key(0), (256, 1024))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
    try:
        with pytest.raises(CheckpointError, match=r"File too large \(errno 27\)") as caught:
            checkpoints.save(2, {"noise": noise}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert checkpoints.updates() == [1]
    assert checkpoints.partial() == []
    checkpoints.save(2, {"noise": noise}, {})
    assert checkpoints.updates() == [2]


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        checkpoints = Checkpoints(disk / "checkpoints", keep=2)
        checkpoints.save(1, state_of(1), {})
        noise = jax.random.bits(jax.random.key(0), (256, 1024))
        with pytest.raises(
            CheckpointError, match=r"No space left on device \(errno 28\)"
        ) as caught:
            checkpoints.save(2, {"noise": noise}, {})
        assert caught.value.errno == errno.ENOSPC
        assert checkpoints.updates() == [1]
        checkpoints.save(2, state_of(2), {})
        assert checkpoints.updates() == [1, 2]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@dataclasses.dataclass
class Outcome:
    """How a child died: the last commit it reported, and what the folder held after."""

    reported: int
    latest: int
    partial: list[str]


def kill_while_saving(folder: Path, first: int, rng: random.Random) -> Outcome:
    """Start a child that saves without pause, kill it at a random moment, look at the folder."""
    command = [sys.executable, str(CHILD), str(folder), str(first)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout is not None
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            assert selector.select(timeout=120), "the child has not saved once"
        lines = [child.stdout.readline()]
        time.sleep(rng.uniform(0.0, 0.2))
    finally:
        child.kill()
        lines += child.stdout.readlines()
        child.wait()
    reported = max(int(line.split()[1]) for line in lines if line.endswith("\n"))
    checkpoints = Checkpoints(folder, keep=2)
    latest = checkpoints.latest()
    assert latest is not None
    return Outcome(reported, latest, checkpoints.partial())


@pytest.mark.parametrize(
    "kills", [pytest.param(5, id="5"), pytest.param(50, id="50", marks=pytest.mark.slow)]
)
def test_kills_at_random_points_of_a_save(tmp_path: Path, kills: int) -> None:
    rng = random.Random(kills)
    checkpoints = Checkpoints(tmp_path, keep=2)
    first, interrupted = 1, 0
    for _ in range(kills):
        outcome = kill_while_saving(tmp_path, first, rng)
        # What was reported is there; the commit may have been done just before its report.
        assert outcome.latest - outcome.reported in (0, 1)
        restored, host = checkpoints.restore(outcome.latest, abstract(state_of(0)))
        assert_same(restored, state_of(outcome.latest))
        assert host == {"update": outcome.latest, "steps": outcome.latest * 2**40}
        interrupted += bool(outcome.partial)
        first = outcome.latest + 1
    assert interrupted >= 1 or kills < 50
    checkpoints.save(first, state_of(first), {})
    assert checkpoints.partial() == []
    assert checkpoints.updates() == [first - 1, first]
