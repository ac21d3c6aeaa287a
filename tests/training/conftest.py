"""One trained run that many tests copy; training it compiles a program, copies are free."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training import helpers


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    """CartPole, 20 updates on two devices with commits at 5, 10, 15, 20: folder and result."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    with contextlib.chdir(folder.parent):
        result = helpers.train("cartpole", folder, num_devices=2, tensorboard=True)
    yield folder, result
