"""Replicas of a trained model on a graph, and what their predictions rest on.

Statistics have Shapley values: the value of a subset of statistics is the log-probability of the
predicted class with the others replaced by the mean encoding of the train nodes. A pattern of the
memory is described by its nodes, weighted by their attention above the average node's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from hpgmn.base.calibration import calibrated_logits, predicted_classes
from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.metrics import mean_logits
from hpgmn.base.tasks import is_known
from hpgmn.explain.explanation import Pattern
from hpgmn.graph import Array, Graph
from hpgmn.models.hpgmn import HPGMN, labels_for_statistics, stage_on_labels
from hpgmn.models.memory import MemoryHead, MemoryModel
from hpgmn.models.stage import ModelEntry, Parameters, TrainingStage, TrainingTask, load_parameters
from hpgmn.statistics import base_name
from hpgmn.statistics.labelwise import class_counts, one_hot
from hpgmn.statistics.settings import mode_of, type_of
from hpgmn.training.on_graph import ModelOnGraph
from hpgmn.training.saved import SavedModel

REDUNDANT_FROM = 0.95
"""Patterns are redundant if the attention of every two correlates at least this much over nodes."""

UNUSED_BELOW = 0.1
"""A pattern is unused if its mean attention is below this part of an even share, 1/K."""

MAX_PLAYERS = 8
"""Edge types share one Shapley value above this number of statistics: there are 2^S subsets."""

_ROUNDING = 1e-5  # attention that varies by less than this part of its mean is constant
_BATCH = 65536  # nodes, if the model was trained in batches


@dataclass(frozen=True, eq=False)
class ReplicaView:
    """One replica of a trained model on a graph.

    Attributes:
        parameters: of every stage.
        task: of this replica alone.
        stage: the last stage with its trained module and inputs.
        logits: (N, C).
        attention: (N, K) over the memory's patterns; None without a memory.
        labels: (N,) the class each node counts as, -1 unknown: the pseudo-labels of HP-GMN, train
            labels and predictions of other models.
        shares: (N, C) what soft counts read instead; None if counts are hard.
        calibration: (3, C) of the average over the seeds of its split.
    """

    entry: ModelEntry
    parameters: Mapping[str, Parameters]
    task: TrainingTask
    stage: TrainingStage
    logits: Tensor
    attention: Tensor | None
    labels: Array
    shares: Array | None
    calibration: Array

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.task.graph

    @property
    def is_regression(self) -> bool:
        """Whether it predicts numbers."""
        return self.task.is_regression

    def values(self, logits: Tensor) -> Tensor:
        """Return outputs (B, C) of the model as class logits, or targets (B, 1) in their unit."""
        return self.task.objective.values(logits[None])[0]

    @property
    def reads_statistics(self) -> bool:
        """Whether it is HP-GMN on local statistics."""
        return isinstance(self.stage.model, HPGMN)

    @property
    def columns(self) -> Sequence[Any]:
        """The columns that a model of trees reads; empty for others."""
        return getattr(self.stage.model, "columns", ())

    @property
    def module(self) -> HPGMN:
        """The module of HP-GMN on local statistics."""
        return cast(HPGMN, self.stage.model)

    @property
    def train_labels(self) -> Array:
        """(N,), -1 outside the train nodes."""
        return np.asarray(self.task.train_labels[0])

    @cached_property
    def modes(self) -> dict[str, str]:
        """The neighbour mode of each statistic that reads edges."""
        if not self.reads_statistics:
            return {}
        neighbors = self.task.settings[0].neighbors
        names = [name for name in self.module.names if base_name(name) != "attributes"]
        return {name: mode_of(name, neighbors) for name in names}

    @property
    def neighbor_modes(self) -> list[str]:
        """The directions in which neighbours are read; models without statistics read all."""
        directions = (mode.partition(":")[0] for mode in self.modes.values())
        return list(dict.fromkeys(directions)) or ["undirected"]

    @property
    def reference_nodes(self) -> Array:
        """The train nodes, or all nodes if the graph has none."""
        nodes = np.flatnonzero(is_known(self.train_labels))
        return nodes if nodes.size else np.arange(self.graph.num_nodes)

    @cached_property
    def baseline(self) -> Tensor:
        """(S·D,) the mean encoding of the train nodes, or of all nodes if the graph has none."""
        return self.encodings(self.reference_nodes).mean(dim=0)

    def encodings(self, nodes: Array) -> Tensor:
        """Return (B, S·D) the concatenated encodings of all statistics."""
        requested = torch.from_numpy(nodes).to(self.task.device)
        with torch.no_grad():
            parts = [
                self.module.query(self.stage.inputs, None, part[None])[0]
                for part in torch.split(requested, _BATCH)
            ]
        return torch.cat(parts)

    def queries(self, nodes: Array) -> Tensor:
        """Return (B, D_q) what the memory compares with its patterns."""
        with torch.no_grad():
            if self.reads_statistics:
                query, resize = self.encodings(nodes)[None], self.module.head.resize
                return cast(Tensor, query if resize is None else resize(query))[0]
            query = self.stage.model(self.stage.inputs, details=True).details["query"][0]
            return cast(Tensor, query[torch.from_numpy(nodes).to(query.device)])


def open_replicas(
    saved: SavedModel, graph: Graph, device: torch.device | str = "cpu"
) -> list[ReplicaView]:
    """Open every replica of a trained model on a graph."""
    on_graph = saved.on_graph(graph, device)
    replicas = [_open(on_graph, r, saved.mean_calibration[r]) for r in range(len(saved.replicas))]
    if not np.isfinite(mean_probabilities(replicas)).all():
        raise HPGMNError(
            "The model's probabilities are not finite and cannot be explained.",
            Remedy("Train again with a lower learning rate", setting="lr"),
        )
    return replicas


def _open(on_graph: ModelOnGraph, index: int, calibration: Array) -> ReplicaView:
    entry, task = on_graph.entry, on_graph.task.subset([index])
    parameters = {
        stage: {name: value[index : index + 1] for name, value in values.items()}
        for stage, values in on_graph.parameters.items()
    }
    label_logits = on_graph.label_logits
    if label_logits is None:
        *_, build = entry.stages.values()
        stage = build(task, parameters)
    else:
        label_logits = label_logits[index : index + 1]
        stage = stage_on_labels(task, label_logits)
    model = stage.model.to(task.device)
    load_parameters(model, parameters[stage.name])
    if memory_head(model) is None:
        logits, attention = on_graph.logits[index].to(task.device), None
    else:
        logits, attention = _run(stage, task)
    train_labels, shares = task.train_labels, None
    if label_logits is None:
        predicted = logits[None].argmax(dim=-1).cpu()
        labels = np.where(is_known(train_labels), train_labels, predicted)
        labels = np.full(labels.shape, -1) if task.is_regression else labels
    else:
        labels, shares = labels_for_statistics(task, label_logits)
    return ReplicaView(
        entry=entry,
        parameters=parameters,
        task=task,
        stage=stage,
        logits=logits,
        attention=attention,
        labels=labels[0],
        shares=None if shares is None else shares[0],
        calibration=calibration,
    )


def memory_head(model: nn.Module) -> MemoryHead | None:
    """Return the memory and classifier of a model that gives details of them, else None."""
    return model.head if isinstance(model, MemoryModel) else None


def _run(stage: TrainingStage, task: TrainingTask) -> tuple[Tensor, Tensor | None]:
    """Return logits (N, C) and attention (N, K) of all nodes."""
    every = torch.arange(task.graph.num_nodes, device=task.device)
    parts = torch.split(every, _BATCH) if stage.batch_size else [None]
    logits, attention = [], []
    with torch.no_grad():
        for part in parts:
            nodes = None if part is None else part[None]
            output = stage.model(stage.inputs, None, nodes, details=True)
            logits.append(task.objective.values(output.logits)[0])
            if "attention" in output.details:
                attention.append(output.details["attention"][0])
    return torch.cat(logits), torch.cat(attention) if attention else None


def mean_probabilities(replicas: Sequence[ReplicaView]) -> Array:
    """Return (N, C) the average of the replicas' probabilities or targets, as ``predict`` does."""
    logits = torch.stack([replica.logits for replica in replicas])
    return probabilities_of(replicas, logits).astype(np.float32)


