"""What a run tells: a line an update, its summary, its fault, and the typed results."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lockstep.config import RunConfig
from lockstep.host import peak_rss_mb
from lockstep.sizes import reduction_used
from lockstep.telemetry import Timers


@dataclass(frozen=True)
class EvaluateResult:
    """An evaluation over full episodes: every one counts once, whatever its length."""

    run_dir: str
    task: str
    algorithm: str
    update: int
    deterministic: bool
    params_sha256: str
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    length_mean: float
    eval_episodes: int
    nan_episodes: int
    unfinished_episodes: int


@dataclass(frozen=True)
class TrainResult:
    """A run in numbers, as in ``summary.json``.

    ``env_steps_per_second`` is the steady state: compilation, evaluation and saves are left
    out. ``goodput`` is the share of the wall time spent on updates. Returns are None where
    the run was stopped before its evaluation.
    """

    status: str
    run_dir: str
    task: str
    algorithm: str
    library: str
    seed: int
    devices: int
    processes: int
    nodes: int
    num_envs: int
    total_steps: int
    updates: int
    return_mean: float | None
    return_std: float | None
    eval_episodes: int
    eval_deterministic: bool
    nan_episodes: int
    unfinished_episodes: int
    params_sha256: str
    compile_seconds: float
    train_seconds: float
    wall_seconds: float
    env_steps_per_second: float | None
    peak_rss_mb: float
    goodput: float
    restarts: int
    reduction: str
    device_kind: str
    cpu_threads: str
    versions: dict[str, str] = field(default_factory=dict)


def update_scalars(values: dict[str, Any], update: int, steps_per_update: int) -> dict[str, Any]:
    """One line of ``metrics.jsonl`` from an update's metrics, sums turned into means.

    ``return_mean`` and its kin are over the episodes that ended in this update, on all
    devices together; None where none ended. Steps are counted on the host in 64 bits.
    """
    line: dict[str, Any] = {"update": update, "steps": update * steps_per_update}
    scalars = {
        name: float(x) for name, x in values.items() if not isinstance(x, dict) and np.ndim(x) == 0
    }
    if "episodes" in scalars:
        episodes = int(scalars.pop("episodes"))
        total, squares, length = (
            scalars.pop(name) for name in ("return_sum", "return_square_sum", "length_sum")
        )
        line |= {"episodes": episodes, "return_mean": None, "return_std": None}
        line["episode_length_mean"] = None
        if episodes:
            mean = total / episodes
            line["return_mean"] = mean
            line["return_std"] = math.sqrt(max(0.0, squares / episodes - mean * mean))
            line["episode_length_mean"] = length / episodes
    line.setdefault("return_mean", None)
    if "nan_envs" in scalars:
        scalars["nan_envs"] = int(scalars["nan_envs"])
    return line | {name: x if math.isfinite(x) else None for name, x in scalars.items()}


def evaluation_scalars(metrics: dict[str, Any], cfg: RunConfig) -> dict[str, Any]:
    """An evaluation's metrics as Python numbers."""
    values = {name: float(x) for name, x in jax.device_get(metrics).items()}
    for name in ("nan_episodes", "unfinished_episodes"):
        values[name] = int(values.get(name, 0))
    return values | {"eval_episodes": cfg.eval_episodes}


def summarize(
    cfg: RunConfig,
    *,
    status: str,
    folder: Path,
    devices: int,
    updates: int,
    steps_timed: int,
    timers: Timers,
    wall_seconds: float,
    params_sha256: str,
    evaluation: dict[str, Any] | None,
    versions: dict[str, str],
) -> TrainResult:
    """The run in numbers."""
    train = timers.seconds("train")
    evaluation = evaluation or {}
    return TrainResult(
        status=status,
        run_dir=str(folder),
        task=cfg.task,
        algorithm=cfg.algo.name,
        library=cfg.library,
        seed=cfg.seed,
        devices=devices,
        processes=jax.process_count(),
        nodes=1,
        num_envs=cfg.num_envs,
        total_steps=updates * cfg.steps_per_update,
        updates=updates,
        return_mean=evaluation.get("return_mean"),
        return_std=evaluation.get("return_std"),
        eval_episodes=evaluation.get("eval_episodes", 0),
        eval_deterministic=True,
        nan_episodes=evaluation.get("nan_episodes", 0),
        unfinished_episodes=evaluation.get("unfinished_episodes", 0),
        params_sha256=params_sha256,
        compile_seconds=round(timers.seconds("compile"), 3),
        train_seconds=round(train, 3),
        wall_seconds=round(wall_seconds, 3),
        env_steps_per_second=round(steps_timed / train, 1) if train > 0 and steps_timed else None,
        peak_rss_mb=peak_rss_mb(),
        goodput=round(train / wall_seconds, 4),
        restarts=0,
        reduction=reduction_used(cfg.reduction, jax.devices()[0].platform),
        device_kind=jax.devices()[0].device_kind,
        cpu_threads=os.environ.get("NPROC", ""),
        versions=versions,
    )


def write_summary(result: TrainResult, folder: Path) -> None:
    """``summary.json``, replaced as a whole."""
    _write_json(folder / "summary.json", asdict(result))


def write_fault(folder: Path, rank: int, update: int, phase: str, error: BaseException) -> None:
    """``fault.json``: who failed, where and why; a disk that refuses it is passed over."""
    with contextlib.suppress(OSError):
        commits = folder / "checkpoints"
        resumable = commits.is_dir() and any(path.name.isdecimal() for path in commits.iterdir())
        record = {
            "rank": rank,
            "node": socket.gethostname(),
            "update": update,
            "phase": phase,
            "cause": str(error) or type(error).__name__,
            "exception": type(error).__name__,
            "hint": f"fix the cause, then: lockstep train --resume {folder}"
            if resumable
            else "fix the cause and start a new run: there is no checkpoint yet",
            "log": None,
        }
        _write_json(folder / "fault.json", record)


def describe_bad_transition(
    bad: dict[str, Any], cfg: RunConfig, update: int, folder: Path, rank: int
) -> str:
    """The sentence on the first transition that is not finite; its numbers go to a file.

    The file is ``nan_transition.json`` (rank 0): ``obs`` before the step, ``action``,
    ``reward`` and ``final_obs`` after it; what is not finite is text, as JSON has no word for it.
    """
    env_id, step = int(bad["env_id"]), int(bad["step"])
    owner = env_id * jax.process_count() // cfg.num_envs
    leaf = "reward" if not np.isfinite(bad["reward"]) else "obs"
    record = {"update": update, "step": step, "environment": env_id, "rank": owner, "leaf": leaf}
    record |= {
        name: _strict_json(np.asarray(bad[name], float).tolist())
        for name in ("obs", "action", "reward", "final_obs")
    }
    path = folder / "nan_transition.json"
    if rank == 0:
        _write_json(path, record)
    return (
        f"update {update}, step {step} of its rollout: the {leaf} of environment {env_id} "
        f"(rank {owner}) is not finite (nan_policy=fail); the transition is in {path}"
    )


def _strict_json(value: Any) -> Any:
    """Numbers as they are, but ``"nan"`` and ``"inf"`` as text."""
    if isinstance(value, list):
        return [_strict_json(x) for x in value]
    return value if math.isfinite(value) else str(value)


def _write_json(path: Path, record: dict[str, Any]) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.partial")  # ranks may write the same file
    temporary.write_text(json.dumps(record, indent=2) + "\n")
    temporary.replace(path)
