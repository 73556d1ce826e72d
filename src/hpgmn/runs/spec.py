"""The specification of a run: what is trained, what is refused, what it was made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy
import torch

from hpgmn.base.digests import graph_content
from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.machine import hardware
from hpgmn.base.metrics import require_metric
from hpgmn.base.settings import make_settings
from hpgmn.base.version import __version__
from hpgmn.graph import Graph, Split
from hpgmn.models import find_model
from hpgmn.models.shipped import entry_mismatch
from hpgmn.training.checks import (
    check_split,
    graph_warnings,
    positive_class,
    scarce_classes,
    skewed_classes,
)


@dataclass(frozen=True)
class RunSpec:
    """What is to be trained; with the graph itself it determines the result.

    Attributes:
        graph: the dataset's name or the graph file, as the user gave it.
        model: the model's name.
        settings: all of the model's settings.
        splits: the numbers of the splits.
        seeds: how many seeds on each split: 0 … seeds-1.
        protocol: the protocol whose splits are used, if any.
        metric: what selects epochs and is reported.
        positive: the class that average_precision and precision@K of two classes look for.
        device: "cpu" or "cuda".
        calibrate: whether a temperature is fitted to the validation nodes of each run.
        tables: what the user said of the columns where the graph is two tables.
        deterministic: whether a GPU is to give the same bits each time.
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

    def as_dict(self) -> dict[str, Any]:
        """The specification as ``config.yaml`` holds it."""
        return {
            "graph": self.graph,
            "model": self.model,
            "protocol": self.protocol,
            "metric": self.metric,
            **({} if self.positive is None else {"positive": self.positive}),
            "splits": list(self.splits),
            "seeds": self.seeds,
            "device": self.device,
            "calibrate": self.calibrate,
            **({"deterministic": True} if self.deterministic else {}),
            **({"tables": dict(self.tables)} if self.tables else {}),
            "settings": dict(self.settings),
            "version": __version__,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> RunSpec:
        """The specification in the ``config.yaml`` of a run folder."""
        try:
            for name, value in content.items():
                if (expected := entry_mismatch(name, value)) is not None:
                    raise TypeError(f"{name} must be {expected}")
            for name in ("graph", "model", "settings", "splits", "seeds", "metric"):
                if content.get(name) is None:
                    raise KeyError(name)
            return cls(
                graph=str(content["graph"]),
                model=str(content["model"]),
                settings=dict(content["settings"]),
                splits=tuple(int(split) for split in content["splits"]),
                seeds=int(content["seeds"]),
                protocol=content.get("protocol"),
                metric=str(content["metric"]),
                device=str(content.get("device") or "cpu"),
                calibrate=content.get("calibrate") is not False,
                tables=dict(content.get("tables") or {}),
                positive=content.get("positive"),
                deterministic=bool(content.get("deterministic", False)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SettingError(
                f"config.yaml of the run is incomplete or damaged ({error!r}). Restore it, or "
                "train again with --overwrite."
            ) from None


def resolve_device(name: str) -> str:
    """The device behind "auto", "cpu" or "cuda"; asking for a missing GPU is an error."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise HPGMNError("No CUDA device is available. Use --device cpu (or auto).")
    return name


def check_run(spec: RunSpec, graph: Graph) -> tuple[list[Split], list[str]]:
    """Everything that can be refused before work begins; returns splits and warnings."""
    entry = find_model(spec.model)
    entry.floats(graph, make_settings(entry.settings, spec.settings))  # makes a user's own once
    require_metric(spec.metric, graph.num_classes, f"'{graph.name}'")
    positive_class(spec.metric, graph.y[:0], graph.class_names, spec.positive)
    if spec.seeds < 1:
        raise SettingError(f"--seeds must be at least 1 (got {spec.seeds}).")
    warnings = graph_warnings(graph)
    chosen = []
    for number in spec.splits:
        split = graph.split(number)
        warnings += check_split(graph, split, number)
        chosen.append(split)
    warnings += scarce_classes(graph, chosen) + skewed_classes(graph, spec.metric)
    return chosen, warnings


_BITS = "so the last bits may differ from those of the first run."
_CONTENTS = {
    "graph_content": "The graph {} is not what it was when the run of the config was trained: "
    "attributes, edges, labels or splits have changed. The results will differ.",
    "shards_content": "The row shards are not those of the run of the config: they were made "
    "otherwise, or from another graph. The results will differ.",
}


def made_with(graph: Graph, splits: Sequence[int], device: str) -> dict[str, Any]:
    """What the same bits depend on beside the specification, as ``config.yaml`` holds it."""
    return {"graph_content": graph_content(graph, splits), **surroundings(device)}


def surroundings(device: str) -> dict[str, Any]:
    """The versions and the machine that bits depend on."""
    own = hardware(device)
    return {
        "torch": str(own["torch"]),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": own["python"],
        "processor": own["processor"],
        "threads": own["threads"],
        **({"gpu": own["device"]} if device == "cuda" else {}),
    }


def changes(config: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What has changed since a run, in sentences: its graph, and what bits depend on.

    Args:
        config: the ``config.yaml`` of the run; one that does not say has not changed.
        now: what :func:`made_with` says today.
    """
    before: Mapping[str, Any] = config.get("made_with") or {}
    found = [
        words.format(config.get("graph"))
        for name, words in _CONTENTS.items()
        if name in before and name in now and before[name] != now[name]
    ]
    versions = {"hpgmn": (config.get("version"), __version__)}
    same = {name: value for name, value in now.items() if name not in (*_CONTENTS, "shards")}
    versions |= {name: (before.get(name), value) for name, value in same.items()}
    others = [
        f"{name} {was} (now {today})"
        for name, (was, today) in versions.items()
        if was is not None and was != today
    ]
    if others:
        found.append(f"The run of the config was trained with {', '.join(others)}, {_BITS}")
    return found
