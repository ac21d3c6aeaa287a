"""The folders of runs: where a new one goes, which one is resumed. Imports no JAX.

A run's folder is ``runs/<task>/<algorithm>/<time>-seed<seed>/`` and has a ``config.yaml``.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from lockstep.config import RunConfig
from lockstep.errors import UsageError
from lockstep.layers import as_tree, flatten
from lockstep.schema import show

ROOT = Path("runs")

# What a resumed run may be given anew: neither the state's shape nor what is learnt from a
# step depends on these. Everything else must equal the run's own configuration.
RESUMABLE = frozenset(
    "num_devices enable_multi_devices max_iterations total_steps eval_episodes eval_interval "
    "checkpoint_interval keep_checkpoints tensorboard wandb compile_cache".split()
)


def default_run_dir(cfg: RunConfig, now: float | None = None, root: Path = ROOT) -> Path:
    """A folder for a new run at local time ``now`` (seconds) that does not exist yet."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    task = re.sub(r"[^\w.-]+", "_", cfg.task)
    folder = root / task / cfg.algo.name / f"{stamp}-seed{cfg.seed}"
    twin = 2
    while folder.exists():
        folder = folder.with_name(f"{stamp}-seed{cfg.seed}-{twin}")
        twin += 1
    return folder


def new_run_dir(cfg: RunConfig, run_dir: str | Path | None) -> Path:
    """The folder of a new run; one that exists must be an empty folder. Makes nothing."""
    if run_dir is None:
        return default_run_dir(cfg)
    folder = Path(run_dir)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"the run folder {str(run_dir)!r} exists and is not a folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(
            f"the run folder {str(run_dir)!r} exists and is not empty: give another, or "
            f"continue it with --resume {run_dir}"
        )
    return folder


def find_run(run: str | Path, task: str | None = None, root: Path = ROOT) -> Path:
    """The folder of a run to resume or evaluate; ``latest`` is the newest one of the task.

    ``UsageError`` if it is no run, or has no checkpoint to go on from.
    """
    folder = _latest(task, root) if str(run) == "latest" else Path(run)
    if not folder.is_dir():
        raise UsageError(f"there is no run {str(run)!r}: a run's folder is allowed, or latest")
    if not (folder / "config.yaml").is_file():
        raise UsageError(f"{str(run)!r} is no run: it has no config.yaml")
    commits = folder / "checkpoints"
    if not commits.is_dir() or not any(path.name.isdecimal() for path in commits.iterdir()):
        raise UsageError(f"the run {str(folder)!r} has no checkpoint to go on from")
    return folder


def _latest(task: str | None, root: Path) -> Path:
    """The run that was started last: by the time in its name, then by its file's."""
    name = "*" if task is None else re.sub(r"[^\w.-]+", "_", task)
    found = [path.parent for path in root.glob(f"{name}/*/*/config.yaml")]
    if not found:
        of_task = f" of task {task!r}" if task else ""
        raise UsageError(f"there is no run{of_task} under {str(root)!r} to resume")
    return max(found, key=lambda run: (run.name[:15], (run / "config.yaml").stat().st_mtime))


def check_resumed(cfg: RunConfig, base: RunConfig) -> None:
    """Refuse a change that a resumed run cannot take; ``base`` is its own configuration."""
    before, after = flatten(as_tree(base)), flatten(as_tree(cfg))
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old != new and path not in RESUMABLE:
            raise UsageError(
                f"{path}={show(new)} cannot be changed on resume: the run has {path}={show(old)}"
            )
