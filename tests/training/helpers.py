"""Small runs for the tests of the host loop, and what the tests look at in them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import lockstep
from lockstep.checkpoint import Checkpoints
from lockstep.compose import from_yaml
from lockstep.distributed.mesh import make_mesh
from lockstep.evaluating import restore_newest
from lockstep.recipes import make_workflow

RANK = Path(__file__).with_name("rank_child.py")
NUM_ENVS, ROLLOUT, BLOCKS = 64, 8, 8
STEPS = NUM_ENVS * ROLLOUT  # environment steps of an update
ALGO: dict[str, Any] = {
    "algo.rollout_length": ROLLOUT,
    "algo.hidden_sizes": [8],
    "algo.num_epochs": 2,
    "algo.num_minibatches": 2,
    "algo.normalize_obs": True,
    "algo.normalize_reward": True,
    "algo.lr_schedule": "linear",
    "algo.learning_rate": 1e-3,
}
SMALL: dict[str, Any] = {
    "num_envs": NUM_ENVS,
    "num_blocks": BLOCKS,
    "eval_episodes": 8,
    "max_iterations": 20,
    "checkpoint_interval": 5,
    "keep_checkpoints": 10,
    "tensorboard": False,
} | ALGO


def train(task: str, run_dir: Path | str, **changes: Any) -> Any:
    """A small run in ``run_dir``; ``changes`` are keys of the configuration."""
    return lockstep.train(task, run_dir=run_dir, **(SMALL | changes))


def words(**changes: Any) -> list[str]:
    """The small configuration as ``key=value`` words of the command line."""
    wanted = SMALL | changes
    kwargs = wanted.pop("env.kwargs", {})
    wanted |= {f"env.kwargs.{name}": value for name, value in kwargs.items()}
    return [f"{key}={json.dumps(value).strip(chr(34))}" for key, value in wanted.items()]


def copy_stopped(run: Path, folder: Path, update: int) -> Path:
    """A copy of a run as it was right after the commit of ``update``, as a kill leaves it."""
    shutil.copytree(run, folder)
    for commit in (folder / "checkpoints").iterdir():
        if int(commit.name) > update:
            shutil.rmtree(commit)
    (folder / "summary.json").unlink()
    return folder


def state_of(run: Path) -> tuple[Any, dict[str, Any]]:
    """The state of the newest commit on one device, and the host's counters."""
    cfg = from_yaml(run / "config.yaml")
    workflow = make_workflow(cfg, make_mesh(jax.devices()[:1]))
    return restore_newest(Checkpoints(run / "checkpoints", 100), workflow, cfg, print)


def numbers(leaf: jax.Array) -> np.ndarray:
    """A leaf as numpy; a typed key as its words."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def different_leaves(a: Any, b: Any) -> list[str]:
    """Key paths of the leaves whose bits differ; the two trees have one structure."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    pairs = zip(jax.tree.leaves_with_path(a), jax.tree.leaves(b), strict=True)
    return [
        jax.tree_util.keystr(path)
        for (path, x), y in pairs
        if numbers(x).dtype != numbers(y).dtype or numbers(x).tobytes() != numbers(y).tobytes()
    ]


def updates_committed(run: Path) -> list[int]:
    """The numbers of the whole commits."""
    return Checkpoints(run / "checkpoints", 100).updates()


def read_json(path: Path) -> Any:
    """A file that holds one JSON value."""
    return json.loads(path.read_text())


def last_json(out: str) -> dict[str, Any]:
    """The JSON object on the last line of a child's output."""
    return json.loads(out.splitlines()[-1])


def start_lockstep(*argv: str, **environ: str) -> subprocess.Popen[str]:
    """``python -m lockstep argv`` in the working directory, with its output kept."""
    return subprocess.Popen(
        [sys.executable, "-m", "lockstep", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environ,
    )


class Ended:
    """How a child ended: its exit code and what it wrote."""

    def __init__(self, child: subprocess.Popen[str], timeout: float = 120.0) -> None:
        try:
            self.out, self.err = child.communicate(timeout=timeout)
        finally:
            child.kill()
            child.wait()
        self.code = child.returncode


@contextlib.contextmanager
def started_ranks(
    task: str, folder: Path, processes: int = 2, resume: bool = False, **changes: Any
) -> Iterator[list[subprocess.Popen[str]]]:
    """The run in ``processes`` processes of one device each, joined by ``jax.distributed``."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    request = {
        "task": task,
        "folder": str(folder),
        "resume": resume,
        "processes": processes,
        "port": port,
        "keywords": {} if resume else SMALL | changes,
    }
    children = [
        subprocess.Popen(
            [sys.executable, str(RANK), str(rank), json.dumps(request)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"LOCKSTEP_CPU_DEVICES": "1", "XLA_FLAGS": ""},
        )
        for rank in range(processes)
    ]
    try:
        yield children
    finally:
        for child in children:
            child.kill()
            child.wait()


def run_ranks(task: str, folder: Path, **changes: Any) -> list[Ended]:
    """Like :func:`started_ranks`, to the end of all of them."""
    with started_ranks(task, folder, **changes) as children:
        return [Ended(child, 240.0) for child in children]
