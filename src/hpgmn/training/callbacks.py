"""Callbacks of a training.

A callback is any callable that takes a :class:`~hpgmn.training.replicas.Progress`, which is called
after each epoch: ``hpgmn.train(graph, callbacks=[TensorBoard("logs")])``.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

from hpgmn.base.errors import HPGMNError
from hpgmn.training.ensemble import member_folder

if TYPE_CHECKING:
    from hpgmn.training.replicas import Progress


class TensorBoard:
    """Writes live learning curves for TensorBoard: means over the splits and seeds in training.

    Scalars are named ``STAGE/loss``, ``STAGE/val_loss`` and ``STAGE/val_score``; their steps are
    epochs. Each member of a pool is a run of its own, as is each group of replicas if they do not
    fit into memory together.

    Args:
        folder: shown by ``tensorboard --logdir FOLDER``.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            self._make: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        except ImportError:
            raise HPGMNError(
                "The curves need tensorboard, which is not installed.",
                "Run: pip install 'hpgmn[tensorboard]'",
            ) from None
        self.folder = Path(folder)
        self._writers: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out open files: estimators are pickled with their callbacks."""
        return vars(self) | {"_writers": {}}

    def __call__(self, progress: Progress) -> None:
        """Write the values of an epoch."""
        run = member_folder(progress.member) if progress.member else "model"
        if progress.batches > 1:
            run += f"-{progress.batch + 1}"
        if run not in self._writers:
            self._writers[run] = self._make(self.folder / run)
            finalize(self, self._writers[run].close)
        writer = self._writers[run]
        values = {
            "loss": progress.loss,
            "val_loss": progress.val_loss,
            "val_score": progress.epoch_score,
        }
        for name, value in values.items():
            if math.isfinite(value):
                writer.add_scalar(f"{progress.stage}/{name}", value, progress.epoch)
        writer.flush()
