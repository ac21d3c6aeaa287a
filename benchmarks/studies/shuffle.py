"""Compare ``algo.shuffle=environments`` with ``samples`` on many seeds, in one process.

Both ways get the task's tuned defaults, the same seeds and the same blocks. Every run is
evaluated on the way (deterministic, 128 whole episodes), so that a task whose return is at its
ceiling in the end still tells how fast it got there.

    python benchmarks/studies/shuffle.py          # four tasks, 20 seeds: 20 to 30 minutes
    python benchmarks/studies/shuffle.py --tasks cartpole --seeds 3 --output /tmp/study
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure import versions
from report import conditions, table, today

from lockstep.compose import compose
from lockstep.config import RunConfig
from lockstep.distributed.mesh import make_mesh
from lockstep.host import start_compile_cache, start_devices
from lockstep.protocols import Workflow
from lockstep.recipes import make_workflow

SHUFFLES = ("environments", "samples")


class Plan(NamedTuple):
    """Returns to pass (evaluation; training: None where episodes end too rarely) and a stride."""

    passed: float
    train_passed: float | None
    eval_every: int  # updates


PLANS = {
    "cartpole": Plan(475.0, 475.0, 1),
    "pendulum": Plan(-250.0, None, 1),
    "acrobot": Plan(-100.0, -100.0, 1),
    "inverted_pendulum": Plan(950.0, 500.0, 8),
}

# What a run is measured by: (label, whether more is better).
MEASURES = {
    "quarter": ("evaluation return at 25 %", True),
    "half": ("evaluation return at 50 %", True),
    "end": ("evaluation return at 100 %", True),
    "curve": ("mean of all evaluations", True),
    "updates": ("updates until the evaluation passes", False),
    "train_updates": ("updates until the training return passes", False),
}
# The measures that choose the default, fixed before the study was run.
DECIDING = ("half", "curve")


def first_above(values: list[float], at: list[int], threshold: float, never: int) -> int:
    """Return the update of the first value that reaches the threshold, or ``never``."""
    for value, update in zip(values, at, strict=True):
        if value >= threshold:
            return update
    return never


def train_one(step: Any, workflow: Workflow, cfg: RunConfig, seed: int) -> dict[str, Any]:
    """Train one seed with the compiled step; ``never`` passing counts as one update too many."""
    plan, total = PLANS[cfg.task], cfg.updates
    marks = {"quarter": round(total / 4), "half": round(total / 2), "end": total}
    seconds, returns, evaluated, measured = 0.0, [], [], []
    state = workflow.setup(jax.random.key(seed))
    for update in range(1, total + 1):
        begun = time.perf_counter()
        metrics, state = step(state)
        measured.append(jax.device_get(metrics))
        seconds += time.perf_counter() - begun
        if update % plan.eval_every == 0 or update in marks.values():
            evaluation, state = workflow.evaluate(state)
            returns.append(float(evaluation["return_mean"]))
            evaluated.append(update)
    curve = dict(zip(evaluated, returns, strict=True))
    result: dict[str, Any] = {name: curve[update] for name, update in marks.items()}
    result["curve"] = statistics.fmean(returns)
    result["updates"] = first_above(returns, evaluated, plan.passed, total + 1)
    if plan.train_passed is not None:
        ended = [(i, m) for i, m in enumerate(measured, 1) if m["episodes"] > 0]
        means = [float(m["return_sum"] / m["episodes"]) for _, m in ended]
        at = [i for i, _ in ended]
        result["train_updates"] = first_above(means, at, plan.train_passed, total + 1)
    return result | {"seed": seed, "steps_per_second": total * cfg.steps_per_update / seconds}


def train_all(task: str, shuffle: str, seeds: int) -> list[dict[str, Any]]:
    """Train every seed of one task with one way to shuffle; compiles once."""
    words = [f"algo.shuffle={shuffle}", "num_devices=1"]
    cfg = compose(task, None, words)
    blocks = {compose(task, None, [f"algo.shuffle={way}"]).blocks for way in SHUFFLES}
    assert len(blocks) == 1, f"{task}: the ways to shuffle differ in blocks too: {blocks}"
    devices = start_devices(cfg)
    start_compile_cache(cfg.compile_cache)
    workflow = make_workflow(cfg, make_mesh(devices))
    step = workflow.program.lower(workflow.setup(jax.random.key(0))).compile()
    runs = []
    for seed in range(seeds):
        runs.append(train_one(step, workflow, cfg, seed))
        shown = {name: round(value, 1) for name, value in runs[-1].items()}
        print(f"{task}, {shuffle}: {shown}", file=sys.stderr, flush=True)
    return runs


def error(values: list[float]) -> float:
    """Return the standard error of the mean."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def compare(runs: dict[str, list[dict[str, Any]]], measure: str) -> tuple[float, float]:
    """Return mean and standard error of samples minus environments, paired by seed."""
    pairs = zip(runs["samples"], runs["environments"], strict=True)
    differences = [a[measure] - b[measure] for a, b in pairs]
    return statistics.fmean(differences), error(differences)


