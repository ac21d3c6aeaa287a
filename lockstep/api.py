"""``lockstep.train`` and ``lockstep.evaluate``. JAX is loaded when one is called, not before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.compose import keywords_with_sources
from lockstep.errors import UsageError
from lockstep.runs import find_run, prepare

if TYPE_CHECKING:
    from lockstep.results import EvaluateResult, TrainResult


def train(
    task: str | None = None,
    *,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    config_file: str | Path | None = None,
    **keywords: Any,
) -> TrainResult:
    """Train one policy on all local devices and return the run's summary.

    ``keywords`` are keys of the configuration: ``num_envs=512``,
    ``algo={"learning_rate": 1e-3}`` or ``**{"algo.learning_rate": 1e-3}``; ``algo="a2c"``
    chooses the algorithm. Sizes are global over all devices. ``resume`` is a run's folder or
    ``"latest"``; the task may then be left out.

    Raises:
        UsageError: the request is wrong (a ``ValueError``); nothing was started or written.
        TrainingFailed: the training began and could not go on.
        StopRequested: stopped by a signal, after a commit.
    """
    ready = prepare(
        task,
        run_dir,
        resume,
        lambda base: keywords_with_sources(task, keywords, config_file, base),
    )
    from lockstep.training import train_run

    folder = str(ready.run_dir)
    if ready.resumed:
        return train_run(ready.config, run_dir=None, resume=folder)
    return train_run(ready.config, run_dir=folder, resume=None)


def evaluate(
    run: str | Path, *, episodes: int | None = None, stochastic: bool = False
) -> EvaluateResult:
    """Evaluate the last checkpoint of a run (a folder, or ``"latest"``) over whole episodes.

    ``episodes`` is the global number of episodes (``None``: as the run was configured);
    ``stochastic`` samples actions as in training instead of taking the best.

    Raises:
        UsageError: there is no such run, or the number of episodes is not at least 1.
    """
    if episodes is not None and (isinstance(episodes, bool) or not isinstance(episodes, int)):
        raise UsageError(f"episodes={episodes!r} is not a whole number")
    if episodes is not None and episodes < 1:
        raise UsageError(f"episodes={episodes} is out of range: 1 <= episodes is allowed")
    folder = find_run(run)
    from lockstep.evaluating import evaluate_run

    return evaluate_run(str(folder), episodes, stochastic)