def probabilities_of(replicas: Sequence[ReplicaView], logits: Tensor) -> Array:
    """Return (…, C) the calibrated average probabilities of logits (R, …, C), or the targets."""
    outputs = mean_outputs(replicas, logits)
    return np.asarray((outputs if replicas[0].is_regression else outputs.exp()).cpu().numpy())


def mean_outputs(replicas: Sequence[ReplicaView], logits: Tensor) -> Tensor:
    """Return (…, C) the logarithms of :func:`probabilities_of`, or the targets."""
    mean = mean_logits(logits)
    if replicas[0].is_regression:
        return mean
    calibration = replicas[0].calibration[None]
    return calibrated_logits(mean[None], calibration)[0].log_softmax(dim=-1)


def predicted_labels(replicas: Sequence[ReplicaView], probabilities: Array) -> Array:
    """Return (n,) the classes that ``predict`` gives, or 0, the only column of a regression."""
    return predicted_classes(probabilities, replicas[0].calibration)


def missing_notes(replicas: Sequence[ReplicaView]) -> list[str]:
    """Note what cannot be explained for the kind of model."""
    first, notes = replicas[0], []
    if not first.reads_statistics and not first.columns:
        notes.append(
            f"{first.entry.name} reads no local statistics, so there are no shares of them (model "
            "hpgmn has them)."
        )
    if first.attention is None:
        notes.append(
            "The model has no memory, so there are no patterns (hpgmn with memory=true has them)."
        )
    elif len(replicas) > 1:
        notes.append(
            f"Probabilities are the mean of {len(replicas)} seeds; the memory is that of seed "
            f"{first.task.replicas[0].seed}."
        )
    return notes


