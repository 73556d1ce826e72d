"""A run folder's files as checked arrays: what the report is made from.

Fixed letters here: R runs (split by split, seeds inside), S splits, E epochs, C classes.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.files import RUN_FORMAT, check_format, verify_run_checksum
from hpgmn.base.parsing import parse_json, read_json
from hpgmn.base.settings import read_yaml
from hpgmn.graph import Array

CURVES = ("loss", "val_loss", "val_score")
METRICS_FILE, AUDIT_FILE = "metrics.json", "audit.json"
UNDERSTANDING_FILE = "understanding.json"
REMEDY = "Train again with --overwrite, or restore the file."

_CONFIG = ("graph", "model", "metric", "splits", "seeds", "settings")
_METRICS = ("model", "graph", "splits", "seeds", "metric", "test_score_mean", "test_score")
_PREDICTIONS = ("split", "seed", "node", "role", "label", "prediction")
_CLASS_COLUMN = "probability_"


@dataclass(frozen=True)
class Stage:
    """The learning curves of one stage of training; not a number where a run has no value."""

    name: str
    epochs: Array  # (E,)
    curves: Mapping[str, Array]  # loss, val_loss, val_score: (R, E)


@dataclass(frozen=True)
class Run:
    """Everything the report says about a run folder."""

    config: Mapping[str, Any]
    metrics: Mapping[str, Any]
    test_score: Array  # (S, seeds), not a number where a split has no test nodes
    val_score: Array  # (S, seeds), not a number where not recorded
    best_epochs: Array  # (S, seeds), not a number where not recorded
    stages: tuple[Stage, ...]
    classes: tuple[str, ...]
    confusion: Array  # (C, C): test nodes of all runs by class (row) and prediction (column)
    audit: Mapping[str, Any]  # what was found in the graph; empty where not recorded
    understanding: Mapping[str, Any]  # what the model has learned; empty where not recorded

    @property
    def num_runs(self) -> int:
        """How many times the model was trained."""
        return int(self.test_score.size)


def read_run(folder: Path) -> Run:
    """The run folder's files, or an HPGMNError that names the file and what to do."""
    if not folder.is_dir():
        raise HPGMNError(
            f"There is no run folder {folder}. Give the folder that 'hpgmn train' wrote."
        )
    config = _read_config(_existing(folder, "config.yaml"))
    path = _existing(folder, METRICS_FILE)
    metrics = _read_metrics(path)
    shape = (len(metrics["splits"]), metrics["seeds"])
    classes, confusion = _read_confusion(
        _existing(folder, "predictions.parquet"), _class_names(path, metrics)
    )
    return Run(
        config=config,
        metrics=metrics,
        test_score=_per_run(path, metrics, "test_score", shape),
        val_score=_per_run(path, metrics, "val_score", shape),
        best_epochs=_per_run(path, metrics, "epochs", shape),
        stages=_read_history(_existing(folder, "history.jsonl")),
        classes=classes,
        confusion=confusion,
        audit=_read_later(folder / AUDIT_FILE),
        understanding=_read_later(folder / UNDERSTANDING_FILE),
    )


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A content that is not what a run writes becomes an HPGMNError that names the file."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise _broken(path, f"does not hold what a run writes ({error!r})") from None


def printable(value: object) -> str:
    r"""A value as one line of text that any HTML or SVG file may hold.

    >>> printable("a\tb\x00")
    'a b�'
    """
    text = str(value)
    return "".join(
        " " if sign.isspace() else "\ufffd" if _is_unprintable(sign) else sign for sign in text
    )


