"""The errors that decide the exit code, and the nearest-name sentence. Imports no JAX.

Exit codes: 2 the request was wrong, 1 the training failed, 143 or 130 stopped on request.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class UsageError(ValueError):
    """A user's mistake, told in one sentence; nothing was started or written."""

    exit_code = 2


class TrainingFailed(RuntimeError):
    """The training began and could not go on."""

    exit_code = 1


class CheckpointError(TrainingFailed):
    """A checkpoint could not be written or read.

    ``path`` is the file or folder, ``errno`` the system's error number if there is one.
    """

    def __init__(self, message: str, path: str | Path, errno: int | None = None) -> None:
        super().__init__(message)
        self.path = str(path)
        self.errno = errno


class StopRequested(Exception):
    """Stopped at an update's end because a signal asked for it.

    ``code`` is the exit code (143 for SIGTERM, 130 for Ctrl-C); ``update`` is the update
    of the last commit, ``None`` if there is no commit.
    """

    def __init__(self, code: int, update: int | None = None) -> None:
        where = "before the first checkpoint" if update is None else f"after update {update}"
        super().__init__(f"stopped on request {where}")
        self.code = code
        self.update = update

    @property
    def exit_code(self) -> int:
        """The exit code of the process."""
        return self.code


def _initials(name: str) -> str:
    """``algo.lr`` for ``algo.learning_rate``."""
    section, dot, last = name.rpartition(".")
    words = last.split("_")
    return section + dot + ("".join(word[:1] for word in words) if len(words) > 1 else last)


def nearest(name: str, names: Iterable[str]) -> str:
    """The entry of ``names`` (at least one) that looks most like ``name``.

    Case and the difference between ``-`` and ``_`` do not count. Ties go to the entry
    that comes first in the alphabet, so that the answer never depends on the order given.
    """

    def plain(text: str) -> str:
        return text.lower().replace("-", "_")

    candidates = sorted(set(names))
    if not candidates:
        raise ValueError("nearest() needs at least one name to choose from")
    wanted = plain(name)
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)
    best, best_ratio = candidates[0], -1.0
    for candidate in candidates:  # lr for learning_rate
        if _initials(candidate) == wanted:
            return candidate
    for candidate in candidates:
        matcher.set_seq1(plain(candidate))
        ratio = matcher.ratio()
        if ratio > best_ratio:
            best, best_ratio = candidate, ratio
    return best


def unknown(kind: str, name: str, names: Iterable[str], show: str = "") -> UsageError:
    """The sentence for a name that does not exist.

    ``show`` is a command or page that lists every name, as in
    ``unknown task 'cartpol': did you mean 'cartpole'? (lockstep list tasks shows all)``.
    """
    listed = {"task": "lockstep list tasks", "algorithm": "lockstep list algorithms"}
    show = show or listed.get(kind, "")
    tail = f" ({show} shows all)" if show else ""
    return UsageError(f"unknown {kind} {name!r}: did you mean {nearest(name, names)!r}?{tail}")
