"""The folder of a run: its files, how it is created, resumed and replaced, and its log."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from hpgmn.base.errors import HPGMNError, Remedy, SettingError, without_controls
from hpgmn.base.files import (
    DRAFT_SUFFIX,
    LOCK_FILE,
    RUN_FORMAT,
    atomic_folder,
    is_draft,
    remove_stale_drafts,
    write_error,
    write_text,
)
from hpgmn.base.settings import make_settings, read_yaml, settings_dict
from hpgmn.graph import Graph
from hpgmn.models import find_model
from hpgmn.runs.outputs import read_metrics, write_metrics
from hpgmn.runs.spec import CONFIG_FILE, RunSpec, changes, read_spec
from hpgmn.training.ensemble import ENSEMBLE_FILE, MEMBERS_FOLDER
from hpgmn.training.saved import MODEL_FILE
from hpgmn.training.state import state_files

METRICS_FILE, HISTORY_FILE = "metrics.json", "history.jsonl"
PREDICTIONS_FILE, LOG_FILE, STATE_FOLDER = "predictions.parquet", "log.txt", "state"
REPORT_FILE, EXPLORER_FILE = "report.html", "explorer.json"
AUDIT_FILE, UNDERSTANDING_FILE = "audit.json", "understanding.json"
COMPARISON_FILE, GRAPH_FILE = "comparison.json", "graph.npz"
BACKUP_FOLDER = ".replaced"
"""The folder inside a run folder that holds the finished run until its replacement is finished."""

RESULT_FILES = (
    *(REPORT_FILE, MODEL_FILE, ENSEMBLE_FILE, PREDICTIONS_FILE, HISTORY_FILE, LOG_FILE),
    *(EXPLORER_FILE, AUDIT_FILE, UNDERSTANDING_FILE, GRAPH_FILE),
    "portfolio.json",  # before 0.3
)
"""What a run writes beside its metrics, which mark it as finished, its config, which marks the
folder as a run's, and the folder of an ensemble's members."""

OTHER_FOLDER = Remedy("Choose another folder", option="out")
REPLACE = Remedy("Replace it", option="overwrite", value=True)
RESTART = Remedy("Restart", option="overwrite", value=True)
CONTINUE = Remedy("Continue it", option="resume", value=True)


def write_config(folder: Path, spec: RunSpec, made: Mapping[str, Any] | None = None) -> None:
    """Write ``config.yaml``: the specification, and what the run is made with."""
    content = {
        "format": RUN_FORMAT,
        **spec.as_dict(),
        **({"made_with": dict(made)} if made else {}),
    }
    write_text(folder / CONFIG_FILE, yaml.safe_dump(content, sort_keys=False))


def record_environment(folder: Path, spec: RunSpec, now: Mapping[str, Any]) -> list[str]:
    """Record the environment of a run in its config; return the differences of a resumed run.

    A resumed run keeps its original record.
    """
    before = read_yaml(folder / CONFIG_FILE) if (folder / CONFIG_FILE).exists() else {}
    is_resumed = bool(state_files(folder / STATE_FOLDER))
    if "made_with" in before and is_resumed:
        return changes(before, now)
    if before.get("made_with") != now:
        settings = before.get("settings", spec.settings) if is_resumed else spec.settings
        write_config(folder, replace(spec, settings=settings), now)
    return []


def finish(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Write the metrics, which mark a run as finished, and delete its states and backup."""
    write_metrics(folder / METRICS_FILE, metrics)
    _remove_folder(folder / STATE_FOLDER)
    drop_backup(folder)


def check_resume(out: str | Path | None, *, resume: bool, overwrite: bool) -> None:
    """Refuse to resume without a folder, or to resume and overwrite."""
    if resume and out is None:
        raise SettingError(
            "Resuming needs the folder of the interrupted run.", Remedy("Name it", option="out")
        )
    if resume and overwrite:
        raise SettingError("Resuming and overwriting exclude each other.", CONTINUE | REPLACE)


