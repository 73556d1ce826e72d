"""A finished run that is being replaced: put aside until the new one is finished, too."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpgmn.writing import whole_folder

REPLACED_FOLDER = ".replaced"
"""The folder inside a run folder that holds the earlier run."""


def set_aside(folder: Path, names: Sequence[str]) -> None:
    """Put the files of a finished run aside, under second names that take no room.

    Args:
        folder: the run folder.
        names: the files of a run that are kept.

    Raises:
        HPGMNError: they cannot be kept; nothing was changed.
    """
    place = folder / REPLACED_FOLDER
    with whole_folder(place) as draft:  # takes the place of one that was not dropped in time
        for name in names:
            if (folder / name).is_file():
                _linked(folder / name, draft / name)


def _linked(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)


def bring_back(folder: Path, names: Sequence[str]) -> None:
    """Have the run that was put aside back in its place, if there is one.

    Args:
        folder: the run folder.
        names: as in :func:`set_aside`; the first, which says that a run is finished, comes last.
    """
    for name in reversed(names):
        with suppress(FileNotFoundError):
            os.replace(folder / REPLACED_FOLDER / name, folder / name)
    drop(folder)


def drop(folder: Path) -> None:
    """Remove the run that was put aside, if there is one: the new one is finished."""
    shutil.rmtree(folder / REPLACED_FOLDER, ignore_errors=True)


def kept_words(folder: Path) -> str:
    """A sentence about the run that was put aside, or nothing where there is none."""
    place = folder / REPLACED_FOLDER
    if not place.is_dir():
        return ""
    return f" The run that was there before is kept in {place} until the new one is finished."
