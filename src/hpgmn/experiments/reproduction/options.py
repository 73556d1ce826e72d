"""The options beyond the paper, each put in or taken out of the shipped settings, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpgmn.shipped import read_config

Settings = Mapping[str, Any]
Option = Callable[[Settings], Settings]
"""What an option changes in given settings."""

_STEP = "neighbor_"


def _toggled(name: str, default: bool) -> Option:
    return lambda settings: {name: not settings.get(name, default)}


def _always(**change: Any) -> Option:
    return lambda settings: change


def _without_steps(settings: Settings) -> Settings:
    kept = tuple(name for name in settings["statistics"] if not name.startswith(_STEP))
    return {"statistics": kept}


def _with_step(name: str) -> Option:
    return lambda settings: {"statistics": tuple(dict.fromkeys((*settings["statistics"], name)))}


def _diffusion_for_adjacency(settings: Settings) -> Settings:
    others = [name for name in settings["statistics"] if "adjacency" not in name]
    return {"statistics": tuple(dict.fromkeys((*others, "diffusion")))}


def _without_column_dropout(settings: Settings) -> Settings:
    names = ("attributes", "class_counts", "class_means", "diffusion", "adjacency")
    return {f"{name}_dropout": 0.0 for name in names}


def _paper(settings: Settings) -> Settings:
    found: Settings = read_config("paper")["settings"]
    return found


STATISTICS_OPTIONS: dict[str, Option] = {
    "paper-config": _paper,
    "without-memory": _always(memory=False),
    "without-gate": _always(gate=False),
    "without-column-dropout": _without_column_dropout,
    "diffusion-for-adjacency": _diffusion_for_adjacency,
    "without-neighbor-means": _without_steps,
    "with-neighbor-class-means": _with_step("neighbor_class_means"),
    "with-neighbor-adjacency": _with_step("neighbor_adjacency"),
    "refinement-switched": _toggled("refinement", False),
    "with-soft-counts": _always(soft_counts=True),
    "train-labels-only": _always(label_confidence=1.0),
}
"""Variant → option, for HP-GMN on its statistics."""

ENCODER_OPTIONS: dict[str, Option] = {
    "without-memory": _always(memory=False),
    "without-consistency": _always(consistency_weight=0.0),
    "propagation-after": _always(propagation="after"),
    "batch-norm-switched": _toggled("batch_norm", False),
}
"""Variant → option, for HP-GMN on the representation of an APPNP."""
