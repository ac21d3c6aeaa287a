"""Does the default command learn? Every task and seed as a user would run it.

Each run is a process of its own, `python -m lockstep train TASK --seed S` with the task's tuned
defaults on all devices and an empty compile cache, so that its wall time is the whole command's.
Exit code 1 if a threshold is missed.

    python benchmarks/learning.py                       # the nightly list
    python benchmarks/learning.py --tasks ppo/cartpole --seeds 0 1 2 3 4 5 6 7 8 9
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from report import REPO, conditions, table, today


class Target(NamedTuple):
    """The least evaluation return, and the most wall seconds where they are promised."""

    returns: float
    wall_seconds: float | None = None


TARGETS = {
    "ppo/cartpole": Target(475.0, 60.0),
    "ppo/pendulum": Target(-250.0),
    "ppo/acrobot": Target(-100.0),
    "ppo/inverted_pendulum": Target(950.0),
    "a2c/cartpole": Target(400.0),
}

Run = dict[str, Any]


def train(name: str, seed: int, timeout: float) -> Run:
    """Run the default command with a cold cache; its summary and the command's wall seconds.

    Raises:
        RuntimeError: the command failed; with the end of its output.
    """
    algorithm, task = name.split("/")
    # What would change the run or its compilation stays outside.
    hidden = ("XLA_", "JAX_", "LOCKSTEP_", "NPROC")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    with tempfile.TemporaryDirectory() as folder:
        environment |= {"XDG_CACHE_HOME": f"{folder}/cache", "PYTHONPATH": str(REPO)}
        command = [sys.executable, "-m", "lockstep", "train", task, "--algo", algorithm]
        command += ["--seed", str(seed), "--run-dir", f"{folder}/run"]
        begun = time.perf_counter()
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        wall = time.perf_counter() - begun
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
    return {**summary, "command_seconds": wall}


def passed(name: str, run: Run) -> bool:
    """Whether the run reached its return, and its wall time where one is promised."""
    target = TARGETS[name]
    in_time = target.wall_seconds is None or run["command_seconds"] <= target.wall_seconds
    return bool(run["return_mean"] >= target.returns and in_time)


def row(name: str, run: Run) -> list[str]:
    """One run's row of the table."""
    target = TARGETS[name]
    wall = "" if target.wall_seconds is None else f" within {target.wall_seconds:g} s"
    return [
        f"{name}, seed {run['seed']}",
        f"{run['return_mean']:.1f}",
        f"{run['return_std']:.1f}",
        f"{run['total_steps']:,}",
        f"{run['compile_seconds']:.1f}",
        f"{run['train_seconds']:.1f}",
        f"{run['command_seconds']:.1f}",
        f"{target.returns:g}{wall}",
        "yes" if passed(name, run) else "NO",
    ]


def page(runs: list[tuple[str, Run]], load: float) -> str:
    """The whole result page."""
    first = runs[0][1]
    versions = ", ".join(f"{k} {v}" for k, v in first["versions"].items() if k != "commit")
    header = ["run", "return", "std", "env steps", "compile s", "train s", "wall s"]
    lines = [
        "# Learning with the default command",
        "",
        "Every run: `lockstep train TASK --algo ALGORITHM --seed SEED`, tuned defaults, empty "
        "compile cache, one process after another. Returns: deterministic, over "
        f"{first['eval_episodes']} whole episodes of the final policy (std: of the episodes). "
        "Wall: of the whole command, imports, compilation, checkpoints and evaluation included. "
        "Made by `python benchmarks/learning.py`.",
        "",
        *conditions(load),
        f"- devices: {first['devices']} ({first['device_kind']}); {versions}",
        "",
        *table([*header, "threshold", "passed"], [row(name, run) for name, run in runs]),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the list, write the page, exit 1 if a run missed its threshold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--timeout", type=float, default=900, help="seconds a run may take")
    parser.add_argument("--name", default="learning", help="end of the result's file name")
    parser.add_argument("--output", type=Path, default=REPO / "benchmarks" / "results")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / f"{today()}-{args.name}.md"
    runs: list[tuple[str, Run]] = []
    for name in args.tasks:
        for seed in args.seeds:
            runs.append((name, train(name, seed, args.timeout)))
            print(", ".join(row(*runs[-1])), file=sys.stderr, flush=True)
            path.write_text(page(runs, load))
    print(path.read_text())
    print(f"written to {path}", file=sys.stderr)
    missed = [f"{name} seed {run['seed']}" for name, run in runs if not passed(name, run)]
    if missed:
        raise SystemExit(f"below the threshold: {', '.join(missed)}")


if __name__ == "__main__":
    main()
