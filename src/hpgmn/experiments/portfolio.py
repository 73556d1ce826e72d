"""Settings without tuning: a few that have worked elsewhere, tried on the graph at hand.

The members differ in whose edges count, in how strongly the model is held back and in what it reads
of the graph. All are trained, the best on validation nodes is taken; no test label is read. The
members lie near what the searches of ``results/search`` found by validation score.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from hpgmn.config import make_settings, per_replica_names, plain, settings_dict
from hpgmn.errors import HPGMNError
from hpgmn.experiments.search import run_trials
from hpgmn.graph import Graph
from hpgmn.metrics import require_metric
from hpgmn.models import find_model
from hpgmn.training.checks import check_split
from hpgmn.training.replicas import Progress

logger = logging.getLogger(__name__)

BUDGET_SECONDS = 900.0
"""After this long no further member is trained; those that are left are named."""

MOST_SPLITS = 3
"""Members are tried on no more splits than this."""

ENOUGH_NODES = 1000
"""Splits with this many validation nodes together are enough."""

LARGE_NODES = 20_000
"""A graph with more nodes gets :data:`LARGE_PORTFOLIO`."""


class Member(NamedTuple):
    """One member of a portfolio: its name, the model, and settings over the model's defaults."""

    name: str
    model: str
    settings: dict[str, Any]


_CLASSES = ("attributes", "class_counts", "class_means")
_ROWS_TOO = (*_CLASSES, "adjacency")

# As on the Wikipedia graphs: whom a node links to says most, its attributes little.
_ROWS: dict[str, Any] = {
    "statistics": (*_ROWS_TOO, "neighbor_class_means"),
    "encoder_layers": 1,
    "classifier_layers": 1,
    "class_means_scaling": "unit",
    "epochs": 250,
    "patience": 60,
    "lr": 0.02,
    "entropy_weight": 0.1,
    "class_counts_dropout": 0.2,
    "class_means_dropout": 0.3,
    "adjacency_dropout": 0.3,
}
_LIGHT = {"weight_decay": 2e-5, "dropout": 0.1, "attributes_dropout": 0.85}
_MIDDLE = {"weight_decay": 1e-3, "dropout": 0.5, "attributes_dropout": 0.5}

# As on the WebKB graphs: a hundred train nodes with many attributes.
_STRONG: dict[str, Any] = {
    "statistics": (*_ROWS_TOO, "neighbor_class_means"),
    "encoder_layers": 1,
    "classifier_layers": 2,
    "adjacency_scaling": "raw",
    "num_patterns": 20,
    "epochs": 300,
    "patience": 100,
    "lr": 0.01,
    "weight_decay": 0.01,
    "dropout": 0.6,
    "attributes_dropout": 0.2,
    "class_counts_dropout": 0.2,
    "class_means_dropout": 0.9,
    "adjacency_dropout": 0.6,
    "kpattern_weight": 1e-4,
    "entropy_weight": 1e-3,
    "norm_weight": 1e-4,
    "estimator_weight_decay": 5e-3,
}

# As on crocodile: many train nodes with few dense attributes.
_DENSE: dict[str, Any] = {
    "statistics": (*_ROWS_TOO, "neighbor_class_counts", "neighbor_class_means"),
    "neighbors": "undirected",
    "encoder_layers": 2,
    "classifier_layers": 2,
    "epochs": 250,
    "patience": 60,
    "lr": 0.01,
    "weight_decay": 2e-4,
    "dropout": 0.4,
    "attributes_dropout": 0.0,
    "class_counts_dropout": 0.3,
    "class_means_dropout": 0.2,
    "adjacency_dropout": 0.0,
    "norm_weight": 1e-4,
    "estimator_dropout": 0.3,
}

# Few attributes, of neighbours, too, and nothing that knows which node is which: nodes may change.
# No classes of two steps: those of a train node hold its own label.
_AROUND: dict[str, Any] = {
    "statistics": (*_CLASSES, "neighbor_attributes"),
    "neighbors": "undirected",
    "encoder_layers": 2,
    "classifier_layers": 2,
    "epochs": 250,
    "patience": 60,
    "lr": 0.01,
    "weight_decay": 1e-4,
    "dropout": 0.2,
    "attributes_dropout": 0.0,
    "class_means_dropout": 0.0,
}

