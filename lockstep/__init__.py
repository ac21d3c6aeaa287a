"""Reinforcement-learning training on every device: the same command, the same result.

``lockstep.train(task, ...)`` and ``lockstep.evaluate(run, ...)`` are the Python face of
the command line. Importing this package loads neither JAX nor torch.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "train"]

if TYPE_CHECKING:
    from lockstep.api import evaluate, train


class _Package(ModuleType):
    """The package itself: ``lockstep.train`` is the function, also after its module is loaded.

    Loading the submodule ``lockstep.train`` (the host loop) would bind that module under the
    function's name; ``from lockstep.train import ...`` works all the same.
    """

    @property
    def train(self) -> Any:
        from lockstep.api import train

        return train

    @train.setter
    def train(self, module: ModuleType) -> None:
        pass

    @property
    def evaluate(self) -> Any:
        from lockstep.api import evaluate

        return evaluate


sys.modules[__name__].__class__ = _Package
