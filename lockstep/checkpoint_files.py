"""The folder of one commit: built aside, flushed, renamed into its place, checked.

By size wherever commits are listed, by digest before one is restored.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

COMMIT_FILE = "commit.json"
PARTIAL = ".partial"
REPLACED = ".replaced"
TRASH = ".trash"


def make_empty(folder: Path) -> None:
    """An empty folder of this name, whatever was there before."""
    remove(folder)
    folder.mkdir(parents=True)


def remove(folder: Path) -> None:
    """Delete a folder with all in it; what cannot be deleted stays."""
    shutil.rmtree(folder, ignore_errors=True)


def commit(partial: Path, final: Path, record: dict[str, Any]) -> None:
    """Flush everything, write ``commit.json`` last, and rename the folder into its place."""
    files = sorted(path for path in partial.rglob("*") if path.is_file())
    sizes = {path.relative_to(partial).as_posix(): path.stat().st_size for path in files}
    digests = {path.relative_to(partial).as_posix(): _digest(path) for path in files}
    commit_file = partial / COMMIT_FILE
    commit_file.write_text(
        json.dumps({**record, "files": sizes, "digests": digests}, allow_nan=False)
    )
    folders = [path for path in partial.rglob("*") if path.is_dir()]
    # Side by side: the file system joins flushes that arrive together.
    with ThreadPoolExecutor(max_workers=32) as pool:
        list(pool.map(_flush, [*files, commit_file, *folders, partial]))
    if final.exists():
        replaced = final.with_name(final.name + REPLACED)
        remove(replaced)
        final.rename(replaced)
    partial.rename(final)
    _flush(final.parent)


def damaged_file(folder: Path) -> str | None:
    """The first file of a commit that is not what was written; None if all are."""
    digests = json.loads((folder / COMMIT_FILE).read_text())["digests"]
    return next((name for name in digests if _digest(folder / name) != digests[name]), None)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_whole(folder: Path) -> bool:
    """Whether ``commit.json`` is there and every file has the size written in it."""
    try:
        files = json.loads((folder / COMMIT_FILE).read_text())["files"]
        return all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False
