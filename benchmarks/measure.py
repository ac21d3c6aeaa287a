"""Steady-state speed of one jitted update, printed as one JSON line.

Used by lockstep's scripts and, inside their own virtual environments, by the peers' scripts;
so it imports only the standard library and JAX.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax


def versions(*names: str) -> dict[str, str]:
    """Return the installed version of each named distribution, and Python's."""
    found = {name: importlib.metadata.version(name) for name in names}
    return {"python": platform.python_version(), **found}


def steady_state(
    run: Callable[[Any], Any], state: Any, steps: int, repeats: int, warmup: int = 1
) -> tuple[dict[str, Any], Any]:
    """Time ``state = run(state)`` with compilation and the first calls left out.

    ``steps`` is the number of environment steps of one call. Returns the median, lowest and
    highest environment steps a second over ``repeats`` calls, the steps a CPU second (of all
    threads: comparable on a busy machine), and the seconds of the first, compiling call; and
    the state after all ``1 + warmup + repeats`` calls.
    """
    start = time.perf_counter()
    state = jax.block_until_ready(run(state))
    compile_seconds = time.perf_counter() - start
    for _ in range(warmup):
        state = jax.block_until_ready(run(state))
    rates, cpu_rates = [], []
    for _ in range(repeats):
        start, cpu_start = time.perf_counter(), time.process_time()
        state = jax.block_until_ready(run(state))
        rates.append(steps / (time.perf_counter() - start))
        cpu_rates.append(steps / (time.process_time() - cpu_start))
    result = {
        "env_steps_per_second": statistics.median(rates),
        "lowest": min(rates),
        "highest": max(rates),
        "env_steps_per_cpu_second": statistics.median(cpu_rates),
        "compile_seconds": compile_seconds,
        "repeats": repeats,
        "calls": 1 + warmup + repeats,
    }
    return result, state


def emit(result: dict[str, Any], **details: Any) -> None:
    """Print one JSON line; the last such line of a script is its result."""
    print(json.dumps({**result, "devices": jax.device_count(), **details}), flush=True)
