"""Reinforcement-learning training on every device: the same command, the same result.

``lockstep.train(task, ...)`` and ``lockstep.evaluate(run, ...)`` are the Python face of
the command line. Importing this package loads neither JAX nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "train"]

if TYPE_CHECKING:
    from lockstep.api import evaluate, train


def __getattr__(name: str) -> Any:
    if name in ("train", "evaluate"):
        from lockstep import api

        return getattr(api, name)
    raise AttributeError(f"module 'lockstep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
