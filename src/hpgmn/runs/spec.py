"""The specification of a run: what is trained, what is refused, what it was made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch

from hpgmn.base.calibration import Calibrator
from hpgmn.base.errors import GraphError, HPGMNError, Remedy, SettingError
from hpgmn.base.files import RUN_FORMAT, check_format
from hpgmn.base.machine import hardware
from hpgmn.base.metrics import BALANCED_METRICS, require_metric
from hpgmn.base.settings import make_settings, read_yaml, settings_dict
from hpgmn.base.thresholds import parse_threshold
from hpgmn.base.version import __version__
from hpgmn.engines import Engine
from hpgmn.graph import Graph, Split
from hpgmn.graph.calibration import reserve_calibration
from hpgmn.graph.content import graph_content
from hpgmn.graph.datasets import DATASETS
from hpgmn.models import entry_mismatch, find_model, settings_for, task_settings
from hpgmn.models.stage import require_task
from hpgmn.training.checks import (
    check_split,
    class_number,
    fitting_metric,
    graph_warnings,
    positive_class,
    scarce_classes,
    seen_labels,
    skewed_classes,
)
from hpgmn.training.ensemble import ENSEMBLE

CONFIG_FILE = "config.yaml"
DEVICES = ("auto", "cpu", "cuda")

_CONTENTS = {
    "graph_content": "The graph {} has changed since the run of the config: attributes, edges, "
    "labels or splits differ, and so will the results.",
    "shards_content": "The row shards are not those of the run of the config: the results will "
    "differ.",
}

MAX_SEEDS = 10_000
"""More seeds on each split are probably a mistake, and would not fit memory."""

_ALWAYS = ("graph", "model", "protocol", "metric", "splits", "seeds", "device", "calibrate")
_IF_SET = (
    *("positive", "first_seed", "threshold", "deterministic", "refit", "conformal"),
    *("selection", "tables"),
)
_COPIED = (
    *("seeds", "protocol", "calibrate", "tables", "deterministic", "first_seed", "refit"),
    "threshold",
)
"""Options that need no choice, with the defaults of :class:`RunSpec`."""

_SPLITS_REMEDY = Remedy("Choose all, or numbers such as 0,3", option="splits")


@dataclass(frozen=True)
class RunSpec:
    """What is trained; with the graph it determines the result.

    Attributes:
        graph: the dataset's name or the path of the graph.
        settings: all of the model's settings.
        seeds: how many seeds on each split: first_seed … first_seed + seeds - 1.
        protocol: the protocol whose splits are used, if any.
        metric: what selects epochs and is reported.
        positive: the class that average_precision and precision@K of two classes look for.
        calibrate: whether probabilities are calibrated on the validation nodes.
        threshold: the rule for the probability from which the positive class of two is predicted,
            see :func:`hpgmn.base.thresholds.choose_threshold`; None: the most likely class is.
        tables: the roles of columns, where the graph is read from tables.
        deterministic: whether a GPU gives bit-identical results.
        refit: whether the model is trained again on train and validation nodes after selection.
        conformal: whether half of the validation nodes of each split are reserved for intervals or
            prediction sets: they select nothing. Regressions always reserve them.
        selection: what is selected on validation nodes, see :mod:`hpgmn.runs.pool`: members of the
            portfolio ("portfolio": "ensemble" or "single", with "time_limit", and "members" and
            "settings" where given), or edge directions ("neighbors": the candidates). Model and
            settings are then the selected ones.
    """

    graph: str
    model: str
    settings: dict[str, Any]
    splits: tuple[int, ...]
    seeds: int = 1
    protocol: str | None = None
    metric: str = "accuracy"
    device: str = "cpu"
    calibrate: bool = True
    tables: dict[str, Any] = field(default_factory=dict)
    positive: str | None = None
    deterministic: bool = False
    first_seed: int = 0
    refit: bool = False
    selection: dict[str, Any] = field(default_factory=dict)
    conformal: bool = False
    threshold: str | None = None

    def calibrator(self, class_names: Sequence[str], is_weighted: bool) -> Calibrator:
        """Return how a model is calibrated, given whether class weights were used."""
        method = "affine" if is_weighted else "temperature"
        return Calibrator(
            method if self.calibrate else "none",
            self.metric in BALANCED_METRICS,
            self.threshold,
            class_number(self.positive, class_names),
        )

    @property
    def seed_numbers(self) -> range:
        """The seeds on each split."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of ``config.yaml``."""
        values = {name: copy(getattr(self, name)) for name in (*_ALWAYS, *_IF_SET, "settings")}
        unset = [name for name in _IF_SET if values[name] in (None, False, {})]  # 0 is False
        kept = {name: value for name, value in values.items() if name not in unset}
        return {**kept, "splits": list(self.splits), "version": __version__}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> RunSpec:
        """Read the content of ``config.yaml``."""
        try:
            for name, value in content.items():
                if (expected := entry_mismatch(name, value)) is not None:
                    raise TypeError(f"{name} must be {expected}")
            for name in ("graph", "model", "settings", "splits", "seeds", "metric"):
                if content.get(name) is None:
                    raise KeyError(name)
            names = {info.name for info in fields(cls)}
            values = {name: copy(value) for name, value in content.items() if name in names}
            given = {name: value for name, value in values.items() if value is not None}
            return cls(**{**given, "splits": tuple(given["splits"])})
        except (KeyError, TypeError, ValueError) as error:
            remedy = Remedy("Train again", option="overwrite", value=True) | "Restore it"
            raise SettingError(
                f"config.yaml of the run is incomplete or damaged ({error!r}).", remedy
            ) from None