def verdict(runs: dict[str, list[dict[str, Any]]], measure: str) -> str:
    """Return the better way if the paired difference exceeds two standard errors, else ''."""
    mean, spread = compare(runs, measure)
    if not abs(mean) > 2.0 * spread:
        return ""
    return "samples" if (mean > 0) == MEASURES[measure][1] else "environments"


def task_rows(runs: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """Return the rows of one task's table."""
    rows = []
    for measure, (label, more) in MEASURES.items():
        if measure not in runs["samples"][0]:
            continue
        row = [label]
        for shuffle in SHUFFLES:
            values = [float(run[measure]) for run in runs[shuffle]]
            worst = min(values) if more else max(values)
            row.append(f"{statistics.fmean(values):.1f} +- {error(values):.1f} ({worst:.1f})")
        mean, spread = compare(runs, measure)
        row += [f"{mean:+.1f} +- {spread:.1f}", verdict(runs, measure) or "-"]
        rows.append(row)
    speeds = [f"{statistics.median(r['steps_per_second'] for r in runs[s]):,.0f}" for s in SHUFFLES]
    return [*rows, ["training steps/s, median", *speeds, "", ""]]


def conclusion(results: dict[str, dict[str, list[dict[str, Any]]]]) -> list[str]:
    """Return what follows for the default by the rule that was fixed beforehand."""
    found = {task: [verdict(runs, name) for name in DECIDING] for task, runs in results.items()}
    ahead = [task for task, ways in found.items() if "samples" in ways]
    behind = [task for task, ways in found.items() if "environments" in ways]
    clear = len(ahead) > len(results) / 2 and not behind
    deciding = " or ".join(f'"{MEASURES[name][0]}"' for name in DECIDING)
    return [
        f"Rule, fixed before the runs: `samples` becomes the default only if it is ahead by more "
        f"than two standard errors in {deciding} on most tasks, and behind on none.",
        "",
        f"- `samples` ahead: {', '.join(ahead) or 'no task'}",
        f"- `environments` ahead: {', '.join(behind) or 'no task'}",
        f"- so the default is `{'samples' if clear else 'environments'}`",
        "",
        "Of the differences below, about one in twenty lies beyond two standard errors by chance.",
    ]


def page(
    results: dict[str, dict[str, list[dict[str, Any]]]], seeds: int, devices: int, load: float
) -> str:
    """Return the whole result page; tasks that are not done yet are left out."""
    lines = [
        "# What a minibatch is drawn from: whole environments or single samples",
        "",
        f"PPO with each task's tuned defaults, seeds 0 to {seeds - 1}, `algo.shuffle` alone "
        f"differs. Cells: mean +- standard error (worst seed). Difference: samples minus "
        f"environments, paired by seed; ahead: beyond two standard errors. Evaluations are "
        f"deterministic over 128 whole episodes. A run that never passes counts as one update "
        f"more than its budget. Made by `python benchmarks/studies/shuffle.py "
        f"--tasks {' '.join(results)} --seeds {seeds}`; every run's numbers are in the JSON file.",
        "",
        *conditions(load),
        f"- devices: {devices}; "
        + ", ".join(f"{k} {v}" for k, v in versions("jax", "jaxlib", "gymnax", "brax").items()),
        "",
        "## Result",
        "",
        *conclusion(results),
    ]
    header = ["measure", *SHUFFLES, "difference", "ahead"]
    for task, runs in results.items():
        cfg, plan = compose(task), PLANS[task]
        train = "" if plan.train_passed is None else f", training {plan.train_passed:g}"
        lines += [
            "",
            f"## {task}",
            "",
            f"{cfg.num_envs} environments x {cfg.algo.rollout_length} steps, {cfg.updates} "
            f"updates, evaluated every {plan.eval_every}; to pass: evaluation "
            f"{plan.passed:g}{train}.",
            "",
            *table(header, task_rows(runs)),
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the study; the page is rewritten after each task."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=list(PLANS), default=list(PLANS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--add", action="store_true", help="add to today's page, same seeds")
    results_folder = Path(__file__).resolve().parents[1] / "results"
    parser.add_argument("--output", type=Path, default=results_folder)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / f"{today()}-shuffle-study.md"
    results: dict[str, dict[str, list[dict[str, Any]]]] = {}
    if args.add:
        results = json.loads(path.with_suffix(".json").read_text())
        if any(len(runs["samples"]) != args.seeds for runs in results.values()):
            parser.error(f"{path.with_suffix('.json')} is of another number of seeds")
    for task in args.tasks:
        results[task] = {shuffle: train_all(task, shuffle, args.seeds) for shuffle in SHUFFLES}
        path.write_text(page(results, args.seeds, 1, load))
        path.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    print(path.read_text())
    print(f"written to {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
