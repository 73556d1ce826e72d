"""The records in ``results/``: runs, trials, and the words a page says about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import RUN_FORMAT, check_format, verify_run_checksum
from hpgmn.base.parsing import parse_json, read_json
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.base.text import format_setting
from hpgmn.evaluation.scores import Difference, Score, independent_values
from hpgmn.graph.datasets import DATASETS
from hpgmn.models import MODELS
from hpgmn.models.shipped import settings_for
from hpgmn.runs.folder import METRICS_FILE
from hpgmn.statistics import averaged
from hpgmn_lab import paper

_NEEDED = (
    *("graph", "model", "metric", "splits", "seeds", "test_score", "test_score_mean"),
    *("test_score_std", "val_score", "label_estimator", "seconds", "version", "config"),
    *("hardware", "created"),
)
_ONLY_DIFFUSION = {"diffusion", "teleport", "heat_time", "normalization"}


@dataclass(frozen=True)
class Record:
    """One run folder: its name, its test scores in percent and its whole ``metrics.json``."""

    folder: str
    graph: str
    model: str
    score: Score  # split by split, seeds inside
    metrics: Mapping[str, Any]

    @property
    def validation(self) -> float:
        """The mean validation score in percent."""
        return 100 * float(np.mean(self.metrics["val_score"]))

    def against(self, published_mean: float) -> paper.Verdict:
        """The verdict over independent runs."""
        splits, seeds = len(self.metrics["splits"]), int(self.metrics["seeds"])
        values = independent_values(self.score.values, splits, seeds)
        return paper.reached(self.graph, values, published_mean)


def read_records(folder: Path) -> list[Record]:
    """Every run under a folder, checked: as many scores as runs, and the mean they have."""
    if not folder.is_dir():
        raise HPGMNError(f"There is no folder {folder}. Train with --out {folder}/GRAPH-MODEL.")
    return [_record(path) for path in sorted(folder.glob(f"[!.]*/{METRICS_FILE}"))]


def _record(path: Path) -> Record:
    try:
        metrics = read_json(path)
    except ValueError as error:
        raise HPGMNError(f"{path} is not valid JSON ({error}). Train that run again.") from None
    check_format(path, metrics.get("format"), RUN_FORMAT)
    try:
        metrics = verify_run_checksum(metrics)
    except ValueError as error:
        raise HPGMNError(f"{path} is damaged: {error}. Train that run again.") from None
    return checked_record(path.parent.name, metrics, path)


def checked_record(
    name: str, metrics: Mapping[str, Any], path: Path, remedy: str = "Train that run again."
) -> Record:
    """A record that holds together: as many scores as runs, and the mean they have.

    Args:
        name: of the record.
        metrics: the content of a ``metrics.json``.
        path: where it was read, for the sentence about what is wrong.
        remedy: what to do then.
    """
    if missing := [needed for needed in _NEEDED if needed not in metrics]:
        raise HPGMNError(f"{path} lacks {', '.join(missing)}. {remedy}")
    if metrics["model"] not in MODELS:
        raise HPGMNError(
            f"{path}: '{metrics['model']}' is no model of this package. Move that file elsewhere."
        )
    runs = len(metrics["splits"]) * metrics["seeds"]
    for key in ("test_score", "val_score"):
        if len(metrics[key]) != runs:
            raise HPGMNError(
                f"{path} must hold {runs} values of {key} ({len(metrics[key])}). {remedy}"
            )
    score = Score.of([100 * value for value in metrics["test_score"]])
    for key, ours in (("test_score_mean", score.mean), ("test_score_std", score.std)):
        if abs(100 * metrics[key] - ours) > 1e-6:
            raise HPGMNError(f"{path}: {key} is not that of its scores. {remedy}")
    return Record(name, metrics["graph"], metrics["model"], score, metrics)


def read_trials(folder: Path) -> list[dict[str, Any]]:
    """Every trial of the searches; a folder that does not exist has none."""
    trials = []
    for path in sorted(folder.glob("*.jsonl")):
        for place, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            if not line.strip():
                continue
            try:
                trial = parse_json(line)
                missing = {"graph", "model", "round", "trial", "val_score", "val_loss"} - set(trial)
            except (ValueError, TypeError):
                raise HPGMNError(
                    f"{path} line {place} is no JSON object. Remove that line."
                ) from None
            if missing:
                lacks = ", ".join(sorted(missing))
                raise HPGMNError(f"{path} line {place} lacks {lacks}. Remove that line.")
            trials.append(trial)
    return trials


def row_record(records: Sequence[Record], graph: str, model: str) -> Record | None:
    """The record of a row: all splits of the protocol; among several that of GRAPH-MODEL."""
    splits = list(range(1 if graph in paper.CITATION else 10))
    asked = (graph, model, splits)
    whole = [one for one in records if (one.graph, one.model, one.metrics["splits"]) == asked]
    if len(whole) < 2:
        return whole[0] if whole else None
    for record in whole:
        if record.folder == f"{graph}-{model}":
            return record
    folders = ", ".join(record.folder for record in whole)
    raise HPGMNError(
        f"{folders} are all {model} on {graph}. Name the folder of the row {graph}-{model}."
    )


def in_order(graphs: Iterable[str]) -> list[str]:
    """Graphs in the registry's order, unknown ones last."""
    order = {name: place for place, name in enumerate(DATASETS)}
    return sorted(graphs, key=lambda graph: (order.get(graph, len(order)), graph))


