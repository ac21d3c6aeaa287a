"""Wall time of the command line's answers that must come before JAX is loaded.

python benchmarks/startup.py --runs 15
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from report import REPO, conditions, table, today

REQUESTS = {
    "lockstep --help": ["--help"],
    "lockstep train cartpole --dry-run": ["train", "cartpole", "--dry-run"],
    "lockstep list tasks": ["list", "tasks"],
}


def command() -> list[str]:
    """Return the installed ``lockstep`` beside this interpreter, or the module by name."""
    script = Path(sys.executable).parent / "lockstep"
    return [str(script)] if script.is_file() else [sys.executable, "-m", "lockstep.cli"]


def time_request(arguments: list[str], runs: int) -> list[float]:
    """Return the seconds of each run; a non-zero exit raises ``CalledProcessError``."""
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    seconds = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run(
            [*command(), *arguments], check=True, capture_output=True, env=environment, timeout=60
        )
        seconds.append(time.perf_counter() - start)
    return seconds[1:]  # the first one fills the file cache


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--output", type=Path, help="folder for the dated result")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    rows = []
    for name, arguments in REQUESTS.items():
        seconds = time_request(arguments, args.runs)
        values = (statistics.median(seconds), min(seconds), max(seconds))
        rows.append([f"`{name}`", *(f"{value:.2f}" for value in values)])
    lines = ["# Start-up of the command line", "", *conditions(load)]
    lines += [f"- Python {sys.version.split()[0]}, {args.runs} runs each, the first left out", ""]
    lines += table(["request", "median, s", "lowest", "highest"], rows)
    text = "\n".join(lines) + "\n"
    print(text)
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / f"{today()}-startup.md").write_text(text)


if __name__ == "__main__":
    main()
