"""What the commands print with: consoles, progress, Ctrl-C."""

from __future__ import annotations

import logging
import math
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment

from hpgmn.base.errors import HPGMNError, Remedy, SettingError
from hpgmn.base.text import without_controls

if TYPE_CHECKING:
    from hpgmn.training.replicas import Progress as Step

logger = logging.getLogger(__name__)


class _Console(Console):
    """A console on which text is text: no markup in brackets, no codes that a terminal obeys."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for one in super().render(renderable, options):
            yield one if one.control else Segment(without_controls(one.text), one.style)


out = _Console(markup=False, emoji=False)
err = _Console(markup=False, emoji=False, stderr=True)

METRIC_HELP = (
    "What chooses epochs and is reported: accuracy, balanced_accuracy, macro_f1, roc_auc, "
    "average_precision, or for two classes precision@K, such as precision@50 [the dataset's, or "
    "accuracy]. For skewed classes: average_precision of two, balanced_accuracy of more."
)


def say(line: str) -> None:
    """One unbroken line on standard error."""
    err.print(line, highlight=False, soft_wrap=True)


def note(line: str) -> None:
    """One line on standard error that the log of the run keeps, too."""
    say(line)
    logger.info(line)


def refuse_url(option: str, path: Path | None) -> None:
    """Refuse a URL where a path of this machine is wanted.

    >>> refuse_url("--out", Path("runs/mine"))
    """
    if path is not None and re.match(r"[a-z][a-z0-9+.-]+:/", str(path)):
        raise SettingError(
            f"{option} takes a path of this machine (got '{path}'); a URL is for `hpgmn reproduce "
            "--out` alone."
        )


PLAIN_SECONDS = 5.0
"""Without a terminal a line of progress is printed this often."""
SHORT_SECONDS = 1.0
"""What ends sooner needs no line of progress."""


class _Lines(logging.Handler):
    """Log records on standard error, one unbroken line each; what was said is not said again."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple):  # options here, keywords in Python
            record.args = tuple(
                value.render(cli=True) if isinstance(value, Remedy | HPGMNError) else value
                for value in record.args
            )
        line = f"{record.levelname.capitalize()}: {record.getMessage()}"
        if line not in self._said:
            self._said.add(line)
            say(line)


class _Earlier(logging.Handler):
    """What was logged before a run has its log file."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


_earlier = _Earlier()


def set_up_logging() -> None:
    """Warnings of the library go to standard error, one line each."""
    logger = logging.getLogger("hpgmn")
    _earlier.records.clear()
    logger.handlers[:] = [_Lines(logging.WARNING), _earlier]
    logger.setLevel(logging.INFO)


def earlier_records() -> list[logging.LogRecord]:
    """What this command has logged before it opens a log file; no more is kept from now on."""
    logging.getLogger("hpgmn").removeHandler(_earlier)
    return list(_earlier.records)


@contextmanager
def training_progress(what: str) -> Iterator[Callable[[Step], None]]:
    """A progress bar on a terminal, a line now and then elsewhere."""
    if not sys.stderr.isatty():
        yield _PlainProgress(what)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[numbers]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(what, total=1, numbers="")

        def step(now: Step) -> None:
            part = f" ({now.batch + 1} of {now.batches})" if now.batches > 1 else ""
            bar.update(
                task,
                description=f"{what}: {now.stage}{part}",
                completed=now.epoch,
                total=now.epochs,
                numbers=_numbers(now),
            )

        yield step


def _numbers(now: Step) -> str:
    """Loss and score, where a step has any."""
    return "" if math.isnan(now.val_score) else f"loss {now.loss:.3f}  val {now.val_score:.3f}"


class _PlainProgress:
    """Progress as plain lines."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.told = time.monotonic()

    def __call__(self, now: Step) -> None:
        if time.monotonic() - self.told < PLAIN_SECONDS:
            return
        self.told = time.monotonic()
        where = f"{self.what}: batch {now.batch + 1}/{now.batches} {now.stage}"
        amount = f"epoch {now.epoch}/{now.epochs} loss {now.loss:.3f} val {now.val_score:.3f}"
        if math.isnan(now.val_score):  # a statistic
            amount = f"{now.epoch:,}/{now.epochs:,} rows"
        say(f"{where} {amount}")


@contextmanager
def step_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Progress of steps one after the other: called with what, how much is done, how much there is.

    A bar on a terminal; elsewhere a line now and then, and one for each step of unknown length
    that begins after the first second.
    """
    if not sys.stderr.isatty():
        yield _PlainSteps()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=None, amount="")

        def step(what: str, done: int, total: int | None) -> None:
            bar.update(
                task, description=what, completed=done, total=total, amount=_amount(done, total)
            )

        yield step


def _amount(done: int, total: int | None) -> str:
    if total is None:
        return f"{done:,}" if done else ""
    return f"{done:,}/{total:,}"


class _PlainSteps:
    """Steps as plain lines."""

    def __init__(self) -> None:
        self.began = self.told = time.monotonic()
        self.what = ""

    def __call__(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        is_new = what != self.what and total is None and now - self.began > SHORT_SECONDS
        self.what = what
        if is_new or now - self.told > PLAIN_SECONDS:
            self.told = now
            amount = _amount(done, total)
            say(f"{what}{f': {amount}' if amount else ' …'}")


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM finish the epoch and save; a second Ctrl-C stops at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
