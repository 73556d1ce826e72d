"""DSSL: self-supervised representations, then logistic regression (Xiao et al., NeurIPS 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from hpgmn.base.randomness import DropRate, Noise
from hpgmn.base.settings import rate_setting, setting, share_setting
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import (
    Baseline,
    GraphSettings,
    propagation_inputs,
    stack_layers,
)
from hpgmn.models.layers import MLP, Convolution, Initialised, Linear, NodeModel, Output, RowModel
from hpgmn.models.stage import (
    ModelEntry,
    Parameters,
    TrainingStage,
    TrainingTask,
    main_stage,
    trained_logits,
)
from hpgmn.statistics.operators import Statistic, take_nodes


@dataclass(frozen=True, kw_only=True)
class DSSLSettings(GraphSettings):
    """Settings of DSSL; ``lr`` and the like are the classifier's."""

    layers: int = setting(2, "layers of the encoder", low=1, high=16)
    self_loop: float = setting(1.0, "weight of the self-loop added to every node", low=0.0)
    samples: int = setting(5, "neighbours drawn for every node in each step", low=1)
    factors: int = setting(6, "latent factors that explain an edge", low=2)
    gumbel_temperature: float = setting(
        1.0, "softness of the factor drawn: lower is harder", low=0.01, per_replica=True
    )
    prototype_temperature: float = setting(
        1.0, "softness of the match with the factors' prototypes", low=0.01, per_replica=True
    )
    prototype_weight: float = rate_setting(
        0.1, "weight of the match between a node's factors and its prototypes"
    )
    entropy_weight: float = rate_setting(0.1, "weight of the negative entropy of a node's factors")
    target_momentum: float = share_setting(
        0.99, "how much of the target encoder stays in each step"
    )
    embedding_scaling: str = setting(
        "standard",
        "representations classified as they are, or each column of mean 0 and deviation 1",
        choices=("raw", "standard"),
    )
    representation_epochs: int = setting(
        200, "epochs of learning the representation; the last is used", low=1
    )
    representation_lr: float = rate_setting(0.001, "learning rate of the representation")
    representation_weight_decay: float = rate_setting(0.0, "weight decay of the representation")


class Encoder(Baseline):
    """GCN layers with ReLU and dropout between them; all of one width, the output too."""

    def __init__(self, task: TrainingTask, layer: type[Convolution] = Convolution) -> None:
        super().__init__(task)
        settings: list[DSSLSettings] = task.settings
        widths = [task.graph.num_features, *[settings[0].hidden_dim] * settings[0].layers]
        self.convolve = stack_layers(layer, len(settings), widths)

    def forward(
        self, attributes: Statistic, propagation: SparseMatrix, noise: Noise | None, place: str
    ) -> Tensor:
        """(R, N, D)."""
        names = {"columns": f"{place}.columns", "hidden": place}
        return self.apply_layers(self.convolve, propagation, attributes, noise, **names)


class TargetConvolution(Convolution):
    """A layer of the target encoder, initially equal to its counterpart in the online encoder."""

    @override
    def reset_parameters(self, noise: Noise, place: str) -> None:
        super().reset_parameters(noise, place.replace("target", "online", 1))


class Prototypes(Initialised):
    """One direction per factor and replica: (R, D, K)."""

    def __init__(self, replicas: int, width: int, factors: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(replicas, width, factors))

    @override
    def reset_parameters(self, noise: Noise, place: str) -> None:
        # Standard normal values, by the method of Box and Muller.
        radius, angle = (
            noise.uniform(f"{place}.{part}", self.weight.shape[1:]) for part in ("radius", "angle")
        )
        self.weight.copy_((-2 * torch.log1p(-radius)).sqrt() * torch.cos(2 * torch.pi * angle))


class Neighborhoods:
    """Samples neighbours uniformly, whatever the weights of edges.

    Attributes:
        share: (N,) weight of a node in a mean over the nodes that have neighbours.
    """

    def __init__(self, adjacency: sp.csr_array, device: torch.device | str = "cpu") -> None:
        degrees = np.diff(adjacency.indptr)
        known = degrees > 0
        # A node without neighbours points at the next node's, the last at the entry added here.
        members = np.append(adjacency.indices, 0).astype(np.int64)
        starts = adjacency.indptr[:-1].astype(np.int64)
        self.members = torch.from_numpy(members).to(device)
        self.starts = torch.from_numpy(starts).to(device)
        self.degrees = torch.from_numpy(degrees.astype(np.float32)).to(device)
        self.share = torch.from_numpy((known / max(known.sum(), 1)).astype(np.float32)).to(device)

    def sample(self, noise: Noise, place: str) -> Tensor:
        """(R, N) one neighbour of every node; any node where there is none."""
        uniform = noise.uniform(place, self.degrees.shape)
        # At most 1 - 2⁻²⁴, so that the product stays below the degree.
        return self.members[self.starts + (uniform * self.degrees).long()]


