"""The folders of runs: where a new one goes, which one is resumed. Imports no JAX.

A run's folder is ``runs/<task>/<algorithm>/<time>-seed<seed>/`` and has a ``config.yaml``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lockstep.compose import Composition, from_yaml
from lockstep.config import RunConfig
from lockstep.errors import UsageError

ROOT = Path("runs")


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
    _check_free(folder)
    return folder


def _check_free(folder: Path) -> None:
    """Refuse a run folder that exists and is anything but an empty folder."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"the run folder {str(folder)!r} exists and is not a folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(
            f"the run folder {str(folder)!r} exists and is not empty: give another, or "
            f"continue it with --resume {folder}"
        )


def claim_folder(folder: Path) -> None:
    """Make a new run's folder; ``UsageError`` if another run took it in the meantime."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        _check_free(folder)


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


@dataclass(frozen=True)
class Prepared:
    """A request that is right: what to run and where. Nothing has been written yet."""

    composition: Composition
    run_dir: Path
    resumed: bool

    @property
    def config(self) -> RunConfig:
        """The complete configuration."""
        return self.composition.config


def prepare(
    task: str | None,
    run_dir: str | Path | None,
    resume: str | Path | None,
    compose_on: Callable[[RunConfig | None], Composition],
) -> Prepared:
    """Check a request to train, new or resumed; ``UsageError`` tells what is wrong.

    ``compose_on`` makes the configuration on top of a resumed run's own, or of ``None``.
    """
    if resume is None:
        composition = compose_on(None)
        return Prepared(composition, new_run_dir(composition.config, run_dir), False)
    if run_dir is not None:
        raise UsageError(
            f"a resumed run goes on in its own folder: give --resume or --run-dir {run_dir}, "
            f"not both"
        )
    from lockstep.envs import catalog

    folder = find_run(resume, catalog.resolve(task).name if task is not None else None)
    return Prepared(compose_on(from_yaml(folder / "config.yaml")), folder, True)
