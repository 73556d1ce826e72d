"""The log of a run as a file."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def log_file(path: Path, earlier: Sequence[logging.LogRecord] = ()) -> Iterator[None]:
    """Everything the library logs also goes into a file, after what was logged earlier."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
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