_DIFFUSION: dict[str, Any] = _STRONG | {
    "statistics": (*_CLASSES, "diffusion"),
    "neighbors": "undirected",
    "diffusion_self_entry": True,
    "num_patterns": 50,
    "dropout": 0.5,
    "class_means_dropout": 0.6,
    "diffusion_dropout": 0.6,
}

# The graph is not read at all: a network of the attributes, with memory.
_ATTRIBUTES: dict[str, Any] = {
    "statistics": ("attributes",),
    "neighbors": "undirected",
    "encoder_layers": 1,
    "classifier_layers": 2,
    "num_patterns": 20,
    "epochs": 300,
    "patience": 100,
    "lr": 0.01,
    "dropout": 0.5,
    "kpattern_weight": 1e-4,
    "entropy_weight": 1e-3,
    "norm_weight": 1e-4,
}

# As on the citation graphs: neighbours are alike, and few nodes have labels.
_ALIKE: dict[str, Any] = {
    "propagation": "before",
    "mixing": "mean",
    "rounds": 8,
    "encoder": "pretrained",
    "classifier_layers": 2,
    "num_patterns": 20,
    "pretraining_epochs": 400,
    "epochs": 400,
    "patience": 100,
    "consistency_passes": 4,
    "consistency_temperature": 0.5,
    "node_dropout": 0.5,
    "lr": 0.1,
    "entropy_weight": 1e-3,
}

PORTFOLIO: tuple[Member, ...] = (
    Member("both directions", "hpgmn", {}),
    Member("undirected, strong", "hpgmn", _STRONG | {"neighbors": "undirected"}),
    Member("out, strong", "hpgmn", _STRONG | {"neighbors": "out"}),
    Member("out, light", "hpgmn", _ROWS | _LIGHT | {"neighbors": "out"}),
    Member("undirected, light", "hpgmn", _ROWS | _LIGHT | {"neighbors": "undirected"}),
    Member("undirected, middle", "hpgmn", _ROWS | _MIDDLE | {"neighbors": "undirected"}),
    Member("dense attributes", "hpgmn", _DENSE),
    Member("attributes around", "hpgmn", _AROUND),
    Member("diffusion", "hpgmn", _DIFFUSION),
    Member(
        "attributes, strong",
        "hpgmn",
        _ATTRIBUTES | {"weight_decay": 5e-3, "attributes_dropout": 0.2},
    ),
    Member(
        "alike",
        "hpgmn-appnp",
        _ALIKE
        | {"batch_norm": True, "weight_decay": 2e-3, "dropout": 0.2, "attributes_dropout": 0.4},
    ),
    Member(
        "alike, strong",
        "hpgmn-appnp",
        _ALIKE | {"weight_decay": 5e-3, "dropout": 0.0, "attributes_dropout": 0.5},
    ),
)
"""What is tried, in this order; those of equal shapes are trained as one."""

_BATCHES: dict[str, Any] = {"batch_size": 4096, "epochs": 60, "patience": 15}

LARGE_PORTFOLIO: tuple[Member, ...] = (
    Member("both directions", "hpgmn", _BATCHES | {"weight_decay": 5e-5, "dropout": 0.2}),
    Member(
        "both directions, classes",
        "hpgmn",
        _BATCHES | {"statistics": _CLASSES, "weight_decay": 5e-5, "dropout": 0.2},
    ),
    Member(
        "attributes",
        "hpgmn",
        _ATTRIBUTES | _BATCHES | {"weight_decay": 5e-5, "attributes_dropout": 0.0},
    ),
    Member(
        "alike",
        "hpgmn-gcn",
        {
            "encoder": "joint",
            "consistency_weight": 0.0,
            "epochs": 200,
            "patience": 40,
            "weight_decay": 5e-4,
            "attributes_dropout": 0.3,
        },
    ),
)
"""What is tried on a large graph: batches of rows and fewer epochs."""