def earlier_run(folder: Path, *, resume: bool, overwrite: bool) -> RunSpec | None:
    """Return the run that a folder holds and may be continued or replaced; None if it is empty.

    A run folder is recognised by its ``config.yaml``; any other is refused.
    """
    if not folder.exists() or _is_empty(folder):
        return None
    if not (resume or overwrite):
        raise HPGMNError(f"The folder {folder} exists.", CONTINUE | REPLACE | OTHER_FOLDER)
    try:
        return read_spec(folder)
    except SettingError:
        raise HPGMNError(
            f"{folder} is not a run folder (it has no {CONFIG_FILE} of a run); nothing was "
            "changed.",
            OTHER_FOLDER,
        ) from None


def prepare_folder(
    folder: Path,
    spec: RunSpec,
    *,
    resume: bool,
    overwrite: bool,
    made: Mapping[str, Any] | None = None,
) -> None:
    """Create the run folder with its ``config.yaml``, or refuse an existing one.

    Only files of a run are ever deleted; a finished run that is replaced is kept as a backup until
    the new one is finished.

    Args:
        resume: continue an interrupted run of the same specification.
        made: what the run is made with.
    """
    try:
        before = earlier_run(folder, resume=resume, overwrite=overwrite)
        _refuse_links(folder)
        is_replaced = before is not None and (not resume or _was_killed_early(folder))
        is_new = before is None or is_replaced
        if before is not None and not is_new:
            _refuse_other(folder, before, spec)
            if (folder / METRICS_FILE).exists():
                drop_backup(folder)  # the process was killed before it could
        try:
            if is_replaced:
                _remove_run(folder)
            remove_stale_drafts(folder, older_than=0)
            folder.mkdir(parents=True, exist_ok=True)
            if is_new:
                write_config(folder, spec, made)
        except (HPGMNError, OSError):
            if is_replaced and not (folder / METRICS_FILE).exists():
                restore_backup(folder)
            raise
    except OSError as error:
        raise write_error(folder, error) from None


def _was_killed_early(folder: Path) -> bool:
    """Whether there is a backup, and its replacement was killed before it wrote its config."""
    config = folder / BACKUP_FOLDER / CONFIG_FILE
    if any((folder / name).exists() for name in (METRICS_FILE, STATE_FOLDER)):
        return False
    return config.is_file() and config.read_bytes() == (folder / CONFIG_FILE).read_bytes()


def _remove_run(folder: Path) -> None:
    """Back up a finished run and delete its files, or those of an unfinished one.

    The metrics go first, so that a kill never leaves a folder that looks finished; the config stays
    until that of the next run replaces it.
    """
    if (folder / METRICS_FILE).exists():
        create_backup(folder)
    for name in (METRICS_FILE, *RESULT_FILES):
        (folder / name).unlink(missing_ok=True)
        (folder / f"{name}{DRAFT_SUFFIX}").unlink(missing_ok=True)  # a draft of an earlier version
    for name in (STATE_FOLDER, MEMBERS_FOLDER):
        _remove_folder(folder / name)


def _remove_folder(folder: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)


def _refuse_links(folder: Path) -> None:
    """Refuse symbolic links in a run folder: they may point outside of it."""
    parents = (folder, *(folder / name for name in (STATE_FOLDER, BACKUP_FOLDER, MEMBERS_FOLDER)))
    for parent in parents:
        for path in parent.iterdir() if parent.is_dir() else ():
            if path.is_symlink():
                raise HPGMNError(
                    f"The run folder {folder} holds a link, {path.relative_to(folder)}; nothing is "
                    "written through links.",
                    Remedy("Remove it") | OTHER_FOLDER,
                )


