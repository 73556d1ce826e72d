"""The callbacks of a training, and what an interrupted one reports."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpgmn.base.errors import HPGMNError
from hpgmn.runs.folder import CONFIG_FILE, METRICS_FILE, backup_note
from hpgmn.training.replicas import Progress

logger = logging.getLogger(__name__)

ProgressCallback = Callable[[str, Progress], None]
"""Called with what is running and how far it is."""


class InterruptedRunError(KeyboardInterrupt):
    """A training was interrupted; finished epochs are saved in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(
            f"The training in {folder} was interrupted. Continue it with the same options, "
            f"out={str(folder)!r} and resume=True."
        )


@dataclass(frozen=True)
class Monitor:
    """The callbacks of a long operation.

    Attributes:
        progress: called after each epoch and step.
        notify: called with remarks about the data and about decisions.
        should_stop: polled after each epoch and step; True saves the state and raises
            KeyboardInterrupt.
    """

    progress: ProgressCallback = lambda task, now: None
    notify: Callable[[str], None] = lambda line: None
    should_stop: Callable[[], bool] = lambda: False

    def note(self, line: str) -> None:
        """Log a remark, and pass it on."""
        self.notify(line)
        logger.info(line)

    def step(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Report a step that is not a training."""
        if self.should_stop():
            raise KeyboardInterrupt
        self.progress("", self.step_progress(what, done, total))

    @staticmethod
    def step_progress(what: str, done: int = 0, total: int | None = None) -> Progress:
        """Return the progress of a step that is not a training."""
        return Progress(0, 1, what, done, total or 0, math.nan, math.nan)

    def epochs_of(self, task: str) -> Callable[[Progress], None]:
        """Return the callback for the epochs of a training."""
        return lambda now: self.progress(task, now)


def make_monitor(
    progress: ProgressCallback | None,
    notify: Callable[[str], None] | None,
    should_stop: Callable[[], bool] | None,
) -> Monitor:
    """Collect the callbacks that are given."""
    callbacks = {"progress": progress, "notify": notify, "should_stop": should_stop}
    return Monitor(**{name: call for name, call in callbacks.items() if call is not None})  # type: ignore[arg-type]


@contextmanager
def interruptible(folder: Path, monitor: Monitor) -> Iterator[None]:
    """Report where the replaced run is kept if its replacement fails, and how to continue."""
    try:
        yield
    except (HPGMNError, KeyboardInterrupt) as error:
        is_finished = (folder / METRICS_FILE).exists()
        note = "" if is_finished else backup_note(folder)
        if note:
            monitor.notify(note)
        # Of a comparison the outer folder is continued, not that of the model in training.
        has_run = (folder / CONFIG_FILE).exists() or any(folder.glob(f"[!.]*/{CONFIG_FILE}"))
        if isinstance(error, KeyboardInterrupt) and has_run:
            raise InterruptedRunError(folder) from None
        raise
