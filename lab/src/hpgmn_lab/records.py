"""Records of runs and trials in ``lab/results``, and their numbers as text.

``runs.jsonl`` and ``portfolio.jsonl`` hold one ``{"name": …, "record": metrics.json}`` per line,
``search.jsonl`` one trial per line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpgmn.base.errors import HPGMNError, format_setting
from hpgmn.base.files import RUN_FORMAT, check_format, verify_run_checksum, write_text
from hpgmn.base.parsing import parse_json, read_json
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.evaluation.scores import Difference, Score, independent_values
from hpgmn.graph.datasets import DATASETS
from hpgmn.models import MODELS, settings_for
from hpgmn.runs.folder import METRICS_FILE
from hpgmn.statistics import averaged_statistic
from hpgmn_lab import paper

NONE = "–"
"""The text of a cell without a number."""

_METRICS_KEYS = (
    *("graph", "model", "metric", "splits", "seeds", "test_score", "test_score_mean"),
    *("test_score_std", "val_score", "label_estimator", "seconds", "version", "config"),
    *("hardware", "created"),
)
_TRIAL_KEYS = {"graph", "model", "round", "trial", "val_score", "val_loss"}
_DIFFUSION_SETTINGS = {"diffusion", "teleport", "heat_time", "normalization"}


@dataclass(frozen=True)
class Record:
    """A run: its name, its test scores in percent and its whole ``metrics.json``."""

    name: str
    graph: str
    model: str
    score: Score  # split by split, seeds inside
    metrics: Mapping[str, Any]

    @property
    def validation(self) -> float:
        """The mean validation score in percent."""
        return 100 * float(np.mean(self.metrics["val_score"]))

    def against(self, published_mean: float) -> paper.Verdict:
        """Compare the independent runs with a published mean."""
        splits, seeds = len(self.metrics["splits"]), int(self.metrics["seeds"])
        values = independent_values(self.score.values, splits, seeds)
        return paper.reached(self.graph, values, published_mean)


# JSON lines.


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each JSON object of a ``.jsonl`` file after its place, "FILE line NUMBER"."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                content = parse_json(line)
            except ValueError:
                content = None
            if not isinstance(content, dict):
                raise HPGMNError(f"{path} line {number} is not a JSON object.", "Remove the line")
            yield f"{path} line {number}", content


def read_named(path: Path) -> dict[str, dict[str, Any]]:
    """Read a ``.jsonl`` file of ``{"name": …, "record": …}``: name → record."""
    records: dict[str, dict[str, Any]] = {}
    for location, content in read_lines(path):
        name, record = content.get("name"), content.get("record")
        if not isinstance(name, str) or not isinstance(record, dict) or name in records:
            raise HPGMNError(f"{location} has no name, a repeated name or no record.", "Remove it")
        records[name] = record
    return records


def write_named(path: Path, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Write records as JSON lines, sorted by name; the write is atomic."""
    lines = [json.dumps({"name": name, "record": records[name]}) for name in sorted(records)]
    write_text(path, "\n".join(lines) + "\n")


# Runs and trials.


def read_runs(source: Path) -> list[Record]:
    """Read and check every run of a ``.jsonl`` file or of a folder of run folders, by name."""
    if source.is_dir():
        paths = sorted(source.glob(f"[!.]*/{METRICS_FILE}"))
        return [unseal_run(path.parent.name, _read_metrics(path), path) for path in paths]
    if not source.exists():
        raise HPGMNError(f"There is no file or folder {source}.")
    return [unseal_run(name, record, source) for name, record in read_named(source).items()]


def _read_metrics(path: Path) -> Any:
    try:
        return read_json(path)
    except ValueError as error:
        raise HPGMNError(f"{path} is not valid JSON ({error}).", "Repeat the run") from None


def unseal_run(name: str, content: Mapping[str, Any], path: Path) -> Record:
    """Return the content of a ``metrics.json`` as a record; verify format and checksum first."""
    check_format(f"{path} ({name})", content.get("format"), RUN_FORMAT)
    try:
        return check_run(name, verify_run_checksum(content), path)
    except ValueError as error:
        raise HPGMNError(f"{path} ({name}) is damaged: {error}.", "Repeat the run") from None


def check_run(
    name: str, metrics: Mapping[str, Any], path: Path, remedy: str = "Repeat the run"
) -> Record:
    """Return metrics as a record; verify that counts and means match the scores."""
    location = f"{path} ({name})"
    if missing := [key for key in _METRICS_KEYS if key not in metrics]:
        raise HPGMNError(f"{location} lacks {', '.join(missing)}.", remedy)
    if metrics["model"] not in MODELS:
        raise HPGMNError(f"{location} has the unknown model '{metrics['model']}'.", "Remove it")
    runs = len(metrics["splits"]) * metrics["seeds"]
    for key in ("test_score", "val_score"):
        if len(metrics[key]) != runs:
            raise HPGMNError(
                f"{location} has {len(metrics[key])} of {runs} values of {key}.", remedy
            )
    score = Score.of([100 * value for value in metrics["test_score"]])
    for key, value in (("test_score_mean", score.mean), ("test_score_std", score.std)):
        if abs(100 * metrics[key] - value) > 1e-6:
            raise HPGMNError(f"{location}: {key} does not match the scores.", remedy)
    return Record(name, metrics["graph"], metrics["model"], score, metrics)


def read_trials(path: Path) -> list[dict[str, Any]]:
    """Read every trial of the searches; a missing file has none."""
    trials = []
    for location, trial in read_lines(path) if path.exists() else ():
        if missing := _TRIAL_KEYS - set(trial):
            raise HPGMNError(f"{location} lacks {', '.join(sorted(missing))}.", "Remove the line")
        trials.append(trial)
    return trials


