"""HP-GMN: pseudo-labels from an MLP, an encoder per statistic, a memory, a classifier.

Xu, Dai, Zhang and Wang, ICDM 2022; equation numbers are the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from hpgmn.base.errors import Remedy, SettingError
from hpgmn.base.randomness import DropRate, Noise
from hpgmn.base.settings import (
    BatchSettings,
    dropout_setting,
    inherited_setting,
    rate_setting,
    setting,
    share_setting,
)
from hpgmn.base.tasks import is_known, target_bins, target_scale
from hpgmn.graph import Array, Graph
from hpgmn.models.layers import Gate, Output, RowModel, StatisticMLP
from hpgmn.models.memory import (
    MemoryHead,
    MemoryModel,
    MemorySettings,
    NodeReduction,
    penalty_weights,
    reduce_nodes,
)
from hpgmn.models.message_passing import MessagePassing, MessagePassingSettings
from hpgmn.models.stage import (
    ModelEntry,
    Parameters,
    StageBuilder,
    TrainingStage,
    TrainingTask,
    main_stage,
    stage_of,
    trained_logits,
)
from hpgmn.statistics import (
    Statistic,
    StatisticsSettings,
    averaged_statistic,
    base_name,
    statistic_names,
)
from hpgmn.statistics.definitions import ClassMeans, diffusion_is_sketched
from hpgmn.statistics.labelwise import one_hot
from hpgmn.statistics.targets import TargetMeans, num_groups


@dataclass(frozen=True, kw_only=True)
class EstimatorSettings:
    """Settings of the label estimator and its training."""

    estimator_hidden: int = setting(64, "hidden width of the label estimator", low=1)
    estimator_layers: int = setting(2, "layers of the label estimator", low=1, high=4)
    estimator_lr: float = rate_setting(0.01, "learning rate of the label estimator")
    estimator_weight_decay: float = rate_setting(5e-4, "weight decay of the label estimator")
    estimator_dropout: float = dropout_setting(
        0.5, "dropout of the label estimator, on its input columns and hidden layer"
    )
    estimator_epochs: int = setting(200, "maximum number of epochs of the label estimator", low=1)
    estimator_patience: int = setting(
        50, "stop the estimator after this number of epochs without improvement; 0: never", low=0
    )


@dataclass(frozen=True, kw_only=True)
class HPGMNSettings(
    StatisticsSettings, MessagePassingSettings, EstimatorSettings, MemorySettings, BatchSettings
):
    """Settings of HP-GMN."""

    weight_decay: float = inherited_setting(BatchSettings, "weight_decay", 1e-3)
    dropout: float = inherited_setting(BatchSettings, "dropout", 0.5)
    patience: int = inherited_setting(BatchSettings, "patience", 60)
    hidden_dim: int = setting(64, "width of each encoder and of the classifier", low=1)
    encoder_layers: int = setting(2, "layers of each statistic's encoder", low=1, high=4)
    attributes_dropout: float = dropout_setting(0.3, "dropout of whole columns of the attributes")
    class_counts_dropout: float = dropout_setting(
        0.0, "dropout of whole columns of the class counts"
    )
    target_means_dropout: float = dropout_setting(
        0.0, "dropout of whole columns of the mean targets of neighbours"
    )
    class_means_dropout: float = dropout_setting(0.7, "dropout of whole columns of the class means")
    diffusion_dropout: float = dropout_setting(
        0.6, "dropout of whole columns of the diffusion rows"
    )
    adjacency_dropout: float = dropout_setting(
        0.6, "dropout of whole columns of the adjacency rows"
    )
    hops_dropout: float = dropout_setting(0.3, "dropout of whole columns of the hops")
    gate: bool = setting(
        True, "learned weights over the statistics; false: the paper's plain query"
    )
    unit_encodings: bool = setting(False, "scale each statistic's encoding to unit length")
    label_confidence: float = share_setting(
        0.0, "a pseudo-label less probable than this is unknown; 1: only train labels are known"
    )
    target_bins: int = setting(
        8,
        "regression: quantile bins of the train targets, the classes of statistics",
        low=2,
        high=64,
    )
    refinement: bool = setting(
        False, "train twice: the first model's predictions are the pseudo-labels of the second"
    )

    def __post_init__(self) -> None:
        """Reject statistics that batches cannot have."""
        super().__post_init__()
        if self.batch_size and "message_passing" in self.statistics:
            others = tuple("hops" if n == "message_passing" else n for n in self.statistics)
            raise SettingError(
                "Batches cannot have message_passing: it is computed from all nodes in every step.",
                Remedy("Use precomputed hops", setting="statistics", value=others)
                | Remedy("Train without batches", setting="batch_size", value=0),
            )
        means = [name for name in self.statistics if averaged_statistic(name) is not None]
        if self.batch_size and means:
            remedy = Remedy("Train without batches", setting="batch_size", value=0)
            raise SettingError(
                f"Batches cannot have a mean over neighbours ({', '.join(means)}): it is computed "
                "from all nodes in every step.",
                remedy | "Leave it out of statistics",
            )


class HPGMN(MemoryModel):
    """Query = [MLP₁(r¹) ‖ … ‖ MLP_S(r^S)], then memory and classifier; Eqs. (8) to (12).

    Differs from the paper by a gate over the statistics and dropout on their columns; the shipped
    config "paper" switches both off and takes the paper's four statistics unscaled.

    Args:
        widths: the width of each statistic, by name.
        settings: one for all replicas, or a sequence with one each.
        replicas: R, where ``settings`` is a single one.
        device: the device of the dropout rates.
        node_reduction: see :class:`~hpgmn.models.memory.Memory`.
        num_types: the number of edge types of message passing.
    """

    head: MemoryHead

    def __init__(
        self,
        widths: Mapping[str, int],
        num_classes: int,
        settings: HPGMNSettings | Sequence[HPGMNSettings] | None = None,
        *,
        replicas: int = 1,
        device: torch.device | str = "cpu",
        node_reduction: NodeReduction = reduce_nodes,
        num_types: int = 1,
    ) -> None:
        super().__init__()
        if settings is None:
            settings = HPGMNSettings()
        each = [settings] * replicas if isinstance(settings, HPGMNSettings) else list(settings)
        first = each[0]
        self.unit_encodings = first.unit_encodings
        self.names = list(widths)
        layers = [first.hidden_dim] * first.encoder_layers
        self.encode = nn.ModuleDict(
            {
                name: MessagePassing(len(each), width, first, num_types)
                if base_name(name) == "message_passing"
                else StatisticMLP(len(each), [width, *layers])
                for name, width in widths.items()
            }
        )
        self.input_rates = {
            name: DropRate([getattr(replica, _dropout_of(name)) for replica in each], device)
            for name in widths
        }
        self.drop_rate = DropRate([replica.dropout for replica in each], device)
        self.gate = Gate(len(each), len(widths)) if first.gate else None
        self.head = MemoryHead(
            len(each),
            len(widths) * first.hidden_dim,
            first.hidden_dim,
            num_classes,
            first,
            self.drop_rate,
            in_batches=first.batch_size > 0,
            node_reduction=node_reduction,
        )

    def encoding(
        self, name: str, statistic: Statistic, noise: Noise | None, nodes: Tensor | None
    ) -> Tensor:
        """Encode a statistic, without its gate: (R, N or B, D)."""
        encoder, rates = self.encode[name], (self.input_rates[name], self.drop_rate)
        part: Tensor = encoder(statistic, *rates, noise, name, nodes)
        return part

    def query(
        self,
        inputs: Mapping[str, Statistic | Tensor],
        noise: Noise | None = None,
        nodes: Tensor | None = None,
    ) -> Tensor:
        """Compute the concatenated encodings, (R, N or B, S·D); a tensor among inputs is one."""
        parts: list[Tensor] = []
        weights = None if self.gate is None else self.gate()
        for number, name in enumerate(self.names):
            statistic = inputs[name]
            if isinstance(statistic, Tensor):
                part = statistic
            else:
                part = self.encoding(name, statistic, noise, nodes)
            if self.unit_encodings:
                part = functional.normalize(part, dim=-1)
            if weights is not None:
                part = part * weights[:, number, None, None]
            parts.append(part)
        return torch.cat(parts, dim=-1)

    def forward(
        self,
        inputs: Mapping[str, Statistic | Tensor],
        noise: Noise | None = None,
        nodes: Tensor | None = None,
        classify: Tensor | None = None,
        *,
        penalties: bool = False,
        details: bool = False,
    ) -> Output:
        """Compute class logits.

        Args:
            inputs: the statistics by name, or encodings of them.
            noise: the step's random numbers; None in evaluation.
            nodes: (R, B) nodes whose statistics are read; None for all.
            classify: (R, T) positions among those to classify; None for all.
            penalties: whether to compute the memory's penalties over all nodes read.
            details: whether to return query, attention and gate.
        """
        query = self.query(inputs, noise, nodes)
        output: Output = self.head(query, noise, classify, penalties=penalties, details=details)
        if details and self.gate is not None:
            output.details["gate"] = self.gate()
        return output


def _dropout_of(name: str) -> str:
    """Name the dropout setting of a statistic; a mean over neighbours has that of its base."""
    base = base_name(name)
    return f"{averaged_statistic(base) or base}_dropout"


class LabelEstimator(RowModel):
    """An MLP from attributes to classes; ``width`` is their number."""

    def __init__(
        self,
        width: int,
        num_classes: int,
        settings: Sequence[EstimatorSettings],
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        first = settings[0]
        hidden = [first.estimator_hidden] * (first.estimator_layers - 1)
        self.encode = StatisticMLP(len(settings), [width, *hidden, num_classes])
        self.drop_rate = DropRate([replica.estimator_dropout for replica in settings], device)

    @override
    def rows(self, inputs: Mapping[str, Any], noise: Noise | None, nodes: Tensor | None) -> Tensor:
        logits: Tensor = self.encode(
            inputs["attributes"], self.drop_rate, self.drop_rate, noise, "encode", nodes
        )
        return logits


def pseudo_labels(
    logits: Tensor, train_labels: Array, confidence: Sequence[float] | None = None
) -> Array:
    """Return the predicted classes (R, N), with the true label on train nodes only.

    Args:
        logits: (R, N, C).
        train_labels: (R, N), -1 outside the train nodes.
        confidence: for each replica the probability below which a pseudo-label is -1, unknown.

    >>> logits = torch.tensor([[[2.0, 1.0], [2.0, 1.0]]])
    >>> pseudo_labels(logits, np.array([[-1, 1]]))
    array([[0, 1]])
    >>> pseudo_labels(logits, np.array([[-1, 1]]), [0.9])
    array([[-1,  1]])
    """
    predicted = logits.argmax(dim=-1).cpu().numpy()
    if confidence is not None and any(confidence):
        probability = logits.softmax(dim=-1).amax(dim=-1).cpu().numpy()
        least = np.asarray(confidence)[:, None]
        predicted = np.where((probability < least) | (least >= 1), -1, predicted)
    return np.where(train_labels >= 0, train_labels, predicted)


def class_shares(
    logits: Tensor, train_labels: Array, confidence: Sequence[float] | None = None
) -> Array:
    """Return the predicted class probabilities (R, N, C), one-hot on train nodes.

    The arguments are those of :func:`pseudo_labels`; a node of unknown class has a row of zeros.

    >>> logits = torch.tensor([[[0.0, 0.0], [2.0, 1.0]]])
    >>> class_shares(logits, np.array([[-1, 1]])).tolist()
    [[[0.5, 0.5], [0.0, 1.0]]]
    >>> class_shares(logits, np.array([[-1, 1]]), [0.9]).tolist()
    [[[0.0, 0.0], [0.0, 1.0]]]
    """
    shares: Array = logits.softmax(dim=-1).cpu().numpy()
    known = one_hot(train_labels, shares.shape[-1])
    shares = np.where(train_labels[..., None] >= 0, known, shares)
    shares[pseudo_labels(logits, train_labels, confidence) < 0] = 0
    return shares


def labels_for_statistics(task: TrainingTask, logits: Tensor) -> tuple[Array, Array | None]:
    """Return what label-wise statistics read; training, prediction and explanations use it.

    Args:
        logits: (R, N, C) of the label estimator.

    Returns:
        The pseudo-labels (R, N) and, with ``soft_counts``, the class shares (R, N, C). For a
        regression the bins of the targets, and (R, N, 3) what :class:`TargetMeans` averages: the
        standardised target, known on train nodes and predicted elsewhere, the same with 0 for
        predicted ones, and whether it is known.
    """
    train_labels, settings = task.train_labels, task.settings
    if task.is_regression:
        known = is_known(train_labels)
        targets = np.where(known, train_labels, logits[..., 0].cpu().numpy())
        mean, std = target_scale(task.reference_labels)
        standard = (targets - mean) / std
        averaged = np.stack([standard, np.where(known, standard, 0.0), known], axis=-1)
        bins = target_bins(targets, task.reference_labels, task.num_groups)
        return bins, averaged.astype(np.float32)
    confidence = [replica.label_confidence for replica in settings]
    shares = None
    if settings[0].soft_counts:
        shares = class_shares(logits, train_labels, confidence)
    return pseudo_labels(logits, train_labels, confidence), shares


def estimator_inputs(task: TrainingTask) -> dict[str, Any]:
    """The attributes, scaled according to the settings."""
    return {"attributes": task.statistics.attributes(task.settings[0].attributes_scaling)}


def estimator_stage(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    """Build the stage that trains the estimator on the train labels."""
    settings = task.settings
    with task.device:
        model = LabelEstimator(task.graph.num_features, task.output_dim, settings, task.device)
    return main_stage(
        task,
        model,
        estimator_inputs(task),
        name="estimator",
        lr=[replica.estimator_lr for replica in settings],
        weight_decay=[replica.estimator_weight_decay for replica in settings],
        epochs=settings[0].estimator_epochs,
        patience=settings[0].estimator_patience,
        consistency=None,
        reads_rows=True,
    )


def estimator_logits(task: TrainingTask, parameters: Parameters) -> Tensor:
    """Compute the trained estimator's logits of all nodes, dropout off: (R, N, C)."""
    return trained_logits(task, estimator_stage(task, {}), parameters)