def _is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing but what is written before the config."""
    return folder.is_dir() and all(
        path.name == LOCK_FILE or is_draft(path.name) for path in folder.iterdir()
    )


def _refuse_other(folder: Path, before: RunSpec, spec: RunSpec) -> None:
    """Refuse to continue a run with options other than its first."""
    old, new = (_requested(one, spec.model) for one in (before, spec))
    changed = [
        f"{name} ({old.get(name)}, now {new.get(name)})"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]
    if changed:
        raise HPGMNError(
            f"The run in {folder} was started with other options: {', '.join(changed)}.",
            Remedy("Resume it with its first options", option="resume", value=True) | RESTART,
        )


def _requested(spec: RunSpec, model: str) -> dict[str, Any]:
    """Return the options of a run by name, without what it selects itself and its time limit.

    Args:
        model: that of the command, whose code may be imported.
    """
    options: dict[str, Any] = spec.as_dict()
    settings: dict[str, Any] = options.pop("settings")
    if spec.model == model:  # an earlier version had fewer settings
        with suppress(HPGMNError):
            settings = settings_dict(make_settings(find_model(model).settings, settings))
    selection = dict(options.pop("selection", {}))
    selection.pop("time_limit", None)
    if "portfolio" in selection:
        options["model"], settings = None, {}
    elif "neighbors" in selection:
        settings = {name: value for name, value in settings.items() if name != "neighbors"}
    return options | {"selection": selection} | settings


def finished_run(folder: Path) -> dict[str, Any] | None:
    """Return the metrics of a run that lacks only its report, or None."""
    if not (folder / METRICS_FILE).exists():
        return None
    metrics = read_metrics(folder / METRICS_FILE)
    if (folder / REPORT_FILE).exists():
        raise HPGMNError(
            f"The run in {folder} is finished: see {folder / METRICS_FILE}.",
            Remedy("Train it again", option="overwrite", value=True),
        )
    shutil.rmtree(folder / STATE_FOLDER, ignore_errors=True)
    return metrics


def create_backup(folder: Path) -> None:
    """Link the files of a finished run, which takes no space, into a folder of their own."""
    with atomic_folder(folder / BACKUP_FOLDER) as draft:  # replaces one left by a killed process
        for name in (METRICS_FILE, *RESULT_FILES, CONFIG_FILE):
            if (folder / name).is_file():
                _link(folder / name, draft / name)
        if (folder / MEMBERS_FOLDER).is_dir():
            members = (folder / MEMBERS_FOLDER, draft / MEMBERS_FOLDER)
            shutil.copytree(*members, symlinks=True, copy_function=_link)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)


def restore_backup(folder: Path) -> None:
    """Move the backup back and delete the other files of a run; what cannot be moved stays.

    The metrics come last: they mark the run as finished.
    """
    backup = folder / BACKUP_FOLDER
    if not backup.is_dir():
        return
    with suppress(OSError):
        _remove_folder(folder / MEMBERS_FOLDER)
        for name in (CONFIG_FILE, MEMBERS_FOLDER, *RESULT_FILES, METRICS_FILE):
            if (backup / name).exists():
                os.replace(backup / name, folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
        drop_backup(folder)


def drop_backup(folder: Path) -> None:
    """Delete the backup, if there is one."""
    shutil.rmtree(folder / BACKUP_FOLDER, ignore_errors=True)


def backup_note(folder: Path) -> str:
    """Return where the replaced run is kept; empty without a backup."""
    if not (folder / BACKUP_FOLDER).is_dir():
        return ""
    return (
        f"The replaced run is kept in {folder / BACKUP_FOLDER} until the new one is finished; "
        "move it elsewhere to keep it."
    )


class InterruptedRunError(KeyboardInterrupt):
    """A training was interrupted; finished epochs are saved in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(
            f"The training in {folder} was interrupted. Continue it with the same options, "
            f"out={str(folder)!r} and resume=True."
        )


@contextmanager
def interruptible(folder: Path, notify: Callable[[str], None]) -> Iterator[None]:
    """Report where the replaced run is kept if its replacement fails, and how to continue."""
    try:
        yield
    except (HPGMNError, KeyboardInterrupt) as error:
        is_finished = (folder / METRICS_FILE).exists()
        note = "" if is_finished else backup_note(folder)
        if note:
            notify(note)
        # Of a comparison the outer folder is continued, not that of the model in training.
        has_run = (folder / CONFIG_FILE).exists() or any(folder.glob(f"[!.]*/{CONFIG_FILE}"))
        if isinstance(error, KeyboardInterrupt) and has_run:
            raise InterruptedRunError(folder) from None
        raise


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_controls(super().format(record))


