"""The settings every test runs under, and the check for processes left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import psutil
import pytest

LEAVES_AN_ORPHAN = """
import subprocess

def test_starts_a_process():
    script = "sleep 60 >/dev/null 2>&1 & echo $!"
    result = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    open({note!r}, "w").write(result.stdout)
    assert result.returncode == 0
"""


def test_devices_and_folders_are_the_tests_own(tmp_path: Path) -> None:
    assert jax.device_count() == int(os.environ["LOCKSTEP_CPU_DEVICES"])
    assert Path.cwd() == tmp_path
    assert ".pytest_cache" in os.environ["XDG_CACHE_HOME"]


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell")
def test_a_process_left_behind_fails_the_run(tmp_path: Path) -> None:
    folder, note = tmp_path / "tests", tmp_path / "pid"
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    (folder / "test_orphan.py").write_text(LEAVES_AN_ORPHAN.format(note=str(note)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    orphan = psutil.Process(int(note.read_text()))
    try:
        assert "1 passed" in result.stdout
        assert f"processes left behind by the tests:\n  {orphan.pid}: sleep 60" in result.stdout
        assert result.returncode == 1
    finally:
        orphan.kill()
