"""HP-GMN for homophilous graphs: the query is the representation of a GCN or an APPNP.

The paper does not say whether that encoder is trained first or together with the memory; the
setting ``encoder`` offers both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpgmn.base.errors import Remedy, SettingError
from hpgmn.base.randomness import DropRate, Noise, dropout, relu_dropout
from hpgmn.base.settings import TrainSettings, dropout_setting, inherited_setting, setting
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Array, Graph
from hpgmn.models.layers import BatchNorm, Linear, Output, StatisticLinear, propagate
from hpgmn.models.memory import MemoryHead, MemoryModel, MemorySettings, penalty_weights
from hpgmn.models.stage import (
    ModelEntry,
    Parameters,
    StageBuilder,
    TrainingStage,
    TrainingTask,
    main_stage,
)
from hpgmn.statistics import Statistic
from hpgmn.statistics.diffusion import diffuse
from hpgmn.statistics.operators import join_replicas, split_replicas, take_nodes


@dataclass(frozen=True, kw_only=True)
class PropagatedSettings(MemorySettings, TrainSettings):
    """Settings of HP-GMN on a GCN or an APPNP."""

    weight_decay: float = inherited_setting(TrainSettings, "weight_decay", 2e-3)
    dropout: float = inherited_setting(TrainSettings, "dropout", 0.5)
    consistency_weight: float = inherited_setting(TrainSettings, "consistency_weight", 1.0)
    encoder: str = setting(
        "finetuned",
        "the encoder is trained first and frozen, trained first and fine-tuned, or trained jointly",
        choices=("pretrained", "finetuned", "joint"),
    )
    hidden_dim: int = setting(64, "hidden width of the encoder and of the classifier", low=1)
    query_dim: int = setting(64, "width of the encoder's representation, the query", low=1)
    attributes_scaling: str = setting(
        "unit",
        "attributes as given, divided by the row's absolute sum, or of unit length",
        choices=("raw", "fraction", "unit"),
    )
    attributes_dropout: float = dropout_setting(0.6, "dropout of whole columns of the attributes")
    node_dropout: float = dropout_setting(0.3, "dropout of whole nodes before propagation")
    propagation: str = setting(
        "after",
        "where APPNP propagates: after both layers, or before the first one's ReLU (hpgmn-appnp)",
        choices=("after", "before"),
    )
    mixing: str = setting(
        "ppr",
        "weights of APPNP's rounds: those of PageRank with teleport, or equal ones",
        choices=("ppr", "mean"),
    )
    neighbors: str = setting("undirected", "edge direction", choices=("out", "in", "undirected"))
    rounds: int = setting(10, "rounds of APPNP's propagation", low=1, high=200)
    teleport: float = setting(0.1, "APPNP's probability of going back", low=0.0, high=1.0)
    batch_norm: bool = setting(
        False, "whether the encoder's hidden states are normalised over all nodes"
    )
    pretraining_epochs: int = setting(500, "maximum number of epochs of the encoder alone", low=1)
    pretraining_patience: int = setting(
        100, "stop it after this number of epochs without improvement; 0: never", low=0
    )


@dataclass(frozen=True, kw_only=True)
class ConvolvedSettings(PropagatedSettings):
    """Settings of HP-GMN on a GCN."""

    def __post_init__(self) -> None:
        """Reject what only an APPNP can have."""
        _reject_for_gcn(self)


def _reject_for_gcn(settings: PropagatedSettings) -> None:
    appnp = Remedy("Use that model", option="model", value="hpgmn-appnp")
    if settings.propagation != "after":
        raise SettingError(
            "propagation=before needs an APPNP: a GCN propagates after each of its layers.",
            appnp | "Leave propagation out",
        )
    if settings.mixing != "ppr":
        raise SettingError(
            "mixing=mean needs an APPNP: a GCN has no rounds of propagation to weight.",
            appnp | "Leave mixing out",
        )


class Encoder(nn.Module):
    """Two layers and a propagation: GCN propagates after each, APPNP after both or in the first.

    GCN: H = Â·ReLU(Â·X·W₁)·W₂. APPNP: H = P·MLP(X) with P = Σ θ_k Â^k, Â = D̃^-½·(A+I)·D̃^-½.
    With APPNP's own weights (``mixing="ppr"``) that is Z_K of Z_0 = MLP(X),
    Z_{k+1} = (1-teleport)·Â·Z_k + teleport·Z_0.

    With ``propagation="before"``, H = ReLU(P·D·X·W₁ + b₁)·W₂ + b₂, where D is node dropout: the
    attributes are propagated as in GRAND (Feng et al., Graph Random Neural Networks, NeurIPS 2020).
    P·(D·X)·W₁ = P·(D·(X·W₁)), so the narrower product is propagated and X stays sparse. GRAND drops
    single entries of P·D·X, here whole columns of X are dropped.

    With ``batch_norm``, ReLU's input is normalised before its bias is added, and its output before
    dropout. GRAND normalises the inputs of both layers; centred attributes would not be sparse, so
    their product with W₁ is normalised instead.

    Args:
        kind: "gcn" or "appnp".
        width: the number of attributes.
    """

    def __init__(
        self,
        kind: str,
        width: int,
        settings: Sequence[PropagatedSettings],
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        first = settings[0]
        self.kind = kind
        if kind == "gcn":
            _reject_for_gcn(first)
        self.before = first.propagation == "before"
        self.weights = mixing_weights(first.mixing, first.rounds, first.teleport)
        self.first = StatisticLinear(len(settings), width, first.hidden_dim)
        self.second = Linear(len(settings), first.hidden_dim, first.query_dim)
        self.norms: nn.ModuleList | None = None
        if first.batch_norm:
            self.norms = nn.ModuleList(BatchNorm(len(settings), first.hidden_dim) for _ in range(2))
        self.input_rate = DropRate([replica.attributes_dropout for replica in settings], device)
        self.drop_rate = DropRate([replica.dropout for replica in settings], device)
        self.node_rate = DropRate([replica.node_dropout for replica in settings], device)

    def forward(
        self, attributes: Statistic, propagation: SparseMatrix, noise: Noise | None = None
    ) -> Tensor:
        """(R, N, query_dim)."""
        hidden = self.second(self._hidden(attributes, propagation, noise))
        if self.kind == "gcn":
            return propagate(propagation, hidden)
        return hidden if self.before else self._spread(propagation, hidden, noise)

    def _hidden(
        self, attributes: Statistic, propagation: SparseMatrix, noise: Noise | None
    ) -> Tensor:
        """Compute the input of the second layer, (R, N, hidden_dim)."""
        adds_bias_last = self.before or self.norms is not None
        hidden: Tensor = self.first(
            attributes, self.input_rate, noise, "encoder.first", add_bias=not adds_bias_last
        )
        if self.kind == "gcn":
            hidden = propagate(propagation, self._drop_nodes(hidden, noise))
        elif self.before:
            hidden = self._spread(propagation, hidden, noise)
        if self.norms is not None:
            hidden = self.norms[1](torch.relu(self.norms[0](hidden) + self.first.bias))
            return dropout(hidden, self.drop_rate, noise, "encoder.hidden")
        bias = self.first.bias if adds_bias_last else None
        return relu_dropout(hidden, self.drop_rate, noise, "encoder.hidden", bias)

    def _spread(self, propagation: SparseMatrix, hidden: Tensor, noise: Noise | None) -> Tensor:
        """P·D·H."""
        wide = join_replicas(self._drop_nodes(hidden, noise))
        return split_replicas(diffuse(propagation, wide, self.weights), hidden.shape[0])

    def _drop_nodes(self, hidden: Tensor, noise: Noise | None) -> Tensor:
        if noise is None or self.node_rate.is_zero:
            return hidden
        ones = hidden.new_ones(hidden.shape[0], hidden.shape[1], 1)
        return hidden * dropout(ones, self.node_rate, noise, "encoder.nodes")


def mixing_weights(mixing: str, rounds: int, teleport: float) -> Array:
    """Weight of each power of Â from 0 to ``rounds``: APPNP's ("ppr"), or equal ones ("mean").

    >>> mixing_weights("mean", 3, 0.1)
    array([0.25, 0.25, 0.25, 0.25])
    """
    if mixing == "mean":
        return np.full(rounds + 1, 1 / (rounds + 1))
    return appnp_weights(rounds, teleport)


def appnp_weights(rounds: int, teleport: float) -> Array:
    """Weight of each power of Â in Z_K: teleport·(1-teleport)^k, the last (1-teleport)^K.

    >>> appnp_weights(2, 0.5)
    array([0.5 , 0.25, 0.25])
    """
    weights = teleport * (1 - teleport) ** np.arange(rounds + 1)
    weights[-1] = (1 - teleport) ** rounds
    return weights


class PropagatedHPGMN(MemoryModel):
    """An :class:`Encoder` as the query of the memory, or with a linear head while pre-training.

    Args:
        kind: "gcn" or "appnp".
        width: the number of attributes.
        with_memory: False for pre-training: a linear classifier reads the query.
    """

    def __init__(
        self,
        kind: str,
        width: int,
        num_classes: int,
        settings: Sequence[PropagatedSettings],
        *,
        with_memory: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        first = settings[0]
        self.encoder = Encoder(kind, width, settings, device)
        self.head = None
        self.classify: Linear | None = None
        if with_memory:
            self.head = MemoryHead(
                len(settings),
                first.query_dim,
                first.hidden_dim,
                num_classes,
                first,
                self.encoder.drop_rate,
            )
        else:
            self.classify = Linear(len(settings), first.query_dim, num_classes)

    def forward(
        self,
        inputs: Mapping[str, Any],
        noise: Noise | None = None,
        nodes: Tensor | None = None,
        classify: Tensor | None = None,
        *,
        penalties: bool = False,
        details: bool = False,
    ) -> Output:
        """Compute class logits; see :meth:`HPGMN.forward`. Propagation always reads all nodes."""
        query = self.encoder(inputs["attributes"], inputs["propagation"], noise)
        query = take_nodes(query, nodes)
        if self.head is not None:
            output: Output = self.head(query, noise, classify, penalties=penalties, details=details)
            return output
        assert self.classify is not None
        return Output(self.classify(take_nodes(query, classify)))


def _inputs(task: TrainingTask) -> dict[str, Any]:
    first = task.settings[0]
    return {
        "attributes": task.statistics.attributes(first.attributes_scaling),
        "propagation": task.statistics.propagation(first.neighbors, "symmetric", 1.0),
    }


def _model(kind: str, task: TrainingTask, *, with_memory: bool) -> PropagatedHPGMN:
    sizes = (task.graph.num_features, task.output_dim)
    return PropagatedHPGMN(kind, *sizes, task.settings, with_memory=with_memory, device=task.device)


def _pretraining(kind: str, task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    first = task.settings[0]
    is_joint = first.encoder == "joint"  # no pre-training: the initial values stay
    return main_stage(
        task,
        _model(kind, task, with_memory=False),
        _inputs(task),
        name="pretraining",
        epochs=0 if is_joint else first.pretraining_epochs,
        patience=first.pretraining_patience,
    )


def _main(kind: str, task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    first = task.settings[0]
    learned = {
        name: value for name, value in done["pretraining"].items() if name.startswith("encoder.")
    }
    model = _model(kind, task, with_memory=True)
    if first.encoder == "pretrained":
        model.encoder.requires_grad_(False)
    return main_stage(
        task,
        model,
        _inputs(task),
        penalty_weights=penalty_weights(task.settings),
        initial={} if first.encoder == "joint" else learned,
    )


def stages(kind: str) -> dict[str, StageBuilder]:
    """The stages: pre-training of the encoder, then memory and classifier."""
    return {"pretraining": partial(_pretraining, kind), "main": partial(_main, kind)}


def _floats(graph: Graph, settings: PropagatedSettings) -> tuple[int, int]:
    per_node = settings.hidden_dim * 15 + 4 * settings.num_patterns
    if settings.propagation == "before":  # propagated states of both passes, and the query
        per_node += 4 * settings.hidden_dim + 8 * settings.query_dim
    else:
        per_node += settings.rounds * settings.query_dim
    if settings.batch_norm:
        per_node += 4 * settings.hidden_dim
    return graph.num_features * settings.hidden_dim, per_node


GCN_ENTRY = ModelEntry("hpgmn-gcn", ConvolvedSettings, stages("gcn"), _floats)
APPNP_ENTRY = ModelEntry("hpgmn-appnp", PropagatedSettings, stages("appnp"), _floats)
