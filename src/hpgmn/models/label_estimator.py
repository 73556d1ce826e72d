"""The label estimator: an MLP on the attributes whose guesses become pseudo labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpgmn.base.randomness import DropRate, Noise
from hpgmn.base.settings import dropout_setting, setting
from hpgmn.graph import Array
from hpgmn.models.layers import Output, StatisticMLP
from hpgmn.models.stage import Parameters, TrainingStage, TrainingTask, load_parameters
from hpgmn.statistics import Statistic
from hpgmn.statistics.labelwise import one_hot
from hpgmn.statistics.operators import take_nodes

_READ_NODES = 65536  # whose labels are guessed at once in batches


@dataclass(frozen=True, kw_only=True)
class EstimatorSettings:
    """The label estimator and its training."""

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


class LabelEstimator(nn.Module):
    """An MLP from attributes to classes.

    Args:
        width: the number of attributes.
        num_classes: C.
        settings: one per replica.
        device: where the dropout rates live.
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
        self.drop_rate = DropRate([one.estimator_dropout for one in settings], device)

    def forward(
        self,
        inputs: Mapping[str, Statistic],
        noise: Noise | None = None,
        nodes: Tensor | None = None,
        classify: Tensor | None = None,
        *,
        penalties: bool = False,
    ) -> Output:
        """Class logits from ``inputs["attributes"]``."""
        logits = self.encode(
            inputs["attributes"], self.drop_rate, self.drop_rate, noise, "encode", nodes
        )
        return Output(take_nodes(logits, classify))


def pseudo_labels(
    logits: Tensor, train_labels: Array, confidence: Sequence[float] | None = None
) -> Array:
    """Guessed labels, with the true label on train nodes only.

    Args:
        logits: (R, N, C).
        train_labels: (R, N), -1 outside the train nodes.
        confidence: for each replica the probability below which a guess is unknown, -1.

    Returns:
        (R, N)

    >>> logits = torch.tensor([[[2.0, 1.0], [2.0, 1.0]]])
    >>> pseudo_labels(logits, np.array([[-1, 1]]))
    array([[0, 1]])
    >>> pseudo_labels(logits, np.array([[-1, 1]]), [0.9])
    array([[-1,  1]])
    """
    guesses = logits.argmax(dim=-1).cpu().numpy()
    if confidence is not None and any(confidence):
        sure = logits.softmax(dim=-1).amax(dim=-1).cpu().numpy()
        least = np.asarray(confidence)[:, None]
        guesses = np.where((sure < least) | (least >= 1), -1, guesses)
    return np.where(train_labels >= 0, train_labels, guesses)


def class_shares(
    logits: Tensor, train_labels: Array, confidence: Sequence[float] | None = None
) -> Array:
    """Guessed probabilities of each class, with certainty on train nodes.

    Args:
        logits: (R, N, C).
        train_labels: (R, N), -1 outside the train nodes.
        confidence: as in :func:`pseudo_labels`; a node whose guess is unknown has none of a class.

    Returns:
        (R, N, C)

    >>> logits = torch.tensor([[[0.0, 0.0], [2.0, 1.0]]])
    >>> class_shares(logits, np.array([[-1, 1]])).tolist()
    [[[0.5, 0.5], [0.0, 1.0]]]
    >>> class_shares(logits, np.array([[-1, 1]]), [0.9]).tolist()
    [[[0.0, 0.0], [0.0, 1.0]]]
    """
    shares: Array = logits.softmax(dim=-1).cpu().numpy()
    certain = one_hot(train_labels, shares.shape[-1])
    shares = np.where(train_labels[..., None] >= 0, certain, shares)
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
    """What the estimator reads: the attributes, scaled as the settings say."""
    return {"attributes": task.statistics.attributes(task.settings[0].attributes_scaling)}


def estimator_stage(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    """The stage that trains the estimator on the train labels."""
    settings = task.settings
    with task.device:
        model = LabelEstimator(task.graph.num_features, task.num_classes, settings, task.device)
    return TrainingStage(
        name="estimator",
        model=model,
        inputs=estimator_inputs(task),
        lr=[one.estimator_lr for one in settings],
        weight_decay=[one.estimator_weight_decay for one in settings],
        epochs=settings[0].estimator_epochs,
        patience=settings[0].estimator_patience,
        batch_size=getattr(settings[0], "batch_size", 0),
        reads_rows=True,
        precision=settings[0].precision,
    )


def estimator_logits(task: TrainingTask, parameters: Parameters) -> Tensor:
    """The trained estimator's logits for all nodes, dropout off: (R, N, C)."""
    return guessed_logits(task, estimator_stage(task, {}), parameters)


def guessed_logits(task: TrainingTask, stage: TrainingStage, parameters: Parameters) -> Tensor:
    """The logits of a stage's trained model for all nodes, dropout off: (R, N, C)."""
    model = stage.model.to(task.device)
    load_parameters(model, parameters)
    with torch.no_grad():
        if not stage.batch_size:
            output: Output = model(stage.inputs)
            return output.logits
        every = torch.arange(task.graph.num_nodes, device=task.device)
        parts = torch.split(every.expand(len(task.replicas), -1), _READ_NODES, dim=1)
        return torch.cat([model(stage.inputs, None, part).logits for part in parts], dim=1)


def estimated_labels(task: TrainingTask, parameters: Parameters) -> Array:
    """Pseudo labels of all nodes from the trained estimator: (R, N)."""
    return pseudo_labels(estimator_logits(task, parameters), task.train_labels)
