"""TensorBoard event files and Weights & Biases, behind ``write`` and ``close``. No JAX.

TensorBoard's events are written by the caller's own thread: a writer thread that dies of a
full disk leaves its queue to fill up, and training would then wait for ever.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError

WANDB_FILE = "wandb.json"


class TensorBoard:
    """One event an update with all its scalars, under ``folder``.

    With ``purge_step`` TensorBoard shows nothing of older files from that step on. Events
    reach the disk every ``flush_seconds`` and at ``close``.
    """

    def __init__(
        self, folder: Path, purge_step: int | None = None, flush_seconds: float = 5.0
    ) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._flush_seconds = flush_seconds
        self._flushed = time.monotonic()
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # Two attempts within one second must not share a file.
        self._writer = EventsWriter(
            str(folder / "events"), f".{os.getpid()}.{uuid.uuid4().hex[:8]}"
        )
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._put(self._event(wall_time=time.time(), step=purge_step, session_log=start))

    def write(self, metrics: Mapping[str, Any], step: int) -> None:
        """Add the numbers among ``metrics`` at ``step``."""
        values = [
            self._summary.Value(tag=name, simple_value=float(value))
            for name, value in _numbers(metrics).items()
        ]
        summary = self._summary(value=values)
        self._put(self._event(wall_time=time.time(), step=step, summary=summary))
        if time.monotonic() - self._flushed >= self._flush_seconds:
            self._guard(self._writer.flush)
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Flush and close the file."""
        self._guard(self._writer.close)

    def _put(self, event: Any) -> None:
        self._guard(self._writer.write_event, event)

    def _guard(self, action: Any, *arguments: Any) -> None:
        """Give a failed write the folder's name, which it does not carry."""
        try:
            action(*arguments)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.folder)) from error


class WeightsAndBiases:
    """One run of Weights & Biases for a run's whole life, resumes included.

    Its id stands in ``wandb.json`` of the run's folder. Where to (entity, mode, host) is for
    wandb's own settings to say.
    """

    def __init__(self, run_dir: Path, config: Mapping[str, Any], project: str = "lockstep") -> None:
        wandb = require_wandb()
        note = run_dir / WANDB_FILE
        if note.exists():
            known = json.loads(note.read_text())
        else:
            known = {"id": uuid.uuid4().hex, "project": project}
            note.write_text(json.dumps(known) + "\n")
        self._run = wandb.init(
            id=known["id"],
            project=known["project"],
            name=run_dir.resolve().name,
            dir=str(run_dir),
            config=dict(config),
            resume="allow",
        )

    def write(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log the numbers among ``metrics`` at ``step``."""
        self._run.log(_numbers(metrics), step=step)

    def close(self) -> None:
        """Tell wandb that this attempt ended."""
        self._run.finish()


def require_wandb() -> Any:
    """The package ``wandb``.

    Raises:
        UsageError: it is not installed; the sentence names the extra.
    """
    if importlib.util.find_spec("wandb") is None:
        raise UsageError(
            "wandb=true needs the package wandb, which is not installed: "
            "pip install 'lockstep-rl[wandb]'"
        )
    return importlib.import_module("wandb")


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if isinstance(value, int | float)}