class DSSL(NodeModel):
    """Neighbours are predicted from a node and from the latent factor behind the edge.

    With h = online(X) and t = target(X), both GCNs and of unit length, and S neighbours j drawn
    for every node i:

    - q(k|i,j) = softmax(MLP(h_i ∘ t_j)), and q(k|i) its mean over the neighbours drawn;
    - p_ij = MLP(h_i) + MLP(s), s drawn from q(k|i,j) by the Gumbel-softmax;
    - prediction = mean of 2 - 2·cos(p_ij, t_j);
    - prototype = mean of -Σ_k q(k|i)·log softmax(h_iᵀC/τ)_k;
    - entropy = mean of Σ_k q(k|i)·log q(k|i).

    The target gets no gradient: in each step it moves towards the online encoder. A node without
    neighbours counts in no mean.

    Differs from OpenHGNN's port of the authors' code: neighbours are sampled in each step, with
    replacement and without the node itself (there once, before training); a step takes all nodes
    instead of 1,024; the Gumbel-softmax gets the logits of q instead of q itself, where one factor
    is at most e times as likely as another; the prototypes are learned instead of being reset to
    cluster means; no batch normalisation; Adam with L2 instead of AdamW, whose decay there (10⁻⁶ a
    step) is next to none.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        settings: list[DSSLSettings] = task.settings
        first, replicas = settings[0], len(settings)
        width = first.hidden_dim
        self.samples, self.factors = first.samples, first.factors
        self.online = Encoder(task)
        self.target = Encoder(task, TargetConvolution).requires_grad_(False)
        self.infer = MLP(replicas, [width, width, first.factors])
        self.predict = MLP(replicas, [width, width, width])
        self.explain = MLP(replicas, [first.factors, width, width])
        self.prototypes = Prototypes(replicas, width, first.factors)
        self.no_rate = DropRate([0.0] * replicas, task.device)
        self.gumbel_temperature, self.prototype_temperature = (
            torch.tensor(task.values(name), device=task.device)[:, None, None]
            for name in ("gumbel_temperature", "prototype_temperature")
        )

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        """Return the representation (R, N, D) as logits, and the losses as penalties."""
        attributes, propagation = inputs["attributes"], inputs["propagation"]
        online: Tensor = self.online(attributes, propagation, noise, "online")
        if noise is None or not penalties:
            return Output(online)
        with torch.no_grad():
            target = functional.normalize(
                self.target(attributes, propagation, noise, "target"), dim=-1
            )
        hidden = functional.normalize(online, dim=-1)
        return Output(online, self._losses(hidden, target, inputs["neighborhoods"], noise))

    def _losses(
        self, hidden: Tensor, target: Tensor, neighborhoods: Neighborhoods, noise: Noise
    ) -> dict[str, Tensor]:
        predicted: Tensor = self.predict(hidden, self.no_rate, noise, "predict")
        # Recomputed in the backward pass: one sample's arrays are in memory at a time.
        parts: list[tuple[Tensor, Tensor]] = [
            checkpoint(
                self._edges,
                hidden,
                predicted,
                target,
                neighborhoods.sample(noise, f"neighbors.{number}"),
                noise,
                f"gumbel.{number}",
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for number in range(self.samples)
        ]
        distance, factors = (torch.stack(part).mean(dim=0) for part in zip(*parts, strict=True))
        scores = torch.bmm(hidden, self.prototypes.weight) / self.prototype_temperature
        match = (factors * scores.log_softmax(dim=-1)).sum(dim=-1)
        # The gradient of p·log p at 0 is infinite.
        spread = torch.special.entr(factors.clamp(min=1e-30)).sum(dim=-1)
        losses = {"prediction": distance, "prototype": -match, "entropy": -spread}  # each (R, N)
        return {name: loss @ neighborhoods.share for name, loss in losses.items()}

    def _edges(
        self,
        hidden: Tensor,
        predicted: Tensor,
        target: Tensor,
        neighbors: Tensor,
        noise: Noise,
        place: str,
    ) -> tuple[Tensor, Tensor]:
        """For one neighbour of every node, its distance (R, N) and its factors (R, N, K)."""
        seen = take_nodes(target, neighbors)
        scores = self.infer(hidden * seen, self.no_rate, noise, "infer")
        uniform = noise.uniform(place, scores.shape[1:]).clamp_(min=2**-25)  # log(0) is infinite
        drawn = ((scores - (-uniform.log()).log()) / self.gumbel_temperature).softmax(dim=-1)
        prediction = predicted + self.explain(drawn, self.no_rate, noise, "explain")
        cosine = (functional.normalize(prediction, dim=-1) * seen).sum(dim=-1)
        return 2 - 2 * cosine, scores.softmax(dim=-1)


class Standardised(Initialised):
    """x ↦ (x - mean)·scale: both are initial values, saved and never trained."""

    def __init__(self, replicas: int, width: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(replicas, 1, width))
        self.scale = nn.Parameter(torch.ones(replicas, 1, width))

    @override
    def reset_parameters(self, noise: Noise, place: str) -> None:
        self.mean.zero_()
        self.scale.fill_(1)

    def forward(self, x: Tensor) -> Tensor:
        """(R, B, D) to (R, B, D)."""
        return (x - self.mean) * self.scale


class LogisticRegression(RowModel):
    """logits = (h - mean)·scale·W + b on representations h that stay as they are.

    mean and scale are those of the training graph, on other graphs too; with
    ``embedding_scaling`` "raw", as in OpenHGNN's port, there are none. Without them a short
    training may miss even the train nodes: a GCN's columns differ little from node to node.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        first, replicas = task.settings[0], len(task.replicas)
        self.standardise: Standardised | None = None
        if first.embedding_scaling == "standard":
            self.standardise = Standardised(replicas, first.hidden_dim).requires_grad_(False)
        self.classify = Linear(replicas, first.hidden_dim, task.output_dim)

    @override
    def rows(self, inputs: Mapping[str, Any], noise: Noise | None, nodes: Tensor | None) -> Tensor:
        hidden = take_nodes(inputs["embeddings"], nodes)
        if self.standardise is not None:
            hidden = self.standardise(hidden)
        logits: Tensor = self.classify(hidden)
        return logits


