"""The search spaces of HP-GMN: for each kind of graph the values to try; and the paper's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpgmn.runs.baseline_spaces import baseline_space, kind_of

Space = Mapping[str, Sequence[Any]]
"""For each setting the values to try."""

_FOUR = ("attributes", "class_counts", "class_means", "diffusion")
_ADJACENCY = ("attributes", "class_counts", "class_means", "adjacency")

_WEBKB: dict[str, list[Any]] = {
    "statistics": [_FOUR, _ADJACENCY],
    "hidden_dim": [64, 128],
    "encoder_layers": [1, 2],
    "classifier_layers": [1, 2],
    "unit_encodings": [False, True],
    "class_counts_scaling": ["log", "fraction"],
    "diffusion_scaling": ["raw", "unit"],
    "diffusion_self_entry": [True, False],
    "num_patterns": [20, 50],
    "epochs": [300],
    "patience": [100],
    "neighbors": ["undirected"],
    "lr": [0.003, 0.01, 0.03],
    "weight_decay": [5e-4, 1e-3, 5e-3, 1e-2],
    "dropout": [0.0, 0.2, 0.5, 0.7],
    "attributes_dropout": [0.0, 0.2, 0.5, 0.8],
    "class_means_dropout": [0.0, 0.3, 0.6, 0.9],
    "class_counts_dropout": [0.0, 0.2, 0.5],
    "diffusion_dropout": [0.0, 0.3, 0.6, 0.9],
    "adjacency_dropout": [0.0, 0.3, 0.6, 0.9],
    "kpattern_weight": [1e-4, 1e-3, 1e-2],
    "entropy_weight": [1e-3, 1e-2, 1e-1],
    "norm_weight": [0.0, 1e-5, 1e-4, 1e-3],
    "estimator_weight_decay": [5e-4, 5e-3],
    "estimator_dropout": [0.2, 0.5, 0.8],
}

_WIKIPEDIA: dict[str, list[Any]] = {
    "statistics": [_FOUR, _ADJACENCY, (*_FOUR, "adjacency")],
    "hidden_dim": [64, 128],
    "encoder_layers": [1, 2],
    "classifier_layers": [1, 2],
    "unit_encodings": [False, True],
    "class_counts_scaling": ["log"],
    "class_means_scaling": ["raw", "unit"],
    "diffusion_scaling": ["unit"],
    "diffusion_self_entry": [False],
    "teleport": [0.15, 0.3],
    "normalization": ["column", "row", "symmetric"],
    "adjacency_scaling": ["raw", "unit"],
    "num_patterns": [50],
    "epochs": [300],
    "patience": [100],
    "neighbors": ["out"],
    "lr": [0.003, 0.01, 0.02],
    "weight_decay": [0.0, 1e-5, 5e-5, 2e-4],
    "dropout": [0.0, 0.2, 0.4],
    "attributes_dropout": [0.5, 0.8, 0.9],
    "class_means_dropout": [0.3, 0.5, 0.7],
    "class_counts_dropout": [0.0],
    "diffusion_dropout": [0.3, 0.5, 0.7],
    "adjacency_dropout": [0.3, 0.5, 0.7],
    "kpattern_weight": [1e-4, 1e-3, 1e-2],
    "entropy_weight": [1e-3, 1e-2, 1e-1],
    "norm_weight": [0.0, 1e-5, 1e-4],
    "estimator_weight_decay": [5e-4],
    "estimator_dropout": [0.5],
}

_CROCODILE: dict[str, list[Any]] = _WIKIPEDIA | {
    "statistics": [_FOUR, _ADJACENCY],
    "diffusion_scaling": ["raw", "unit"],
    "attributes_dropout": [0.0, 0.2, 0.5],
    "class_means_dropout": [0.0, 0.2, 0.5],
    "diffusion_dropout": [0.0, 0.3, 0.6],
    "adjacency_dropout": [0.0, 0.3, 0.6],
    "estimator_dropout": [0.0, 0.3],
}

_OTHER: dict[str, list[Any]] = _WIKIPEDIA | {
    "statistics": [_FOUR, _ADJACENCY],
    "class_counts_scaling": ["log", "fraction"],
    "normalization": ["column", "symmetric"],
    "neighbors": ["undirected", "out"],
    "lr": [0.003, 0.01, 0.03],
    "weight_decay": [0.0, 5e-5, 5e-4, 5e-3],
    "dropout": [0.0, 0.2, 0.5],
    "attributes_dropout": [0.0, 0.3, 0.6],
    "class_means_dropout": [0.0, 0.3, 0.6],
    "diffusion_dropout": [0.3, 0.6, 0.9],
    "adjacency_dropout": [0.3, 0.6, 0.9],
}

_CITATION: dict[str, list[Any]] = {
    "encoder": ["pretrained", "finetuned", "joint"],
    "attributes_scaling": ["fraction", "unit"],
    "hidden_dim": [32, 64],
    "query_dim": [16, 64],
    "classifier_layers": [1, 2],
    "num_patterns": [20, 50],
    "epochs": [500],
    "patience": [150],
    "pretraining_epochs": [500],
    "consistency_passes": [2, 4],
    "consistency_temperature": [0.3, 0.5],
    "lr": [0.005, 0.01, 0.03],
    "weight_decay": [5e-4, 2e-3, 5e-3],
    "dropout": [0.3, 0.5, 0.7],
    "attributes_dropout": [0.0, 0.3, 0.6, 0.8],
    "node_dropout": [0.0, 0.3, 0.5],
    "consistency_weight": [0.3, 1.0],
    "kpattern_weight": [1e-4, 1e-3, 1e-2],
    "entropy_weight": [1e-3, 1e-2, 1e-1],
    "norm_weight": [0.0, 1e-5, 1e-4],
}

_APPNP: dict[str, list[Any]] = _CITATION | {"rounds": [10, 20], "teleport": [0.05, 0.1, 0.2]}

# A comparison gives HP-GMN the choices that other models have: the rounds below had been told which
# neighbours a kind of graph wants, and how strong a dropout of its attributes.
_KINDS: dict[str, dict[str, dict[str, list[Any]]]] = {
    "hpgmn": {
        "webkb": _WEBKB | {"neighbors": ["undirected", "out"]},
        "wikipedia": _WIKIPEDIA
        | {"neighbors": ["out", "undirected"], "attributes_dropout": [0.0, 0.5, 0.8]},
        "crocodile": _CROCODILE,
        "other": _OTHER,
    },
    "hpgmn-gcn": {"citation": _CITATION},
    "hpgmn-appnp": {"citation": _APPNP},
}

PAPER_SPACE: dict[str, list[Any]] = {
    "num_patterns": [20, 50, 100, 200, 300, 500],
    "hidden_dim": [100, 200, 300, 500],
    "kpattern_weight": [1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0],
    "entropy_weight": [1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0],
}
"""The search space that the paper prints."""


def space_for(model: str, graph: str) -> Space:
    """The values to try for a model on a graph, by the graph's kind.

    >>> space_for("hpgmn", "texas")["neighbors"], space_for("mlp", "texas")["layers"]
    (['undirected', 'out'], [2, 3])
    """
    own = _KINDS.get(model)
    if own is None:
        return baseline_space(model, graph)
    kind = kind_of(graph)
    return own[kind] if kind in own else next(iter(own.values()))


SPACES: dict[tuple[str, str], dict[str, list[Any]]] = {
    **{("hpgmn", name): _WEBKB for name in ("texas", "wisconsin", "cornell", "cornell-geomgcn")},
    **{("hpgmn", name): _WIKIPEDIA for name in ("chameleon", "squirrel")},
    ("hpgmn", "crocodile"): _CROCODILE,
    **{("hpgmn-gcn", name): _CITATION for name in ("cora", "citeseer", "pubmed")},
    **{("hpgmn-appnp", name): _APPNP for name in ("cora", "citeseer", "pubmed")},
}
"""(model, graph) → setting → values."""

_CALM_WEBKB: dict[str, list[Any]] = _WEBKB | {
    "hidden_dim": [64],
    "class_counts_scaling": ["log"],
    "diffusion_scaling": ["unit"],
    "lr": [0.01, 0.03],
    "weight_decay": [1e-3, 5e-3, 1e-2, 2e-2],
    "dropout": [0.2, 0.5, 0.7],
    "attributes_dropout": [0.0, 0.2, 0.5],
    "class_means_dropout": [0.6, 0.9, 0.95],
    "diffusion_dropout": [0.3, 0.6, 0.9],
    "adjacency_dropout": [0.3, 0.6, 0.9],
    "kpattern_weight": [1e-4, 1e-3],
    "entropy_weight": [1e-3, 1e-2],
    "norm_weight": [1e-5, 1e-4, 1e-3],
    "estimator_weight_decay": [5e-3],
}

_LEAN_WIKIPEDIA: dict[str, list[Any]] = _WIKIPEDIA | {
    "statistics": [_ADJACENCY],
    "hidden_dim": [64],
    "unit_encodings": [False],
    "epochs": [250],
    "patience": [60],
    "weight_decay": [1e-5, 5e-5, 2e-4],
    "attributes_dropout": [0.8, 0.9, 0.95],
    "class_counts_dropout": [0.0, 0.3],
    "kpattern_weight": [1e-4, 1e-3],
}

_LEAN_CROCODILE: dict[str, list[Any]] = _CROCODILE | {
    "statistics": [_ADJACENCY],
    "hidden_dim": [64, 128],
    "class_means_scaling": ["raw"],
    "class_counts_dropout": [0.0, 0.3],
    "epochs": [250],
    "patience": [60],
}

_CONSISTENT: dict[str, list[Any]] = _APPNP | {
    "encoder": ["pretrained", "finetuned"],
    "attributes_scaling": ["unit"],
    "hidden_dim": [64],
    "consistency_temperature": [0.2, 0.3, 0.5],
    "lr": [0.01, 0.03],
    "attributes_dropout": [0.3, 0.6, 0.8],
    "consistency_weight": [1.0, 2.0],
    "kpattern_weight": [1e-4, 1e-3],
}

NARROWED: dict[tuple[str, str], dict[str, list[Any]]] = {
    **{
        ("hpgmn", name): _CALM_WEBKB
        for name in ("texas", "wisconsin", "cornell", "cornell-geomgcn")
    },
    **{("hpgmn", name): _LEAN_WIKIPEDIA for name in ("chameleon", "squirrel")},
    ("hpgmn", "crocodile"): _LEAN_CROCODILE,
    **{("hpgmn-appnp", name): _CONSISTENT for name in ("cora", "citeseer", "pubmed")},
}
"""The second round: what the first one, by validation score, left worth trying."""

_MIXED: dict[str, list[Any]] = _CITATION | {
    "propagation": ["before"],
    "mixing": ["mean", "ppr"],
    "teleport": [0.1, 0.2],
    "batch_norm": [False, True],
    "epochs": [800],
    "patience": [200],
    "consistency_warmup": [0, 50],
    "consistency_passes": [4],
    "consistency_temperature": [0.2, 0.3, 0.5],
    "lr": [0.01, 0.03, 0.1, 0.2],
    "weight_decay": [5e-4, 1e-3, 5e-3],
    "dropout": [0.0, 0.2, 0.5, 0.8],
    "attributes_dropout": [0.0, 0.5, 0.6],
    "node_dropout": [0.5],
    "consistency_weight": [0.7, 1.0, 2.0],
}

MIXED: dict[tuple[str, str], dict[str, list[Any]]] = {
    ("hpgmn-appnp", "cora"): _MIXED | {"rounds": [4, 8]},
    ("hpgmn-appnp", "citeseer"): _MIXED | {"rounds": [2, 4], "consistency_passes": [2, 4]},
    ("hpgmn-appnp", "pubmed"): _MIXED | {"rounds": [5, 8]},
}
"""The third round: attributes propagated before the network, around the settings of GRAND."""
