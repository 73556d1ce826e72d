"""BM-GCN: neighbours are weighed by how alike the ways are in which their classes link."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from typing_extensions import override

from hpgmn.base.metrics import class_loss
from hpgmn.base.randomness import Noise, column_factors, relu_dropout
from hpgmn.base.settings import setting
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import GraphSettings, attributes_input
from hpgmn.models.baselines.edges import Edges
from hpgmn.models.label_estimator import EstimatorSettings, LabelEstimator, estimator_stage
from hpgmn.models.layers import Initialised, NodeModel, Output, draw_glorot, product, propagate
from hpgmn.models.stage import ModelEntry, Parameters, TrainingStage, TrainingTask, main_stage
from hpgmn.statistics.labelwise import one_hot
from hpgmn.statistics.operators import Statistic


@dataclass(frozen=True, kw_only=True)
class BMGCNSettings(EstimatorSettings, GraphSettings):
    """Settings of BM-GCN."""

    layers: int = setting(3, "number of layers", low=1, high=16)
    self_loop: float = setting(0.0, "weight of the self-loop added to every node", low=0.0)
    diagonal_weight: float = setting(
        1.0,
        "how much more a class counts as like itself than as like another",
        low=0.0,
        per_replica=True,
    )
    estimator_weight: float = setting(
        1.0, "weight of the label estimator's own loss", low=0.0, per_replica=True
    )


class BlockConvolution(Initialised):
    """y = Ã·x·W₂ + x·W₁ + b, Ã's values one per edge and replica.

    Args:
        replicas: R.
        inputs: width of x.
        outputs: width of y.
    """

    def __init__(self, replicas: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.zeros(replicas, inputs, outputs))
        self.neighbors = nn.Parameter(torch.zeros(replicas, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, outputs))

    def reset_parameters(self, noise: Noise, place: str) -> None:
        """Glorot weights, zero biases."""
        draw_glorot(self.own, noise, f"{place}.own")
        draw_glorot(self.neighbors, noise, f"{place}.neighbors")
        self.bias.zero_()

    def forward(
        self,
        edges: Edges,
        values: Tensor,
        x: Statistic | Tensor,
        columns: Tensor | None = None,
    ) -> Tensor:
        """A statistic's rows, or (R, N, inputs), to (R, N, outputs).

        Args:
            edges: the places of Ã.
            values: (R, E) its values.
            x: the input.
            columns: (R, inputs) factors of a statistic's columns, from ``column_factors``.
        """
        own, sent = (product(x, weight, columns) for weight in (self.own, self.neighbors))
        return edges.propagate(values, sent) + own + self.bias


class BMGCN(NodeModel):
    """Z⁽ᵏ⁾ = ReLU(Ã·Z⁽ᵏ⁻¹⁾·W₂ + Z⁽ᵏ⁻¹⁾·W₁ + b), the last one without ReLU.

    B = softmax(MLP(X)); Y is B with the true labels on train nodes. On A' = A + β·I (β is
    ``self_loop``):
    H = (Yᵀ·A'·Y) / (Yᵀ·A'·1), how classes link;
    Q = H·Hᵀ, its diagonal times α (``diagonal_weight``), rows scaled to sum 1;
    Ã_ij = softmax over the edges of i of (B·Q·Bᵀ)_ij·A'_ij.

    As in the released code, the gradient flows through Ã, and so through B, H and Q, into the MLP.
    Differences from that code: it gives a node without edges the mean of all nodes, here nothing
    comes from neighbours; it drops entries of X and none before the last layer, here whole columns
    of X and entries between all layers; it has a bias with each of W₁ and W₂, and no weight decay
    on them; it keeps self-loops of the data. A class without edges has exact zeros in H.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        settings: list[BMGCNSettings] = task.settings
        hidden = [settings[0].hidden_dim] * (settings[0].layers - 1)
        widths = [task.graph.num_features, *hidden, task.num_classes]
        self.estimator = LabelEstimator(
            task.graph.num_features, task.num_classes, settings, task.device
        )
        self.convolve = nn.ModuleList(
            BlockConvolution(len(settings), inputs, outputs)
            for inputs, outputs in itertools.pairwise(widths)
        )
        self.input_rate = task.drop_rate("attributes_dropout")
        self.drop_rate = task.drop_rate("dropout")
        diagonal = torch.tensor([one.diagonal_weight for one in settings], device=task.device)
        identity = torch.eye(task.num_classes, device=task.device)
        self._scale = 1 + (diagonal.view(-1, 1, 1) - 1) * identity  # (R, C, C)

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        attributes, edges, labels = inputs["attributes"], inputs["edges"], inputs["labels"]
        known = labels >= 0
        guesses: Tensor = self.estimator(inputs, noise).logits
        chances = guesses.softmax(dim=-1)
        mixed = torch.where(known.unsqueeze(-1), inputs["truth"], chances)
        likeness = self._likeness(block_matrix(inputs["adjacency"], inputs["degrees"], mixed))
        scores = edges.products(torch.bmm(chances, likeness), chances) * edges.weights
        values = edges.softmax(scores)
        columns = column_factors(attributes.width, self.input_rate, noise, "attributes")
        first, *rest = self.convolve
        hidden: Tensor = first(edges, values, attributes, columns)
        for number, layer in enumerate(rest, start=1):
            hidden = relu_dropout(hidden, self.drop_rate, noise, f"hidden.{number}")
            hidden = layer(edges, values, hidden)
        output = Output(hidden)
        if penalties:
            output.penalties["estimator"] = class_loss(
                guesses, labels.clamp(min=0), known, inputs.get("class_weights")
            )
        return output

    def _likeness(self, blocks: Tensor) -> Tensor:
        """Q: how alike two classes link, (R, C, C)."""
        alike = torch.bmm(blocks, blocks.transpose(1, 2)) * self._scale
        return _over(alike, alike.sum(dim=-1, keepdim=True))


