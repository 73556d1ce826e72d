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
from hpgmn.base.settings import inherited_setting, rate_setting, setting
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Attributes, Graph
from hpgmn.models.baselines.baseline import Baseline, GraphSettings, single_stage
from hpgmn.models.baselines.edge_pattern import add_self_loops
from hpgmn.models.layers import Gate, Linear, RowModel, StatisticLinear
from hpgmn.models.stage import ModelEntry, TrainingTask
from hpgmn.statistics import LocalStatistics, Statistic
from hpgmn.statistics.operators import DenseRows, NeighborMean

DENSE_LIMIT_BYTES = 2**30
"""The attributes of all hops together are stored as dense rows up to this size."""

_SPARSE_COST = 20  # entries of a dense product that cost as much as one of a sparse product


@dataclass(frozen=True, kw_only=True)
class FSGNNSettings(GraphSettings):
    """Settings of FSGNN."""

    neighbors: str = inherited_setting(GraphSettings, "neighbors", "out")
    hops: int = setting(3, "the farthest hop whose attributes are read", low=1, high=32)
    self_loops: str = setting(
        "both",
        "hops over the graph without self-loops, with them, or one set of each",
        choices=("without", "with", "both"),
    )
    unit_hops: bool = setting(True, "scale the encoding of each hop to unit length")
    weight_decay: float = rate_setting(5e-4, "weight decay of the layers that read the hops")
    classifier_weight_decay: float = rate_setting(5e-4, "weight decay of the last layer")
    hop_lr: float = rate_setting(0.01, "learning rate of the weights of the hops")
    hop_weight_decay: float = rate_setting(5e-4, "weight decay of the weights of the hops")

    @property
    def num_inputs(self) -> int:
        """How many hops are read: X itself, and each hop without and with self-loops."""
        return 1 + self.hops * (2 if self.self_loops == "both" else 1)


class FSGNN(Baseline, RowModel):
    """logits = W·dropout(ReLU(‖_k α_k·unit(H_k·W_k + b_k))) + b, α = softmax of learned weights.

    H_k: the attributes X, Âᵏ·X and Ãᵏ·X for k = 1 … ``hops``, where Â = D^-½·A·D^-½ and Ã is the
    same of A + I. As in the authors' code D holds the row sums on both sides, also of a directed
    graph, and counts an empty row as 1; ``unit`` scales rows to unit length. They choose the epoch
    by validation loss, here as for every model. Dropout of input columns is added, off by default.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        first, replicas = task.settings[0], len(task.replicas)
        hops = first.num_inputs
        self.unit_hops = first.unit_hops
        self.encode = nn.ModuleList(
            StatisticLinear(replicas, task.graph.num_features, first.hidden_dim)
            for _ in range(hops)
        )
        # Ones as in the authors' code, so that weight decay acts on them from the start.
        self.weigh = Gate(replicas, hops, start=1.0)
        self.classify = Linear(replicas, hops * first.hidden_dim, task.output_dim)

    @override
    def rows(self, inputs: Mapping[str, Any], noise: Noise | None, nodes: Tensor | None) -> Tensor:
        weights = self.weigh.logits.softmax(dim=-1)
        parts = []
        for number, (layer, hop) in enumerate(zip(self.encode, inputs["hops"], strict=True)):
            part: Tensor = layer(hop, self.input_rate, noise, f"hop.{number}", nodes)
            if self.unit_hops:
                part = functional.normalize(part, dim=-1)
            parts.append(part * weights[:, number, None, None])
        hidden = relu_dropout(torch.cat(parts, dim=-1), self.drop_rate, noise, "joined")
        logits: Tensor = self.classify(hidden)
        return logits


def normalise_adjacency(adjacency: sp.csr_array, self_loop: float) -> sp.csr_array:
    """D^-½·(A + self_loop·I)·D^-½ with the row sums in D, an empty row counting as 1.

    >>> pair = sp.csr_array(np.array([[0, 4], [0, 0]], dtype=np.float32))
    >>> normalise_adjacency(pair, 0.0).toarray()
    array([[0., 2.],
           [0., 0.]], dtype=float32)
    """
    matrix = add_self_loops(adjacency, self_loop)
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


def should_densify(graph: Graph, num_edges: int, hops: int, sets: int) -> bool:
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
    if not should_densify(graph, adjacency.nnz, hops, len(loops)):
        last: list[Statistic] = [attributes] * len(loops)
        for _ in range(hops):  # by products alone: the hops themselves would be dense
            last = [NeighborMean(hop, matrix) for hop, matrix in zip(last, matrices, strict=True)]
            hop_statistics += last
        return hop_statistics
    nodes = torch.arange(graph.num_nodes, device=statistics.device)
    rows = [attributes.rows(nodes)] * len(loops)
    for _ in range(hops):
        rows = [matrix @ hop_rows for matrix, hop_rows in zip(matrices, rows, strict=True)]
        hop_statistics += [DenseRows(hop_rows) for hop_rows in rows]
    return hop_statistics


def _inputs(task: TrainingTask) -> dict[str, Any]:
    return {"hops": hop_attributes(task.statistics, task.settings[0])}


def _floats(graph: Graph, settings: FSGNNSettings) -> tuple[int, int]:
    width = settings.num_inputs * settings.hidden_dim
    return graph.num_features * width, 8 * width


_OWN_RATES = {
    "weigh.": ("hop_lr", "hop_weight_decay"),
    "classify.": ("lr", "classifier_weight_decay"),
}
ENTRY = ModelEntry(
    "fsgnn", FSGNNSettings, single_stage(FSGNN, _inputs, own_rates=_OWN_RATES), _floats
)
