"""Reinforcement-learning training on every device: the same command, the same result.

``lockstep.train(task, ...)`` and ``lockstep.evaluate(run, ...)`` are the Python face of
the command line. Importing this package loads neither JAX nor torch.
"""

from __future__ import annotations

from lockstep.api import evaluate, train
from lockstep.version import VERSION

__version__ = VERSION
__all__ = ["__version__", "evaluate", "train"]
