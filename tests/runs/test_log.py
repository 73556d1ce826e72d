"""The log of a run as a file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hpgmn.runs.log import log_file

logger = logging.getLogger("hpgmn.tests")


def test_the_log_file_holds_everything_that_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("hpgmn"), "level", logging.INFO)
    logger.manager._clear_cache()
    path = tmp_path / "log.txt"
    with log_file(path):
        logger.info("an information")
        logger.warning("a warning")
    logger.warning("after the end")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line.split(maxsplit=2)[2] for line in lines] == [
        "INFO an information",
        "WARNING a warning",
    ]
    with log_file(path):  # a resumed run goes on with the same file
        logger.info("again")
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3
