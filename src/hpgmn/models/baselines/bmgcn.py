"""BM-GCN: edge weights follow how classes link (He et al., AAAI 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from hpgmn.base.metrics import class_loss
from hpgmn.base.randomness import Noise
from hpgmn.base.settings import rate_setting, setting
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import (
    Baseline,
    GraphSettings,
    attributes_input,
    layer_widths,
    stack_layers,
)
from hpgmn.models.baselines.edge_pattern import EdgePattern, add_self_loops
from hpgmn.models.hpgmn import EstimatorSettings, LabelEstimator, estimator_stage
from hpgmn.models.layers import AggregationLinear, NodeModel, Output, propagate
from hpgmn.models.stage import ModelEntry, Parameters, TrainingStage, TrainingTask, main_stage
from hpgmn.statistics.labelwise import one_hot


@dataclass(frozen=True, kw_only=True)
class BMGCNSettings(EstimatorSettings, GraphSettings):
    """Settings of BM-GCN."""

    layers: int = setting(3, "number of layers", low=1, high=16)
    self_loop: float = setting(0.0, "weight of the self-loop added to every node", low=0.0)
    diagonal_weight: float = rate_setting(
        1.0, "factor of a class's similarity to itself, relative to that to others"
    )
    estimator_weight: float = rate_setting(1.0, "weight of the label estimator's own loss")


class BMGCN(Baseline, NodeModel):
    """Z⁽ᵏ⁾ = ReLU(Ã·Z⁽ᵏ⁻¹⁾·W₂ + Z⁽ᵏ⁻¹⁾·W₁ + b), the last one without ReLU.

    B = softmax(MLP(X)); Y is B with the true labels on train nodes. On A' = A + β·I (β is
    ``self_loop``):
    H = (Yᵀ·A'·Y) / (Yᵀ·A'·1), how classes link;
    Q = H·Hᵀ, its diagonal times α (``diagonal_weight``), rows scaled to sum 1;
    Ã_ij = softmax over the edges of i of (B·Q·Bᵀ)_ij·A'_ij.

    As in the released code, the gradient flows through Ã, and so through B, H and Q, into the MLP.
    Differences from that code: it gives a node without edges the mean of all nodes, here zeros; it
    drops entries of X and none before the last layer, here whole columns of X and entries between
    all layers; it has a bias with each of W₁ and W₂, and no weight decay on them; it keeps
    self-loops of the data. A class without edges has exact zeros in H.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        settings: list[BMGCNSettings] = task.settings
        self.estimator = LabelEstimator(
            task.graph.num_features, task.num_classes, settings, task.device
        )
        self.convolve = stack_layers(AggregationLinear, len(settings), layer_widths(task))
        diagonal = torch.tensor(task.values("diagonal_weight"), device=task.device)
        identity = torch.eye(task.num_classes, device=task.device)
        self._scale = 1 + (diagonal.view(-1, 1, 1) - 1) * identity  # (R, C, C)

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        attributes, edges, labels = inputs["attributes"], inputs["edges"], inputs["labels"]
        known = labels >= 0
        estimated: Tensor = self.estimator(inputs, noise).logits
        probabilities = estimated.softmax(dim=-1)
        labels_or_probabilities = torch.where(known.unsqueeze(-1), inputs["truth"], probabilities)
        blocks = block_matrix(inputs["adjacency"], inputs["degrees"], labels_or_probabilities)
        similarity = self._similarity(blocks)
        scores = edges.products(torch.bmm(probabilities, similarity), probabilities)
        aggregate = partial(edges.propagate, edges.softmax(scores * edges.weights))
        output = Output(self.apply_layers(self.convolve, aggregate, attributes, noise))
        if penalties:
            output.penalties["estimator"] = class_loss(
                estimated, labels.clamp(min=0), known, inputs.get("class_weights")
            )
        return output

    def _similarity(self, blocks: Tensor) -> Tensor:
        """Q: how similarly two classes link, (R, C, C)."""
        similarity = torch.bmm(blocks, blocks.transpose(1, 2)) * self._scale
        return _divide(similarity, similarity.sum(dim=-1, keepdim=True))


def block_matrix(adjacency: SparseMatrix, degrees: Tensor, labels: Tensor) -> Tensor:
    """H = (Yᵀ·A'·Y) / (Yᵀ·A'·1), (R, C, C): share of each class's edges that lead to each class.

    Labels Y are (R, N, C), degrees the sums (N, 1) of the rows of A'. A class without edges has a
    row of zeros.
    """
    members = labels.transpose(1, 2)
    links = torch.bmm(members, propagate(adjacency, labels))
    return _divide(links, members @ degrees)


def _divide(values: Tensor, totals: Tensor) -> Tensor:
    """Values over their totals, exact zeros where a total is zero."""
    return values / torch.where(totals > 0, totals, 1.0)


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    settings: list[BMGCNSettings] = task.settings
    first = settings[0]
    matrix = add_self_loops(task.statistics.adjacency(first.neighbors), first.self_loop)
    degrees = np.asarray(matrix.sum(axis=1), np.float32).reshape(-1, 1)
    inputs = attributes_input(task) | {
        "adjacency": SparseMatrix(matrix, task.device),
        "degrees": torch.from_numpy(degrees).to(task.device),
        "edges": EdgePattern(matrix, task.device),
        "labels": torch.from_numpy(task.train_labels).to(task.device),
        "class_weights": task.class_weights,
        "truth": torch.from_numpy(one_hot(task.train_labels, task.num_classes)).to(task.device),
    }
    return main_stage(
        task,
        BMGCN(task),
        inputs,
        initial={f"estimator.{name}": value for name, value in done["estimator"].items()},
        penalty_weights={"estimator": task.values("estimator_weight")},
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
    predicts_targets=False,
)