def _update_target(momentum: Tensor, model: nn.Module) -> None:
    """Move the target encoder towards the online encoder."""
    assert isinstance(model, DSSL)
    for target, online in zip(model.target.parameters(), model.online.parameters(), strict=True):
        target.lerp_(online, 1 - momentum)


def _representation(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    settings: list[DSSLSettings] = task.settings
    first = settings[0]
    neighborhoods = Neighborhoods(task.statistics.adjacency(first.neighbors), task.device)
    momentum = torch.tensor(task.values("target_momentum"), device=task.device)
    return TrainingStage(
        name="representation",
        model=DSSL(task),
        inputs=propagation_inputs(task, first.self_loop) | {"neighborhoods": neighborhoods},
        lr=task.values("representation_lr"),
        weight_decay=task.values("representation_weight_decay"),
        epochs=first.representation_epochs,
        patience=0,
        penalty_weights={
            "prediction": [1.0] * len(settings),
            "prototype": task.values("prototype_weight"),
            "entropy": task.values("entropy_weight"),
        },
        is_supervised=False,
        after_step=partial(_update_target, momentum[:, None, None]),
    )


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    embeddings = trained_logits(task, _representation(task, {}), done["representation"])
    initial: Parameters = {}
    if task.settings[0].embedding_scaling == "standard":
        spread, mean = torch.std_mean(embeddings, dim=1, correction=0, keepdim=True)
        differs = spread > 1e-5 * mean.abs()  # less is rounding
        initial = {
            "standardise.mean": mean,
            "standardise.scale": torch.where(differs, 1 / spread, 0.0),
        }
    return main_stage(
        task, LogisticRegression(task), {"embeddings": embeddings.contiguous()}, initial=initial
    )


def _floats(graph: Graph, settings: DSSLSettings) -> tuple[int, int]:
    per_node = settings.hidden_dim * (8 * settings.layers + 26)
    per_node += settings.samples * (2 * settings.factors + 4) + 8 * settings.factors
    return 2 * graph.num_features * settings.hidden_dim, per_node


ENTRY = ModelEntry(
    "dssl", DSSLSettings, {"representation": _representation, "main": _main}, _floats
)
