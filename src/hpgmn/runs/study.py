"""The study of a search: an SQLite file of Optuna, which one process at a time may write."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpgmn.base.errors import HPGMNError, Remedy, format_setting
from hpgmn.base.files import STUDY_FORMAT, check_format, lock_file
from hpgmn.runs.trials import best_record

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

STUDY_NAME = "hpgmn tune"
IDENTITY = "search"
"""The attribute of the study that says what is searched."""
FORMAT = "format"
"""The attribute of the study that holds the version of its format."""

_OTHER_STUDY = Remedy("Choose another file", option="study")
_SQLITE = b"SQLite format 3\0"
_TABLES = {
    *("studies", "study_directions", "study_user_attributes", "study_system_attributes"),
    *("trials", "trial_user_attributes", "trial_system_attributes", "trial_params"),
    *("trial_values", "trial_intermediate_values", "trial_heartbeats"),
    *("version_info", "alembic_version"),
}
"""The tables that Optuna makes before it records the study."""
_FULL = "database or disk is full"
_DAMAGED = "database disk image is malformed"
_UNSHOWN = {
    "content": "the graph itself (attributes, edges, labels or splits)",
    "values": "the values to try",
}
"""Differences whose values are too long to show."""
_OPTIONAL = ("deterministic", "positive", "tables")  # keys that only some searches have


def study_exists(path: Path) -> bool:
    """Return whether a study exists; refuse a file that is not a study."""
    refusal = HPGMNError(f"{path} is not a study of hpgmn; nothing was changed.", _OTHER_STUDY)
    if not path.exists():
        return False
    if not path.is_file():
        raise refusal
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE))
        if not start:  # a search that was killed before its first write
            return False
        if start != _SQLITE:
            raise refusal
        # A search that was killed while it wrote has left a journal, which must be undone first.
        mode = "rw" if path.with_name(f"{path.name}-journal").exists() else "ro"
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            # Optuna makes tables alone; anything else runs when a table is read or written.
            query = "SELECT count(*) FROM sqlite_master WHERE type IN ('trigger', 'view')"
            query += " OR sql LIKE 'CREATE VIRTUAL%'"
            if database.execute(query).fetchone()[0]:
                raise refusal
            # Optuna makes the table of studies first and fills it last: a search may be killed
            # before.
            query = "SELECT name FROM sqlite_master WHERE type = 'table'"
            tables = {name for (name,) in database.execute(query)}
            if not tables:
                return False
            names = database.execute("SELECT study_name FROM studies").fetchall()
    except sqlite3.Error:
        raise refusal from None
    except OSError as error:
        raise HPGMNError(
            f"Cannot read the study {path} ({error.strerror or error}).", _OTHER_STUDY
        ) from None
    if (STUDY_NAME,) not in names and (names or not tables <= _TABLES):
        raise refusal
    return bool(names)


@contextmanager
def open_study(path: Path) -> Iterator[Study]:
    """Open the study in an SQLite file, which is created if it does not exist."""
    import optuna
    from sqlalchemy.engine import URL
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.ERROR)  # progress is reported by our monitor
    url = URL.create("sqlite", database=str(path.absolute()))
    try:
        storage = optuna.storages.RDBStorage(
            url.render_as_string(), engine_kwargs={"connect_args": {"timeout": 60}}
        )
    except (SQLAlchemyError, RuntimeError) as error:  # the latter: of another version of Optuna
        if _FULL in str(error):
            raise _disk_full(path) from None
        raise HPGMNError(
            f"The study {path} cannot be opened: it is damaged, cannot be written, or is of "
            "another version of Optuna.",
            _OTHER_STUDY,
        ) from None
    try:
        study = optuna.create_study(
            storage=storage, study_name=STUDY_NAME, direction="maximize", load_if_exists=True
        )
        check_format(f"The study {path}", study.user_attrs.get(FORMAT), STUDY_FORMAT)
        yield study
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        if _FULL in reason:
            raise _disk_full(path) from None
        if _DAMAGED in reason:
            raise HPGMNError(
                f"The study {path} is damaged ({_DAMAGED}).", Remedy("Restore it") | _OTHER_STUDY
            ) from error
        raise HPGMNError(
            f"The study {path} cannot be used any more: {reason}. Finished trials are kept.",
            "Check its disk, then repeat the search",
        ) from error
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _disk_full(path: Path) -> HPGMNError:
    return HPGMNError(
        f"The disk of the study {path} is full. Finished trials are kept.",
        Remedy("Free disk space and repeat the search") | _OTHER_STUDY,
    )


@contextmanager
def lock_study(path: Path) -> Iterator[None]:
    """Lock a study against other processes; the lock ends with this process."""
    refusal = HPGMNError(
        f"Another process is searching with the study {path}.",
        Remedy("Wait for it to finish") | Remedy("Choose another study", option="study"),
    )
    with lock_file(path.with_name(path.name + ".lock"), refusal):
        yield


def identity_of(study: Study) -> dict[str, Any] | None:
    """Return what a study searches; None for a new one."""
    identity: dict[str, Any] | None = study.user_attrs.get(IDENTITY)
    return identity


def claim(study: Study, path: Path, identity: Mapping[str, Any]) -> None:
    """Record what a new study searches; refuse a study of another search."""
    before = identity_of(study)
    if before is None:
        study.set_user_attr(FORMAT, STUDY_FORMAT)
        study.set_user_attr(IDENTITY, dict(identity))
    else:
        refuse_other(path, before, identity)


def refuse_other(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue a study of another search, naming the differences."""
    names = dict.fromkeys([*now, *(name for name in _OPTIONAL if name in before)])
    changed = [name for name in names if before.get(name) != now.get(name)]
    if not changed:
        return
    differences = [
        f"{'fixed settings' if name == 'fixed' else name} "
        f"({_format_value(before.get(name))}, now {_format_value(now.get(name))})"
        for name in changed
        if name not in _UNSHOWN
    ] or [f"{_UNSHOWN[name]} changed" for name in changed]
    raise HPGMNError(
        f"The study {path} is of another search: {', '.join(differences)}.",
        Remedy("Continue it with its first options") | _OTHER_STUDY,
    )


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={_format_value(part)}" for name, part in value.items()) or "none"
    return format_setting(value)


def is_done(trial: FrozenTrial) -> bool:
    """Return whether a trial needs no further run: trained, pruned, or impossible to train."""
    from optuna.trial import TrialState

    is_finished = trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    return is_finished or "error" in trial.user_attrs


def finished_trials(study: Study) -> list[FrozenTrial]:
    """Return the trials that were trained to their end, in planned order."""
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return sorted(trials, key=lambda trial: int(trial.user_attrs["place"]))


def best_trial(study: Study) -> FrozenTrial | None:
    """Return the finished trial with the highest mean score, ties by lower loss."""
    records = [
        {**trial.user_attrs["record"], "val_score_mean": trial.value, "trial": trial}
        for trial in finished_trials(study)
    ]
    return best_record(records)["trial"] if records else None


def trial_counts(study: Study) -> dict[str, int]:
    """Count the trials by how they ended."""
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False)
    failed = [trial for trial in trials if trial.state == TrialState.FAIL]
    return {
        "finished": sum(trial.state == TrialState.COMPLETE for trial in trials),
        "pruned": sum(trial.state == TrialState.PRUNED for trial in trials),
        "refused": sum(is_done(trial) for trial in failed),
        "failed": sum(not is_done(trial) for trial in failed),
        "running": sum(trial.state == TrialState.RUNNING for trial in trials),
    }