@dataclass(frozen=True)
class Choice:
    """What a portfolio came to.

    Attributes:
        name: the chosen member.
        model: its model.
        settings: its settings over the model's defaults, ready for ``HPGMNClassifier``.
        content: everything as JSON holds it: see :meth:`as_dict`.
    """

    name: str
    model: str
    settings: dict[str, Any]
    content: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """``chosen``, ``metric``, ``splits``, ``seeds``, ``seconds``, ``note`` and ``members``.

        A member has ``name``, ``model``, ``settings``, ``val_score`` of each run with
        ``val_score_mean``, ``val_loss_mean``, ``seconds``, and ``failure``: why it was left out.
        """
        return self.content

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Choice:
        """The choice that :meth:`as_dict` has written."""
        try:
            [member] = [row for row in content["members"] if row["name"] == content["chosen"]]
            return cls(member["name"], member["model"], dict(member["settings"]), content)
        except (KeyError, TypeError, ValueError) as error:
            raise HPGMNError(
                f"The choice of settings in the run folder is damaged ({error!r}). Start anew with "
                "--overwrite."
            ) from None

    def sentence(self) -> str:
        """What was chosen, and by how much."""
        scored = [row for row in self.content["members"] if row["failure"] is None]
        others = [row["val_score_mean"] for row in scored if row["name"] != self.name]
        [best] = [row["val_score_mean"] for row in scored if row["name"] == self.name]
        count = len(self.content["splits"])
        words = (
            f"Chosen on the validation nodes of {count} split{'s' * (count > 1)}: "
            f"'{self.name}' ({self.model}), {self.content['metric']} {100 * best:.1f}"
        )
        return f"{words}; the next has {100 * max(others):.1f}." if others else f"{words}."


def members_for(graph: Graph) -> tuple[tuple[Member, ...], str | None]:
    """The members to try on a graph, and a sentence about it where they are not the usual ones."""
    if graph.num_nodes > LARGE_NODES:
        return LARGE_PORTFOLIO, (
            f"The graph has more than {LARGE_NODES:,} nodes, so {len(LARGE_PORTFOLIO)} members are "
            f"tried instead of {len(PORTFOLIO)}, with batches of rows and fewer epochs."
        )
    if not _runs_both_ways(graph):
        return PORTFOLIO, None
    different: dict[str, Member] = {}
    for member in PORTFOLIO:
        settings = dict(member.settings)
        if settings.get("neighbors") in ("out", "in"):
            settings["neighbors"] = "undirected"
        different.setdefault(repr((member.model, sorted(settings.items()))), member)
    members = tuple(different.values())
    return members, (
        f"Every edge runs both ways, so {len(PORTFOLIO) - len(members)} of {len(PORTFOLIO)} "
        "members would be as others and are not tried."
    )


def _runs_both_ways(graph: Graph) -> bool:
    """Whether out-neighbours, in-neighbours and all neighbours are the same."""
    if not graph.directed:
        return True
    own, all_ = graph.adjacency("out"), graph.adjacency("undirected")
    return not graph.is_weighted and own.nnz == all_.nnz


def splits_to_try(graph: Graph, splits: Sequence[int]) -> list[int]:
    """The first splits that have enough validation nodes together, three at most."""
    chosen: list[int] = []
    nodes = 0
    for number in splits[:MOST_SPLITS]:
        if nodes >= ENOUGH_NODES:
            break
        chosen.append(number)
        nodes += int(graph.split(number).val.sum())
    return chosen


