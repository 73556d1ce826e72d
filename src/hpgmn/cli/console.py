"""What the commands print with: consoles, progress, Ctrl-C."""

from __future__ import annotations

import logging
import math
import re
import signal
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Column, Table

from hpgmn.base.errors import MISSING, HPGMNError, Remedy, without_controls

if TYPE_CHECKING:
    from hpgmn.training.replicas import Progress as Step

PLAIN_SECONDS = 5.0
"""Without a terminal a line of progress is printed this often."""
SHORT_SECONDS = 1.0
"""Shorter operations print no line of progress."""


class _Console(Console):
    """A console without markup, and without control characters from data."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(without_controls(segment.text), segment.style)


out = _Console(markup=False, emoji=False)
err = _Console(markup=False, emoji=False, stderr=True)


def say(line: str) -> None:
    """Print one unbroken line on standard error."""
    err.print(line, highlight=False, soft_wrap=True)


def print_table(
    columns: Sequence[str | Column],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    has_lines: bool = False,
    padding: int = 2,
    width: int | None = None,
) -> None:
    """Print a table, with lines or, to fit 80 columns, without; numbers are aligned right."""
    cells = list(rows)
    heads = [Column(head) if isinstance(head, str) else head for head in columns]
    for index, column in enumerate(heads):
        if index and all(re.match(rf"[+-]?\d|{MISSING}|$", row[index]) for row in cells):
            column.justify = "right"
    table = Table(*heads, title=title)
    if not has_lines:
        table.box, table.padding, table.header_style = None, (0, padding, 0, 0), "dim"
    for row in cells:
        table.add_row(*row)
    out.print(table, width=width)


class _Lines(logging.Handler):
    """Prints log records on standard error, one unbroken line each, repeated ones once."""

    def __init__(self, level: int, without: Container[str]) -> None:
        super().__init__(level)
        self._without = without
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple):  # remedies name options here, keywords in Python
            record.args = tuple(
                value.render(cli=True, without=self._without)
                if isinstance(value, Remedy | HPGMNError)
                else value
                for value in record.args
            )
        line = f"{record.levelname.capitalize()}: {record.getMessage()}"
        if line not in self._printed:
            self._printed.add(line)
            say(line)


def set_up_logging(without: Container[str] = ()) -> None:
    """Print warnings of the library on standard error, without remedies by some options."""
    logger = logging.getLogger("hpgmn")
    logger.handlers[:] = [_Lines(logging.WARNING, without)]
    logger.setLevel(logging.INFO)


@contextmanager
def monitored() -> Iterator[dict[str, Any]]:
    """Yield the callbacks of ``hpgmn.train``: progress, remarks on standard error, Ctrl-C."""
    with resume_hint(), training_progress() as progress, stop_on_signal() as should_stop:
        yield {"progress": progress, "notify": say, "should_stop": should_stop}


@contextmanager
def resume_hint() -> Iterator[None]:
    """Print how to continue an interrupted training."""
    try:
        yield
    except KeyboardInterrupt as error:
        if folder := getattr(error, "folder", None):
            say(f"To continue, repeat the command with --resume --out {folder}")
        raise


@contextmanager
def training_progress() -> Iterator[Callable[[str, Step], None]]:
    """Yield a callback for what is running and its progress."""
    with _display() as show:

        def step(task: str, now: Step) -> None:
            part = f" ({now.batch + 1} of {now.batches})" if now.batches > 1 else ""
            stage = now.member or now.stage
            if now.note:
                stage += f" ({now.note})"
            what = f"{task}: {stage}{part}" if task else stage
            amount = _amount(now.epoch, now.epochs)
            if not math.isnan(now.val_score):
                amount += f"  loss {now.loss:.3f}  val {now.val_score:.3f}"
            show(what, now.epoch, now.epochs or None, amount)

        yield step


@contextmanager
def step_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Yield a callback for steps: what, how much is done, how much there is (None: unknown)."""
    with _display() as show:
        yield lambda what, done, total: show(what, done, total, _amount(done, total))


def _amount(done: int, total: int | None) -> str:
    if not total:
        return f"{done:,}" if done else ""
    return f"{done:,}/{total:,}"


@contextmanager
def _display() -> Iterator[Callable[[str, int, int | None, str], None]]:
    """Yield what shows progress (what, done, total, amount as text): a bar, or plain lines."""
    if not sys.stderr.isatty():
        yield _PlainLines()
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

        def show(what: str, done: int, total: int | None, amount: str) -> None:
            bar.update(task, description=what, completed=done, total=total, amount=amount)

        yield show


class _PlainLines:
    """Prints a line now and then, and for each new step of unknown length."""

    def __init__(self) -> None:
        self.start = self.printed = time.monotonic()
        self.what = ""

    def __call__(self, what: str, done: int, total: int | None, amount: str) -> None:
        now = time.monotonic()
        is_new = what != self.what and not total and now - self.start > SHORT_SECONDS
        self.what = what
        if is_new or now - self.printed > PLAIN_SECONDS:
            self.printed = now
            say(f"{what}: {amount}" if amount else f"{what} …")


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Yield a poll for Ctrl-C or SIGTERM, upon which work saves its state; a second stops it."""
    is_requested = False

    def request(number: int, frame: Any) -> None:
        nonlocal is_requested
        if is_requested:
            raise KeyboardInterrupt
        is_requested = True

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: is_requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
