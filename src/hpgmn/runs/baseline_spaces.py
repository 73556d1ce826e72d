"""The search spaces of the baselines: values to try, by kind of graph and by model."""

from __future__ import annotations

import dataclasses
from typing import Any

from hpgmn.models import find_model

Values = dict[str, list[Any]]

CITATION = ("cora", "citeseer", "pubmed")
WEBKB = ("texas", "wisconsin", "cornell", "cornell-geomgcn")
KINDS = ("webkb", "wikipedia", "crocodile", "citation", "other")
_WIKIPEDIA = ("chameleon", "squirrel", "chameleon-filtered", "squirrel-filtered")

_SHARED: dict[str, Values] = {
    "webkb": {
        "lr": [0.005, 0.01, 0.03, 0.05],
        "weight_decay": [5e-4, 2e-3, 5e-3, 1e-2],
        "dropout": [0.2, 0.5, 0.7],
        "attributes_dropout": [0.0, 0.3, 0.5],
        "attributes_scaling": ["raw", "fraction"],
        "hidden_dim": [64],
        "neighbors": ["undirected", "out"],
        "epochs": [400],
        "patience": [100],
    },
    "wikipedia": {
        "lr": [0.005, 0.01, 0.03],
        "weight_decay": [0.0, 1e-5, 5e-5, 5e-4],
        "dropout": [0.0, 0.2, 0.5],
        "attributes_dropout": [0.0, 0.5, 0.8],
        "attributes_scaling": ["raw", "unit"],
        "hidden_dim": [64, 128],
        "neighbors": ["out", "undirected"],
        "epochs": [400],
        "patience": [100],
    },
    "crocodile": {
        "lr": [0.003, 0.01, 0.03],
        "weight_decay": [1e-5, 1e-4, 5e-4],
        "dropout": [0.0, 0.2, 0.5],
        "attributes_dropout": [0.0, 0.1],
        "hidden_dim": [64, 128],
        "epochs": [400],
        "patience": [100],
    },
    "citation": {
        "lr": [0.005, 0.01, 0.03],
        "weight_decay": [5e-4, 2e-3, 5e-3, 1e-2],
        "dropout": [0.5, 0.7, 0.8],
        "attributes_dropout": [0.0, 0.5, 0.8],
        "attributes_scaling": ["fraction", "unit"],
        "hidden_dim": [64],
        "epochs": [500],
        "patience": [150],
    },
    "other": {
        "lr": [0.003, 0.01, 0.03],
        "weight_decay": [0.0, 5e-5, 5e-4, 5e-3],
        "dropout": [0.0, 0.2, 0.5],
        "attributes_dropout": [0.0, 0.3, 0.6],
        "attributes_scaling": ["raw", "unit"],
        "hidden_dim": [64, 128],
        "neighbors": ["undirected", "out"],
        "epochs": [400],
        "patience": [100],
    },
}
"""What most models have, by kind of graph."""

_ESTIMATOR: Values = {
    "estimator_lr": [0.01],
    "estimator_weight_decay": [5e-4, 5e-3],
    "estimator_dropout": [0.2, 0.5],
}

