"""The folder of a run: its files, how it is created, resumed and replaced, and its log."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.files import (
    DRAFT_SUFFIX,
    RUN_FORMAT,
    atomic_folder,
    check_format,
    is_draft,
    remove_stale_drafts,
    write_error,
    write_text,
)
from hpgmn.base.locking import LOCK_FILE
from hpgmn.base.settings import read_yaml
from hpgmn.base.text import without_controls
from hpgmn.runs.metrics import read_metrics, write_metrics
from hpgmn.runs.spec import RunSpec, changes
from hpgmn.training.saved import MODEL_FILE

CONFIG_FILE, METRICS_FILE, HISTORY_FILE = "config.yaml", "metrics.json", "history.jsonl"
PREDICTIONS_FILE, LOG_FILE, STATE_FOLDER = "predictions.parquet", "log.txt", "state"
REPORT_FILE, PORTFOLIO_FILE, EXPLORER_FILE = "report.html", "portfolio.json", "explorer.json"
AUDIT_FILE, UNDERSTANDING_FILE = "audit.json", "understanding.json"


def read_spec(folder: Path) -> RunSpec:
    """The specification of the run in a folder, which says the version of its form, too."""
    content = read_yaml(folder / CONFIG_FILE)
    check_format(f"The run in {folder}", content.get("format"), RUN_FORMAT)
    return RunSpec.from_dict(content)


def write_config(folder: Path, spec: RunSpec, made: Mapping[str, Any] | None = None) -> None:
    """Write ``config.yaml``; ``made`` says what from and with, see ``experiments/again.py``."""
    content = {
        "format": RUN_FORMAT,
        **spec.as_dict(),
        **({"made_with": dict(made)} if made else {}),
    }
    write_text(folder / CONFIG_FILE, yaml.safe_dump(content, sort_keys=False))


def note_made_with(folder: Path, spec: RunSpec, now: Mapping[str, Any]) -> list[str]:
    """Note in the config what a run is made with; of one that goes on, tell what has changed.

    There the note of its beginning stays.
    """
    if any((folder / STATE_FOLDER).glob("state*.safetensors")):
        before = read_yaml(folder / CONFIG_FILE)
        if "made_with" in before:
            return changes(before, now)
    write_config(folder, spec, now)
    return []


def finish(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Write the metrics, by which a run is finished, and drop what is not needed any more."""
    write_metrics(folder / METRICS_FILE, metrics)
    shutil.rmtree(folder / STATE_FOLDER)
    drop(folder)


# What a run leaves in its folder. In this order it is deleted: a run is finished where there are
# metrics, and a run folder is known by its config.
_WRITTEN = (
    *(METRICS_FILE, REPORT_FILE, MODEL_FILE, PREDICTIONS_FILE, HISTORY_FILE, LOG_FILE),
    *(EXPLORER_FILE, AUDIT_FILE, UNDERSTANDING_FILE, PORTFOLIO_FILE, CONFIG_FILE),
)


def earlier_run(folder: Path, *, resume: bool, overwrite: bool) -> RunSpec | None:
    """The run that a folder holds and may be continued or replaced; None where it holds nothing.

    A folder is known as a run's by the ``config.yaml`` of a run; any other is refused.
    """
    if not folder.exists() or _is_empty(folder):
        return None
    if not (resume or overwrite):
        raise HPGMNError(
            f"The folder {folder} exists. Continue it with --resume, replace it with "
            "--overwrite, or choose another --out."
        )
    try:
        return read_spec(folder)
    except SettingError:
        raise HPGMNError(
            f"{folder} is not a run folder (it has no {CONFIG_FILE} of a run); nothing was "
            "changed. Choose another --out."
        ) from None


def prepare_folder(
    folder: Path,
    spec: RunSpec,
    *,
    resume: bool,
    overwrite: bool,
    choice: Mapping[str, Any] | None = None,
) -> None:
    """Make the run folder with its ``config.yaml``, or refuse one that exists.

    Only what a run writes is ever deleted from it; a finished run that is replaced is put aside
    (``experiments/replaced.py``) until the new one is finished.

    Args:
        folder: the run folder.
        spec: what will be trained there.
        resume: an interrupted run of the same specification is to go on.
        overwrite: an earlier run is to be replaced.
        choice: how the settings were chosen from a portfolio, if they were. It is written before
            the config, so that a resumed run need not choose again.
    """
    try:
        before = earlier_run(folder, resume=resume, overwrite=overwrite)
        _refuse_links(folder)
        is_replaced = before is not None and (not resume or _is_over(folder))
        if before is not None and not is_replaced:
            _refuse_other(folder, before, spec)
            if (folder / METRICS_FILE).exists():
                drop(folder)  # a kill was faster
        is_new = before is None or is_replaced
        _make(folder, spec if is_new else None, choice, is_replaced=is_replaced)
    except OSError as error:
        raise write_error(folder, error) from None