def compute_pseudo_labels(task: TrainingTask, parameters: Parameters) -> Array:
    """Compute the pseudo-labels of all nodes from the trained estimator: (R, N)."""
    return pseudo_labels(estimator_logits(task, parameters), task.train_labels)


def label_logits(task: TrainingTask, done: Mapping[str, Parameters]) -> Tensor:
    """Compute the logits behind the pseudo-labels of the main stage, (R, N, C)."""
    logits = estimator_logits(task, done["estimator"])
    if "refinement" in done:
        logits = trained_logits(task, stage_on_labels(task, logits), done["refinement"])
    return logits


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    return stage_on_labels(task, label_logits(task, done))


def _refinement(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    logits = estimator_logits(task, done["estimator"])
    return stage_on_labels(task, logits, name="refinement")


def stage_on_labels(task: TrainingTask, logits: Tensor, **overrides: Any) -> TrainingStage:
    """Build the stage whose statistics use the pseudo-labels of logits (R, N, C)."""
    labels, shares = labels_for_statistics(task, logits)
    inputs = task.statistics.build(labels, task.num_groups, task.settings, shares)
    return stage_on_statistics(inputs, task.output_dim, task.settings, task.device, **overrides)


def stage_on_statistics(
    inputs: Mapping[str, Statistic],
    output_dim: int,
    settings: Sequence[HPGMNSettings],
    device: torch.device,
    node_reduction: NodeReduction = reduce_nodes,
    **overrides: Any,
) -> TrainingStage:
    """Build the stage that reads these statistics."""
    with device:  # parameters can take gigabytes: allocate them on the device
        model = HPGMN(
            {name: statistic.width for name, statistic in inputs.items()},
            output_dim,
            settings,
            device=device,
            node_reduction=node_reduction,
            num_types=max(statistic.num_matrices for statistic in inputs.values()),
        )
    return stage_of(
        settings,
        model,
        inputs,
        penalty_weights=penalty_weights(settings),
        after_step=_update_use if settings[0].batch_size else None,
        reads_rows="message_passing" not in settings[0].statistics,
        **overrides,
    )


def _update_use(model: nn.Module) -> None:
    assert isinstance(model, HPGMN)
    if model.head.memory is not None:
        model.head.memory.update_use()


STAGES: dict[str, StageBuilder] = {
    "estimator": estimator_stage,
    "refinement": _refinement,
    "main": _main,
}


def _floats(graph: Graph, settings: HPGMNSettings) -> tuple[int, int]:
    classes, num_types = max(num_groups(graph, settings), 2), len(graph.edge_type_names)
    matrices = num_types if num_types and settings.edge_types == "separate" else 1
    widths = {
        "attributes": graph.num_features,
        "class_counts": classes,
        "target_means": TargetMeans.width,
        "class_means": classes
        * (
            settings.class_means_dim
            if ClassMeans.is_sketched(graph, settings, classes)
            else graph.num_features
        ),
        "diffusion": settings.diffusion_dim
        if diffusion_is_sketched(graph, settings)
        else graph.num_nodes,
        "adjacency": graph.num_nodes,
        "hops": settings.hops * (settings.hops_dim or graph.num_features),
        "message_passing": (1 + matrices)
        * (graph.num_features + settings.mp_layers * settings.hidden_dim),
    }
    bases = [base_name(name) for name in statistic_names(settings, num_types)]
    names = [averaged_statistic(base) or base for base in bases]
    parameters = sum(widths[name] for name in names) * settings.hidden_dim
    states = (
        9 * len(names) + 6 + (3 + matrices) * settings.mp_layers * names.count("message_passing")
    )
    return parameters, settings.hidden_dim * states + 4 * settings.num_patterns


ENTRY = ModelEntry(
    "hpgmn",
    HPGMNSettings,
    STAGES,
    _floats,
    optional={"refinement": lambda settings: settings.refinement},
)
