"""Gradient boosting by LightGBM on a table of nodes (Ke et al., NeurIPS 2017)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import override

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.randomness import Noise
from hpgmn.base.settings import FitSettings, inherited_setting, rate_setting, setting
from hpgmn.base.tasks import is_known, target_scale
from hpgmn.graph import Array, Graph
from hpgmn.models.baselines.booster_text import clean_booster
from hpgmn.models.baselines.node_table import (
    RAW_ATTRIBUTES,
    attribute_columns,
    columns,
    label_free_rows,
    label_rows,
    make_bases,
    modes_of,
)
from hpgmn.models.layers import RowModel
from hpgmn.models.stage import READ_NODES, ModelEntry, Parameters, TrainingStage, TrainingTask

if TYPE_CHECKING:
    from lightgbm import Booster

_TEXT = "booster"
_MOST_BYTES = 2**30  # of a model's text
_KEPT = 32  # models read from their text that are kept
_FEW_NUMBERS = 2**22  # of a table that one thread reads
_SEEDS = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class BoostingSettings(FitSettings):
    """Settings of gradient boosting."""

    lr: float = setting(
        0.1, "learning rate, by which each tree is scaled", low=1e-6, per_replica=True
    )
    epochs: int = setting(1000, "most rounds, each a tree per class (one for two classes)", low=1)
    patience: int = inherited_setting(FitSettings, "patience", 50)
    neighbors: str = setting(
        "both",
        "edge direction; both: columns of their own for each",
        choices=("out", "in", "undirected", "both"),
    )
    leaves: int = setting(8, "most leaves of a tree", low=2, high=4096)
    min_leaf: int = setting(10, "least train nodes in a leaf", low=1)
    column_share: float = setting(
        0.3, "share of the columns that each tree reads", low=0.01, high=1.0, per_replica=True
    )
    row_share: float = setting(
        0.8, "share of the train nodes that each tree reads", low=0.01, high=1.0, per_replica=True
    )
    l2: float = rate_setting(1.0, "L2 regularisation of the leaves' values")
    hops: int = setting(3, "steps over which attributes are averaged", low=1, high=8)
    svd_dim: int = setting(
        32, "columns of each truncated SVD, of adjacency and many attributes", low=1, high=512
    )


def _import_lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError:
        raise HPGMNError(
            "The model boosting needs the package lightgbm, which is not installed.",
            "Run pip install lightgbm",
        ) from None
    return lightgbm


class BoostingRounds:
    """Trains the boosters of R replicas, one tree per class and round."""

    def __init__(self, task: TrainingTask) -> None:
        lightgbm = _import_lightgbm()
        self._trees = trees_per_round(task)
        self._task = task
        self._objectives = [task.subset([r]).objective_on("cpu") for r in range(len(task.replicas))]
        self._bases = make_bases(task.statistics, task.settings[0])
        fixed = label_free_rows(task.statistics, task.settings[0], self._bases)
        weights = task.class_weights
        self._class_weights = None if weights is None else weights.cpu()
        self._boosters: list[Booster] = []
        self._rows: list[Array] = []
        self._threads: list[int] = []
        self._iterations: list[list[int]] = []
        self._scores: list[Array] = []
        self._labels: list[tuple[Tensor, Tensor]] = []
        for number in range(len(task.replicas)):
            train, val = task.train_labels[number], task.val_labels[number]
            nodes, others = (np.flatnonzero(is_known(labels)) for labels in (train, val))
            learned = standard_labels(task, number)
            counted = label_rows(task.statistics, modes_of(self._bases), learned, task.num_classes)
            both = np.concatenate([nodes, others])
            rows = np.concatenate([fixed[both], counted[both]], axis=1)
            weight = None
            if self._class_weights is not None:
                weight = self._class_weights[number].numpy()[train[nodes]]
            parameters = _parameters(task, number, nodes.size, rows.shape[1])
            data = lightgbm.Dataset(
                rows[: nodes.size], label=learned[nodes], weight=weight, params=parameters
            )
            self._boosters.append(lightgbm.Booster(parameters, data))
            self._rows.append(rows)
            self._threads.append(_threads(rows.size))
            self._iterations.append([])
            self._scores.append(np.zeros((both.size, self._trees)))
            self._labels.append((torch.from_numpy(train[nodes]), torch.from_numpy(val[others])))

    def update(self, replica: int) -> tuple[Tensor, Tensor, Tensor]:
        """Train one round; return the train loss (1,), and logits and labels of validation nodes.

        Shapes are (1, V, C) and (1, V).
        """
        booster, scores = self._boosters[replica], self._scores[replica]
        number = booster.current_iteration()
        booster.update()
        if booster.current_iteration() > number:  # no further split changes nothing
            sums: Any = booster.predict(
                self._rows[replica],
                start_iteration=number,
                num_iteration=1,
                raw_score=True,
                num_threads=self._threads[replica],
            )
            scores += sums.reshape(scores.shape)
        self._iterations[replica].append(booster.current_iteration())
        train, val = self._labels[replica]
        logits = class_logits(self._task, scores)[None]
        seen = torch.ones(1, train.numel(), dtype=torch.bool)
        loss = self._objectives[replica].loss(logits[:, : train.numel()], train[None], seen)
        return loss, logits[:, train.numel() :], val[None]

    def parameters(self, rounds: Sequence[int]) -> Parameters:
        """Return the boosters of so many rounds each, and the bases of their columns."""
        texts = []
        for replica, number in enumerate(rounds):
            made = self._iterations[replica][number - 1]
            model = self._boosters[replica].model_to_string(num_iteration=made)
            width = self._rows[replica].shape[1]
            text = zlib.compress(clean_booster(model, width, self._trees).encode())
            texts.append(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        bases = {
            name: torch.from_numpy(value)[None].repeat(len(texts), *[1] * value.ndim)
            for name, value in self._bases.items()
        }
        return {_TEXT: pad_sequence(texts, batch_first=True)} | bases


def trees_per_round(task: TrainingTask) -> int:
    """Return the trees in a round: one for two classes or targets, else one for each class."""
    return 1 if task.num_classes == 2 else task.output_dim


def standard_labels(task: TrainingTask, replica: int) -> Array:
    """Return the train labels of a replica, (N,); targets are standardised."""
    labels: Array = task.train_labels[replica]
    if not task.is_regression:
        return labels
    mean, std = target_scale(task.reference_labels[replica])
    return np.asarray((labels - mean) / std)


def class_logits(task: TrainingTask, scores: Array) -> Tensor:
    """Return (B, C) logits, or standardised targets (B, 1), of raw scores of B rows."""
    raw = torch.from_numpy(scores.reshape(-1, trees_per_round(task)))
    if task.num_classes == 2:
        raw = torch.cat([torch.zeros_like(raw), raw], dim=-1)
    return raw.float()


def _threads(numbers: int) -> int:
    """Return the threads for a table of so many numbers: few are read faster by one.

    Threads wait for each other in every node of a tree, for long on a busy machine.
    """
    return 1 if numbers < _FEW_NUMBERS else torch.get_num_threads()


def _parameters(task: TrainingTask, number: int, nodes: int, width: int) -> dict[str, Any]:
    settings: BoostingSettings = task.settings[number]
    objective: dict[str, Any] = {"objective": "multiclass", "num_class": task.num_classes}
    if task.is_regression:
        objective = {"objective": "regression"}
        if settings.regression_loss == "huber":
            objective = {"objective": "huber", "alpha": 1.0}
    elif task.num_classes == 2:
        objective = {"objective": "binary"}
    return {
        **objective,
        "metric": "none",
        "learning_rate": settings.lr,
        "num_leaves": settings.leaves,
        "min_data_in_leaf": settings.min_leaf,
        "feature_fraction": settings.column_share,
        "bagging_fraction": settings.row_share,
        "bagging_freq": int(settings.row_share < 1),
        "lambda_l2": settings.l2,
        "feature_pre_filter": False,
        "max_bin": 63,
        "min_data_in_bin": 1,
        "seed": int(task.keys("main")[number]) % _SEEDS,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": _threads(nodes * width),
        "verbosity": -1,
    }


class Boosting(RowModel):
    """Trained boosters: the logits of each replica are the sums of its trees.

    Its parameters are those of :meth:`BoostingRounds.parameters`; none before training.
    """

    def __init__(self, task: TrainingTask, stored: Parameters) -> None:
        super().__init__()
        self._task = task
        self._counted: tuple[int, Array] | None = None  # columns from the labels of a replica
        for name, value in stored.items():
            self.register_parameter(name, nn.Parameter(value, requires_grad=False))
        if not stored:
            return
        self._bases = {
            name: value[0].cpu().numpy() for name, value in stored.items() if name != _TEXT
        }
        self.columns = columns(task.graph, task.settings[0], self._bases, _class_names(task))
        width, trees = len(self.columns), trees_per_round(task)
        self._boosters = [
            _read_booster(row.cpu().numpy().tobytes(), width, trees) for row in stored[_TEXT]
        ]

    @override
    def rows(self, inputs: Mapping[str, Any], noise: Noise | None, nodes: Tensor | None) -> Tensor:
        found = []
        for replica in range(len(self._boosters)):
            chosen = torch.arange(self._task.graph.num_nodes) if nodes is None else nodes[replica]
            scores = self._predict(replica, chosen.cpu().numpy(), raw_score=True)
            found.append(class_logits(self._task, scores))
        return torch.stack(found).to(self._task.device)

    def table(self, replica: int, nodes: Array) -> Array:
        """Return the rows of some nodes in a replica's table: (B, W) float32."""
        task = self._task
        fixed = label_free_rows(task.statistics, task.settings[0], self._bases)
        if self._counted is None or self._counted[0] != replica:
            labels, modes = standard_labels(task, replica), modes_of(self._bases)
            self._counted = replica, label_rows(task.statistics, modes, labels, task.num_classes)
        return np.concatenate([fixed[nodes], self._counted[1][nodes]], axis=1)

    def logits_with_attributes(self, replica: int, node: int, attributes: Array) -> Array:
        """Return the logits (B, C) of a node with other attributes of its own (B, F)."""
        own, _ = attribute_columns(attributes, self._bases)
        rows = np.repeat(self.table(replica, np.array([node])), len(own), axis=0)
        rows[:, : own.shape[1]] = own
        scores = np.asarray(self._boosters[replica].predict(rows, raw_score=True, num_threads=1))
        return class_logits(self._task, scores).numpy()

    def contributions(self, replica: int, nodes: Array) -> Array:
        """Return the contribution of each column to each raw score: (B, trees, W + 1).

        They add up to the raw score; the last is the mean score of the train nodes.
        """
        found = self._predict(replica, nodes, pred_contrib=True)
        return found.reshape(nodes.size, -1, len(self.columns) + 1)

    def _predict(self, replica: int, nodes: Array, **kind: bool) -> Array:
        """Return what LightGBM predicts, in parts of rows."""
        parts = []
        for first in range(0, max(nodes.size, 1), READ_NODES):
            rows = self.table(replica, nodes[first : first + READ_NODES])
            found = self._boosters[replica].predict(rows, num_threads=_threads(rows.size), **kind)
            parts.append(np.asarray(found))
        return np.concatenate(parts)


