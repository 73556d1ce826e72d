"""The folder of a run: made, continued, replaced, and never another's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.files import DRAFT_SUFFIX, is_draft, remove_stale_drafts, write_error, write_text
from hpgmn.base.locking import LOCK_FILE
from hpgmn.runs.metrics import read_metrics
from hpgmn.runs.replaced import aside, bring_back, drop, set_aside
from hpgmn.runs.run import (
    AUDIT_FILE,
    CONFIG_FILE,
    EXPLORER_FILE,
    HISTORY_FILE,
    LOG_FILE,
    METRICS_FILE,
    PORTFOLIO_FILE,
    PREDICTIONS_FILE,
    REPORT_FILE,
    STATE_FOLDER,
    UNDERSTANDING_FILE,
    RunSpec,
    read_spec,
    write_config,
)
from hpgmn.training.saved import MODEL_FILE

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
