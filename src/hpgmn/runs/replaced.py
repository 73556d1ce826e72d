"""A finished run that is being replaced: put aside until the new one is finished, too."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpgmn.base.files import atomic_folder

REPLACED_FOLDER = ".replaced"
"""The folder inside a run folder that holds the earlier run."""


def aside(folder: Path) -> Path:
    """Where the run of a folder is put while another one takes its place."""
    return folder / REPLACED_FOLDER


def set_aside(folder: Path, names: Sequence[str]) -> None:
    """Give the files of a finished run second names, which take no room, in a folder of their own.

    Args:
        folder: the run folder.
        names: the files of a run that are kept.

    Raises:
        HPGMNError: they cannot be kept; nothing was changed.
    """
    with atomic_folder(aside(folder)) as draft:  # exchanged with one that was not dropped in time
        for name in names:
            if (folder / name).is_file():
                _linked(folder / name, draft / name)


def _linked(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)


def bring_back(folder: Path, names: Sequence[str]) -> None:
    """Have the run that was put aside back in its place, and nothing else of a run.

    What cannot be moved stays aside.

    Args:
        folder: the run folder.
        names: as in :func:`set_aside`; the first, which says that a run is finished, comes last.
    """
    if not aside(folder).is_dir():
        return
    with suppress(OSError):
        for name in reversed(names):
            if (aside(folder) / name).exists():
                os.replace(aside(folder) / name, folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
        drop(folder)


def drop(folder: Path) -> None:
    """Remove the run that was put aside, if there is one: the new one is finished."""
    shutil.rmtree(aside(folder), ignore_errors=True)


def kept_words(folder: Path) -> str:
    """The sentence about a run that was put aside, or nothing where there is none."""
    if not aside(folder).is_dir():
        return ""
    return (
        f"The run that was there before is kept in {aside(folder)} until the new one is finished; "
        "use it there, or move it elsewhere to keep it."
    )
