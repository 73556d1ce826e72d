"""The trials of a search: which values are tried, and their training on validation nodes.

No test score is computed. Trials that differ only in settings which replicas may differ in are
trained together, all splits at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hpgmn.base.settings import (
    make_settings,
    per_replica_names,
    read_yaml,
    settings_dict,
    settings_names,
)
from hpgmn.base.version import __version__
from hpgmn.graph import Graph
from hpgmn.graph.calibration import reserve_calibration
from hpgmn.models import find_model
from hpgmn.models.stage import Replica
from hpgmn.training.replicas import Progress, fit_replicas

Space = Mapping[str, Sequence[Any]]
"""For each setting the values to try."""

VARIANTS = 3
"""How many planned trials in a row share their shapes, and so are trained as one batch."""

_KINDS = {
    "webkb": ("texas", "wisconsin", "cornell", "cornell-geomgcn"),
    "citation": ("cora", "citeseer", "pubmed"),
    "wikipedia": ("chameleon", "squirrel", "chameleon-filtered", "squirrel-filtered"),
    "crocodile": ("crocodile",),
}
DEFECTIVE = {
    "chameleon-filtered": "chameleon",
    "squirrel-filtered": "squirrel",
    "cornell": "cornell-geomgcn",
}
"""Cleaned dataset → original dataset, for which the literature gives settings."""


def kind_of(graph: str) -> str:
    """Return the kind of graph a dataset is.

    >>> kind_of("texas"), kind_of("squirrel"), kind_of("cora")
    ('webkb', 'wikipedia', 'citation')
    """
    return next((kind for kind, names in _KINDS.items() if graph in names), "other")


@cache
def _content(name: str) -> dict[str, Any]:
    return read_yaml(Path(__file__).with_name(name))


def _values(space: Space) -> Space:
    """Return a space whose lists of names are tuples, as settings hold them."""
    return {
        name: [tuple(value) if isinstance(value, list) else value for value in values]
        for name, values in space.items()
    }


def paper_space() -> Space:
    """Return the search space that the paper prints."""
    return _values(_content("spaces.yaml")["paper"])


def space_for(model: str, graph: str) -> Space:
    """Return the values to try for a model on a graph, by the graph's kind.

    >>> space_for("hpgmn", "texas")["neighbors"], space_for("mlp", "texas")["layers"]
    (['undirected', 'out'], [2, 3])
    """
    content, kind = _content("spaces.yaml"), kind_of(graph)
    spaces = content["hpgmn"].get(model)
    if spaces is not None:
        return _values(spaces[kind] if kind in spaces else next(iter(spaces.values())))
    known = settings_names(find_model(model).settings)
    shared = {name: values for name, values in content["shared"][kind].items() if name in known}
    added = content["baselines"].get(model, {})
    return _values(shared | added.get("any", {}) | added.get(kind, {}))


def literature(model: str, graph: str) -> dict[str, Any]:
    """Return the settings that the literature gives for a baseline; empty without any.

    >>> literature("dirgcn", "squirrel")["layers"], literature("hpgmn", "squirrel")
    (4, {})
    """
    known = {
        name: entry["settings"]
        for entry in _content("literature.yaml").get(model, ())
        for name in entry["graphs"]
    }
    # Fall back to the settings published for the original dataset.
    for name in (graph, DEFECTIVE.get(graph, graph), "default"):
        if name in known:
            return dict(known[name])
    return {}


def sample_trials(
    model: str, space: Space, structures: int, each: int, seed: int
) -> list[dict[str, Any]]:
    """Draw random settings: structures, and for each some variants that share its shapes."""
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
    """Return the trials that every model of a comparison gets, known before the first is trained.

    The first is what the literature gives, or else the model's defaults; the others are drawn from
    the model's space for that kind of graph, :data:`VARIANTS` in a row with the same shapes. Fewer
    trials are the first of more.
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
    report: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    memory_share: float = 1.0,
) -> list[dict[str, Any]]:
    """Train every trial on every split and seed; score on validation only.

    Args:
        trials: settings over the model's defaults.
        seeds: seeds per split.
        report: called after each epoch; what it raises ends the training.

    The other options are those of :func:`hpgmn.training.replicas.fit_replicas`.

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
    chosen = {number: graph.split(number) for number in splits}
    if graph.is_regression:  # as the run that will be trained
        for number, split in chosen.items():
            chosen[number] = reserve_calibration(split, number, graph.node_ids)
    masks = [(chosen[run.split].train, chosen[run.split].val) for run in replicas]
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
    seconds = (time.perf_counter() - started) / len(trials)
    runs = len(splits) * seeds
    last = list(fitted.best_epoch)[-1]
    records = []
    for number, trial in enumerate(trials):
        part = slice(number * runs, (number + 1) * runs)
        scores = fitted.val_score[part]
        record = {
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
            "seconds": seconds,
            "version": __version__,
            "device": str(device),
        }
        records.append(record)
    return records


def best_record(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the trial with the highest mean validation score, ties by lower validation loss."""
    return min(
        records,
        key=lambda record: (
            -record["val_score_mean"],
            sum(record["val_loss"]) / len(record["val_loss"]),
        ),
    )
