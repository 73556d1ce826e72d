"""The label estimator: an MLP on the attributes whose predictions become pseudo-labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from hpgmn.base.randomness import DropRate, Noise
from hpgmn.base.settings import dropout_setting, setting
from hpgmn.graph import Array
from hpgmn.models.layers import Output, RowModel, StatisticMLP
from hpgmn.models.stage import Parameters, TrainingStage, TrainingTask, load_parameters, main_stage
from hpgmn.statistics.labelwise import one_hot

_READ_NODES = 65536  # nodes per forward pass of a stage trained in batches


@dataclass(frozen=True, kw_only=True)
class EstimatorSettings:
    """Settings of the label estimator and its training."""

    estimator_hidden: int = setting(64, "hidden width of the label estimator", low=1)
    estimator_layers: int = setting(2, "layers of the label estimator", low=1, high=4)
    estimator_lr: float = setting(
        0.01, "learning rate of the label estimator", low=0.0, per_replica=True
    )
    estimator_weight_decay: float = setting(
        5e-4, "weight decay of the label estimator", low=0.0, per_replica=True
    )
    estimator_dropout: float = dropout_setting(
        0.5, "dropout of the label estimator, on its input columns and hidden layer"
    )
    estimator_epochs: int = setting(200, "most epochs of the label estimator", low=1)
    estimator_patience: int = setting(
        50, "stop the estimator after so many epochs without a better one; 0: never", low=0
    )


class LabelEstimator(RowModel):
    """An MLP from attributes to classes.

    Args:
        width: the number of attributes.
        num_classes: C.
        settings: one per replica.
        device: the device of the dropout rates.
    """

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

    Args:
        logits: (R, N, C).
        train_labels: (R, N), -1 outside the train nodes.
        confidence: as in :func:`pseudo_labels`; a node of unknown class has a row of zeros.

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


def labels_for_statistics(
    logits: Tensor, train_labels: Array, settings: Sequence[Any]
) -> tuple[Array, Array | None]:
    """Return the pseudo-labels (R, N) and, with ``soft_counts``, the class shares (R, N, C).

    Training, prediction and explanations all read these.
    """
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
        model = LabelEstimator(task.graph.num_features, task.num_classes, settings, task.device)
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
    return stage_logits(task, estimator_stage(task, {}), parameters)


def stage_logits(task: TrainingTask, stage: TrainingStage, parameters: Parameters) -> Tensor:
    """Compute the logits of a stage's trained model for all nodes, dropout off: (R, N, C)."""
    model = stage.model.to(task.device)
    load_parameters(model, parameters)
    with torch.no_grad():
        if not stage.batch_size:
            output: Output = model(stage.inputs)
            return output.logits
        nodes = torch.arange(task.graph.num_nodes, device=task.device)
        parts = torch.split(nodes.expand(len(task.replicas), -1), _READ_NODES, dim=1)
        return torch.cat([model(stage.inputs, None, part).logits for part in parts], dim=1)


def estimated_labels(task: TrainingTask, parameters: Parameters) -> Array:
    """Compute the pseudo-labels of all nodes from the trained estimator: (R, N)."""
    return pseudo_labels(estimator_logits(task, parameters), task.train_labels)
