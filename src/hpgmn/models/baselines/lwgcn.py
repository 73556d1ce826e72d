"""LW-GCN: neighbours averaged by their pseudo-label (Dai et al., LoG 2022)."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from typing_extensions import override

from hpgmn.base.metrics import class_loss
from hpgmn.base.randomness import Noise, relu_dropout
from hpgmn.base.settings import rate_setting, setting, share_setting
from hpgmn.base.sparse import SparseMatrix, block_diagonal, scale_attributes
from hpgmn.graph import Array, Graph
from hpgmn.models.baselines import gcnii
from hpgmn.models.baselines.baseline import Baseline, GraphSettings, attributes_input, stack_layers
from hpgmn.models.hpgmn import EstimatorSettings, compute_pseudo_labels, estimator_stage
from hpgmn.models.layers import (
    MLP,
    Affine,
    Initialised,
    NodeModel,
    Output,
    StatisticLinear,
    product,
)
from hpgmn.models.stage import (
    ModelEntry,
    Parameters,
    Rates,
    TrainingStage,
    TrainingTask,
    main_stage,
    trained_logits,
)
from hpgmn.statistics.labelwise import FactoredMeans, averaging_matrix
from hpgmn.statistics.operators import Statistic, take_nodes, with_columns

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LWGCNSettings(EstimatorSettings, GraphSettings):
    """Settings of LW-GCN."""

    form: str = setting(
        "encoded",
        "the first convolution reads the attributes, or their encoding with all states classified",
        choices=("direct", "encoded"),
    )
    layers: int = setting(2, "number of label-wise convolutions", low=1, high=16)
    mix_gcnii: bool = setting(
        False,
        "mix the predictions with those of a GCNII; fits two weights to the VALIDATION labels, "
        "so that validation scores are no longer of unseen labels",
    )
    mixing_lr: float = rate_setting(0.1, "learning rate of the two weights of mix_gcnii")
    gcnii_layers: int = setting(2, "convolutions of the GCNII of mix_gcnii", low=1, high=64)
    gcnii_initial_share: float = share_setting(
        0.1, "share of the first layer's state in that GCNII's convolutions"
    )
    gcnii_identity_strength: float = rate_setting(
        0.5, "decay of that GCNII's weights towards the identity"
    )
    gcnii_epochs: int = setting(400, "maximum number of epochs of that GCNII", low=1)
    gcnii_patience: int = setting(
        100, "stop that GCNII after this number of epochs without improvement; 0: never", low=0
    )


class ClassMeans:
    """Â = Σ_c Â_c for every replica, with nodes of the same class next to each other.

    Â_c are the edges that end in class c, each row divided by its sum. A class has as many slots
    as in the replica where it is largest; no edge reads the slots left over.

    Attributes:
        members: (R, M) the node in each slot.
        sizes: the number of slots of each of the C classes, M in total.
        matrix: (R·N, R·M), the replicas' Â along its diagonal.
    """

    def __init__(
        self,
        adjacency: sp.csr_array,
        labels: Array,
        num_classes: int,
        device: torch.device | str = "cpu",
    ) -> None:
        replicas, num_nodes = labels.shape
        counts = (labels[..., None] == np.arange(num_classes)).sum(axis=1)  # (R, C)
        most = counts.max(axis=0)
        self.sizes: list[int] = most.tolist()
        # Offset of the slots of a class from its nodes' positions in sorted order.
        shift = (most.cumsum() - most) - (counts.cumsum(axis=1) - counts)
        order = np.argsort(labels, axis=1, kind="stable")
        each = np.arange(replicas)[:, None]
        slots = np.arange(num_nodes) + shift[each, labels[each, order]]  # (R, N)
        members = np.zeros((replicas, most.sum()), np.int64)
        members[each, slots] = order
        slot_of = np.empty_like(slots)
        slot_of[each, order] = slots
        blocks = []
        for row, row_slots in zip(labels, slot_of, strict=True):
            mean = averaging_matrix(adjacency, row, num_classes)
            parts = (mean.data, row_slots[mean.indices].astype(np.int32), mean.indptr.copy())
            block = sp.csr_array(parts, shape=(num_nodes, members.shape[1]))
            block.sort_indices()
            blocks.append(block)
        self.members = torch.from_numpy(members).to(device)
        self.matrix = SparseMatrix(block_diagonal(blocks), device)


class LabelwiseStates(Statistic):
    """[Â_1·H ‖ … ‖ Â_C·H] as Â·h with h_u = H_u·W_c(u): cost (N·D + E)·D', never N×(C·D)."""

    def __init__(self, means: ClassMeans, hidden: Tensor) -> None:
        self.means = means
        self.by_class = take_nodes(hidden, means.members)  # (R, M, D)
        self.width = len(means.sizes) * hidden.shape[2]

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        replicas, _, dim = weight.shape
        weights = with_columns(weight, columns).chunk(len(self.means.sizes), dim=1)
        parts = [
            torch.bmm(states, class_weight)
            for states, class_weight in zip(
                self.by_class.split_with_sizes(self.means.sizes, dim=1), weights, strict=True
            )
        ]
        product = self.means.matrix @ torch.cat(parts, dim=1).view(-1, dim)
        return take_nodes(product.view(replicas, -1, dim), nodes)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        identity = torch.eye(self.width, device=nodes.device)
        return self.times(identity.expand(self.by_class.shape[0], -1, -1))[replica, nodes]


