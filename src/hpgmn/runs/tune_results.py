"""What a search has found: the best settings, the importance of settings, and pictures."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hpgmn.base.errors import TARGET_METRICS, count_noun, format_setting
from hpgmn.base.files import atomic_write, write_text
from hpgmn.base.metrics import plain_score
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.evaluation.scores import Score
from hpgmn.graph.datasets import DATASETS
from hpgmn.models import find_model, settings_for
from hpgmn.runs.study import best_trial, finished_trials, identity_of, trial_counts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from optuna.study import Study
    from optuna.trial import FrozenTrial

FEWEST_TRIALS = 10
"""With fewer finished trials no importance is reported."""
TOP_SHARE = 0.25
"""Importance is about reaching this share of the trials, those with the best scores."""
PANELS = ("num_patterns", "hidden_dim", "kpattern_weight", "entropy_weight")
"""What the paper's own picture shows, and ours for models with a memory."""

_LOGARITHMIC = ("_weight", "weight_decay", "lr")


def write_results(study: Study, path: Path, source: str) -> dict[str, Any]:
    """Write the best settings and the pictures beside a study; return the summary.

    Args:
        path: the study file.
        source: the graph as the user named it.
    """
    content = summary(study, source)
    files: dict[str, str] = {}
    if content["best"] is not None:
        paths = result_files(path)
        write_best(paths["config"], content, content["best"]["settings"])
        files["config"] = str(paths["config"])
        if draw(study, content, paths["png"]):
            files |= {kind: str(paths[kind]) for kind in ("png", "svg")}
    return {"study": str(path), **content, "files": files}


def result_files(path: Path) -> dict[str, Path]:
    """Return the files beside a study: the best settings, and the pictures."""
    base = path.with_suffix("") if path.suffix else path
    return {
        "config": base.with_name(f"{base.name}-best.yaml"),
        "png": base.with_name(f"{base.name}-sensitivity.png"),
        "svg": base.with_name(f"{base.name}-sensitivity.svg"),
    }


def summary(study: Study, source: str) -> dict[str, Any]:
    """Return what a search has found, as JSON holds it."""
    identity = identity_of(study)
    assert identity is not None
    content = {key: value for key, value in identity.items() if key not in ("content", "values")}
    content |= {"trials": trial_counts(study), "best": None, "importance": {}}
    trial = best_trial(study)
    if trial is None:
        return content
    recorded = trial.user_attrs["record"]["val_score"]
    score = Score.of([plain_score(identity["metric"], value) for value in recorded])
    content["best"] = {
        "trial": trial.number,
        "settings": trial.user_attrs["settings"],
        "val_score_mean": score.mean,
        "val_score_std": score.std,
        "val_score": list(score.values),
        "command": train_command(source, identity, trial.user_attrs["settings"]),
    }
    content["importance"] = importance(finished_trials(study), list(identity["values"]))
    return content


def importance(trials: Sequence[FrozenTrial], names: Sequence[str]) -> dict[str, float]:
    """Return how much each setting mattered for reaching the best quarter; the largest first.

    PED-ANOVA; the sum is 1. A first trial from the literature may lie outside the space and is then
    left out. Too few trials, or equal scores, give nothing.

    Args:
        trials: finished ones.
        names: the settings of the space.
    """
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    inside = [trial for trial in trials if set(names) <= trial.params.keys()]
    if len(inside) < FEWEST_TRIALS or len({trial.value for trial in inside}) == 1:
        return {}
    study = optuna.create_study(direction="maximize")
    study.add_trials(inside)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # in Optuna 4
        evaluator = PedAnovaImportanceEvaluator(target_quantile=TOP_SHARE)
        return get_param_importances(study, evaluator=evaluator, params=list(names))