_OWN: dict[str, dict[str, Values]] = {
    "mlp": {"any": {"layers": [2, 3]}},
    "gcn": {"any": {"layers": [2], "self_loop": [1.0, 0.0]}, "citation": {"self_loop": [1.0]}},
    "gcn-jk": {
        "any": {"layers": [2, 3], "jump": ["concat", "max"], "self_loop": [1.0, 0.0]},
        "citation": {"self_loop": [1.0]},
    },
    "mixhop": {"any": {"layers": [1, 2], "powers": [2, 3]}},
    "chebnet": {"any": {"layers": [2], "order": [1, 2, 3]}, "citation": {"hidden_dim": [16, 64]}},
    "gcnii": {
        "any": {
            "layers": [8, 16, 32],
            "initial_share": [0.1, 0.2, 0.5],
            "identity_strength": [0.5, 1.0, 1.5],
            "convolution_weight_decay": [1e-4, 1e-3, 1e-2],
        },
        "wikipedia": {"layers": [2, 4, 8], "convolution_weight_decay": [0.0, 1e-4, 5e-4]},
        "crocodile": {"layers": [2, 4, 8], "convolution_weight_decay": [0.0, 1e-4, 5e-4]},
        "citation": {"identity_strength": [0.4, 0.5, 0.6]},
    },
    "appnp": {
        "any": {"rounds": [10], "teleport": [0.1, 0.5, 0.9]},
        "wikipedia": {"rounds": [2, 10], "teleport": [0.0, 0.1, 0.3]},
        "crocodile": {"rounds": [2, 10], "teleport": [0.0, 0.1, 0.3]},
        "citation": {"teleport": [0.05, 0.1, 0.2]},
    },
    "gprgnn": {
        "any": {
            "teleport": [0.1, 0.5, 0.9, 1.0],
            "propagation_dropout": [0.0, 0.5, 0.7],
            "polynomial_weight_decay": [0.0],
        },
        "wikipedia": {"teleport": [0.0, 0.5, 1.0]},
        "crocodile": {"teleport": [0.0, 0.5, 1.0]},
        "citation": {"teleport": [0.1, 0.2, 0.5]},
    },
    "h2gcn": {"any": {"rounds": [1, 2]}, "crocodile": {"rounds": [1]}},
    "bmgcn": {
        "any": _ESTIMATOR
        | {
            "lr": [0.001, 0.003, 0.01],
            "layers": [2, 3],
            "self_loop": [0.0, 1.0],
            "diagonal_weight": [0.5, 1.0, 2.0],
            "estimator_weight": [0.3, 1.0],
        },
        "wikipedia": {"self_loop": [0.0]},
        "citation": {"self_loop": [1.5, 3.0], "diagonal_weight": [2.0, 3.0, 4.0]},
    },
    "mmp": {
        "any": {
            "layers": [2],
            "normalization": ["symmetric", "row"],
            "self_loop": [0.0],
            "cosine_weight": [0.0, 0.1, 1.0],
        },
        "wikipedia": {"cosine_weight": [0.0]},
        "crocodile": {"cosine_weight": [0.0]},
        "citation": {"self_loop": [1.0], "cosine_weight": [0.0, 0.2]},
    },
    "cpgnn": {
        "any": {
            "rounds": [1, 2],
            "normalization": ["none", "row"],
            "dropout": [0.0, 0.5],
            "prior_weight": [0.0, 1.0],
        },
        "wikipedia": {"normalization": ["none", "row", "symmetric"]},
        "crocodile": {"normalization": ["none", "row", "symmetric"]},
    },
    "lwgcn": {
        "any": _ESTIMATOR | {"layers": [1, 2], "form": ["encoded"]},
        "wikipedia": {"form": ["direct"], "layers": [2, 3]},
        "crocodile": {"form": ["direct", "encoded"]},
    },
    "dssl": {
        "any": {
            "representation_lr": [1e-3, 5e-3],
            "representation_epochs": [100, 200],
            "embedding_scaling": ["standard"],
        }
    },
    "linkx": {
        "any": {
            "layers": [1, 2],
            "adjacency_scaling": ["raw", "unit"],
            "adjacency_dropout": [0.0, 0.3, 0.6],
        },
        "webkb": {"adjacency_scaling": ["raw"], "adjacency_dropout": [0.0, 0.5, 0.8]},
    },
    "fsgnn": {
        "any": {
            "attributes_scaling": ["fraction", "unit"],
            "classifier_weight_decay": [0.0, 1e-4, 1e-3],
            "hop_lr": [0.005, 0.01, 0.04],
            "hop_weight_decay": [1e-4, 1e-2, 1e-1],
            "neighbors": ["out"],
        },
        "webkb": {"weight_decay": [1e-4, 1e-3, 5e-3]},
        "wikipedia": {"weight_decay": [0.0, 1e-4], "dropout": [0.5, 0.7]},
        "crocodile": {"attributes_scaling": ["raw", "unit"], "hops": [1, 2, 3]},
        "citation": {"neighbors": ["undirected"]},
    },
    "dirgcn": {
        "any": {
            "layers": [2, 3],
            "out_share": [0.5, 1.0],
            "jump": ["max", "concat"],
            "unit_layers": [True, False],
            "self_loop": [0.0, 1.0],
        },
        "wikipedia": {
            "layers": [3, 4, 5],
            "hidden_dim": [128],
            "jump": ["max"],
            "out_share": [1.0],
            "self_loop": [0.0],
            "unit_layers": [True],
        },
        "crocodile": {"jump": ["max"], "out_share": [0.5]},
        "citation": {"out_share": [0.5], "self_loop": [1.0]},
    },
}
"""What a model has beside that, for any graph and by kind."""


def kind_of(graph: str) -> str:
    """The kind of graph a dataset is.

    >>> kind_of("texas"), kind_of("squirrel"), kind_of("cora")
    ('webkb', 'wikipedia', 'citation')
    """
    if graph in WEBKB:
        return "webkb"
    if graph in CITATION:
        return "citation"
    if graph in _WIKIPEDIA:
        return "wikipedia"
    return "crocodile" if graph == "crocodile" else "other"


def baseline_space(model: str, graph: str) -> Values:
    """The values to try for a baseline on a graph: those shared settings it has, and its own."""
    kind = kind_of(graph)
    own = _OWN.get(model, {})
    known = {info.name for info in dataclasses.fields(find_model(model).settings)}
    shared = {name: values for name, values in _SHARED[kind].items() if name in known}
    return shared | own.get("any", {}) | own.get(kind, {})
