"""FSGNN: a layer per hop's attributes, weighted by a learned softmax (Maurya et al., 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from hpgmn.base.randomness import Noise, relu_dropout
from hpgmn.base.settings import setting
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Attributes, Graph
from hpgmn.models.baselines.baseline import GraphSettings
from hpgmn.models.layers import Initialised, Linear, RowModel, StatisticLinear, propagate
from hpgmn.models.stage import ModelEntry, Parameters, TrainingStage, TrainingTask, main_stage
from hpgmn.statistics import LocalStatistics, Statistic
from hpgmn.statistics.operators import DenseRows, take_nodes

DENSE_LIMIT_BYTES = 2**30
"""The attributes of all hops together are stored as dense rows up to this size."""

_SPARSE_COST = 20  # entries of a dense product that cost as much as one of a sparse product


@dataclass(frozen=True, kw_only=True)
class FSGNNSettings(GraphSettings):
    """Settings of FSGNN."""

    neighbors: str = setting("out", "whose edges a node reads", choices=("out", "in", "undirected"))
    hops: int = setting(3, "the farthest hop whose attributes are read", low=1, high=32)
    self_loops: str = setting(
        "both",
        "hops over the graph without self-loops, with them, or one set of each",
        choices=("without", "with", "both"),
    )
    unit_hops: bool = setting(True, "scale the encoding of each hop to unit length")
    weight_decay: float = setting(
        5e-4, "weight decay of the layers that read the hops", low=0.0, per_replica=True
    )
    classifier_weight_decay: float = setting(
        5e-4, "weight decay of the last layer", low=0.0, per_replica=True
    )
    hop_lr: float = setting(
        0.01, "learning rate of the weights of the hops", low=0.0, per_replica=True
    )
    hop_weight_decay: float = setting(
        5e-4, "weight decay of the weights of the hops", low=0.0, per_replica=True
    )


class HopWeights(Initialised):
    """A learned softmax over the hops, initially uniform."""

    def __init__(self, replicas: int, choices: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(replicas, choices))

    def reset_parameters(self, noise: Noise, place: str) -> None:
        """Start with ones as the authors do, so that weight decay acts on them from the start."""
        self.logits.fill_(1.0)

    def forward(self) -> Tensor:
        """(R, choices), each row a distribution."""
        return self.logits.softmax(dim=-1)


class FSGNN(RowModel):
    """logits = W·dropout(ReLU(‖_k α_k·unit(H_k·W_k + b_k))) + b, α = softmax of learned weights.

    H_k: the attributes X, Âᵏ·X and Ãᵏ·X for k = 1 … ``hops``, where Â = D^-½·A·D^-½ and Ã is the
    same of A + I. As in the authors' code D holds the row sums on both sides, also of a directed
    graph, and counts an empty row as 1; ``unit`` scales rows to unit length. They choose the epoch
    by validation loss, here as for every model. Dropout of input columns is added, off by default.

    Args:
        hops: how many inputs there are.
    """

    def __init__(self, task: TrainingTask, hops: int) -> None:
        super().__init__()
        first, replicas = task.settings[0], len(task.replicas)
        self.unit_hops = first.unit_hops
        self.encode = nn.ModuleList(
            StatisticLinear(replicas, task.graph.num_features, first.hidden_dim)
            for _ in range(hops)
        )
        self.weigh = HopWeights(replicas, hops)
        self.classify = Linear(replicas, hops * first.hidden_dim, task.num_classes)
        self.input_rate = task.drop_rate("attributes_dropout")
        self.drop_rate = task.drop_rate("dropout")

    @override
    def rows(self, inputs: Mapping[str, Any], noise: Noise | None, nodes: Tensor | None) -> Tensor:
        weights = self.weigh()
        parts = []
        for number, (layer, hop) in enumerate(zip(self.encode, inputs["hops"], strict=True)):
            part: Tensor = layer(hop, self.input_rate, noise, f"hop.{number}", nodes)
            if self.unit_hops:
                part = functional.normalize(part, dim=-1)
            parts.append(part * weights[:, number, None, None])
        hidden = relu_dropout(torch.cat(parts, dim=-1), self.drop_rate, noise, "joined")
        logits: Tensor = self.classify(hidden)
        return logits


class Propagated(Statistic):
    """ÂᵏX by its products alone, ÂᵏX·W = Â·(… Â·(X·W)): ÂᵏX itself would be dense.

    Args:
        propagation: Â.
        rounds: k.
        attributes: X.
    """

    def __init__(self, propagation: SparseMatrix, rounds: int, attributes: Statistic) -> None:
        self.propagation = propagation
        self.rounds = rounds
        self.attributes = attributes
        self.width = attributes.width

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        product = self.attributes.times(weight, None, columns)
        for _ in range(self.rounds):
            product = propagate(self.propagation, product)
        return take_nodes(product, nodes)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        paths = self.propagation.host[nodes.cpu().numpy()]
        for _ in range(self.rounds - 1):
            paths = paths @ self.propagation.host
        everything = torch.arange(self.propagation.shape[0], device=nodes.device)
        reached = torch.from_numpy(paths.toarray()).to(self.propagation.device)
        return reached @ self.attributes.rows(everything, replica)


def normalise_adjacency(adjacency: sp.csr_array, self_loop: float) -> sp.csr_array:
    """D^-½·(A + self_loop·I)·D^-½ with the row sums in D, an empty row counting as 1.

    >>> pair = sp.csr_array(np.array([[0, 4], [0, 0]], dtype=np.float32))
    >>> normalise_adjacency(pair, 0.0).toarray()
    array([[0., 2.],
           [0., 0.]], dtype=float32)
    """
    matrix = adjacency
    if self_loop:
        loops = sp.eye_array(adjacency.shape[0], dtype=np.float32, format="csr")
        matrix = sp.csr_array(adjacency + self_loop * loops)
    sums = np.asarray(matrix.sum(axis=1)).reshape(-1)
    scale = 1 / np.sqrt(np.where(sums > 0, sums, 1))
    factor = np.repeat(scale, np.diff(matrix.indptr)) * scale[matrix.indices]
    return sp.csr_array(
        (
            (matrix.data * factor).astype(np.float32),
            matrix.indices.astype(np.int32),
            matrix.indptr.astype(np.int32),
        ),
        shape=matrix.shape,
    )


def pays_dense(graph: Graph, num_edges: int, hops: int, sets: int) -> bool:
    """Return whether dense rows of the hops' attributes fit and are faster than propagation.

    Rows of ÂᵏX fill up: after two hops a quarter of chameleon's entries are not zero.
    """
    x: Attributes = graph.x
    size = graph.num_nodes * graph.num_features
    stored = x.nnz if sp.issparse(x) else size
    is_small = 4 * size * hops * sets <= DENSE_LIMIT_BYTES
    return is_small and size <= _SPARSE_COST * (stored + hops * num_edges)


_Cached: TypeAlias = tuple[tuple[Any, ...], list[Statistic]]
_cache: WeakKeyDictionary[LocalStatistics, _Cached] = WeakKeyDictionary()


def hop_attributes(statistics: LocalStatistics, settings: FSGNNSettings) -> list[Statistic]:
    """X, then for each k the attributes after k hops, without and with self-loops.

    The latest result is cached with the graph's statistics: stages are rebuilt when replicas stop.
    """
    key = (settings.attributes_scaling, settings.neighbors, settings.hops, settings.self_loops)
    last = _cache.get(statistics)
    if last is None or last[0] != key:
        _cache.pop(statistics, None)
        _cache[statistics] = last = (key, _hop_attributes(statistics, settings))
    return last[1]


def _hop_attributes(statistics: LocalStatistics, settings: FSGNNSettings) -> list[Statistic]:
    graph, hops = statistics.graph, settings.hops
    adjacency = statistics.adjacency(settings.neighbors)
    loops = {"without": (0.0,), "with": (1.0,), "both": (0.0, 1.0)}[settings.self_loops]
    matrices = [
        SparseMatrix(normalise_adjacency(adjacency, loop), statistics.device) for loop in loops
    ]
    attributes = statistics.attributes(settings.attributes_scaling)
    hop_statistics: list[Statistic] = [attributes]
    if not pays_dense(graph, adjacency.nnz, hops, len(loops)):
        for rounds in range(1, hops + 1):
            hop_statistics += [Propagated(matrix, rounds, attributes) for matrix in matrices]
        return hop_statistics
    nodes = torch.arange(graph.num_nodes, device=statistics.device)
    rows = [attributes.rows(nodes)] * len(loops)
    for _ in range(hops):
        rows = [matrix @ last for matrix, last in zip(matrices, rows, strict=True)]
        hop_statistics += [DenseRows(hop_rows) for hop_rows in rows]
    return hop_statistics


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    hops = hop_attributes(task.statistics, task.settings[0])
    rates = {
        "weigh.": task.rates("hop_lr", "hop_weight_decay"),
        "classify.": task.rates("lr", "classifier_weight_decay"),
    }
    return main_stage(task, FSGNN(task, len(hops)), {"hops": hops}, own_rates=rates)


def _floats(graph: Graph, settings: FSGNNSettings) -> tuple[int, int]:
    inputs = 1 + settings.hops * (2 if settings.self_loops == "both" else 1)
    width = inputs * settings.hidden_dim
    return graph.num_features * width, 8 * width


ENTRY = ModelEntry("fsgnn", FSGNNSettings, {"main": _main}, _floats)