def shapley_values(values: Array) -> Array:
    """Compute exact Shapley values from the value of every subset.

    Args:
        values: (2^S,) at index ``b`` that of the subset of players whose bits are set in ``b``.

    Returns:
        (S,) values that add up to ``values[-1] - values[0]``.

    >>> shapley_values(np.array([0.0, 1.0, 3.0, 4.0]))
    array([1., 3.])
    """
    count = int(values.shape[0]).bit_length() - 1
    subsets = np.arange(values.shape[0])
    sizes = np.array([subset.bit_count() for subset in subsets.tolist()])
    factorial = [math.factorial(k) for k in range(count + 1)]
    weight = np.array([factorial[k] * factorial[-2 - k] for k in range(count)]) / factorial[-1]
    shares = np.zeros(count)
    for player in range(count):
        before = subsets[(subsets >> player) & 1 == 0]
        gain = values[before | (1 << player)] - values[before]
        shares[player] = (weight[sizes[before]] * gain).sum()
    return shares


def players(replica: ReplicaView) -> list[str]:
    """Return the statistics without directions: both directions are one player.

    Of few edge types each is a player, such as "class_counts (card)".
    """
    return list(dict.fromkeys(_player_of_each(replica)))


def _player_of_each(replica: ReplicaView) -> list[str]:
    """Return the player that each statistic of the model belongs to."""
    names, types = replica.module.names, replica.task.statistics.edge_type_names
    bases = [base_name(name) for name in names]
    numbers = [type_of(name) for name in names]
    by_type = [
        base if number is None else f"{base} ({types[number]})"
        for base, number in zip(bases, numbers, strict=True)
    ]
    return by_type if len(set(by_type)) <= MAX_PLAYERS else bases


def subset_values(replicas: Sequence[ReplicaView], nodes: Array, labels: Array) -> Array:
    """Return (n, 2^S) the log-probability of a class, or the target, for every subset.

    Nodes are evaluated one by one, so that only one node's (R, 2^S, C) logits are held.

    Args:
        replicas: of HP-GMN; their probabilities are averaged.
        nodes: (n,) positions.
        labels: (n,) the class of each node.
    """
    names = players(replicas[0])
    subsets = torch.arange(1 << len(names))
    present = torch.stack([(subsets >> player) & 1 for player in range(len(names))], dim=1).bool()
    encodings, masks = [replica.encodings(nodes) for replica in replicas], []
    for replica in replicas:  # (2^S, S·D) the components of an encoding in each subset
        columns = [names.index(name) for name in _player_of_each(replica)]
        width = replica.baseline.shape[0] // len(columns)
        masks.append(present[:, columns].to(replica.task.device).repeat_interleave(width, dim=1))
    values = []
    for index, label in enumerate(labels.tolist()):
        logits = []
        for replica, encoding, mask in zip(replicas, encodings, masks, strict=True):
            query = torch.where(mask, encoding[index], replica.baseline)
            with torch.no_grad():
                logits.append(replica.values(replica.module.head(query[None]).logits[0]))
        # A copy: a view would keep the numbers of all classes.
        values.append(mean_outputs(replicas, torch.stack(logits))[:, label].clone())
    return np.asarray(torch.stack(values).cpu().numpy(), np.float64)