def train_command(source: str, identity: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return the command that trains with these settings.

    Args:
        source: the graph as the user named it.
        identity: what was searched.
        settings: all settings.
    """
    model = identity["model"]
    shipped = settings_for(source if source in DATASETS else None, model)
    defaults = settings_dict(make_settings(find_model(model).settings, shipped))
    words = ["hpgmn", "train", source, "--model", model, "--metric", identity["metric"]]
    for name in ("positive", "protocol"):
        if identity.get(name) is not None:
            words += [f"--{name}", identity[name]]
    for name, value in settings.items():
        if value != defaults[name] or name == "neighbors":  # which is selected if not set
            words += ["--set", f"{name}={format_setting(value)}"]
    command = shlex.join(words)
    if "tables" in identity:
        from hpgmn.tables.options import column_option

        command += "".join(f" {column_option(*item)}" for item in identity["tables"].items())
    return command


def write_best(path: Path, identity: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Write settings as a config to train with."""
    content = {"model": identity["model"], "metric": identity["metric"]}
    for name in ("positive", "protocol"):
        if identity.get(name) is not None:
            content[name] = identity[name]
    if "tables" in identity:
        content["tables"] = identity["tables"]
    write_text(path, yaml.safe_dump(content | {"settings": dict(settings)}, sort_keys=False))


# Pictures.


def draw(study: Study, content: Mapping[str, Any], path: Path) -> bool:
    """Draw the pictures of a study; return whether there is anything to draw."""
    identity = identity_of(study)
    assert identity is not None
    has_memory = "num_patterns" in content["best"]["settings"]
    names = panels(identity["values"], content["importance"], has_memory)
    if not names:
        return False
    trials = [(trial.user_attrs["settings"], trial.value) for trial in finished_trials(study)]
    title = f"{content['graph']}, {content['model']}: {count_noun(len(trials), 'trial')}"
    draw_sensitivity(trials, names, title, content["metric"], path)
    return True


def panels(
    values: Mapping[str, Sequence[Any]], importance: Mapping[str, float], has_memory: bool
) -> list[str]:
    """Return the settings to show: those of the paper's picture, or else the four that matter most.

    Args:
        values: the values tried for each setting.
        importance: of each setting; empty if unknown.
        has_memory: whether the model has patterns.
    """
    numeric = [
        name
        for name, tried in values.items()
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in tried)
    ]
    if has_memory:
        return [name for name in PANELS if name in numeric]
    return sorted(numeric, key=lambda name: -importance.get(name, 0.0))[: len(PANELS)]


def draw_sensitivity(
    trials: Sequence[tuple[Mapping[str, Any], float | None]],
    names: Sequence[str],
    title: str,
    metric: str,
    path: Path,
) -> None:
    """Draw one panel per setting: a dot for each trial, a line through the best of each value.

    Args:
        trials: settings and score of the finished ones.
        path: the PNG file; the SVG file lies beside it.
    """
    import matplotlib

    from hpgmn.report.plots import drawing

    width, height = 1.2 + 2.9 * len(names), 3.3
    with drawing(width, height, "hpgmn", (0.7, 0.2, 0.5, 0.5)) as figure:
        matplotlib.rcParams["text.parse_math"] = True  # powers of ten on logarithmic axes
        row = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        factor = 1 if metric in TARGET_METRICS else 100
        for axes, name in zip(row, names, strict=True):
            dots = [(float(values[name]), factor * (score or 0.0)) for values, score in trials]
            _draw_panel(axes, dots, name)
        unit = ", %" if factor > 1 else ""
        row[0].set_ylabel(f"validation {metric.replace('_', ' ')}{unit}")
        figure.suptitle(title, x=0.01, ha="left", parse_math=False)
        figure.legend(*row[0].get_legend_handles_labels(), loc="upper right", ncols=2)
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            with atomic_write(path.with_suffix(".svg")) as draft:
                figure.savefig(draft, metadata=no_metadata)
            with atomic_write(path.with_suffix(".png")) as draft:
                figure.savefig(draft, dpi=150, metadata={"Software": None})


def _draw_panel(axes: Axes, dots: Sequence[tuple[float, float]], name: str) -> None:
    best: dict[float, float] = {}
    for value, score in sorted(dots):
        best[value] = max(score, best.get(value, score))
    positive = [value for value in best if value > 0]
    axes.plot(
        *zip(*dots, strict=True), "o", color="#56b4e9", markersize=4, alpha=0.7, label="trial"
    )
    axes.plot(list(best), list(best.values()), "o-", color="#d55e00", markersize=5, label="best")
    if not name.endswith(_LOGARITHMIC) or not positive:
        axes.set_xticks(list(best))
    elif len(positive) == len(best):
        axes.set_xscale("log")
    else:  # zero is shown left of the others
        axes.set_xscale("symlog", linthresh=positive[0])
    axes.set_xlabel(name)
