"""The members of the portfolio: settings near what the searches found by validation score.

They differ in whose edges count, in how strongly the model is held back and in what it reads of the
graph. ``results/search`` has the searches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hpgmn.graph import Graph

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

_STRONGER = {
    "weight_decay": 0.02,
    "attributes_dropout": 0.0,
    "class_counts_dropout": 0.0,
    "norm_weight": 1e-5,
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

# Neighbours are alike, those of two steps are enough.
_NEAR: dict[str, Any] = {
    "mixing": "ppr",
    "rounds": 2,
    "encoder": "joint",
    "batch_norm": True,
    "hidden_dim": 32,
    "epochs": 500,
    "patience": 120,
    "consistency_weight": 3.0,
    "entropy_weight": 0.1,
    "weight_decay": 2e-3,
    "dropout": 0.2,
    "attributes_dropout": 0.5,
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
    Member("diffusion, strong", "hpgmn", _DIFFUSION | _STRONGER),
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
    Member("alike, near", "hpgmn-appnp", _ALIKE | _NEAR),
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
    """Whether out-neighbours, in-neighbours and all neighbours are the same, weights and all."""
    if not graph.directed:
        return True
    return not graph.is_weighted and not graph.has_one_way_edges
