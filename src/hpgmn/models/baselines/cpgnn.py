"""CPGNN: prior beliefs propagated through a learned class compatibility (Zhu et al., AAAI 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from hpgmn.base.metrics import class_loss
from hpgmn.base.randomness import Noise
from hpgmn.base.settings import inherited_setting, rate_setting, setting
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Array, Graph
from hpgmn.models.baselines import chebnet
from hpgmn.models.baselines.baseline import attributes_input
from hpgmn.models.baselines.mlp import AttributesMLP
from hpgmn.models.layers import Initialised, NodeModel, Output, propagate
from hpgmn.models.stage import (
    ModelEntry,
    Parameters,
    TrainingStage,
    TrainingTask,
    default_floats,
    main_stage,
    trained_logits,
)
from hpgmn.statistics.labelwise import one_hot

_ROUNDING = 1e-6  # a row sum of Ĥ below this is zero: its sign would be arbitrary


@dataclass(frozen=True, kw_only=True)
class CPGNNSettings(chebnet.ChebNetSettings):
    """Settings of CPGNN; layers, order and dropout are the prior's."""

    attributes_scaling: str = inherited_setting(
        chebnet.ChebNetSettings, "attributes_scaling", "fraction"
    )
    prior: str = setting(
        "mlp",
        "what gives the prior beliefs: an MLP on the attributes, or ChebNet",
        choices=("mlp", "cheby"),
    )
    prior_epochs: int = setting(400, "maximum number of epochs of the prior's own training", low=1)
    prior_patience: int = setting(
        100, "stop it after this number of epochs without improvement; 0: never", low=0
    )
    rounds: int = setting(1, "rounds of propagation of the beliefs", low=1, high=16)
    normalization: str = setting(
        "none",
        "how the adjacency that spreads the beliefs is normalised",
        choices=("none", "row", "column", "symmetric"),
    )
    prior_weight: float = rate_setting(1.0, "weight of the prior's own loss in the joint training")
    zero_sum_weight: float = rate_setting(
        1.0, "weight of the compatibilities' row sums, which should be 0"
    )
    compatibility_weight_decay: float = rate_setting(0.0, "weight decay of the compatibilities")


class Compatibility(Initialised):
    """Ĥ: how much more often than by chance two classes link, one matrix per replica."""

    def __init__(self, replicas: int, num_classes: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(replicas, num_classes, num_classes))

    @override
    def reset_parameters(self, noise: Noise, place: str) -> None:
        # The stage's initial values come from the train nodes.
        self.matrix.zero_()

    def forward(self, beliefs: Tensor) -> Tensor:
        """B·Ĥ: (R, N, C) to (R, N, C)."""
        return torch.bmm(beliefs, self.matrix)

    def zero_sum_penalty(self) -> Tensor:
        """‖row sums of Ĥ‖₁, (R,): lowest, 0, when links only move belief between classes."""
        return functional.softshrink(self.matrix.sum(dim=-1), _ROUNDING).abs().sum(dim=-1)


