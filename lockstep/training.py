"""The one host loop: build, restore, step, log, evaluate, save.

The next update is dispatched before the last one's metrics are read, so that devices never
wait for the host; the host waits only where it must see a state: a commit, an evaluation.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import jax

from lockstep.checkpoint import Checkpoints, params_sha256
from lockstep.compose import to_yaml
from lockstep.config import RunConfig
from lockstep.distributed.mesh import make_mesh
from lockstep.errors import StopRequested, TrainingFailed, UsageError
from lockstep.evaluating import restore_newest, run_key
from lockstep.host import (
    StopSignals,
    claim_together,
    start_compile_cache,
    start_devices,
    stop_signals,
    versions,
)
from lockstep.layers import as_tree
from lockstep.preview import preview
from lockstep.progress import Progress
from lockstep.protocols import Workflow
from lockstep.recipes import make_workflow
from lockstep.results import (
    TrainResult,
    describe_bad_transition,
    evaluation_scalars,
    summarize,
    update_scalars,
    write_fault,
    write_summary,
)
from lockstep.telemetry import Heartbeat, MetricsWriter, Timers
from lockstep.telemetry_trackers import require_wandb

COMMITS_A_RUN = 10


def train_run(cfg: RunConfig, *, run_dir: str | None, resume: str | None) -> TrainResult:
    """Train as ``cfg`` says in a new folder, or go on with the run in the folder ``resume``.

    Raises:
        UsageError: the request is wrong; nothing was written.
        TrainingFailed: the training could not go on; ``fault.json`` tells why.
        StopRequested: a signal asked to stop, after a commit.
    """
    started = time.perf_counter()
    folder = Path(resume or run_dir or "")
    if cfg.wandb:
        require_wandb()
    devices = start_devices(cfg)
    start_compile_cache(cfg.compile_cache)
    workflow = make_workflow(cfg, make_mesh(devices))
    loop = _Loop(cfg, workflow, folder, len(devices), started)
    try:
        with stop_signals() as signals:
            return loop.run(signals, resumed=resume is not None)
    except (StopRequested, UsageError):
        raise
    except OSError as error:
        loop.fault(error)
        raise TrainingFailed(
            f"cannot write {error.filename or folder}: {error.strerror} (errno {error.errno})"
        ) from error
    except Exception as error:
        loop.fault(error)
        raise
    finally:
        with contextlib.suppress(OSError):  # what went wrong first is what is told
            loop.close()


class _Loop:
    """One process's part of a run: its files and the loop over updates."""

    def __init__(
        self, cfg: RunConfig, workflow: Workflow, folder: Path, devices: int, started: float
    ) -> None:
        self.cfg, self.workflow, self.folder, self.devices = cfg, workflow, folder, devices
        self.started = started
        self.rank = jax.process_index()
        self.update, self.phase = 0, "setup"
        self.timers = Timers()
        self.versions = versions()
        self.last_return: float | None = None
        self.warned = False  # of transitions that are not finite
        self.writer: MetricsWriter | None = None
        self.progress = Progress(
            cfg.updates, cfg.updates * cfg.steps_per_update, enabled=self.rank == 0
        )
        self.commits = Checkpoints(folder / "checkpoints", cfg.keep_checkpoints)
        self.commit_every = cfg.checkpoint_interval or max(1, cfg.updates // COMMITS_A_RUN)

    def run(self, signals: StopSignals, resumed: bool) -> TrainResult:
        """From the first file to the summary."""
        state = self._open(resumed)
        state = self._train(state, signals)
        self.progress.message(f"evaluating:   {self.cfg.eval_episodes} episodes")
        evaluation = self._evaluate(state)
        self.close()
        result = self._summary("completed", state, evaluation)
        self._beat("done")
        return result

    def _open(self, resumed: bool) -> Any:
        """Make or reopen the run's folder; the state to start from."""
        plan = preview(self.cfg, jax.devices()[0].platform, max(self.devices, jax.device_count()))
        self.progress.header([*plan.lines(), f"run folder:   {self.folder}"])
        if resumed:
            state, host = restore_newest(
                self.commits, self.workflow, self.cfg, self.progress.message
            )
            self.update, written = host["update"], host["versions"]
            if self.update > self.cfg.updates:
                raise UsageError(
                    f"the run {str(self.folder)!r} has done {self.update} updates: "
                    f"max_iterations={self.cfg.updates} is less"
                )
            path = self.commits.directory / str(self.update)
            self.progress.message(
                f"resumed:      update {self.update} of {self.cfg.updates} from {path} "
                f"(lockstep {written.get('lockstep')} {written.get('commit', '')})"
            )
        else:
            state = self.workflow.setup(run_key(self.cfg))
            claim_together(self.folder)
        (self.folder / "ranks").mkdir(parents=True, exist_ok=True)
        if self.rank == 0:
            (self.folder / "config.yaml").write_text(to_yaml(self.cfg))
            (self.folder / "fault.json").unlink(missing_ok=True)
        self.heartbeat = Heartbeat(self.folder / "ranks" / f"{self.rank}.heartbeat", self.rank)
        self.writer = MetricsWriter(
            self.folder,
            tensorboard=self.cfg.tensorboard,
            wandb=self.cfg.wandb,
            append=resumed,
            restored_update=self.update if resumed else None,
            rank=self.rank,
            config=as_tree(self.cfg),
        )
        return state

    def _train(self, state: Any, signals: StopSignals) -> Any:
        """All updates that are left."""
        if self.update >= self.cfg.updates:
            self.progress.message(f"all {self.cfg.updates} updates were done before")
            return state
        self.progress.message("compiling:    the update, or taking it from the compile cache")
        with self._phase("compile"):
            # A user's own workflow may have nothing to compile ahead.
            getattr(self.workflow, "compile", lambda state: None)(state)
        self.first_update = self.update
        self.begun = time.perf_counter()
        waiting: tuple[int, dict[str, Any]] | None = None
        while self.update < self.cfg.updates:
            self._beat("update")
            metrics, state = self.workflow.step(state)
            if waiting is not None:
                self._report(*waiting)
            self.update += 1
            waiting = (self.update, metrics)
            stop, commit = signals.agree()
            last = self.update == self.cfg.updates
            due = last or stop or commit or self.update % self.commit_every == 0
            looks = self.cfg.eval_interval and self.update % self.cfg.eval_interval == 0
            if due or (looks and not last):
                # Nothing is committed before its metrics were seen to be sound.
                self._report(*waiting, self._evaluate(state) if looks and not last else None)
                waiting = None
            if due:
                self._commit(state)
            if stop and not last:
                self._stop_clock(state)
                self._summary("stopped", state, None)
                self.progress.message(f"to go on:     lockstep train --resume {self.folder}")
                raise StopRequested(stop, self.update)
        self._stop_clock(state)
        return state

    def _stop_clock(self, state: Any) -> None:
        """Take the time of all updates, the last one's end included."""
        jax.block_until_ready(state)
        self.timers.add("train", time.perf_counter() - self.begun - self._pauses())

    def _evaluate(self, state: Any) -> dict[str, Any]:
        jax.block_until_ready(state)  # an update that still runs is no part of the evaluation
        with self._phase("evaluate"):
            metrics, _ = self.workflow.evaluate(state)
            values = evaluation_scalars(metrics, self.cfg)
        if values["nan_episodes"] and self.cfg.nan_policy == "fail":
            raise TrainingFailed(
                f"update {self.update}: {values['nan_episodes']} of {self.cfg.eval_episodes} "
                f"evaluation episodes met a NaN or an infinity (nan_policy=fail)"
            )
        return values

    def _pauses(self) -> float:
        """Seconds since the loop began in which no update was wanted."""
        return self.timers.seconds("evaluate") + self.timers.seconds("save")

    def _report(
        self, update: int, metrics: dict[str, Any], evaluation: dict[str, Any] | None = None
    ) -> None:
        """Read an update's metrics (waits for it), check and show them."""
        values = jax.device_get(metrics)
        seconds = time.perf_counter() - self.begun - self._pauses()
        rate = (update - self.first_update) * self.workflow.steps_per_update / seconds
        line = update_scalars(values, update, self.workflow.steps_per_update)
        line["env_steps_per_second"] = rate
        line["wall_seconds"] = time.perf_counter() - self.started
        if evaluation is not None:
            line |= {f"eval_{name.removeprefix('eval_')}": x for name, x in evaluation.items()}
        assert self.writer is not None
        self.writer.write(line)
        self._check(values, line, update)
        if line["return_mean"] is not None:
            self.last_return = line["return_mean"]
        left = (self.cfg.updates - update) * self.workflow.steps_per_update / rate
        shown = line | {"return_mean": self.last_return}
        if "policy_loss" in shown:
            del shown["loss"]  # their weighted sum says nothing more
        self.progress.update(shown, line["steps"], rate, left)

    def _check(self, values: dict[str, Any], line: dict[str, Any], update: int) -> None:
        """Stop where numbers are no longer finite, the same decision on every rank."""
        if line.get("nan_envs") and self.cfg.nan_policy == "fail":
            raise TrainingFailed(
                describe_bad_transition(values["bad"], self.cfg, update, self.folder, self.rank)
            )
        if line.get("nan_envs") and not self.warned:
            self.warned = True
            self.progress.message(
                f"update {update}: {line['nan_envs']} transitions with NaN were masked and their "
                f"environments reset (nan_policy=reset); metrics.jsonl counts any others"
            )
        bad = [name for name in ("loss", "grad_norm") if name in values and line[name] is None]
        if bad:
            raise TrainingFailed(f"update {update}: {bad[0]} is not finite, training stopped")

    def _commit(self, state: Any) -> None:
        steps = self.update * self.workflow.steps_per_update
        counters = {"update": self.update, "steps": steps, "versions": self.versions}
        with self._phase("save"):
            self.commits.save(self.update, state, counters)

    def _summary(self, status: str, state: Any, evaluation: dict[str, Any] | None) -> TrainResult:
        """Put the run in numbers and write ``summary.json`` (rank 0)."""
        done = self.update - getattr(self, "first_update", self.update)
        result = summarize(
            self.cfg,
            status=status,
            folder=self.folder,
            devices=self.devices,
            updates=self.update,
            steps_timed=done * self.workflow.steps_per_update,
            timers=self.timers,
            wall_seconds=time.perf_counter() - self.started,
            params_sha256=params_sha256(state.params),
            evaluation=evaluation,
            versions=self.versions,
        )
        only_evaluated = not done and (self.folder / "summary.json").is_file()
        if self.rank == 0 and not only_evaluated:
            write_summary(result, self.folder)
        return result

    def _beat(self, phase: str) -> None:
        self.phase = phase
        self.heartbeat.beat(self.update, phase)

    def _phase(self, name: str) -> Any:
        """Time a phase and show it in the heartbeat."""
        self._beat(name)
        return self.timers.phase(name)

    def fault(self, error: BaseException) -> None:
        """Leave ``fault.json`` if the run's folder is there."""
        if self.writer is not None:
            write_fault(self.folder, self.rank, self.update, self.phase, error)

    def close(self) -> None:
        """Close what is open; the live line ends."""
        self.progress.close()
        if self.writer is not None:
            self.writer.close()
