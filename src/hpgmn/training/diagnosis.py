"""Explain a loss that is not finite by the statistic or the setting that causes it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hpgmn.models.stage import Replica, TrainingStage
from hpgmn.statistics import Statistic

LARGE = 1e9
"""Larger values overflow single precision, whatever the settings."""

_VALUES = 10_000_000  # inspected of each statistic
_SPREAD = 10.0  # a setting so many times its default is the likelier cause


def explain_nonfinite_loss(
    stage: TrainingStage, replica: Replica, nodes: Tensor, place: int = 0
) -> str:
    """Explain why a replica's loss is not finite, and what to do.

    Args:
        stage: what was trained.
        replica: with its settings.
        nodes: (T,) nodes whose rows are inspected.
        place: of the replica in the stage.
    """
    sizes = {
        name: size
        for name, value in stage.inputs.items()
        if (size := largest(value, nodes, place)) is not None
    }
    found = max(sizes, key=lambda name: _order(sizes[name]), default="")
    if found and not sizes[found] < LARGE:
        holds = f"up to {sizes[found]:.3g}" if math.isfinite(sizes[found]) else str(sizes[found])
        scaling = _scaling(found, replica.settings)
        remedy = "divide attributes and weights of edges by their largest value"
        remedy = f"set {scaling}=unit, or {remedy}" if scaling else remedy
        return f"Statistic '{found}' holds {holds}: {remedy}."
    name, value = _unusual(stage, replica, place)
    rest = f"no statistic holds large values (at most {sizes[found]:.3g})" if found else ""
    why = f"Setting {name} is {value:g}" + (f", and {rest}" if rest else "")
    exact = ", or set precision=float32" if stage.precision == "bfloat16" else ""
    return f"{why}. Lower {name}{exact}."


def _scaling(statistic: str, settings: Any) -> str:
    """Return the setting that scales a statistic to unit length, or "" if none or set already."""
    names = [info.name for info in dataclasses.fields(settings) if info.name.endswith("_scaling")]
    own = [name for name in names if statistic.startswith(name.removesuffix("_scaling"))]
    for name in own or names[:1]:
        if getattr(settings, name) != "unit":
            return name
    return ""


def _order(size: float) -> float:
    return math.inf if math.isnan(size) else size


def largest(value: Any, nodes: Tensor, place: int = 0) -> float | None:
    """Return the largest absolute value of an input; NaN or infinity if one of them is.

    Args:
        value: a statistic, a tensor or several of them; anything else gives None.
        nodes: whose rows of a statistic are inspected.
        place: of the replica.
    """
    if isinstance(value, Statistic):
        some = nodes[: max(1, _VALUES // max(value.width, 1))]
        value = value.rows(some, place)
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            coo: Any = value
            value = coo.to_sparse_coo().coalesce().values()
        return float(value.detach().float().abs().max()) if value.numel() else 0.0
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        sizes = [size for one in value if (size := largest(one, nodes, place)) is not None]
        return max(sizes, key=_order, default=None)
    return None


def _unusual(stage: TrainingStage, replica: Replica, place: int) -> tuple[str, float]:
    """Return the setting that exceeds its default most, and its value."""
    settings = replica.settings
    defaults: dict[str, Any] = {info.name: info.default for info in dataclasses.fields(settings)}
    lr = "estimator_lr" if stage.name == "estimator" and "estimator_lr" in defaults else "lr"
    decay = lr.replace("lr", "weight_decay")
    names = [decay] + [f"{name}_weight" for name in (*stage.penalty_weights, "consistency")]
    ratios = {
        name: getattr(settings, name) / (defaults[name] or 1.0)
        for name in names
        if name in defaults and isinstance(getattr(settings, name), int | float)
    }
    # The learning rate is named unless another setting exceeds its default by far.
    ratios = {name: ratio for name, ratio in ratios.items() if ratio > _SPREAD}
    ratios[lr] = stage.lr[place] / (defaults.get(lr) or 1.0)
    name = max(ratios, key=lambda one: ratios[one])
    return name, stage.lr[place] if name == lr else float(getattr(settings, name))