def block_matrix(adjacency: SparseMatrix, degrees: Tensor, labels: Tensor) -> Tensor:
    """H = (Yᵀ·A'·Y) / (Yᵀ·A'·1): of the edges of each class, the share that leads to each class.

    Args:
        adjacency: A', (N, N).
        degrees: (N, 1) the sums of its rows.
        labels: (R, N, C) Y, hard or soft.

    Returns:
        (R, C, C); a class without edges has a row of zeros.
    """
    members = labels.transpose(1, 2)
    links = torch.bmm(members, propagate(adjacency, labels))
    return _over(links, members @ degrees)


def _over(values: Tensor, totals: Tensor) -> Tensor:
    """Values over their totals, exact zeros where a total is zero."""
    return values / torch.where(totals > 0, totals, 1.0)


def _with_loops(adjacency: sp.csr_array, weight: float) -> sp.csr_array:
    """A' = A + β·I."""
    if not weight:
        return adjacency
    loops = sp.eye_array(adjacency.shape[0], dtype=np.float32, format="csr")
    matrix = sp.csr_array(adjacency + np.float32(weight) * loops)
    matrix.indices = matrix.indices.astype(np.int32, copy=False)
    matrix.indptr = matrix.indptr.astype(np.int32, copy=False)
    return matrix


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    settings: list[BMGCNSettings] = task.settings
    first = settings[0]
    matrix = _with_loops(task.statistics.adjacency(first.neighbors), first.self_loop)
    degrees = np.asarray(matrix.sum(axis=1), np.float32).reshape(-1, 1)
    inputs = attributes_input(task) | {
        "adjacency": SparseMatrix(matrix, task.device),
        "degrees": torch.from_numpy(degrees).to(task.device),
        "edges": Edges(matrix, task.device),
        "labels": torch.from_numpy(task.train_labels).to(task.device),
        "class_weights": task.class_weights,
        "truth": torch.from_numpy(one_hot(task.train_labels, task.num_classes)).to(task.device),
    }
    return main_stage(
        task,
        BMGCN(task),
        inputs,
        initial={f"estimator.{name}": value for name, value in done["estimator"].items()},
        penalty_weights={"estimator": [one.estimator_weight for one in settings]},
    )


def _floats(graph: Graph, settings: BMGCNSettings) -> tuple[int, int]:
    parameters = graph.num_features * (2 * settings.hidden_dim + settings.estimator_hidden)
    edges = (2 * graph.num_edges + graph.num_nodes) / graph.num_nodes
    per_node = settings.hidden_dim * (8 * settings.layers + 4) + 8 * settings.estimator_hidden
    per_node += 16 * max(graph.num_classes, 2)
    return parameters, per_node + int(edges * (12 + 2 * settings.layers))


ENTRY = ModelEntry(
    "bmgcn",
    BMGCNSettings,
    {"estimator": estimator_stage, "main": _main},
    _floats,
)
