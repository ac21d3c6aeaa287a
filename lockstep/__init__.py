"""Reinforcement-learning training on every device: the same command, the same result.

``lockstep.train(task, ...)`` and ``lockstep.evaluate(run, ...)`` are the Python face of
the command line. Importing this package loads neither JAX nor torch.
"""

from __future__ import annotations

from lockstep.api import evaluate, train

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "train"]
