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

# The request as shown: its arguments, and a word its answer must hold (an answer that is
# missing would be fast).
REQUESTS = {
    "lockstep --help": (["--help"], "Usage"),
    "lockstep train cartpole --dry-run": (["train", "cartpole", "--dry-run"], "cartpole"),
    "lockstep list tasks": (["list", "tasks"], "cartpole"),
}


def command() -> list[str]:
    """Return the installed ``lockstep`` beside this interpreter, or the module by name."""
    script = Path(sys.executable).parent / "lockstep"
    return [str(script)] if script.is_file() else [sys.executable, "-m", "lockstep"]


def time_request(arguments: list[str], answer: str, runs: int) -> list[float]:
    """Return the seconds of each run.

    Raises ``RuntimeError`` where a run fails or its output lacks the word ``answer``.
    """
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    words = [*command(), *arguments]
    seconds = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        result = subprocess.run(
            words, capture_output=True, text=True, env=environment, timeout=60, check=False
        )
        seconds.append(time.perf_counter() - start)
        if result.returncode != 0 or answer not in result.stdout + result.stderr:
            raise RuntimeError(
                f"{' '.join(words)} gave exit code {result.returncode} and no {answer!r}:\n"
                f"{result.stdout[-500:]}{result.stderr[-1500:]}"
            )
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
    for name, (arguments, answer) in REQUESTS.items():
        seconds = time_request(arguments, answer, args.runs)
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
