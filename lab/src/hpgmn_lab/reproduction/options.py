"""The options beyond the paper, each put in or taken out of the shipped settings, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpgmn.models.shipped import read_config
from hpgmn.statistics import averaged

Settings = Mapping[str, Any]
Option = Callable[[Settings], Settings]
"""From given settings to those with the option."""


def _with(**change: Any) -> Option:
    return lambda settings: {**settings, **change}


def _without_steps(settings: Settings) -> Settings:
    kept = tuple(name for name in settings["statistics"] if averaged(name) is None)
    return {**settings, "statistics": kept}


def _with_step(name: str) -> Option:
    return lambda settings: {
        **settings,
        "statistics": tuple(dict.fromkeys((*settings["statistics"], name))),
    }


def _diffusion_for_adjacency(settings: Settings) -> Settings:
    others = [name for name in settings["statistics"] if "adjacency" not in name]
    return {**settings, "statistics": tuple(dict.fromkeys((*others, "diffusion")))}


def _without_column_dropout(settings: Settings) -> Settings:
    names = ("attributes", "class_counts", "class_means", "diffusion", "adjacency")
    return {**settings, **{f"{name}_dropout": 0.0 for name in names}}


def _paper(settings: Settings) -> Settings:
    """The paper's model alone: nothing of the given settings stays."""
    found: Settings = read_config("paper")["settings"]
    return found


STATISTICS_OPTIONS: dict[str, Option] = {
    "paper-config": _paper,
    "without-memory": _with(memory=False),
    "without-gate": _with(gate=False),
    "without-column-dropout": _without_column_dropout,
    "diffusion-for-adjacency": _diffusion_for_adjacency,
    "without-neighbor-means": _without_steps,
    "with-neighbor-class-means": _with_step("neighbor_class_means"),
    "with-neighbor-adjacency": _with_step("neighbor_adjacency"),
    "with-refinement": _with(refinement=True),
    "without-refinement": _with(refinement=False),
    "with-soft-counts": _with(soft_counts=True),
    "train-labels-only": _with(label_confidence=1.0),
}
"""Variant → option, for HP-GMN on its statistics."""

ENCODER_OPTIONS: dict[str, Option] = {
    "without-memory": _with(memory=False),
    "without-consistency": _with(consistency_weight=0.0),
    "propagation-after": _with(propagation="after"),
    "with-batch-norm": _with(batch_norm=True),
    "without-batch-norm": _with(batch_norm=False),
}
"""Variant → option, for HP-GMN on the representation of an APPNP."""