@lru_cache(maxsize=_KEPT)
def _read_booster(stored: bytes, width: int, trees: int) -> Booster:
    """Read a booster from its compressed text."""
    lightgbm = _import_lightgbm()
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(stored, _MOST_BYTES).decode("ascii")
        if not reader.eof:
            raise ValueError("incomplete text")
        booster: Booster = lightgbm.Booster(model_str=clean_booster(text, width, trees))
    except (ValueError, KeyError, zlib.error, lightgbm.basic.LightGBMError) as error:
        raise HPGMNError(
            f"A booster of the model is damaged ({type(error).__name__}: {error}).",
            Remedy("Restore the model's file") | "Train again",
        ) from None
    return booster


def _class_names(task: TrainingTask) -> Sequence[str]:
    names = task.graph.class_names
    return names if len(names) == task.num_classes else [str(c) for c in range(task.num_classes)]


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    """Build the stage: with a trained booster, what predicts; without, what the rounds report."""
    first: BoostingSettings = task.settings[0]
    return TrainingStage(
        name="main",
        model=Boosting(task, done.get("main", {})),
        inputs={},
        lr=task.values("lr"),
        weight_decay=[0.0] * len(task.replicas),
        epochs=first.epochs,
        patience=first.patience,
    )


def _floats(graph: Graph, settings: BoostingSettings) -> tuple[int, int]:
    per_direction = 3 + (settings.hops + 2) * settings.svd_dim + 3 * graph.num_classes + 2
    width = min(graph.num_features, RAW_ATTRIBUTES) + settings.svd_dim + 2 * per_direction
    return 500 * settings.leaves * max(graph.num_classes, 1), width


ENTRY = ModelEntry(
    "boosting",
    BoostingSettings,
    {"main": _main},
    _floats,
    tied=("adjacency",),
    rounds=BoostingRounds,
)