def row_record(records: Sequence[Record], graph: str, model: str) -> Record | None:
    """Return the run of all splits of the protocol; of several, the one named GRAPH-MODEL."""
    splits = list(range(1 if graph in paper.CITATION else 10))
    complete = [
        record
        for record in records
        if (record.graph, record.model, record.metrics["splits"]) == (graph, model, splits)
    ]
    if len(complete) < 2:
        return complete[0] if complete else None
    for record in complete:
        if record.name == f"{graph}-{model}":
            return record
    names = ", ".join(record.name for record in complete)
    raise HPGMNError(f"{names} are all {model} on {graph}.", f"Name one of them {graph}-{model}")


def sort_graphs(graphs: Iterable[str]) -> list[str]:
    """Sort graphs in the registry's order, unknown ones last."""
    order = {name: position for position, name in enumerate(DATASETS)}
    return sorted(graphs, key=lambda graph: (order.get(graph, len(order)), graph))


# Settings of runs.


def command(record: Record) -> str:
    """Return the command that repeats a run, with every setting that is not the default."""
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
    elif splits != [0] or graph not in paper.CITATION:  # which have the public split only
        parts.append(f"--splits {','.join(str(split) for split in splits)}")
    if config["seeds"] != 1:
        parts.append(f"--seeds {config['seeds']}")
    changes = changed_settings(record, settings_for(graph if graph in DATASETS else None, model))
    parts += [f"--set {name}={format_setting(value)}" for name, value in changes.items()]
    return " ".join(parts)


def changed_settings(record: Record, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the effective settings of a run that differ from ``values`` over the defaults."""
    settings = MODELS[record.model].settings
    used = settings_dict(make_settings(settings, record.metrics["config"]["settings"]))
    others = settings_dict(make_settings(settings, values))
    return {
        name: value
        for name, value in used.items()
        if value != others[name] and _has_effect(name, used)
    }


def _has_effect(name: str, settings: Mapping[str, Any]) -> bool:
    """Return whether a setting has an effect: those of unused statistics and losses have none."""
    if name in ("consistency_warmup", "consistency_passes", "consistency_temperature"):
        return bool(settings["consistency_weight"])
    owner = "diffusion" if name in _DIFFUSION_SETTINGS else name.split("_")[0]
    used = [averaged_statistic(name) or name for name in settings.get("statistics", [owner])]
    return owner not in ("diffusion", "adjacency") or owner in used


def rank_in_search(record: Record, trials: Sequence[Mapping[str, Any]]) -> str:
    """Return the rank of a run's settings by validation score among the trials with most runs."""
    if not trials:
        return "no search"
    most = max(np.size(trial["val_score"]) for trial in trials)
    ranked = sorted(
        (trial for trial in trials if np.size(trial["val_score"]) == most),
        key=lambda trial: (-np.mean(trial["val_score"]), np.mean(trial["val_loss"])),
    )
    count = f"{len(ranked)} trials with {most} run{'' if most == 1 else 's'}"
    settings = MODELS[record.model].settings
    used = settings_dict(make_settings(settings, record.metrics["config"]["settings"]))
    effective = [name for name in used if _has_effect(name, used)]
    for rank, trial in enumerate(ranked, start=1):
        tried = settings_dict(make_settings(settings, trial.get("settings", trial["trial"])))
        if all(tried[name] == used[name] for name in effective):
            return f"best of {count}" if rank == 1 else f"number {rank} of {count}"
    return f"not among the {count}"


# Numbers as text.


def score_text(record: Record) -> str:
    """Format mean and standard deviation of the test scores."""
    return f"{record.score.mean:.1f} ± {record.score.std:.1f}"


def published_text(published: paper.Published) -> str:
    """Format a published mean, with its deviation where one is printed."""
    deviation = "" if published.std is None else f" ± {published.std:.1f}"
    return f"{published.mean:.1f}{deviation}"


def difference_text(difference: Difference | None) -> str:
    """Format a difference of scores in points, with its interval."""
    if difference is None:
        return NONE
    mean = f"{100 * difference.mean:+.1f}"
    if difference.low is None or difference.high is None:
        return mean
    return f"{mean} ({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"


def runs_text(record: Record) -> str:
    """Format the number of runs as splits × seeds."""
    splits, seeds = len(record.metrics["splits"]), record.metrics["seeds"]
    return f"{len(record.score.values)} = {splits} × {seeds}"


def trials_text(trials: Sequence[Mapping[str, Any]]) -> str:
    """Format the number of trials and of the runs that scored each."""
    if not trials:
        return NONE
    runs = sorted({int(np.size(trial["val_score"])) for trial in trials})
    each = str(runs[0]) if len(runs) == 1 else f"{runs[0]}–{runs[-1]}"
    return f"{len(trials)} × {each} run{'' if each == '1' else 's'}"


def device_text(hardware: Mapping[str, Any]) -> str:
    """Format the GPU, or the processor and its threads."""
    if hardware["device"] != "cpu":
        return str(hardware.get("gpu") or hardware["device"])
    return f"{hardware['processor']}, {hardware['threads']} threads"


def origin_texts(metrics: Mapping[str, Any]) -> list[str]:
    """Format device, versions and date of a run."""
    date = str(metrics["created"])[:10]
    return [device_text(metrics["hardware"]), versions_text(metrics), date]


def versions_text(metrics: Mapping[str, Any]) -> str:
    """Format the versions of hpgmn and torch that made a run."""
    return f"hpgmn {metrics['version']}, torch {metrics['hardware']['torch']}"