class _LogFile(logging.FileHandler):
    """A log file whose errors, such as a full disk, do not stop the run."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore the error."""

    def close(self) -> None:
        """Close the file; what could not be written is lost."""
        with suppress(OSError):
            super().close()


class _Recorder(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def _library_handlers(*handlers: logging.Handler) -> Iterator[None]:
    """Attach handlers to the library's logger; warnings still reach an unconfigured terminal."""
    logger = logging.getLogger("hpgmn")
    level = logger.level
    if not logger.hasHandlers() and logging.lastResort is not None:
        handlers = (*handlers, logging.lastResort)
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def record_log() -> Iterator[list[logging.LogRecord]]:
    """Collect what the library logs, such as warnings about a graph before its run has a folder."""
    recorder = _Recorder()
    with _library_handlers(recorder):
        yield recorder.records


@contextmanager
def log_file(path: Path, earlier: Sequence[logging.LogRecord] = ()) -> Iterator[None]:
    """Append what was logged earlier, and then what the library logs, to a file."""
    try:
        handler = _LogFile(path, encoding="utf-8")
    except OSError as error:
        raise write_error(path, error) from None
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s"))
    for record in tuple(earlier):
        handler.handle(record)
    try:
        with _library_handlers(handler):
            yield
    finally:
        handler.close()


def warnings_among(records: Sequence[logging.LogRecord]) -> list[str]:
    """Return the warnings among log records, each once."""
    warnings = [record.getMessage() for record in records if record.levelno >= logging.WARNING]
    return list(dict.fromkeys(warnings))


def require_file(folder: Path, name: str) -> None:
    """Refuse a folder without a file that every finished run has."""
    if not folder.is_dir():
        raise HPGMNError(
            f"{folder} is not a finished run folder: there is no such folder.",
            "Choose a folder of `hpgmn train`",
        )
    if not (folder / name).is_file():
        note = backup_note(folder)
        remedy = Remedy("Choose a folder of `hpgmn train`") | Remedy(
            "Resume the interrupted run", option="resume", value=True
        )
        raise HPGMNError(
            f"{folder} is not a finished run folder: {name} is missing. {note}".rstrip(), remedy
        )


def preparation_options(metadata: Mapping[str, Any], *, with_dates: bool = False) -> dict[str, Any]:
    """Return the keywords of ``load`` that prepare tables like those of a trained model.

    Args:
        with_dates: whether to leave out the same edges by their date, too.
    """
    fitted = metadata.get("preparation")  # earlier versions: none
    roles = fitted["roles"] if with_dates and fitted else {}
    dates = {name: roles[name] for name in ("edge_time", "as_of") if roles.get(name)}
    return {"preparation": fitted, "prepare": fitted is not None, **dates}


def read_trained_graph(folder: Path, spec: RunSpec, metadata: Mapping[str, Any]) -> Graph:
    """Read the graph that a run was trained on: its copy in the folder, or else its source.

    Args:
        metadata: of the trained model.
    """
    from hpgmn.graph.datasets import load
    from hpgmn.graph.files import read_graph

    source, copy = spec.graph, folder / GRAPH_FILE
    remedy = Remedy("Restore it") | "Name the graph"
    if copy.is_file():
        remedy |= f"Delete it to read {source} instead"
    elif source.endswith(".npz") and not Path(source).exists():
        stored = folder / Path(source).name  # a graph in memory, by an earlier version
        source = str(stored) if stored.is_file() else source
    try:
        if copy.is_file():
            graph = read_graph(copy)
        else:
            graph = load(source, spec.protocol, **preparation_options(metadata, with_dates=True))
    except HPGMNError as error:
        remedy = remedy if error.remedy is None else error.remedy | remedy
        raise type(error)(error.message, remedy) from None
    if graph.fingerprint != metadata["fingerprint"]:
        source = str(copy) if copy.is_file() else spec.graph
        raise HPGMNError(f"{source} is no longer the graph the model was trained on.", remedy)
    return graph
