"""Commits: a run's whole state on disk, whole or not there at all.

One commit is the folder ``<directory>/<update>/``: ``state/`` (Orbax) holds the arrays
and ``commit.json`` (written last) the host's counters, every leaf's shape and dtype, and
every file's size. A commit is built under ``<update>.partial`` and renamed, so that a
folder whose name is a number and whose files have the recorded sizes is a whole commit.

Typed PRNG keys are stored as their key data, arrays without elements by their shape alone.
Nothing here knows of reinforcement learning. Shape letters: see ``lockstep.protocols``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from lockstep import checkpoint_leaves as leaf_forms
from lockstep.checkpoint_files import (
    COMMIT_FILE,
    PARTIAL,
    REPLACED,
    TRASH,
    commit,
    damaged_file,
    is_whole,
    make_empty,
    remove,
)
from lockstep.checkpoint_leaves import params_sha256
from lockstep.errors import CheckpointError

__all__ = ["CheckpointError", "CheckpointMismatchError", "Checkpoints", "params_sha256"]

PyTree = Any

FORMAT = 1


class CheckpointMismatchError(CheckpointError):
    """A commit holds another tree than the one asked for."""


class Checkpoints:
    """The commits of one run, newest ``keep`` of them.

    Every process of the run makes the same calls in the same order, on a folder they share.
    ``barrier_timeout`` (seconds) bounds the wait for the other processes.
    """

    def __init__(self, directory: Path, keep: int, barrier_timeout: float = 300.0) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1 commit, got {keep}")
        self.directory = Path(directory).absolute()
        self.keep = keep
        self.barrier_timeout = barrier_timeout
        self._orbax: Any = None

    def save(self, update: int, state: PyTree, host: dict[str, Any]) -> None:
        """Commit ``state`` (a tree of arrays) and ``host`` (JSON) as ``update``, then prune.

        Blocks until the commit is on disk. A commit of the same number is replaced.

        Raises:
            CheckpointError: a float leaf is not finite (the message has its key path; nothing
                is written), the file system refuses (``path`` and ``errno``), or a process
                does not arrive in time.
        """
        final, partial = self._path(update), self._path(update, PARTIAL)
        self._barrier(f"update {update}: begin")
        leaves = leaf_forms.named_leaves(state)
        arrays = {name: leaf_forms.as_stored(leaf) for name, leaf in leaves.items()}
        bad = leaf_forms.first_non_finite(arrays)
        if bad is not None:
            raise CheckpointError(
                f"checkpoint {update} not written: {bad} has values that are not finite", final
            )
        described = {name: leaf_forms.describe(leaf) for name, leaf in leaves.items()}
        record = {"format": FORMAT, "update": update, "host": host, "leaves": described}
        json.dumps(record, allow_nan=False)
        self._on_primary(lambda: make_empty(partial), partial, update)
        try:
            ocp, checkpointer = self._checkpointer()
            nonempty = {name: array for name, array in arrays.items() if array.size}
            with _quiet_orbax():
                checkpointer.save(partial / "state", args=ocp.args.PyTreeSave(nonempty))
        except Exception as error:  # Orbax and TensorStore raise many kinds
            remove(partial)
            raise _cannot_write(update, partial, error) from error
        self._on_primary(lambda: commit(partial, final, record), final, update)
        self._on_primary(lambda: self._prune(update), self.directory, update)

    def latest(self) -> int | None:
        """The newest whole commit's update, or None. :meth:`partial` names what it passed over."""
        updates = self.updates()
        return updates[-1] if updates else None

    def updates(self) -> list[int]:
        """All whole commits, oldest first."""
        numbered = [path for path in self._folders() if path.name.isdigit()]
        return sorted(int(path.name) for path in numbered if is_whole(path))

    def partial(self) -> list[str]:
        """Names of half-written commits, for the caller to report; they are never restored.

        The next save removes those called ``.partial``. A numbered folder that lacks a file
        stays until that update is saved again.
        """
        names = [
            path.name
            for path in self._folders()
            if path.name.endswith(PARTIAL) or (path.name.isdigit() and not is_whole(path))
        ]
        return sorted(names)

    def damaged(self, update: int) -> str | None:
        """The first file of a whole commit that is not what was written; None if all are."""
        return damaged_file(self._path(update))

    def read_host(self, update: int) -> dict[str, Any]:
        """The host's counters of a commit, without its arrays."""
        return self._record(update)["host"]

    def restore(self, update: int, abstract_state: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """Read a commit onto the shardings of ``abstract_state``, whatever devices wrote it.

        Args:
            update: a number of :meth:`updates`.
            abstract_state: the tree with ``jax.ShapeDtypeStruct(..., sharding=)`` leaves.

        Returns:
            The state, equal bit for bit to what was saved, and the host's counters.

        Raises:
            CheckpointMismatchError: a leaf is missing, unknown, or of another shape or dtype;
                the first one is named.
            CheckpointError: no whole commit of that number, or it cannot be read.
        """
        path = self._path(update)
        record = self._record(update)
        wanted = leaf_forms.named_leaves(abstract_state)
        targets = {name: leaf_forms.stored_target(name, leaf) for name, leaf in wanted.items()}
        difference = leaf_forms.first_difference(record["leaves"], wanted)
        if difference is not None:
            raise CheckpointMismatchError(
                f"checkpoint {path} does not fit this run: {difference}", path
            )
        nonempty = {name: target for name, target in targets.items() if target.size}
        try:
            ocp, checkpointer = self._checkpointer()
            restore_args = ocp.checkpoint_utils.construct_restore_args(nonempty)
            restore = ocp.args.PyTreeRestore(item=nonempty, restore_args=restore_args)
            with _quiet_orbax():
                arrays = checkpointer.restore(path / "state", args=restore)
        except Exception as error:
            raise CheckpointError(
                f"checkpoint {path} cannot be read: {_one_line(error)}", path, _errno_of(error)
            ) from error
        leaves = []
        for name, target in targets.items():
            data = arrays[name] if name in arrays else leaf_forms.empty_array(target)
            impl = record["leaves"][name].get("key_impl")
            leaves.append(data if impl is None else jax.random.wrap_key_data(data, impl=impl))
        return jax.tree.unflatten(jax.tree.structure(abstract_state), leaves), record["host"]

    def _path(self, update: int, suffix: str = "") -> Path:
        return self.directory / f"{update}{suffix}"

    def _record(self, update: int) -> dict[str, Any]:
        path = self._path(update)
        if not is_whole(path):
            known = ", ".join(map(str, self.updates())) or "none"
            raise CheckpointError(
                f"no whole checkpoint {update} in {self.directory} (whole ones: {known})", path
            )
        return json.loads((path / COMMIT_FILE).read_text())

    def _folders(self) -> list[Path]:
        """Folders of commits and half-commits, after an interrupted replacement is undone."""
        if not self.directory.is_dir():
            return []
        for old in self.directory.glob(f"*{REPLACED}"):
            final = old.with_suffix("")
            if is_whole(old) and not final.exists() and jax.process_index() == 0:
                old.rename(final)
        return [
            path for path in self.directory.iterdir() if path.name.removesuffix(PARTIAL).isdigit()
        ]

    def _prune(self, saved: int) -> None:
        """Keep ``saved`` and the newest others, ``keep`` in all; remove what was interrupted."""
        others = [update for update in self.updates() if update != saved]
        for update in others[: max(0, len(others) + 1 - self.keep)]:
            self._path(update).rename(self._path(update, TRASH))
        for suffix in (PARTIAL, TRASH, REPLACED):
            for path in self.directory.glob(f"*{suffix}"):
                remove(path)

    def _on_primary(self, action: Callable[[], None], path: Path, update: int) -> None:
        """Run a file operation on process 0; every process raises when it failed."""
        failure: OSError | None = None
        if jax.process_index() == 0:
            try:
                action()
            except OSError as error:
                failure = error
        self._barrier(f"update {update}: {path.name}")
        if failure is not None:
            remove(self._path(update, PARTIAL))
            raise _cannot_write(update, Path(failure.filename or path), failure) from failure
        if not path.exists():
            raise CheckpointError(f"checkpoint {update} not written: process 0 failed", path)

    def _barrier(self, what: str) -> None:
        """Wait for all processes; name those that are missing after ``barrier_timeout``."""
        if jax.process_count() == 1:
            return
        ocp, _ = self._checkpointer()
        try:
            wait = ocp.multihost.get_barrier_sync_fn()
            wait(key=f"lockstep {what}", timeout_ms=int(self.barrier_timeout * 1000))
        except Exception as error:
            raise CheckpointError(
                f"checkpoint ({what}): {_who_is_late(error, self.barrier_timeout)}", self.directory
            ) from error

    def _checkpointer(self) -> tuple[Any, Any]:
        """Orbax and its synchronous checkpointer, imported at first use (about a second)."""
        import orbax.checkpoint as ocp

        if self._orbax is None:
            self._orbax = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
        return ocp, self._orbax


@contextlib.contextmanager
def _quiet_orbax() -> Iterator[None]:
    """Keep Orbax's threads from logging the traceback of an error that is raised as well."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _who_is_late(error: Exception, timeout: float) -> str:
    """What a failed barrier says: the coordination service lists the processes that miss."""
    if "DEADLINE_EXCEEDED" not in str(error):
        return _one_line(error)
    listed = str(error).partition("timed out task names:")[2].split("\n\n")[0]
    absent = re.findall(r"(\d+)\s*$", listed, flags=re.MULTILINE)
    return f"process {', '.join(absent) or '(unknown)'} did not arrive within {timeout:g} s"


def _cannot_write(update: int, path: Path, error: BaseException) -> CheckpointError:
    code = _errno_of(error)
    why = _one_line(error) if code is None else f"{os.strerror(code)} (errno {code})"
    return CheckpointError(f"checkpoint {update} not written to {path}: {why}", path, code)


def _errno_of(error: BaseException | None) -> int | None:
    """The system's error number of an exception or its causes, if one is told.

    TensorStore's exceptions carry it in their words alone.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        told = re.search(r"os_error_code='(\d+)'|OS error (\d+)", str(error))
        if told:
            return int(told.group(1) or told.group(2))
        error = error.__cause__ or error.__context__
    return None


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
