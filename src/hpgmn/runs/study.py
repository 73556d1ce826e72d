"""The study file of a search, and what the search has found.

A study is an SQLite file of Optuna, which one process at a time may write.
"""

from __future__ import annotations

import shlex
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hpgmn.base.errors import HPGMNError, Remedy, format_setting
from hpgmn.base.files import STUDY_FORMAT, check_format, lock_file, write_text
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.evaluation.scores import Score
from hpgmn.graph.datasets import DATASETS
from hpgmn.models import find_model, settings_for
from hpgmn.runs.search import best_trials
from hpgmn.runs.tuning import is_done

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

STUDY_NAME = "hpgmn tune"
IDENTITY = "search"
"""The study's attribute that says what is searched."""
FORMAT = "format"
"""The study's attribute that counts changes of what is kept in it."""

FEWEST_TRIALS = 10
"""With fewer finished trials no importance is reported."""
TOP_SHARE = 0.25
"""Importance is about reaching this share of the trials, those with the best scores."""

_OTHER_STUDY = Remedy("Choose another file", option="study")
_SQLITE = b"SQLite format 3\0"
_TABLES = {
    *("studies", "study_directions", "study_user_attributes", "study_system_attributes"),
    *("trials", "trial_user_attributes", "trial_system_attributes", "trial_params"),
    *("trial_values", "trial_intermediate_values", "trial_heartbeats"),
    *("version_info", "alembic_version"),
}
"""Those that Optuna makes, one after the other, before it notes the study."""
_FULL = "database or disk is full"
_DAMAGED = "database disk image is malformed"
_WORDS = {
    "fixed": "fixed settings",
    "content": "the graph itself (attributes, edges, labels or splits)",
    "values": "the values to try",
}
"""How differences are named whose key is no option."""
_SOMETIMES = ("deterministic", "positive")  # keys that only some searches have


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
            if _has_no_study_yet(database):
                return False
            ours = database.execute(
                "SELECT count(*) FROM studies WHERE study_name = ?", (STUDY_NAME,)
            ).fetchone()
    except sqlite3.Error:
        raise refusal from None
    except OSError as error:
        raise HPGMNError(
            f"Cannot read the study {path} ({error.strerror or error}).", _OTHER_STUDY
        ) from None
    if not ours[0]:
        raise refusal
    return True


def _has_no_study_yet(database: sqlite3.Connection) -> bool:
    """Whether a search was killed, or is at work, before it had all of its tables and its study."""
    rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    tables = {name for (name,) in rows}
    if not tables <= _TABLES:
        return False
    if "studies" not in tables:
        return True
    return bool(database.execute("SELECT count(*) FROM studies").fetchone() == (0,))


@contextmanager
def open_study(path: Path) -> Iterator[Study]:
    """The study in a file; the connections to it are closed in the end.

    Args:
        path: an SQLite file, made if there is none.
    """
    import optuna
    from sqlalchemy.engine import URL
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.ERROR)  # it tells each trial, and so do we
    url = URL.create("sqlite", database=str(path.absolute()))
    try:
        storage = optuna.storages.RDBStorage(
            url.render_as_string(), engine_kwargs={"connect_args": {"timeout": 60}}
        )
    except (SQLAlchemyError, RuntimeError) as error:  # the latter: of another version of Optuna
        if _FULL in str(error):
            raise _full(path) from None
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
            raise _full(path) from None
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


def _full(path: Path) -> HPGMNError:
    return HPGMNError(
        f"The disk of the study {path} is full. Finished trials are kept.",
        Remedy("Free disk space and repeat the search") | _OTHER_STUDY,
    )


def identity_of(study: Study) -> dict[str, Any] | None:
    """Return what a study searches; None for a new one."""
    found: dict[str, Any] | None = study.user_attrs.get(IDENTITY)
    return found


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
    names = dict.fromkeys([*now, *(name for name in _SOMETIMES if name in before)])
    changed = [name for name in names if before.get(name) != now.get(name)]
    if changed:
        named = [name for name in changed if name not in ("content", "values")]
        differences = ", ".join(_difference(name, before, now) for name in named or changed)
        raise HPGMNError(
            f"The study {path} is of another search: {differences}.",
            Remedy("Continue it with its first options") | _OTHER_STUDY,
        )