class LabelwiseConvolution(Affine):
    """y = [Â_1·x ‖ … ‖ Â_C·x ‖ x]·W + b; ``inputs`` is the width of x."""

    def __init__(self, replicas: int, inputs: int, outputs: int, num_classes: int) -> None:
        super().__init__(replicas, (num_classes + 1) * inputs, outputs)
        self.inputs, self.num_classes = inputs, num_classes

    def forward(
        self, means: Statistic, x: Statistic | Tensor, columns: Tensor | None = None
    ) -> Tensor:
        """Map x and its label-wise means to (R, N, outputs)."""
        split = self.num_classes * self.inputs
        neighbors, own = self.weight[:, :split], self.weight[:, split:]
        repeated = None if columns is None else columns.repeat(1, self.num_classes)
        return means.times(neighbors, None, repeated) + product(x, own, columns) + self.bias


class Mixture(Initialised):
    """w₁·log p + w₂·log p' with (w₁, w₂) a softmax: a mixture of two models."""

    def __init__(self, replicas: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(replicas, 2))

    @override
    def reset_parameters(self, noise: Noise, place: str) -> None:
        self.scores.zero_()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Mix two arrays of logits, each (R, N, C)."""
        first, second = self.scores.softmax(dim=-1)[:, :, None, None].unbind(dim=1)
        return first * left.log_softmax(dim=-1) + second * right.log_softmax(dim=-1)


class LWGCN(Baseline, NodeModel):
    """H⁽ˡ⁾ = ReLU([Â_1·H⁽ˡ⁻¹⁾ ‖ … ‖ Â_C·H⁽ˡ⁻¹⁾ ‖ H⁽ˡ⁻¹⁾]·W_l + b_l), Â_c the mean over class c.

    A neighbour's class is its train label, or its pseudo-label from the label estimator.

    - ``form`` "direct": H⁽⁰⁾ = X, the last layer without ReLU gives the logits;
    - ``form`` "encoded": H⁽⁰⁾ = X·W + b, logits = MLP([H⁽⁰⁾ ‖ … ‖ H⁽ᴸ⁾]), dropout inside that MLP.

    With ``mix_gcnii``, log-probabilities are mixed with those of a GCNII by two weights that are
    fitted to the VALIDATION labels while the convolutions are trained: the score that selects
    epochs and settings is then no longer of unseen labels. Training sees the convolutions alone,
    evaluation the mixture.

    Differs from the authors' code: a class that no edge leads to keeps its block of zeros;
    ``dropout`` also acts between the layers of the direct form, where theirs has none (0); the
    GCNII is trained before and not along with the convolutions, and the mixture's loss is of
    probabilities that sum to one, so that both weights may stay positive.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        first, replicas = task.settings[0], len(task.replicas)
        width, classes = first.hidden_dim, task.num_classes
        self.encode: StatisticLinear | None = None
        self.classify: MLP | None = None
        if first.form == "direct":
            widths = [task.graph.num_features, *[width] * (first.layers - 1), classes]
        else:
            widths = [width] * (first.layers + 1)
            self.encode = StatisticLinear(replicas, task.graph.num_features, width)
            self.classify = MLP(replicas, [sum(widths), width, classes])
        layer = partial(LabelwiseConvolution, num_classes=classes)
        self.convolve = stack_layers(layer, replicas, widths)
        self.mix = Mixture(replicas) if first.mix_gcnii else None

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        logits = self._logits(inputs, noise)
        if self.mix is None:
            return Output(logits)
        if noise is None:
            return Output(self.mix(logits, inputs["gcnii"]))
        if not penalties:
            return Output(logits)
        with torch.no_grad():  # the weights are fitted to what evaluation will mix
            clean = self._logits(inputs, None)
        mixed = self.mix(clean, inputs["gcnii"])
        labels = inputs["val_labels"]
        return Output(logits, {"mixing": class_loss(mixed, labels.clamp(min=0), labels >= 0)})

    def _logits(self, inputs: Mapping[str, Any], noise: Noise | None) -> Tensor:
        attributes, means = inputs["attributes"], inputs["means"]
        if self.encode is not None and self.classify is not None:
            states = [self.encode(attributes, self.input_rate, noise, "encode")]
            for layer in self.convolve:
                near = LabelwiseStates(means, states[-1])
                states.append(torch.relu(layer(near, states[-1])))
            together = torch.cat(states, dim=-1)
            result: Tensor = self.classify(together, self.drop_rate, noise, "classify")
            return result
        columns = self.column_factors(attributes, noise)
        start, *rest = self.convolve
        hidden: Tensor = start(inputs["attribute_means"], attributes, columns)
        for number, layer in enumerate(rest, start=1):
            hidden = relu_dropout(hidden, self.drop_rate, noise, f"hidden.{number}")
            hidden = layer(LabelwiseStates(means, hidden), hidden)
        return hidden