def read_spec(folder: Path) -> RunSpec:
    """Read the specification of the run in a folder."""
    content = read_yaml(folder / CONFIG_FILE)
    check_format(f"The run in {folder}", content.get("format"), RUN_FORMAT)
    return RunSpec.from_dict(content)


def make_spec(
    graph: Graph, source: str, options: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> RunSpec:
    """Build the specification of a run.

    Args:
        source: the dataset name or path of the graph.
        options: fields of :class:`RunSpec`; without ``settings`` the model's shipped ones apply,
            and all but the device have a default.
        settings: what differs from these settings.
    """
    name = options.get("model", "hpgmn")
    dataset = DATASETS.get(source)
    values: dict[str, Any] = {}
    selection = dict(options.get("selection", {}))
    if name != ENSEMBLE:
        values, selection = _model_settings(graph, source, options, settings or {})
    usual = "r2" if graph.is_regression else "accuracy"
    metric = options.get("metric", dataset.metric if dataset else usual)
    numbers = split_numbers(options.get("splits", "all"), graph)
    labels = seen_labels(graph, [graph.split(number) for number in numbers])
    return RunSpec(
        graph=source if dataset else str(Path(source).expanduser().resolve()),
        model=name,
        settings=values,
        splits=numbers,
        metric=metric,
        device=options["device"],
        positive=positive_class(
            "average_precision" if options.get("threshold") else metric,
            *(labels, graph.class_names, options.get("positive")),
        ),
        selection=selection,
        conformal=options.get("conformal", False) or graph.is_regression,
        **{name: options[name] for name in _COPIED if name in options},
    )


def _model_settings(
    graph: Graph, source: str, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return all settings of a model, and the edge directions to select from if it sets none.

    HP-GMN reads both directions by default; other models read one at a time.
    """
    name = options.get("model", "hpgmn")
    kind = find_model(name).settings
    values = options.get("settings")
    if values is None:
        values = settings_for(source if source in DATASETS else None, name)
    values = task_settings(kind, {**values, **settings}, is_regression=graph.is_regression)
    directions = [
        direction
        for info in fields(kind)
        if info.name == "neighbors" and not name.startswith("hpgmn")
        for direction in info.metadata["choices"]
    ]
    selection: dict[str, Any] = {}
    if directions and "neighbors" not in values and graph.has_one_way_edges:
        selection["neighbors"] = directions
    return settings_dict(make_settings(kind, values)), selection


def choose_metric(graph: Graph, source: str, options: dict[str, Any]) -> list[str]:
    """Set the metric that fits the classes where none is named and the dataset has none.

    Returns:
        A remark about it, if there is one.
    """
    if "metric" in options or source in DATASETS:
        return []
    if graph.is_regression:
        options["metric"] = "r2"
        return ["Metric: r2, because the labels are numbers (a regression)."]
    numbers = split_numbers(options.get("splits", "all"), graph)
    train = np.concatenate([graph.y[graph.split(number).train] for number in numbers])
    options["metric"], reason = fitting_metric(train, graph.class_names)
    return [f"Metric: {options['metric']}, because {reason}."]


def _suggest_label(graph: str, preparation: Mapping[str, Any]) -> None:
    """Refuse a graph without labels if one of its attributes looks like them."""
    from hpgmn.tables.preparation import likely_label

    if preparation["roles"]["label"] is None and (name := likely_label(preparation)):
        raise GraphError(
            f"'{graph}' has no labels; those may be in column '{name}'.",
            Remedy("Name the label column", option="label", value=name),
        )


def split_numbers(requested: str | int | Sequence[int], graph: Graph) -> tuple[int, ...]:
    """Return the splits behind ``all``, ``0,3``, a number or a list of numbers."""
    if graph.splits is None:
        stored = "store train_mask and val_mask"
        if graph.preparation is not None:
            _suggest_label(graph.name, graph.preparation)
            stored = "write train, val and test into a column 'split'"
        few = "Give at least two classes with five labelled nodes each"
        raise HPGMNError(
            f"'{graph.name}' has no splits and too few labels to make some.",
            Remedy(few) | Remedy("Name another label column", option="label") | stored,
        )
    known = range(len(graph.splits))
    numbers = parse_splits(requested)
    for number in numbers or ():
        if number not in known:
            choices = "only split 0" if len(known) == 1 else f"splits 0 to {len(known) - 1}"
            raise SettingError(
                f"Unknown split {number}: '{graph.name}' has {choices}.", _SPLITS_REMEDY
            )
    return tuple(known) if numbers is None else numbers


def parse_splits(requested: str | int | Sequence[int]) -> tuple[int, ...] | None:
    """Return the numbers in ``0,3``, a number or a list of numbers; None for ``all``."""
    if requested == "all":
        return None
    try:
        parts = requested.split(",") if isinstance(requested, str) else requested
        numbers = tuple(int(part) for part in ([parts] if isinstance(parts, int) else parts))
    except (TypeError, ValueError):
        raise SettingError(f"Unknown splits '{requested}'.", _SPLITS_REMEDY) from None
    if len(set(numbers)) != len(numbers):
        raise SettingError(f"A split is named twice (got '{requested}').", _SPLITS_REMEDY)
    return numbers


def resolve_device(name: str, engine: Engine | None = None) -> str:
    """Return "cpu" or "cuda" for "auto", "cpu" or "cuda"; on a cluster "auto" is "cpu"."""
    if name not in DEVICES:
        raise SettingError.unknown("device", name, DEVICES)
    if engine is not None and not engine.is_local:
        return "cpu" if name == "auto" else name
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        remedy = Remedy("Train on the processor", option="device", value="cpu")
        raise HPGMNError("No CUDA device is available.", remedy)
    return name


def check_seeds(seeds: int) -> None:
    """Refuse to train no seed."""
    if not isinstance(seeds, int) or not 1 <= seeds <= MAX_SEEDS:
        remedy = Remedy("Choose a number", option="seeds", value=1)
        raise SettingError(f"Seeds must be 1 to {MAX_SEEDS:,} (got {seeds!r}).", remedy)


def check_threshold(rule: str, num_classes: int, graph: str) -> None:
    """Refuse an unknown rule for the threshold, and one where there are not two classes."""
    parse_threshold(rule)
    if num_classes != 2:
        raise SettingError(
            f"A threshold needs two classes ('{graph}' has {num_classes}).",
            "Leave out the threshold",
        )


def check_run(spec: RunSpec, graph: Graph) -> tuple[list[Split], list[str]]:
    """Refuse what cannot be trained before work starts; return the splits and warnings."""
    if spec.model != ENSEMBLE:
        entry = find_model(spec.model)
        settings = make_settings(entry.settings, spec.settings)
        require_task(entry, settings, graph)
        entry.floats(graph, settings)  # builds an own model
    require_metric(spec.metric, graph.num_classes, f"'{graph.name}'")
    positive_class(spec.metric, graph.y[:0], graph.class_names, spec.positive)
    if spec.threshold is not None:
        check_threshold(spec.threshold, graph.num_classes, graph.name)
    check_seeds(spec.seeds)
    warnings = graph_warnings(graph)
    splits = []
    for number in spec.splits:
        split = graph.split(number)
        if spec.conformal:
            split = reserve_calibration(split, number, graph.node_ids)
        warnings += check_split(graph, split, number)
        splits.append(split)
    if graph.is_regression:
        return splits, warnings
    counts = [np.bincount(graph.y[split.train], minlength=graph.num_classes) for split in splits]
    warnings += scarce_classes(np.stack(counts), graph.class_names)
    known = np.bincount(graph.y[graph.y >= 0])
    warnings += skewed_classes(known, graph.class_names, spec.metric)
    return splits, warnings


def run_environment(graph: Graph, splits: Sequence[int], device: str) -> dict[str, Any]:
    """Return what results depend on bit for bit beside the specification, for ``config.yaml``."""
    return {"graph_content": graph_content(graph, splits), **machine_environment(device)}


def machine_environment(device: str) -> dict[str, Any]:
    """Return the library versions and the machine on which results depend bit for bit."""
    machine = hardware(device)
    return {
        "torch": str(machine["torch"]),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": machine["python"],
        "processor": machine["processor"],
        "threads": machine["threads"],
        **({"gpu": machine["device"]} if device == "cuda" else {}),
    }


def changes(config: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return warnings about what has changed since a run: its graph, libraries and machine.

    Args:
        config: the ``config.yaml`` of the run; what it does not record counts as unchanged.
        now: the present :func:`run_environment`.
    """
    before: Mapping[str, Any] = config.get("made_with") or {}
    lines = [
        text.format(config.get("graph"))
        for name, text in _CONTENTS.items()
        if name in before and name in now and before[name] != now[name]
    ]
    versions = {"hpgmn": (config.get("version"), __version__)}
    facts = {name: value for name, value in now.items() if name not in (*_CONTENTS, "shards")}
    versions |= {name: (before.get(name), value) for name, value in facts.items()}
    others = [
        f"{name} {was} (now {today})"
        for name, (was, today) in versions.items()
        if was is not None and was != today
    ]
    if others:
        lines.append(
            f"The run of the config was trained with {', '.join(others)}: results may differ in "
            "their last bits."
        )
    return lines
