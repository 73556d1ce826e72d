"""One replica of a trained model on a graph: its inputs, labels, attention and output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.metrics import mean_logits
from hpgmn.graph import Array, Graph
from hpgmn.models.hpgmn import HPGMN, labels_for_statistics, stage_on_labels
from hpgmn.models.memory import MemoryHead
from hpgmn.models.stage import ModelEntry, Parameters, TrainingStage, TrainingTask, load_parameters
from hpgmn.statistics import base_name
from hpgmn.statistics.settings import mode_of
from hpgmn.training.saved import ModelOnGraph, SavedModel

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
        temperature: of the average over the seeds of its split.
    """

    entry: ModelEntry
    parameters: Mapping[str, Parameters]
    task: TrainingTask
    stage: TrainingStage
    logits: Tensor
    attention: Tensor | None
    labels: Array
    shares: Array | None
    temperature: float

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.task.graph

    @property
    def reads_statistics(self) -> bool:
        """Whether it is HP-GMN on local statistics."""
        return isinstance(self.stage.model, HPGMN)

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
        """The modes in which neighbours are read; models without statistics read all of them."""
        return list(dict.fromkeys(self.modes.values())) or ["undirected"]

    @cached_property
    def baseline(self) -> Tensor:
        """(S·D,) the mean encoding of the train nodes, or of all nodes if the graph has none."""
        nodes = np.flatnonzero(self.train_labels >= 0)
        return self.encodings(nodes if nodes.size else np.arange(self.graph.num_nodes)).mean(dim=0)

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
    replicas = [_open(on_graph, r, saved.mean_temperatures[r]) for r in range(len(saved.replicas))]
    if not np.isfinite(mean_probabilities(replicas)).all():
        raise HPGMNError(
            "The model's probabilities are not finite and cannot be explained.",
            Remedy("Train again with a lower learning rate", setting="lr"),
        )
    return replicas


def _open(on_graph: ModelOnGraph, index: int, temperature: float) -> ReplicaView:
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
        labels = np.where(train_labels >= 0, train_labels, predicted)
    else:
        labels, shares = labels_for_statistics(label_logits, train_labels, task.settings)
    return ReplicaView(
        entry=entry,
        parameters=parameters,
        task=task,
        stage=stage,
        logits=logits,
        attention=attention,
        labels=labels[0],
        shares=None if shares is None else shares[0],
        temperature=temperature,
    )


def memory_head(model: nn.Module) -> MemoryHead | None:
    """Return the memory and classifier of a model, None if it has none."""
    head = getattr(model, "head", None)
    return head if isinstance(head, MemoryHead) else None


def _run(stage: TrainingStage, task: TrainingTask) -> tuple[Tensor, Tensor | None]:
    """Return logits (N, C) and attention (N, K) of all nodes."""
    every = torch.arange(task.graph.num_nodes, device=task.device)
    parts = torch.split(every, _BATCH) if stage.batch_size else [None]
    logits, attention = [], []
    with torch.no_grad():
        for part in parts:
            nodes = None if part is None else part[None]
            output = stage.model(stage.inputs, None, nodes, details=True)
            logits.append(output.logits[0])
            if "attention" in output.details:
                attention.append(output.details["attention"][0])
    return torch.cat(logits), torch.cat(attention) if attention else None


def mean_probabilities(replicas: Sequence[ReplicaView]) -> Array:
    """Return (N, C) the average of the replicas' probabilities, as ``predict`` does."""
    logits = torch.stack([replica.logits for replica in replicas])
    return np.asarray(mean_log_probabilities(replicas, logits).exp().float().cpu().numpy())


def mean_log_probabilities(replicas: Sequence[ReplicaView], logits: Tensor) -> Tensor:
    """Return (…, C) logarithms of the calibrated average probabilities of logits (R, …, C)."""
    return (mean_logits(logits) / replicas[0].temperature).log_softmax(dim=-1)
