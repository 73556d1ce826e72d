"""A trained model taken apart on a graph: one replica, what it reads and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from hpgmn.base.calibration import mean_logits
from hpgmn.base.errors import HPGMNError
from hpgmn.graph import Array, Graph
from hpgmn.models.hpgmn import HPGMN, label_logits, stage_on_labels
from hpgmn.models.label_estimator import labels_for_statistics
from hpgmn.models.memory import MemoryHead
from hpgmn.models.propagated import PropagatedHPGMN
from hpgmn.models.stage import ModelEntry, Parameters, TrainingStage, TrainingTask, load_parameters
from hpgmn.statistics import base_name
from hpgmn.statistics.settings import mode_of
from hpgmn.training.saved import SavedModel
from hpgmn.training.trainer import logits

_READ_NODES = 65536  # read at once where the model was trained in batches


@dataclass(frozen=True, eq=False)
class Opened:
    """One replica of a trained model on a graph.

    Attributes:
        entry: the model.
        done: the replica's parameters of every stage.
        task: the replica alone.
        stage: the last stage with its trained module and inputs.
        logits: (N, C) of every node.
        attention: (N, K) over the memory's patterns; None where there is no memory.
        labels: (N,) the class each node counts as, -1 unknown: for HP-GMN its pseudo labels, for
            other models train labels and predictions.
        shares: (N, C) what soft counts read instead; None where counts are hard.
        temperature: what the average over the seeds of its split is calibrated by.
    """

    entry: ModelEntry
    done: Mapping[str, Parameters]
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
        """For each statistic that reads edges its neighbour mode."""
        if not self.reads_statistics:
            return {}
        neighbors = self.task.settings[0].neighbors
        names = [name for name in self.module.names if base_name(name) != "attributes"]
        return {name: mode_of(name, neighbors) for name in names}

    @property
    def neighbor_modes(self) -> list[str]:
        """The modes in which neighbours are read; a model of another kind reads all of them."""
        return list(dict.fromkeys(self.modes.values())) or ["undirected"]

    @cached_property
    def baseline(self) -> Tensor:
        """(S·D,) the mean encoding of the train nodes; of all nodes where none is in the graph."""
        nodes = np.flatnonzero(self.train_labels >= 0)
        return self.encodings(nodes if nodes.size else np.arange(self.graph.num_nodes)).mean(dim=0)

    def encodings(self, nodes: Array) -> Tensor:
        """(B, S·D) the encodings of all statistics side by side, before memory and classifier."""
        wanted = torch.from_numpy(nodes).to(self.task.device)
        with torch.no_grad():
            parts = [
                self.module.query(self.stage.inputs, None, part[None])[0]
                for part in torch.split(wanted, _READ_NODES)
            ]
        return torch.cat(parts)

    def queries(self, nodes: Array) -> Tensor:
        """(B, D_q) what the memory compares with its patterns."""
        with torch.no_grad():
            if self.reads_statistics:
                query, resize = self.encodings(nodes)[None], self.module.head.resize
                return cast(Tensor, query if resize is None else resize(query))[0]
            query = self.stage.model(self.stage.inputs, details=True).details["query"][0]
            return cast(Tensor, query[torch.from_numpy(nodes).to(query.device)])


def open_replicas(
    saved: SavedModel, graph: Graph, device: torch.device | str = "cpu"
) -> list[Opened]:
    """Every replica of a trained model on a graph."""
    task = saved.task(graph, device)
    opened = []
    for place in range(len(saved.replicas)):
        done = {
            stage: {name: value.to(task.device) for name, value in parameters.items()}
            for stage, parameters in saved.choose([place]).done.items()
        }
        scale = saved.mean_temperatures[place]
        opened.append(_open(saved.entry, task.subset([place]), done, scale))
    if not np.isfinite(mean_probabilities(opened)).all():
        raise HPGMNError(
            "The model's probabilities are not numbers, so there is nothing to explain. Train "
            "again with a smaller lr."
        )
    return opened


def _open(
    entry: ModelEntry, task: TrainingTask, done: Mapping[str, Parameters], temperature: float
) -> Opened:
    *_, build = entry.stages.values()
    is_own_family = entry.name == "hpgmn"
    guesses = label_logits(task, done) if is_own_family else None
    stage = build(task, done) if guesses is None else stage_on_labels(task, guesses)
    model = stage.model.to(task.device)
    load_parameters(model, done[stage.name])
    head = memory_head(model)
    if head is None:
        found, attention = logits(task, entry, done)[0], None
    else:
        found, attention = _read(stage, task)
    train_labels, shares = task.train_labels, None
    if guesses is None:
        predicted = found[None].argmax(dim=-1).cpu()
        labels = np.where(train_labels >= 0, train_labels, predicted)
    else:
        labels, shares = labels_for_statistics(guesses, train_labels, task.settings)
    own_shares = None if shares is None else shares[0]
    return Opened(entry, done, task, stage, found, attention, labels[0], own_shares, temperature)


def memory_head(model: nn.Module) -> MemoryHead | None:
    """The memory and classifier of a model that has them."""
    if isinstance(model, HPGMN | PropagatedHPGMN):
        return model.head
    return None


def _read(stage: TrainingStage, task: TrainingTask) -> tuple[Tensor, Tensor | None]:
    """Logits (N, C) and attention (N, K) of all nodes."""
    every = torch.arange(task.graph.num_nodes, device=task.device)
    parts = torch.split(every, _READ_NODES) if stage.batch_size else [None]
    found, attention = [], []
    with torch.no_grad():
        for part in parts:
            nodes = None if part is None else part[None]
            output = stage.model(stage.inputs, None, nodes, details=True)
            found.append(output.logits[0])
            if "attention" in output.details:
                attention.append(output.details["attention"][0])
    return torch.cat(found), torch.cat(attention) if attention else None


def mean_probabilities(opened: list[Opened]) -> Array:
    """(N, C) the average of the replicas' probabilities, as ``predict`` gives it."""
    every = torch.stack([one.logits for one in opened])
    return np.asarray(mean_log_probabilities(opened, every).exp().float().cpu().numpy())


def mean_log_probabilities(opened: Sequence[Opened], logits: Tensor) -> Tensor:
    """(…, C) logarithms of the replicas' average probabilities, calibrated as in prediction.

    Args:
        opened: the R replicas.
        logits: (R, …, C).
    """
    return (mean_logits(logits) / opened[0].temperature).log_softmax(dim=-1)