class CPGNN(NodeModel):
    """B ← (B₀ - 1/C) + A·B·Ĥ in each of ``rounds``, starting from B = B₀ - 1/C.

    B₀ = softmax(prior(X)) by an MLP or ChebNet, trained first and then together with Ĥ; the last B
    is the logits. Loss = CE(B) + CE(B₀) + ‖row sums of Ĥ‖₁. A is not normalised by default, as in
    the released code. That code's CE(B₀) is missing: in its place it adds the weight decay and the
    row sums once more; the paper's loss is taken here (``prior_weight=0`` is nearer to the code).
    Its prior has no biases.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        self.prior = _prior_model(task)
        self.compatibility = Compatibility(len(task.settings), task.num_classes)
        self.rounds: int = task.settings[0].rounds

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        prior_logits: Tensor = self.prior(inputs, noise).logits
        start = prior_logits.softmax(dim=-1) - 1 / prior_logits.shape[-1]
        beliefs = start
        for _ in range(self.rounds):
            beliefs = start + propagate(inputs["adjacency"], self.compatibility(beliefs))
        output = Output(beliefs)
        if penalties:
            labels = inputs["labels"]
            output.penalties["prior"] = class_loss(
                prior_logits, labels.clamp(min=0), labels >= 0, inputs.get("class_weights")
            )
            output.penalties["zero_sum"] = self.compatibility.zero_sum_penalty()
        return output


def _prior_model(task: TrainingTask) -> nn.Module:
    if task.settings[0].prior == "cheby":
        return chebnet.ChebNet(task)
    return AttributesMLP(task)


def _prior_inputs(task: TrainingTask) -> dict[str, Any]:
    first: CPGNNSettings = task.settings[0]
    inputs = attributes_input(task)
    if first.prior == "cheby":
        inputs["propagation"] = task.statistics.propagation(first.neighbors, "symmetric")
    return inputs


def fill_gaps(means: Array) -> Array:
    """Fill the rows of zeros of (R, C, C), those of classes without data, from the transpose.

    Entries between two such classes share the rest of the row equally, so that rows sum to 1.

    >>> fill_gaps(np.array([[[0.7, 0.3], [0.0, 0.0]]]))
    array([[[0.7, 0.3],
            [0.3, 0.7]]])
    """
    gap = means.sum(axis=-1, keepdims=True) == 0
    filled = np.where(gap, means.swapaxes(-1, -2), means)
    unknown = gap & gap.swapaxes(-1, -2)
    left = np.maximum(1 - filled.sum(axis=-1, keepdims=True), 0)
    shares = left / np.maximum(unknown.sum(axis=-1, keepdims=True), 1)
    return np.where(unknown, shares, filled)


def doubly_stochastic(matrices: Array, rounds: int = 3000, tolerance: float = 1e-12) -> Array:
    """Sinkhorn's scaling: columns, then rows, to sum 1, until nothing moves.

    Args:
        rounds: upper limit; a matrix with an unfavourable zero pattern never converges.
        tolerance: a matrix has converged when its entries change by less in total.

    >>> doubly_stochastic(np.array([[[3.0, 3.0], [1.0, 1.0]]]))
    array([[[0.5, 0.5],
            [0.5, 0.5]]])
    """
    current = matrices.astype(np.float64)
    moving = np.arange(len(current))  # each stops independently of the others
    for _ in range(rounds):
        before = current[moving]
        after = _divide(before, before.sum(axis=-2, keepdims=True))
        after = _divide(after, after.sum(axis=-1, keepdims=True))
        current[moving] = after
        moving = moving[np.abs(after - before).sum(axis=(-2, -1)) >= tolerance]
        if not moving.size:
            break
    return current


def _divide(values: Array, totals: Array) -> Array:
    """Values over their totals, exact zeros where a total is zero."""
    return np.divide(values, totals, out=np.zeros_like(values), where=totals > 0)


def estimate_compatibility(task: TrainingTask, parameters: Parameters) -> Tensor:
    """Ĥ from the train nodes and the trained prior, (R, C, C).

    The mean over the train nodes of each class of D⁻¹·A·B̃ (B̃: the prior's beliefs, true labels on
    train nodes), gaps filled, doubly stochastic, symmetrised, less 1/C. A class is a gap if it has
    no train node with a neighbour; the released code divides by zero where there are nodes but no
    neighbours.
    """
    prior_logits = trained_logits(task, _prior(task, {}), parameters)
    with torch.no_grad():
        truth = torch.from_numpy(one_hot(task.train_labels, task.num_classes)).to(task.device)
        known = truth.any(dim=-1, keepdim=True)
        beliefs = torch.where(known, truth, prior_logits.softmax(dim=-1))
        averaging = task.statistics.propagation(task.settings[0].neighbors, "row")
        totals = torch.bmm(truth.transpose(1, 2), propagate(averaging, beliefs))
        means = totals / truth.sum(dim=1).clamp(min=1).unsqueeze(-1)
    matrix = doubly_stochastic(fill_gaps(means.double().cpu().numpy()))
    centred = (matrix + matrix.swapaxes(-1, -2)) / 2 - 1 / task.num_classes
    return torch.from_numpy(centred).float().to(task.device)


def _prior(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    first: CPGNNSettings = task.settings[0]
    return main_stage(
        task,
        _prior_model(task),
        _prior_inputs(task),
        name="prior",
        epochs=first.prior_epochs,
        patience=first.prior_patience,
    )


def _adjacency(task: TrainingTask) -> SparseMatrix:
    """A, normalised as the settings say."""
    first: CPGNNSettings = task.settings[0]
    if first.normalization == "none":
        return SparseMatrix(task.statistics.adjacency(first.neighbors), task.device)
    return task.statistics.propagation(first.neighbors, first.normalization)


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    inputs = _prior_inputs(task) | {
        "adjacency": _adjacency(task),
        "labels": torch.from_numpy(task.train_labels).to(task.device),
        "class_weights": task.class_weights,
    }
    initial = {f"prior.{name}": value for name, value in done["prior"].items()}
    initial["compatibility.matrix"] = estimate_compatibility(task, done["prior"])
    return main_stage(
        task,
        CPGNN(task),
        inputs,
        initial=initial,
        own_rates={"compatibility.": task.rates("lr", "compatibility_weight_decay")},
        penalty_weights={
            "prior": task.values("prior_weight"),
            "zero_sum": task.values("zero_sum_weight"),
        },
    )


def _floats(graph: Graph, settings: CPGNNSettings) -> tuple[int, int]:
    prior = chebnet.ENTRY.floats if settings.prior == "cheby" else default_floats
    parameters, per_node = prior(graph, settings)
    return parameters, per_node + max(graph.num_classes, 2) * (6 * settings.rounds + 12)


ENTRY = ModelEntry(
    "cpgnn", CPGNNSettings, {"prior": _prior, "main": _main}, _floats, predicts_targets=False
)
