"""A random search by validation score; every trial is kept as a record.

The search never computes a test score. Trials that differ only in settings which replicas may
differ in are trained together, all splits at once.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hpgmn.base.settings import make_settings, per_replica_names, settings_dict
from hpgmn.base.version import __version__
from hpgmn.graph import Graph
from hpgmn.models import find_model
from hpgmn.models.stage import Replica
from hpgmn.runs.spaces import Space, literature, space_for
from hpgmn.training.replicas import Progress, fit_replicas

VARIANTS = 3
"""How many planned trials in a row share their shapes, and so are trained as one batch."""


def sample_trials(
    model: str, space: Space, structures: int, each: int, seed: int
) -> list[dict[str, Any]]:
    """Random settings: so many structures, and for each so many variants that share its shapes."""
    draw = random.Random(seed)
    free = per_replica_names(find_model(model).settings)
    trials = []
    for _ in range(structures):
        structure = {
            name: draw.choice(values) for name, values in space.items() if name not in free
        }
        for _ in range(each):
            variant = {name: draw.choice(values) for name, values in space.items() if name in free}
            trials.append(structure | variant)
    return trials


def planned_trials(
    model: str, graph: str, count: int, space: Space | None = None
) -> list[dict[str, Any]]:
    """The trials that every model of a comparison gets, known before the first is trained.

    The first is what the literature gives, or else the model's defaults; the others are drawn from
    the model's space for that kind of graph, :data:`VARIANTS` in a row with the same shapes. Fewer
    trials are the first of more.

    Args:
        model: the model's name.
        graph: the dataset's name.
        count: how many.
        space: other values to draw from.
    """
    if count < 1:
        raise ValueError(f"A search needs at least one trial (got {count}).")
    values = space_for(model, graph) if space is None else space
    structures = -(-(count - 1) // VARIANTS)
    drawn = sample_trials(model, values, structures, VARIANTS, seed=0)
    return [literature(model, graph), *drawn][:count]


def run_trials(
    graph: Graph,
    model: str,
    trials: Sequence[Mapping[str, Any]],
    *,
    splits: Sequence[int],
    seeds: int = 1,
    device: torch.device | str = "cpu",
    metric: str = "accuracy",
    positive: int = 1,
    record: Callable[[dict[str, Any]], None] | None = None,
    report: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    memory_share: float = 1.0,
) -> list[dict[str, Any]]:
    """Train every trial on every split and seed; score on validation only.

    Args:
        graph: the graph.
        model: the model's name.
        trials: settings over the model's defaults.
        splits: the splits to train on.
        seeds: how many seeds on each.
        device: "cpu" or "cuda".
        metric: what selects epochs and is recorded.
        positive: which of two classes it looks for, see :func:`hpgmn.base.metrics.metric`.
        record: called with each record.
        report: called after each epoch; what it raises ends the training.
        should_stop: asked after each epoch; True raises KeyboardInterrupt.
        memory_share: see :func:`hpgmn.training.replicas.fit_replicas`.

    Returns:
        One record per trial: settings, validation score of each run, epochs, seconds.
    """
    entry = find_model(model)
    replicas = [
        Replica(split, seed, make_settings(entry.settings, trial))
        for trial in trials
        for split in splits
        for seed in range(seeds)
    ]
    masks = [(graph.split(one.split).train, graph.split(one.split).val) for one in replicas]
    started = time.perf_counter()
    fitted = fit_replicas(
        graph,
        entry,
        replicas,
        masks,
        device=device,
        metric=metric,
        positive=positive,
        report=report,
        should_stop=should_stop,
        memory_share=memory_share,
    )
    seconds = time.perf_counter() - started
    runs = len(splits) * seeds
    last = list(fitted.best_epoch)[-1]
    records = []
    for number, trial in enumerate(trials):
        part = slice(number * runs, (number + 1) * runs)
        scores = fitted.val_score[part]
        found = {
            "graph": graph.name,
            "model": model,
            "trial": dict(trial),
            "settings": settings_dict(replicas[part][0].settings),
            "splits": list(splits),
            "seeds": seeds,
            "metric": metric,
            "val_score_mean": float(scores.double().mean()),
            "val_score": scores.tolist(),
            "val_loss": fitted.val_loss[part].tolist(),
            "best_epoch": fitted.best_epoch[last][part].tolist(),
            "seconds": seconds / len(trials),
            "version": __version__,
            "device": str(device),
        }
        records.append(found)
        if record is not None:
            record(found)
    return records


def append_record(path: Path, found: Mapping[str, Any]) -> None:
    """Add one trial to a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")


def best_trials(records: Sequence[Mapping[str, Any]], count: int = 1) -> list[Mapping[str, Any]]:
    """The trials with the highest mean validation score, ties by lower validation loss."""
    return sorted(
        records,
        key=lambda one: (-one["val_score_mean"], sum(one["val_loss"]) / len(one["val_loss"])),
    )[:count]
