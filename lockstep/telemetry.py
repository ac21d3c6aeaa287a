"""What a run tells about itself: metrics, a heartbeat and timed phases. Imports no JAX.

Only global rank 0 writes metrics; every rank has its heartbeat. A disk that is full or
read-only surfaces at once as an ``OSError`` with ``errno`` and ``filename``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lockstep.telemetry_trackers import TensorBoard, WeightsAndBiases

Metrics = Mapping[str, float | int | str | None]

METRICS_FILE = "metrics.jsonl"


class MetricsWriter:
    """One line an update in ``metrics.jsonl``, and the trackers that were asked for.

    Args:
        run_dir: the run's folder; it exists.
        tensorboard: also write TensorBoard events under ``run_dir/tensorboard``.
        wandb: also log to Weights & Biases (extra ``wandb``).
        append: go on in a run of before instead of starting its files.
        restored_update: with ``append``, the update the state was restored at: lines of later
            updates are removed, so that no update stands twice. ``None`` keeps all whole lines.
        rank: global rank; all but 0 write nothing and start no tracker.
        config: the run's configuration as plain data, for Weights & Biases.

    Raises:
        UsageError: ``wandb`` is asked for and not installed.
        OSError: a file cannot be written.
    """

    def __init__(
        self,
        run_dir: str | Path,
        tensorboard: bool = True,
        wandb: bool = False,
        append: bool = False,
        restored_update: int | None = None,
        rank: int = 0,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = Path(run_dir) / METRICS_FILE
        self._file: int | None = None
        self._trackers: list[TensorBoard | WeightsAndBiases] = []
        if rank != 0:
            return
        last = _truncate_after(self.path, restored_update) if append else None
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC)
        self._file = os.open(self.path, flags, 0o644)
        if tensorboard:
            purge = None if last is None else _axis(last) + 1
            self._trackers.append(TensorBoard(Path(run_dir) / "tensorboard", purge))
        if wandb:
            self._trackers.append(WeightsAndBiases(Path(run_dir), config or {}))

    def write(self, metrics: Metrics) -> None:
        """Write one update's metrics, scalars by name; ``update`` is required.

        ``None`` means that there is no value (no episode has ended): ``null`` in the file,
        nothing in the trackers. A value that is not finite is ``null`` too, and its name is
        listed under ``non_finite``. The trackers' axis is ``steps`` if given, else ``update``.
        """
        if self._file is None:
            return
        if not isinstance(metrics.get("update"), int):
            raise ValueError(f"metrics need an integer 'update', got {sorted(metrics)}")
        plain = _plain(metrics)
        _write_line(self._file, json.dumps(plain, allow_nan=False), self.path)
        for tracker in self._trackers:
            tracker.write(plain, _axis(plain))

    def close(self) -> None:
        """Flush and close everything; calling it again does nothing."""
        trackers, self._trackers = self._trackers, []
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
        for tracker in trackers:
            tracker.close()


class Heartbeat:
    """One JSON object on disk that tells where a rank is, replaced as a whole.

    Its fields: ``rank, pid, host, attempt, update, phase, time`` (Unix seconds). Written at
    every change of phase, otherwise at most ``1 / interval`` times a second.
    """

    def __init__(
        self, path: str | Path, rank: int, attempt: int = 0, interval: float = 0.1
    ) -> None:
        self.path = Path(path)
        self._interval = interval
        self._written: tuple[str, float] | None = None
        self._who = {
            "rank": rank,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "attempt": attempt,
        }

    def beat(self, update: int, phase: str) -> None:
        """Tell that ``phase`` of ``update`` is going on.

        Raises:
            OSError: the file cannot be replaced; its ``filename`` is the heartbeat's.
        """
        now = time.monotonic()
        if self._written is not None:
            last_phase, last_time = self._written
            if phase == last_phase and now - last_time < self._interval:
                return
        record = {**self._who, "update": update, "phase": phase, "time": time.time()}
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(record) + "\n")
            temporary.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise _named(error, self.path) from error
        self._written = (phase, now)


class Timers:
    """Wall seconds spent in named phases, summed over visits (``time.perf_counter``)."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the ``with`` block to ``name``, also when it raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self._seconds[name] = self.seconds(name) + seconds

    def seconds(self, name: str) -> float:
        """Seconds spent in ``name`` so far; 0.0 if it was never entered."""
        return self._seconds.get(name, 0.0)

    def totals(self) -> dict[str, float]:
        """Seconds of every phase, in the order of their first visits."""
        return dict(self._seconds)


def read_metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's ``metrics.jsonl``; a last line cut off by a crash is left out."""
    return [record for record, _ in _whole_lines(Path(run_dir) / METRICS_FILE)]


def _axis(plain: Mapping[str, Any]) -> int:
    steps = plain.get("steps")
    return int(plain["update"] if steps is None else steps)


def _plain(metrics: Metrics) -> dict[str, Any]:
    """JSON values: numbers of other libraries become Python's, what is not finite ``None``."""
    plain: dict[str, Any] = {}
    non_finite = []
    for name, given in metrics.items():
        value: Any = given
        if hasattr(value, "item"):
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            non_finite.append(name)
            value = None
        plain[name] = value
    if non_finite:
        plain["non_finite"] = non_finite
    return plain


def _write_line(file: int, line: str, path: Path) -> None:
    """Append a line whole or not at all."""
    data = memoryview((line + "\n").encode())
    start = os.fstat(file).st_size
    try:
        while data:
            data = data[os.write(file, data) :]
    except OSError as error:
        with contextlib.suppress(OSError):
            os.ftruncate(file, start)
        raise _named(error, path) from error


def _truncate_after(path: Path, update: int | None) -> dict[str, Any] | None:
    """Cut off a broken last line and all lines of later updates; the last record that stays."""
    kept, end = None, 0
    for record, line_end in _whole_lines(path):
        if update is not None and record["update"] > update:
            break
        kept, end = record, line_end
    if path.exists() and path.stat().st_size > end:
        os.truncate(path, end)
    return kept


def _whole_lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Each whole line's record and the offset of its end in bytes."""
    if not path.exists():
        return
    end = 0
    for line in path.read_bytes().splitlines(keepends=True):
        end += len(line)
        try:
            record = json.loads(line)
        except ValueError:
            return
        if not line.endswith(b"\n") or not isinstance(record, dict) or "update" not in record:
            return
        yield record, end


def _named(error: OSError, path: Path) -> OSError:
    """The same error with the file's name, which a failed write does not carry."""
    return OSError(error.errno, error.strerror, str(path))
