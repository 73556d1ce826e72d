"""Records in ``lab/results``, one ``{"name": …, "record": …}`` per line; numbers as text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import RUN_FORMAT, check_format, verify_run_checksum, write_text
from hpgmn.base.parsing import parse_json
from hpgmn.evaluation.scores import Difference, Score, independent_values
from hpgmn.graph.datasets import DATASETS
from hpgmn.models import MODELS
from hpgmn_lab import paper

NONE = "–"
"""The text of a cell without a number."""

_METRICS_KEYS = (
    *("graph", "model", "metric", "splits", "seeds", "test_score", "test_score_mean"),
    *("test_score_std", "val_score", "label_estimator", "seconds", "version", "config"),
    *("hardware", "created"),
)


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


# Files of named records.


def read_named(path: Path) -> dict[str, dict[str, Any]]:
    """Read a ``.jsonl`` file: name → record; a missing file has none."""
    records: dict[str, dict[str, Any]] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            content = parse_json(line)
            name, record = content["name"], content["record"]
        except (ValueError, KeyError, TypeError):
            name, record = None, None
        if not isinstance(name, str) or not isinstance(record, dict) or name in records:
            raise HPGMNError(
                f"{path} line {number} is not a record with a name of its own.", "Remove the line"
            )
        records[name] = record
    return records


def write_named(path: Path, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Write records as JSON lines, atomically."""
    lines = [json.dumps({"name": name, "record": record}) for name, record in records.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "\n".join(lines) + "\n")


# Runs.


def read_runs(path: Path) -> list[Record]:
    """Read the ``metrics.json`` of every run of a ``.jsonl`` file; verify format and checksum."""
    records = []
    for name, content in read_named(path).items():
        check_format(f"{path} ({name})", content.get("format"), RUN_FORMAT)
        try:
            metrics = verify_run_checksum(content)
        except ValueError as error:
            raise HPGMNError(f"{path} ({name}) is damaged: {error}.", "Repeat the run") from None
        records.append(check_run(name, metrics, path))
    return records


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


def sort_graphs(graphs: Iterable[str]) -> list[str]:
    """Sort graphs in the registry's order, unknown ones last."""
    order = {name: position for position, name in enumerate(DATASETS)}
    return sorted(graphs, key=lambda graph: (order.get(graph, len(order)), graph))


# Numbers as text.


def score_text(record: Record) -> str:
    """Format mean and standard deviation of the test scores."""
    return f"{record.score.mean:.1f} ± {record.score.std:.1f}"


def difference_text(difference: Difference | None) -> str:
    """Format a difference of scores in points, with its interval."""
    if difference is None:
        return NONE
    ends = (difference.mean, difference.low, difference.high)
    return interval_text([None if end is None else 100 * end for end in ends])


def is_number(value: float | None) -> bool:
    """Return whether a value is neither missing nor NaN."""
    return value is not None and not math.isnan(value)


def interval_text(value_and_ends: Sequence[float | None], digits: int = 1) -> str:
    """Format a signed value with its interval, if it has one.

    >>> interval_text([-0.74, -0.91, -0.57], 2), interval_text([1.0, None, None])
    ('-0.74 (-0.91 to -0.57)', '+1.0')
    """
    text, *ends = (f"{end:+.{digits}f}" for end in value_and_ends if is_number(end))
    return f"{text} ({' to '.join(ends)})" if ends else text


def device_text(hardware: Mapping[str, Any]) -> str:
    """Format the GPU, or the processor and its threads."""
    if hardware["device"] != "cpu":
        return str(hardware.get("gpu") or hardware["device"])
    return f"{hardware['processor']}, {hardware['threads']} threads"


def versions_text(metrics: Mapping[str, Any]) -> str:
    """Format the versions of hpgmn and torch that made a run."""
    return f"hpgmn {metrics['version']}, torch {metrics['hardware']['torch']}"
