"""Make a peer's virtual environment from the package registry, once, outside the repository.

``python benchmarks/peers/environments.py rejax`` prints the path of its interpreter.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

PYTHON = "python3.11"
REQUIREMENTS = {
    "rejax": ["rejax==0.1.3", "gymnax==0.0.9", "six", "jax==0.10.2", "jaxlib==0.10.2"],
}


def cache_folder() -> Path:
    """Return where the environments live: ``$XDG_CACHE_HOME/lockstep/peers``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "lockstep" / "peers"


def interpreter(peer: str) -> Path:
    """Return the peer's interpreter, with its environment installed if it is not there yet.

    The folder's name holds a digest of the requirements, so that a changed pin makes a new
    one. A half-made environment lacks the mark written last and is made anew.
    """
    if peer not in REQUIREMENTS:
        raise ValueError(f"unknown peer {peer!r}: one of {', '.join(sorted(REQUIREMENTS))}")
    requirements = REQUIREMENTS[peer]
    digest = hashlib.sha256(" ".join(requirements).encode()).hexdigest()[:8]
    folder = cache_folder() / f"{peer}-{digest}"
    python, mark = folder / "bin" / "python", folder / "installed"
    if not mark.is_file():
        base = PYTHON if shutil.which(PYTHON) else sys.executable
        print(f"making the environment of {peer} in {folder}", file=sys.stderr)
        subprocess.run([base, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *requirements], check=True)
        mark.write_text("\n".join(requirements) + "\n")
    return python


if __name__ == "__main__":
    print(interpreter(sys.argv[1]))
