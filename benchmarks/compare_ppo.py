r"""Compare PPO's steady-state speed on CartPole with rejax's, run against run.

The systems alternate (A B A B ...), each run is a process of its own pinned to the same cores,
so that a change of the machine's load hits both. A system is any command that prints a JSON
line with ``env_steps_per_second``; ``{devices}`` in it becomes the number of cores.

    python benchmarks/compare_ppo.py                     # rejax and lockstep, 1 and 2 cores
    python benchmarks/compare_ppo.py --rounds 7 --cores 0
    python benchmarks/compare_ppo.py --system "exact=python benchmarks/lockstep_ppo.py \
        --devices {devices} --reduction exact" --system "fast=..." --name exact-fast
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from peers.environments import interpreter
from report import REPO, conditions, table, today

FOLDER = Path(__file__).resolve().parent
Runs = dict[tuple[str, str], list[dict[str, Any]]]


def default_systems() -> dict[str, str]:
    """Return rejax in its own environment, the base of the ratios, and lockstep in this one."""
    rejax = [str(interpreter("rejax")), str(FOLDER / "peers" / "rejax_ppo_cartpole.py")]
    ours = [sys.executable, str(FOLDER / "lockstep_ppo.py"), "--devices", "{devices}"]
    return {"rejax": shlex.join(rejax), "lockstep": " ".join(map(str, ours))}


def run_pinned(command: str, cores: str, timeout: float) -> dict[str, Any]:
    """Run one command on the given cores and return its last JSON line.

    The environment is stripped of what would change a run's devices or threads. A run that
    fails or prints no result raises ``RuntimeError`` with the end of its output.
    """
    devices = str(len(cores.split(",")))
    words = [word.replace("{devices}", devices) for word in shlex.split(command)]
    hidden = ("XLA_", "JAX_", "LOCKSTEP_", "NPROC", "OMP_", "OPENBLAS_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    environment |= {"LOCKSTEP_CPU_DEVICES": devices, "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = str(REPO)
    result = subprocess.run(
        ["taskset", "-c", cores, *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
        cwd=REPO,
        check=False,
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    if result.returncode != 0 or not lines:
        tail = (result.stderr or result.stdout)[-2000:]
        raise RuntimeError(f"exit code {result.returncode} of: {shlex.join(words)}\n{tail}")
    return dict(json.loads(lines[-1]))


def interleave(
    systems: dict[str, str], cores: list[str], rounds: int, timeout: float = 600
) -> Runs:
    """Run every system on every set of cores, ``rounds`` times, one after another."""
    runs: Runs = {(name, pin): [] for pin in cores for name in systems}
    for number in range(rounds):
        for pin in cores:
            for name, command in systems.items():
                result = run_pinned(command, pin, timeout)
                runs[name, pin].append(result)
                speed = f"{result['env_steps_per_second']:,.0f} env-steps/s"
                print(f"round {number + 1}, cores {pin}, {name}: {speed}", file=sys.stderr)
    return runs


def speeds(runs: Runs, name: str, pin: str) -> list[float]:
    """Return the env-steps a second of each round of one system on one set of cores."""
    return [float(run["env_steps_per_second"]) for run in runs[name, pin]]


def ratio(ours: list[float], base: list[float]) -> str:
    """Return the ratio of the medians, and the lowest and highest of the rounds' own ratios."""
    rounds = [a / b for a, b in zip(ours, base, strict=True)]
    middle = statistics.median(ours) / statistics.median(base)
    return f"{middle:.2f} ({min(rounds):.2f} to {max(rounds):.2f})"


def summary(runs: Runs, systems: list[str], cores: list[str]) -> list[str]:
    """Return the Markdown table of medians, extremes and ratios to the first system."""
    header = ["system", "cores", "env-steps/s, median", "lowest", "highest", "a CPU second"]
    header += [f"ratio to {systems[0]}", f"ratio to cores {cores[0]}"]
    rows = []
    for pin in cores:
        for name in systems:
            rates = speeds(runs, name, pin)
            cpu = [run.get("env_steps_per_cpu_second") for run in runs[name, pin]]
            known = [float(value) for value in cpu if value is not None]
            per_cpu = f"{statistics.median(known):,.0f}" if known else "-"
            extremes = (statistics.median(rates), min(rates), max(rates))
            row = [name, pin, *(f"{value:,.0f}" for value in extremes), per_cpu]
            row.append(ratio(rates, speeds(runs, systems[0], pin)))
            row.append(ratio(rates, speeds(runs, name, cores[0])))
            rows.append(row)
    return table(header, rows)


def page(runs: Runs, systems: dict[str, str], cores: list[str], load: float) -> str:
    """Return the whole result page."""
    names = list(systems)
    rounds = len(runs[names[0], cores[0]])
    lines = [
        "# PPO on CartPole: steady-state speed",
        "",
        "2048 environments x 32 steps, 4 epochs x 4 minibatches, MLP 64x64 tanh for actor and "
        "critic each, float32, unless a command below says otherwise; compilation left out.",
        f"{rounds} rounds; in each, the systems ran one after another, each in its own process "
        "pinned to the cores. Ratios: of the medians (lowest to highest of the rounds).",
        "",
        *conditions(load),
    ]
    for name, command in systems.items():
        found = runs[name, cores[0]][0].get("versions", {})
        said = ", ".join(f"{package} {version}" for package, version in found.items())
        shown = " ".join(Path(word).name for word in shlex.split(command))
        lines.append(f"- {name}: `{shown}`; {said or 'versions not told'}")
    lines += ["", *summary(runs, names, cores), "", "Every round, env-steps/s:", ""]
    for (name, pin), _ in runs.items():
        each = " ".join(f"{value:,.0f}" for value in speeds(runs, name, pin))
        lines.append(f"- {name}, cores {pin}: {each}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", action="append", help="as for taskset; may be repeated")
    parser.add_argument("--system", action="append", default=[], help="NAME=COMMAND; repeatable")
    parser.add_argument("--name", default="ppo-cartpole", help="end of the result's file name")
    parser.add_argument("--output", type=Path, default=FOLDER / "results")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a run may take")
    args = parser.parse_args()
    cores = args.cores or ["0", "0,1"]
    systems = dict(item.split("=", 1) for item in args.system) or default_systems()
    load = os.getloadavg()[0]
    runs = interleave(systems, cores, args.rounds, args.timeout)
    text = page(runs, systems, cores, load)
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / f"{today()}-{args.name}.md"
    path.write_text(text)
    print(text)
    print(f"written to {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