@dataclass(frozen=True, eq=False)
class Patterns:
    """The memory's K patterns, described by N nodes.

    Attributes:
        attention: (N, K).
        usage: (K,) mean attention, which adds up to 1.
        profile: (K, C) classes of the nodes that attend to it: train labels, else probabilities.
        neighborhood: for each neighbour mode (K, C) the classes of these nodes' neighbours.
    """

    attention: Array
    usage: Array
    profile: Array
    neighborhood: dict[str, Array]

    @property
    def unused(self) -> list[int]:
        """The patterns that hardly any node attends to."""
        return [int(k) for k in np.flatnonzero(self.usage < UNUSED_BELOW / self.usage.size)]

    def redundant(self) -> list[list[int]]:
        """Return groups of used patterns whose attention correlates pairwise over nodes."""
        from scipy.cluster.hierarchy import fcluster, linkage
        from scipy.spatial.distance import squareform

        centred = self.attention - self.usage
        spread = np.sqrt(np.square(centred).mean(axis=0))
        varies = spread > _ROUNDING * self.usage
        candidates = np.setdiff1d(np.flatnonzero(varies), self.unused)
        if candidates.size < 2:
            return []
        columns = centred[:, candidates] / spread[candidates]
        distance = np.maximum(1 - columns.T @ columns / columns.shape[0], 0)
        np.fill_diagonal(distance, 0)
        # Complete linkage: the width of a group is the distance of its two farthest members.
        tree = linkage(squareform(distance, checks=False), method="complete")
        member = fcluster(tree, 1 - REDUNDANT_FROM, criterion="distance")
        groups = [candidates[member == number].tolist() for number in np.unique(member)]
        return sorted(group for group in groups if len(group) > 1)

    def typical_nodes(self, pattern: int, most: int = 3) -> Array:
        """Return the positions of the nodes that attend most to a pattern."""
        return np.argsort(-self.attention[:, pattern], kind="stable")[:most]

    def explanation(
        self, graph: Graph, number: int, attention: float, names: tuple[str, ...]
    ) -> Pattern:
        """Return a pattern with the names of classes and nodes."""
        return Pattern(
            number=number,
            attention=attention,
            classes=by_name(names, self.profile[number]),
            neighborhood={
                mode: by_name(names, shares[number]) for mode, shares in self.neighborhood.items()
            },
            typical_nodes=tuple(node_id(graph, int(v)) for v in self.typical_nodes(number)),
        )


def describe_patterns(replica: ReplicaView, probabilities: Array) -> Patterns:
    """Describe the patterns of a replica with a memory, given (N, C) probabilities."""
    assert replica.attention is not None
    attention = replica.attention.cpu().numpy().astype(np.float64)
    weight = np.maximum(attention - attention.mean(axis=0), 0)
    known, classes = replica.train_labels, probabilities.shape[1]
    beliefs = np.where(known[:, None] >= 0, one_hot(known, classes), probabilities)
    neighborhood = {}
    for mode in replica.neighbor_modes:
        adjacency = replica.task.statistics.adjacency(mode)
        counts = class_counts(adjacency, replica.labels, classes)
        neighborhood[mode] = _row_shares(weight.T @ counts)
    profile = _row_shares(weight.T @ beliefs)
    return Patterns(attention, attention.mean(axis=0), profile, neighborhood)


def _row_shares(totals: Array) -> Array:
    """Divide rows by their sums; rows of zeros stay zero."""
    sums = totals.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(totals, sums, out=np.zeros_like(totals), where=sums > 0))


def node_id(graph: Graph, position: int) -> str:
    """Return the id of the node at a position."""
    return str(position if graph.node_ids is None else graph.node_ids[position])


def by_name(names: Sequence[str], values: Array) -> dict[str, float]:
    """Return values by the names of their classes or statistics."""
    return dict(zip(names, values.tolist(), strict=True))
