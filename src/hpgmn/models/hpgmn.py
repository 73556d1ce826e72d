"""HP-GMN: an encoder per local statistic, a memory of global patterns, a classifier.

Xu, Dai, Zhang and Wang, ICDM 2022; equation numbers are the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpgmn.base.errors import Remedy, SettingError
from hpgmn.base.randomness import DropRate, Noise
from hpgmn.base.settings import BatchSettings, dropout_setting, setting
from hpgmn.graph import Graph
from hpgmn.models.label_estimator import (
    EstimatorSettings,
    estimator_logits,
    estimator_stage,
    labels_for_statistics,
    stage_logits,
)
from hpgmn.models.layers import Initialised, Output, StatisticMLP
from hpgmn.models.memory import (
    MemoryHead,
    MemorySettings,
    NodeReduction,
    penalty_weights,
    reduce_nodes,
)
from hpgmn.models.stage import (
    ModelEntry,
    Parameters,
    StageBuilder,
    TrainingStage,
    TrainingTask,
    stage_of,
)
from hpgmn.statistics import (
    Statistic,
    StatisticsSettings,
    averaged_statistic,
    base_name,
    statistic_names,
)
from hpgmn.statistics.definitions import ClassMeans
from hpgmn.statistics.diffusion_forms import Diffusion


def _input_dropout(default: float, what: str) -> float:
    """Declare the dropout of whole columns of one statistic."""
    rate: float = dropout_setting(default, f"dropout of whole columns of the {what}")
    return rate


@dataclass(frozen=True, kw_only=True)
class HPGMNSettings(StatisticsSettings, EstimatorSettings, MemorySettings, BatchSettings):
    """Settings of HP-GMN."""

    weight_decay: float = setting(
        1e-3, "weight decay (L2, added to the gradient)", low=0.0, per_replica=True
    )
    dropout: float = dropout_setting(0.5, "dropout inside the network")
    patience: int = setting(
        60, "stop after so many epochs without a better validation score; 0: never", low=0
    )
    hidden_dim: int = setting(64, "width of each encoder and of the classifier", low=1)
    encoder_layers: int = setting(2, "layers of each statistic's encoder", low=1, high=4)
    attributes_dropout: float = _input_dropout(0.3, "attributes")
    class_counts_dropout: float = _input_dropout(0.0, "class counts")
    class_means_dropout: float = _input_dropout(0.7, "class means")
    diffusion_dropout: float = _input_dropout(0.6, "diffusion rows")
    adjacency_dropout: float = _input_dropout(0.6, "adjacency rows")
    gate: bool = setting(
        True, "learned weights over the statistics; false: the paper's plain query"
    )
    unit_encodings: bool = setting(False, "scale each statistic's encoding to unit length")
    label_confidence: float = setting(
        0.0,
        "a pseudo-label less probable than this is unknown; 1: only train labels are known",
        low=0.0,
        high=1.0,
        per_replica=True,
    )
    refinement: bool = setting(
        False, "train twice: the first model's predictions are the pseudo-labels of the second"
    )

    def __post_init__(self) -> None:
        """Reject statistics that batches cannot have."""
        super().__post_init__()
        means = [name for name in self.statistics if averaged_statistic(name) is not None]
        if self.batch_size and means:
            remedy = Remedy("Train without batches", setting="batch_size", value=0)
            raise SettingError(
                f"Batches cannot have a mean over neighbours ({', '.join(means)}): it is computed "
                "from all nodes in every step.",
                remedy | "Leave it out of statistics",
            )


class Gate(Initialised):
    """A learned softmax over the statistics, scaled so that a uniform gate changes nothing."""

    def __init__(self, replicas: int, choices: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(replicas, choices))

    def reset_parameters(self, noise: Noise, place: str) -> None:
        """Start uniform."""
        self.logits.zero_()

    def forward(self) -> Tensor:
        """(R, choices), mean 1."""
        return self.logits.softmax(dim=-1) * self.logits.shape[1]


class HPGMN(nn.Module):
    """Query = [MLP₁(r¹) ‖ … ‖ MLP_S(r^S)], then memory and classifier; Eqs. (8) to (12).

    Differs from the paper by a gate over the statistics and dropout on their columns; the shipped
    config "paper" switches both off and takes the paper's four statistics unscaled.

    Args:
        widths: the width of each statistic, by name.
        num_classes: C.
        settings: one for all replicas, or a sequence with one each.
        replicas: R, where ``settings`` is a single one.
        device: the device of the dropout rates.
        node_reduction: see :class:`~hpgmn.models.memory.Memory`.
    """

    def __init__(
        self,
        widths: Mapping[str, int],
        num_classes: int,
        settings: HPGMNSettings | Sequence[HPGMNSettings] | None = None,
        *,
        replicas: int = 1,
        device: torch.device | str = "cpu",
        node_reduction: NodeReduction = reduce_nodes,
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
            {name: StatisticMLP(len(each), [width, *layers]) for name, width in widths.items()}
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

    def query(
        self,
        inputs: Mapping[str, Statistic],
        noise: Noise | None = None,
        nodes: Tensor | None = None,
    ) -> Tensor:
        """Compute the concatenated encodings, (R, N or B, S·D)."""
        parts = []
        weights = None if self.gate is None else self.gate()
        for number, name in enumerate(self.names):
            part = self.encode[name](
                inputs[name], self.input_rates[name], self.drop_rate, noise, name, nodes
            )
            if self.unit_encodings:
                part = functional.normalize(part, dim=-1)
            if weights is not None:
                part = part * weights[:, number, None, None]
            parts.append(part)
        return torch.cat(parts, dim=-1)

    def forward(
        self,
        inputs: Mapping[str, Statistic],
        noise: Noise | None = None,
        nodes: Tensor | None = None,
        classify: Tensor | None = None,
        *,
        penalties: bool = False,
        details: bool = False,
    ) -> Output:
        """Compute class logits.

        Args:
            inputs: the statistics by name.
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