def _difference(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if name in ("content", "values"):  # too long to show
        return f"{_WORDS[name]} changed"
    return f"{_WORDS.get(name, name)} ({_shown(before.get(name))}, now {_shown(now.get(name))})"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={_shown(own)}" for name, own in value.items()) or "none"
    if isinstance(value, list):
        return ",".join(str(one) for one in value)
    return "none" if value is None else str(value)


@contextmanager
def lock_study(path: Path) -> Iterator[None]:
    """Lock a study against other processes; the lock ends with this process."""
    message = (
        f"Another process is searching with the study {path}. Wait for it to finish, or choose "
        "another study."
    )
    with lock_file(path.with_name(path.name + ".lock"), message):
        yield


def finished_trials(study: Study) -> list[FrozenTrial]:
    """The trials that were trained to their end, in the order of their places."""
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return sorted(trials, key=lambda trial: int(trial.user_attrs["place"]))


def best_trial(study: Study) -> FrozenTrial | None:
    """The finished trial with the highest mean score, ties by lower loss; never a pruned one."""
    records = [
        {
            "val_score_mean": one.value,
            "val_loss": one.user_attrs["record"]["val_loss"],
            "trial": one,
        }
        for one in finished_trials(study)
    ]
    chosen: FrozenTrial | None = best_trials(records)[0]["trial"] if records else None
    return chosen


def trial_counts(study: Study) -> dict[str, int]:
    """How many trials were trained to their end, given up, cannot be trained, or were cut off."""
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False)
    failed = [one for one in trials if one.state == TrialState.FAIL]
    return {
        "finished": sum(one.state == TrialState.COMPLETE for one in trials),
        "pruned": sum(one.state == TrialState.PRUNED for one in trials),
        "refused": sum(is_done(one) for one in failed),
        "failed": sum(not is_done(one) for one in failed),
        "running": sum(one.state == TrialState.RUNNING for one in trials),
    }


def first_error(study: Study) -> str | None:
    """Why the first trial that cannot be trained cannot, if there is one."""
    errors = (one.user_attrs.get("error") for one in study.get_trials(deepcopy=False))
    return next((error for error in errors if error is not None), None)


def importance(trials: Sequence[FrozenTrial], names: Sequence[str]) -> dict[str, float]:
    """How much each setting mattered for reaching the best quarter, in all 1; the largest first.

    PED-ANOVA, which needs no package beside Optuna. A first trial from the literature may lie
    outside the space; then it does not count here.

    Args:
        trials: finished ones.
        names: the settings of the space.

    Returns:
        Nothing where there are too few trials, or all have the same score.
    """
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    inside = [one for one in trials if set(names) <= one.params.keys()]
    if len(inside) < FEWEST_TRIALS or len({one.value for one in inside}) == 1:
        return {}
    study = optuna.create_study(direction="maximize")
    study.add_trials(inside)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # in Optuna 4
        evaluator = PedAnovaImportanceEvaluator(target_quantile=TOP_SHARE)
        return get_param_importances(study, evaluator=evaluator, params=list(names))


def train_command(source: str, identity: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The command that trains with these settings.

    Args:
        source: the graph as the user named it.
        identity: what was searched.
        settings: all settings.
    """
    model = identity["model"]
    cls = find_model(model).settings
    shipped = settings_for(source if source in DATASETS else None, model)
    without = settings_dict(make_settings(cls, shipped))
    words = ["hpgmn", "train", source, "--model", model]
    metric = DATASETS[source].metric if source in DATASETS else "accuracy"
    if identity["metric"] != metric:
        words += ["--metric", identity["metric"]]
    if identity.get("positive") is not None:
        words += ["--positive", identity["positive"]]
    if identity["protocol"] is not None:
        words += ["--protocol", identity["protocol"]]
    for name, value in settings.items():
        if value != without[name]:
            words += ["--set", f"{name}={format_setting(value)}"]
    return shlex.join(words)


def files_of(path: Path) -> dict[str, Path]:
    """The files beside a study: the best settings, and the pictures."""
    base = path.with_suffix("") if path.suffix else path
    return {
        "config": base.with_name(f"{base.name}-best.yaml"),
        "png": base.with_name(f"{base.name}-sensitivity.png"),
        "svg": base.with_name(f"{base.name}-sensitivity.svg"),
    }


def write_best(path: Path, identity: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Write settings as a file for ``hpgmn train --config``."""
    about = {"model": identity["model"], "metric": identity["metric"]}
    for name in ("positive", "protocol"):
        if identity.get(name) is not None:
            about[name] = identity[name]
    content = about | {"settings": dict(settings)}
    write_text(path, yaml.safe_dump(content, sort_keys=False))


def summary(study: Study, source: str) -> dict[str, Any]:
    """All that a search has found, as JSON holds it.

    Args:
        study: the study.
        source: the graph as the user named it.
    """
    identity = identity_of(study)
    assert identity is not None
    about = {key: value for key, value in identity.items() if key not in ("content", "values")}
    found = about | {"trials": trial_counts(study), "best": None, "importance": {}}
    trial = best_trial(study)
    if trial is None:
        return found
    score = Score.of(trial.user_attrs["record"]["val_score"])
    found["best"] = {
        "trial": trial.number,
        "settings": trial.user_attrs["settings"],
        "val_score_mean": score.mean,
        "val_score_std": score.std,
        "val_score": list(score.values),
        "command": train_command(source, identity, trial.user_attrs["settings"]),
    }
    found["importance"] = importance(finished_trials(study), list(identity["values"]))
    return found
