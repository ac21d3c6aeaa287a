"""What every result page says beside its numbers: date, commit, hardware, versions, load."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]


def today() -> str:
    """Return the date in UTC, as in a result's file name."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def cpu_model() -> str:
    """Return the processor's name as the kernel tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def commit() -> str:
    """Return the short commit, with ``+changes`` where the tree differs from it."""
    command = ["git", "-C", str(REPO), "describe", "--always", "--dirty=+changes"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


def conditions(load_before: float) -> list[str]:
    """Return the Markdown lines on when and where; ``load_before`` is the load at the start."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        f"- date: {today()}, commit {commit()}",
        f"- hardware: {cpu_model()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, "
        f"{platform.system()} {platform.machine()}",
        f"- load average before the first run: {load_before:.2f}"
        + (" (the machine was not quiet)" if load_before > 0.5 else ""),
    ]


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Return a Markdown table: the first column to the left, the others to the right."""
    rule = [":--", *["--:"] * (len(header) - 1)]
    return ["| " + " | ".join(cells) + " |" for cells in [header, rule, *rows]]