def command(record: Record) -> str:
    """The command that repeats a run: whatever is not shipped or default is spelt out."""
    config = record.metrics["config"]
    graph, model, splits = config["graph"], config["model"], list(config["splits"])
    parts = ["hpgmn train", graph]
    if model != "hpgmn":
        parts.append(f"--model {model}")
    if config.get("protocol"):
        parts.append(f"--protocol {config['protocol']}")
    if graph in DATASETS and config["metric"] != DATASETS[graph].metric:
        parts.append(f"--metric {config['metric']}")
    if splits == list(range(10)):
        parts.append("--splits all")
    elif splits != [0] or graph not in paper.CITATION:  # these have the public split alone
        parts.append(f"--splits {','.join(str(split) for split in splits)}")
    if config["seeds"] != 1:
        parts.append(f"--seeds {config['seeds']}")
    shipped = settings_for(graph if graph in DATASETS else None, model)
    parts += [
        f"--set {name}={format_setting(value)}" for name, value in unlike(record, shipped).items()
    ]
    return " ".join(parts)


def unlike(record: Record, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that differ from those of a mapping and its defaults."""
    settings = MODELS[record.model].settings
    own = settings_dict(make_settings(settings, record.metrics["config"]["settings"]))
    others = settings_dict(make_settings(settings, values))
    return {
        name: value for name, value in own.items() if value != others[name] and _matters(name, own)
    }


def _matters(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether a setting has any effect; that of an unused statistic or loss has none."""
    if name in ("consistency_warmup", "consistency_passes", "consistency_temperature"):
        return bool(settings["consistency_weight"])
    owner = "diffusion" if name in _ONLY_DIFFUSION else name.split("_")[0]
    used = [averaged(name) or name for name in settings.get("statistics", [owner])]
    return owner not in ("diffusion", "adjacency") or owner in used


def place_in_search(record: Record, trials: Sequence[Mapping[str, Any]]) -> str:
    """Where a run's settings stand, by validation score, among the trials that decided.

    Those are the trials that were scored on the most runs.

    Args:
        record: the run.
        trials: the search of its model on its graph.
    """
    if not trials:
        return "no search"
    most = max(np.size(one["val_score"]) for one in trials)
    deciding = [one for one in trials if np.size(one["val_score"]) == most]
    ranked = sorted(
        deciding, key=lambda one: (-np.mean(one["val_score"]), np.mean(one["val_loss"]))
    )
    what = f"{len(ranked)} trials with {most} run{'' if most == 1 else 's'}"
    kind = MODELS[record.model].settings
    own = settings_dict(make_settings(kind, record.metrics["config"]["settings"]))
    for place, one in enumerate(ranked, start=1):
        tried = settings_dict(make_settings(kind, one.get("settings", one["trial"])))
        if all(tried[name] == own[name] for name in own if _matters(name, own)):
            return f"best of {what}" if place == 1 else f"number {place} of {what}"
    return f"not among the {what}"


def score_words(record: Record) -> str:
    """Mean and deviation of the test scores."""
    return f"{record.score.mean:.1f} ± {record.score.std:.1f}"


def printed_words(printed: paper.Published | paper.Target) -> str:
    """A printed mean, with its deviation where one is printed."""
    deviation = "" if printed.std is None else f" ± {printed.std:.1f}"
    return f"{printed.mean:.1f}{deviation}"


def difference_words(found: Difference | None) -> str:
    """A difference of scores in points, with its interval."""
    if found is None:
        return "–"
    if found.low is None or found.high is None:
        return f"{100 * found.mean:+.1f}"
    return f"{100 * found.mean:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def validation_words(record: Record) -> str:
    """The mean validation score."""
    return f"{record.validation:.1f}"


def runs_words(record: Record) -> str:
    """How many runs, of how many splits and seeds."""
    splits, seeds = len(record.metrics["splits"]), record.metrics["seeds"]
    return f"{len(record.score.values)} = {splits} × {seeds}"


def commands(records: Iterable[Record | None]) -> str:
    """How each run was made."""
    lines = []
    for record in filter(None, records):
        metrics, hardware = record.metrics, record.metrics["hardware"]
        device = hardware["device"]
        if device == "cpu":
            device = f"{hardware['processor']}, {hardware['threads']} threads"
        versions = f"hpgmn {metrics['version']}, torch {hardware['torch']}"
        date = str(metrics["created"])[:10]
        lines.append([record.folder, f"`{command(record)}`", device, versions, date])
    return grid(("run", "command", "device", "versions", "date"), lines) if lines else ""


def grid(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines))


def count_words(trials: Sequence[Mapping[str, Any]]) -> str:
    """How many trials, and on how many runs each was scored."""
    if not trials:
        return "–"
    runs = sorted({int(np.size(one["val_score"])) for one in trials})
    each = str(runs[0]) if len(runs) == 1 else f"{runs[0]}–{runs[-1]}"
    return f"{len(trials)} × {each} run{'' if each == '1' else 's'}"