def choose(
    graph: Graph,
    splits: Sequence[int] | None = None,
    *,
    seeds: int = 1,
    device: torch.device | str = "cpu",
    metric: str = "accuracy",
    members: Sequence[Member] | None = None,
    budget: float = BUDGET_SECONDS,
    report: Callable[[str, Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Choice:
    """Train the members of the portfolio and take the best on validation nodes.

    Members that cannot be trained (memory, refused settings) or for which no time is left are left
    out and say why. The highest mean validation score wins; ties go to the lower validation loss.

    Args:
        graph: the graph.
        splits: the stored splits to choose on, of which the first few are taken
            (:func:`splits_to_try`); None for all.
        seeds: how many seeds on each.
        device: "cpu" or "cuda".
        metric: what selects epochs and the member.
        members: what to try; None for the usual ones (:func:`members_for`).
        budget: seconds after which no further member is trained; one is in any case.
        report: called after each epoch with the members in training.
        should_stop: asked after each epoch; True raises KeyboardInterrupt.

    >>> from hpgmn.datasets import trading_network
    >>> graph = trading_network(num_nodes=200, seed=1).graph
    >>> short = {"epochs": 2, "estimator_epochs": 2, "hidden_dim": 4}
    >>> choose(graph, [0], members=[Member("short", "hpgmn", short)]).settings
    {'epochs': 2, 'estimator_epochs': 2, 'hidden_dim': 4}
    """
    started = time.perf_counter()
    require_metric(metric, graph.num_classes, f"'{graph.name}'")
    tried, note = members_for(graph) if members is None else (tuple(members), None)
    numbers = splits_to_try(graph, _all_splits(graph) if splits is None else list(splits))
    for number in numbers:
        check_split(graph, graph.split(number), number)
    clock = _Clock(started + budget, report)
    rows: dict[str, dict[str, Any]] = {}

    def train(some: Sequence[Member]) -> list[dict[str, Any]]:
        return run_trials(
            graph,
            some[0].model,
            [one.settings for one in some],
            splits=numbers,
            seeds=seeds,
            device=device,
            metric=metric,
            report=clock.told(some, is_first=not _scored(rows)),
            should_stop=should_stop,
        )

    for group in _groups(tried):
        rows.update(_trained(group, train))
    best = _best(list(rows.values()), graph)
    content = {
        "chosen": best["name"],
        "metric": metric,
        "splits": numbers,
        "seeds": seeds,
        "seconds": time.perf_counter() - started,
        "note": note,
        "members": [rows[one.name] for one in tried],
    }
    return Choice.from_dict(content)


def _all_splits(graph: Graph) -> list[int]:
    graph.split(0)  # says what to do where there are none
    return list(range(len(graph.splits or ())))


def _groups(members: Sequence[Member]) -> list[list[Member]]:
    """Members of equal shapes together, in the order of their first; refused ones alone."""
    groups: dict[str, list[Member]] = {}
    for member in members:
        kind = find_model(member.model).settings
        free = per_replica_names(kind)
        try:
            values = settings_dict(make_settings(kind, member.settings))
        except HPGMNError:
            groups[member.name] = [member]
            continue
        shape = {name: value for name, value in values.items() if name not in free}
        both = values.get("neighbors") == "both"
        groups.setdefault(repr((member.model, both, sorted(shape.items()))), []).append(member)
    return list(groups.values())


class _NoTime(Exception):
    """The budget is spent."""


class _Clock:
    """Ends a training when the budget is spent, and passes its progress on."""

    def __init__(self, end: float, report: Callable[[str, Progress], None] | None) -> None:
        self.end, self.report = end, report

    def told(self, members: Sequence[Member], *, is_first: bool) -> Callable[[Progress], None]:
        """What is called after each epoch; the first members are trained to their end."""
        names = " and ".join(f"'{member.name}'" for member in members)

        def tell(now: Progress) -> None:
            if not is_first and time.perf_counter() > self.end:
                raise _NoTime
            if self.report is not None:
                self.report(names, now)

        return tell


def _trained(
    group: Sequence[Member], train: Callable[[Sequence[Member]], list[dict[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """The rows of members trained together; where that fails, one by one."""
    started = time.perf_counter()
    try:
        found = train(group)
    except _NoTime:
        failure = "no time was left"
    except HPGMNError as error:
        if len(group) > 1:
            alone = [_trained([member], train) for member in group]
            return {name: row for rows in alone for name, row in rows.items()}
        failure = str(error)
    else:
        return {
            member.name: _row(member, record) for member, record in zip(group, found, strict=True)
        }
    seconds = (time.perf_counter() - started) / len(group)
    for member in group:
        logger.warning("'%s' is left out of the portfolio: %s", member.name, failure)
    return {member.name: _row(member, None, failure, seconds) for member in group}


def _row(
    member: Member,
    record: Mapping[str, Any] | None,
    failure: str | None = None,
    seconds: float = 0.0,
) -> dict[str, Any]:
    losses = [] if record is None else record["val_loss"]
    return {
        "name": member.name,
        "model": member.model,
        "settings": {name: plain(value) for name, value in member.settings.items()},
        "val_score": [] if record is None else record["val_score"],
        "val_score_mean": None if record is None else record["val_score_mean"],
        "val_loss_mean": None if record is None else sum(losses) / len(losses),
        "seconds": seconds if record is None else record["seconds"],
        "failure": failure,
    }


def _scored(rows: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(row["failure"] is None for row in rows.values())


def _best(rows: Sequence[Mapping[str, Any]], graph: Graph) -> Mapping[str, Any]:
    scored = [row for row in rows if row["failure"] is None]
    if not scored:
        raise HPGMNError(
            f"No member of the portfolio can be trained on '{graph.name}'. Name a model with "
            f"--model, or take the default with --no-portfolio. {rows[0]['name']}: "
            f"{rows[0]['failure']}"
        )
    return max(scored, key=lambda row: (row["val_score_mean"], -row["val_loss_mean"]))