def label_logits(task: TrainingTask, done: Mapping[str, Parameters]) -> Tensor:
    """Compute the logits behind the pseudo-labels of the main stage, (R, N, C)."""
    logits = estimator_logits(task, done["estimator"])
    if "refinement" in done:
        logits = stage_logits(task, stage_on_labels(task, logits), done["refinement"])
    return logits


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    return stage_on_labels(task, label_logits(task, done))


def _refinement(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    logits = estimator_logits(task, done["estimator"])
    return stage_on_labels(task, logits, name="refinement")


def stage_on_labels(task: TrainingTask, logits: Tensor, **overrides: Any) -> TrainingStage:
    """Build the stage whose statistics use the pseudo-labels of logits (R, N, C)."""
    labels, shares = labels_for_statistics(logits, task.train_labels, task.settings)
    inputs = task.statistics.build(labels, task.num_classes, task.settings, shares)
    return stage_on_statistics(inputs, task.num_classes, task.settings, task.device, **overrides)


def stage_on_statistics(
    inputs: Mapping[str, Statistic],
    num_classes: int,
    settings: Sequence[HPGMNSettings],
    device: torch.device,
    node_reduction: NodeReduction = reduce_nodes,
    **overrides: Any,
) -> TrainingStage:
    """Build the stage that reads the statistics of ``statistic_names``."""
    widths = {name: inputs[name].width for name in statistic_names(settings[0])}
    with device:  # parameters can take gigabytes: allocate them on the device
        model = HPGMN(widths, num_classes, settings, device=device, node_reduction=node_reduction)
    return stage_of(
        settings,
        model,
        inputs,
        penalty_weights=penalty_weights(settings),
        frozen=("head.memory.use",) if settings[0].batch_size else (),
        after_step=_update_use if settings[0].batch_size else None,
        reads_rows=True,
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
    classes = max(graph.num_classes, 2)
    widths = {
        "attributes": graph.num_features,
        "class_counts": classes,
        "class_means": classes
        * (
            settings.class_means_dim
            if ClassMeans.is_sketched(graph, settings)
            else graph.num_features
        ),
        "diffusion": settings.diffusion_dim
        if Diffusion.is_sketched(graph, settings)
        else graph.num_nodes,
        "adjacency": graph.num_nodes,
    }
    bases = [base_name(name) for name in statistic_names(settings)]
    names = [averaged_statistic(base) or base for base in bases]
    parameters = sum(widths[name] for name in names) * settings.hidden_dim
    return parameters, settings.hidden_dim * (9 * len(names) + 6) + 4 * settings.num_patterns


ENTRY = ModelEntry(
    "hpgmn",
    HPGMNSettings,
    STAGES,
    _floats,
    optional={"refinement": lambda settings: settings.refinement},
)