def _make(
    folder: Path, spec: RunSpec | None, choice: Mapping[str, Any] | None, *, is_replaced: bool
) -> None:
    """Make the folder ready; where that fails, a finished run that was there is there again.

    Args:
        folder: the run folder.
        spec: of a new run; None where one goes on, whose config says more.
        choice: how the settings were chosen.
        is_replaced: whether a run is there that is to go.
    """
    try:
        if is_replaced:
            _put_away(folder)
        remove_stale_drafts(folder, older_than=0)
        folder.mkdir(parents=True, exist_ok=True)
        if choice is not None:
            write_text(folder / PORTFOLIO_FILE, json.dumps(choice, indent=1) + "\n")
        elif spec is not None:  # of a choice that never came to a training
            (folder / PORTFOLIO_FILE).unlink(missing_ok=True)
        if spec is not None:
            write_config(folder, spec)
    except (HPGMNError, OSError):
        if is_replaced and not (folder / METRICS_FILE).exists():
            bring_back(folder, _WRITTEN)
        raise


def _is_over(folder: Path) -> bool:
    """Whether a run is kept aside, and what was to replace it was killed before it began."""
    config = aside(folder) / CONFIG_FILE
    if any((folder / name).exists() for name in (METRICS_FILE, STATE_FOLDER)):
        return False
    return config.is_file() and config.read_bytes() == (folder / CONFIG_FILE).read_bytes()


def _put_away(folder: Path) -> None:
    """Put a finished run aside, and delete what is left of it or of an unfinished one.

    All but the config, which that of the next run takes the place of.
    """
    if (folder / METRICS_FILE).exists():
        set_aside(folder, _WRITTEN)
    for name in _WRITTEN[:-1]:
        (folder / name).unlink(missing_ok=True)
        (folder / f"{name}{DRAFT_SUFFIX}").unlink(missing_ok=True)  # a draft of an earlier version
    if (folder / STATE_FOLDER).is_dir():
        shutil.rmtree(folder / STATE_FOLDER)


def _refuse_links(folder: Path) -> None:
    """Refuse to write through links: whoever made the folder may have aimed them anywhere."""
    places = [place for place in (folder, folder / STATE_FOLDER, aside(folder)) if place.is_dir()]
    for path in (one for place in places for one in place.iterdir()):
        if path.is_symlink():
            raise HPGMNError(
                f"The run folder {folder} holds a link, {path.relative_to(folder)}, and nothing is "
                "written through links. Remove it, or choose another --out."
            )


def _is_empty(folder: Path) -> bool:
    """Whether nothing is in a folder but what is written before the config."""
    early = (PORTFOLIO_FILE, LOCK_FILE)
    return folder.is_dir() and all(
        path.name in early or is_draft(path.name) for path in folder.iterdir()
    )


def _refuse_other(folder: Path, before: RunSpec, spec: RunSpec) -> None:
    """Refuse to continue a run with other options than it was started with."""
    old, new = before.as_dict(), spec.as_dict()
    old |= old.pop("settings")
    new |= new.pop("settings")
    changed = [
        f"{name} ({old.get(name)}, now {new.get(name)})"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]
    if changed:
        raise HPGMNError(
            f"The run in {folder} was started with other options: {', '.join(changed)}. "
            "Repeat the first command with --resume, or start anew with --overwrite."
        )


def finished_run(folder: Path) -> dict[str, Any] | None:
    """The metrics of a run that has only its report left to write, or None."""
    if not (folder / METRICS_FILE).exists():
        return None
    metrics = read_metrics(folder / METRICS_FILE)
    if (folder / REPORT_FILE).exists():
        raise HPGMNError(
            f"The run in {folder} is finished. Read {folder / METRICS_FILE}, or train it again "
            "with --overwrite."
        )
    shutil.rmtree(folder / STATE_FOLDER, ignore_errors=True)
    return metrics


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