def number(value: object) -> float:
    """A recorded number; not a number where it is missing, endless or of another kind."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return math.nan


def mapping(value: object) -> Mapping[str, Any]:
    """A recorded mapping; an empty one where it is missing or of another kind."""
    return value if isinstance(value, dict) else {}


def _is_unprintable(sign: str) -> bool:
    return unicodedata.category(sign) in {"Cc", "Cs"} or ord(sign) & 0xFFFE == 0xFFFE


def _existing(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise HPGMNError(
            f"The run folder {folder} has no {name}: its training may not have finished. "
            "Repeat its command with --resume, or train again with --overwrite."
        )
    return path


def _broken(path: Path, fault: str) -> HPGMNError:
    return HPGMNError(f"The file {path} {fault}. {REMEDY}")


def _unreadable(path: Path, error: Exception) -> HPGMNError:
    return _broken(path, f"cannot be read ({type(error).__name__})")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = read_yaml(path)
    except SettingError as error:
        raise HPGMNError(f"{error} {REMEDY}") from None
    check_format(path, config.get("format"), RUN_FORMAT)
    _require(path, config, _CONFIG)
    if not isinstance(config["splits"], list) or not isinstance(config["settings"], dict):
        raise _broken(path, "must hold a list 'splits' and a mapping 'settings'")
    return config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:
        raise _broken(path, f"is not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise _broken(path, "must hold one JSON object")
    return content


def _read_later(path: Path) -> dict[str, Any]:
    """What runs of earlier versions did not write."""
    return _read_json(path) if path.is_file() else {}


def _read_metrics(path: Path) -> dict[str, Any]:
    metrics = _read_json(path)
    check_format(path, metrics.get("format"), RUN_FORMAT)
    try:
        metrics = verify_run_checksum(metrics)
    except ValueError as error:
        raise _broken(path, f"is damaged: {error}") from None
    _require(path, metrics, _METRICS)
    splits, seeds = metrics["splits"], metrics["seeds"]
    if not isinstance(splits, list) or not splits:
        raise _broken(path, f"must hold a list 'splits' (got {splits!r})")
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        raise _broken(path, f"must hold a whole number 'seeds' (got {seeds!r})")
    return metrics


def _require(path: Path, content: Mapping[str, Any], names: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in content]
    if missing:
        raise _broken(path, f"lacks {', '.join(missing)}")


def _per_run(path: Path, metrics: Mapping[str, Any], name: str, shape: tuple[int, int]) -> Array:
    """One recorded list over runs as (S, seeds); absent, or empty for want of test nodes: NaN."""
    values = metrics.get(name)
    if values is None or values == []:
        return np.full(shape, np.nan)
    if not isinstance(values, list) or len(values) != shape[0] * shape[1]:
        got = f"{len(values)} values" if isinstance(values, list) else repr(values)
        raise _broken(
            path, f"must hold '{name}' for {shape[0]} splits × {shape[1]} seeds (got {got})"
        )
    return np.array([number(value) for value in values]).reshape(shape)


def _class_names(path: Path, metrics: Mapping[str, Any]) -> list[str] | None:
    names = mapping(metrics.get("graph_summary")).get("class_names")
    if names is None:
        return None
    if not isinstance(names, list) or len({str(name) for name in names}) != len(names):
        raise _broken(path, f"must hold distinct 'class_names' in a list (got {names!r})")
    return [str(name) for name in names]


def _read_history(path: Path) -> tuple[Stage, ...]:
    """The curves by stage, stages in the order of their first line."""
    values: dict[str, dict[tuple[str, str], dict[int, list[float]]]] = {}
    # By newline only: other line separators are allowed inside a JSON string.
    for place, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            run = (str(row["split"]), str(row["seed"]))
            epoch, stage = int(row["epoch"]), str(row["stage"])
            point = [number(row.get(name)) for name in CURVES]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _broken(
                path, f"is damaged at line {place}: not an object with split, seed, stage and epoch"
            ) from None
        values.setdefault(stage, {}).setdefault(run, {})[epoch] = point
    stages = []
    for name, runs in values.items():
        epochs = sorted({epoch for points in runs.values() for epoch in points})
        column = {epoch: index for index, epoch in enumerate(epochs)}
        table = np.full((len(CURVES), len(runs), len(epochs)), np.nan)
        for index, points in enumerate(runs.values()):
            for epoch, point in points.items():
                table[:, index, column[epoch]] = point
        curves = dict(zip(CURVES, table, strict=True))
        stages.append(Stage(name, np.array(epochs), curves))
    return tuple(stages)


def _read_confusion(path: Path, classes: list[str] | None) -> tuple[tuple[str, ...], Array]:
    """The classes, and the labelled test nodes of all runs by class and prediction: (C, C)."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(path).names
        missing = [name for name in _PREDICTIONS if name not in names]
        if missing:
            raise _broken(path, f"lacks the columns {', '.join(missing)}")
        columns = ["role", "label", "prediction"]
        table = pq.read_table(path, columns=columns, page_checksum_verification=True)
        table = table.cast(pa.schema([(name, pa.string()) for name in table.column_names]))
        table = table.filter(pc.equal(table["role"], "test")).drop_columns("role").drop_null()
        pairs = table.group_by(["label", "prediction"]).aggregate([([], "count_all")]).to_pylist()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise _broken(path, f"is damaged or not a Parquet file ({type(error).__name__})") from None
    if classes is None:
        classes = [
            name.removeprefix(_CLASS_COLUMN) for name in names if name.startswith(_CLASS_COLUMN)
        ]
    place = {name: index for index, name in enumerate(classes)}
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    for pair in pairs:
        for name in (pair["label"], pair["prediction"]):
            if name not in place:
                raise _broken(
                    path, f"holds the class {name!r}, which the run's other files do not know"
                )
        confusion[place[pair["label"]], place[pair["prediction"]]] = pair["count_all"]
    return tuple(classes), confusion