def _gcnii_task(task: TrainingTask) -> TrainingTask:
    """The task of the GCNII: the widths and rates of LW-GCN, its own depth."""
    names = {info.name for info in dataclasses.fields(GraphSettings)}
    replicas = []
    for replica in task.replicas:
        source: LWGCNSettings = replica.settings
        settings = gcnii.GCNIISettings(
            **{name: getattr(source, name) for name in names - {"epochs", "patience"}},
            layers=source.gcnii_layers,
            initial_share=source.gcnii_initial_share,
            identity_strength=source.gcnii_identity_strength,
            convolution_weight_decay=source.weight_decay,
            epochs=source.gcnii_epochs,
            patience=source.gcnii_patience,
        )
        replicas.append(dataclasses.replace(replica, settings=settings))
    return dataclasses.replace(task, replicas=tuple(replicas))


def _gcnii(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    if not task.settings[0].mix_gcnii:  # nothing to train
        rates = [0.0] * len(task.replicas)
        return TrainingStage("gcnii", nn.Module(), {}, rates, rates, epochs=0, patience=0)
    logger.warning("LW-GCN with mix_gcnii fits its two weights to the validation labels.")
    return dataclasses.replace(gcnii.ENTRY.stages["main"](_gcnii_task(task), {}), name="gcnii")


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    settings: list[LWGCNSettings] = task.settings
    first, device = settings[0], task.device
    labels = compute_pseudo_labels(task, done["estimator"])
    adjacency = task.statistics.adjacency(first.neighbors)
    means = ClassMeans(adjacency, labels, task.num_classes, device)
    inputs = attributes_input(task) | {"means": means}
    if first.form == "direct":
        x = scale_attributes(task.graph.x, first.attributes_scaling)
        if sp.issparse(x):
            inputs["attribute_means"] = FactoredMeans(
                adjacency, x, labels, task.num_classes, device=device
            )
        else:
            dense = torch.tensor(x, dtype=torch.float32, device=device)
            inputs["attribute_means"] = LabelwiseStates(means, dense.expand(len(labels), -1, -1))
    if not first.mix_gcnii:
        return main_stage(task, LWGCN(task), inputs)
    gcnii_stage = gcnii.ENTRY.stages["main"](_gcnii_task(task), {})
    inputs["gcnii"] = trained_logits(task, gcnii_stage, done["gcnii"])
    inputs["val_labels"] = torch.from_numpy(task.val_labels).to(device)
    return main_stage(
        task,
        LWGCN(task),
        inputs,
        penalty_weights={"mixing": [1.0] * len(settings)},
        own_rates={"mix.": Rates(task.values("mixing_lr"), [0.0] * len(settings))},
    )


def _floats(graph: Graph, settings: LWGCNSettings) -> tuple[int, int]:
    classes, width = max(graph.num_classes, 2), settings.hidden_dim
    parameters = (classes + 1) * width * width * settings.layers + graph.num_features * width
    # A state, its copy by class, its product with the weights, the mean, and their gradients.
    per_node = 7 * width * (settings.layers + 1)
    edges = 8 * graph.num_edges // max(graph.num_nodes, 1)  # Â and its transpose
    if settings.form == "direct":
        parameters += classes * graph.num_features * width
        stored = graph.x.nnz if sp.issparse(graph.x) else graph.x.size
        edges += edges + 4 * stored // max(graph.num_nodes, 1)
    if settings.mix_gcnii:
        per_node += width * (settings.gcnii_layers * 5 // 4 + 12)
    return parameters, per_node + edges


ENTRY = ModelEntry(
    "lwgcn",
    LWGCNSettings,
    {"estimator": estimator_stage, "gcnii": _gcnii, "main": _main},
    _floats,
    predicts_targets=False,
)
