"""The log of a run as a file."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hpgmn.base.files import write_error
from hpgmn.base.text import without_controls


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_controls(super().format(record))


class _LogFile(logging.FileHandler):
    """A log that ends where its disk is full: whatever is logged is no reason to stop."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Say nothing; the files of the run are told of."""

    def close(self) -> None:
        """Give the file back; what it could not take is lost."""
        with suppress(OSError):
            super().close()


@contextmanager
def log_file(path: Path, earlier: Sequence[logging.LogRecord] = ()) -> Iterator[None]:
    """Everything the library logs also goes into a file, after what was logged earlier."""
    try:
        handler = _LogFile(path, encoding="utf-8")
    except OSError as error:
        raise write_error(path, error) from None
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("hpgmn")
    for record in earlier:
        handler.handle(record)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def warnings_among(records: Sequence[logging.LogRecord]) -> list[str]:
    """The warnings among log records, each once."""
    found = [one.getMessage() for one in records if one.levelno >= logging.WARNING]
    return list(dict.fromkeys(found))
