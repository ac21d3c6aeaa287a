"""Keep MuJoCo's model compiler from writing ``MUJOCO_LOG.TXT`` into the working directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mujoco


@contextmanager
def quiet_mujoco() -> Iterator[None]:
    """Drop MuJoCo's warnings while a shipped model is loaded (they are of no use to a user)."""
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
