"""What a search has found: the best settings, what mattered, how many trials ended how."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hpgmn.base.files import write_text
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.base.text import format_setting
from hpgmn.evaluation.scores import Score
from hpgmn.graph.datasets import DATASETS
from hpgmn.models import find_model
from hpgmn.models.shipped import settings_for
from hpgmn.runs.search import best_trials
from hpgmn.runs.study import identity_of
from hpgmn.runs.tune import is_done

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

FEWEST_TRIALS = 10
"""With fewer finished trials nothing is said about importance."""
TOP_SHARE = 0.25
"""Importance is about reaching this share of the trials, those with the best scores."""


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
