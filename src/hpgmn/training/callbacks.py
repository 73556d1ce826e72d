"""Callbacks that record the learning curves of a training while it runs.

A callback is any callable that takes a :class:`~hpgmn.training.replicas.Progress`, which is called
after each epoch: ``hpgmn.train(graph, callbacks=[TensorBoard("logs")])``.
"""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

from hpgmn.base.errors import HPGMNError
from hpgmn.training.ensemble import member_folder
from hpgmn.training.state import HISTORY

if TYPE_CHECKING:
    from hpgmn.training.replicas import Progress

_COLUMNS = ("member", "split", "seed", "stage", "epoch", *HISTORY)


class TensorBoard:
    """Writes curves for TensorBoard: a run for each split and seed, in a folder of its member.

    Scalars are named ``STAGE/loss``, ``STAGE/val_loss`` and ``STAGE/val_score``; their steps are
    epochs.

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
        self._writers: dict[Path, Any] = {}
        self._member = ""
        finalize(self, _close, self._writers)

    def __call__(self, progress: Progress) -> None:
        """Write the epochs since the last call."""
        if progress.member != self._member:  # members are trained one after the other
            self.close()
            self._member = progress.member
        for row in progress.rows:
            writer = self._writer(f"split{row['split']}-seed{row['seed']}")
            for name in HISTORY:
                if row[name] is not None:
                    writer.add_scalar(f"{row['stage']}/{name}", row[name], row["epoch"])
        for writer in self._writers.values():
            writer.flush()

    def _writer(self, run: str) -> Any:
        member = member_folder(self._member) if self._member else ""
        path = self.folder / member / run
        if path not in self._writers:
            self._writers[path] = self._make(path)
        return self._writers[path]

    def close(self) -> None:
        """Close the files; a later call opens new ones."""
        _close(self._writers)


def _close(writers: dict[Path, Any]) -> None:
    while writers:
        writers.popitem()[1].close()


class CSVHistory:
    """Writes the learning curves to a CSV file: a row for each split, seed, stage and epoch.

    Args:
        append: continue the file of an interrupted training, which is resumed [replace it].
    """

    def __init__(self, path: str | Path, *, append: bool = False) -> None:
        self.path = Path(path)
        self._is_new = not (append and self.path.is_file())

    def __call__(self, progress: Progress) -> None:
        """Append the epochs since the last call."""
        if self._is_new:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w" if self._is_new else "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, _COLUMNS)
            if self._is_new:
                writer.writeheader()
            writer.writerows({"member": progress.member} | row for row in progress.rows)
        self._is_new = False
