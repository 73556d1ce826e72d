"""A trained model on one graph: its statistics and outputs, computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.graph import Array, Graph
from hpgmn.models.hpgmn import estimator_logits, label_logits
from hpgmn.models.stage import ModelEntry, Parameters, TrainingTask, logits


def require_finite(logits: Tensor, graph: Graph, nodes: Array | None = None) -> None:
    """Refuse logits (R, M, C) with NaN or infinity; ``nodes`` (M,) are their positions."""
    wrong = ~logits.isfinite().all(dim=-1).all(dim=0)
    if not wrong.any():
        return
    row = int(torch.nonzero(wrong)[0])
    node = row if nodes is None else int(nodes[row])
    name = node if graph.node_ids is None else graph.node_ids[node]
    top = float(np.abs(graph.x[[node]]).max())
    raise HPGMNError(
        f"The model has no finite output for {int(wrong.sum()):,} of {len(wrong):,} nodes of "
        f"'{graph.name}', the first '{name}', whose attributes are up to {top:.3g}.",
        Remedy("Correct attributes and edge weights") | "Scale them and train again",
    )


class ModelOnGraph:
    """A trained model on one graph; statistics and outputs are computed once.

    Args:
        parameters: those of every stage; the attribute holds them on the task's device.
        logits: (R, N, C) where they are known already.
    """

    def __init__(
        self,
        entry: ModelEntry,
        task: TrainingTask,
        parameters: Mapping[str, Parameters],
        logits: Tensor | None = None,
    ) -> None:
        self.entry, self.task = entry, task
        self.parameters: dict[str, Parameters] = {
            stage: {name: value.to(task.device) for name, value in values.items()}
            for stage, values in parameters.items()
        }
        if logits is not None:
            self.logits = logits

    @cached_property
    def logits(self) -> Tensor:
        """(R, N, C) on the CPU."""
        values = logits(self.task, self.entry, self.parameters).cpu()
        require_finite(values, self.task.graph)
        return values

    @cached_property
    def label_logits(self) -> Tensor | None:
        """(R, N, C) behind the pseudo-labels of HP-GMN's last stage; None for other models."""
        if self.entry.name != "hpgmn":
            return None
        return label_logits(self.task, self.parameters)

    @cached_property
    def estimator_logits(self) -> Tensor | None:
        """(R, N, C) of the label estimator on the CPU; None for a model without one."""
        if "estimator" not in self.parameters:
            return None
        if self.label_logits is not None and "refinement" not in self.parameters:
            return self.label_logits.cpu()
        return estimator_logits(self.task, self.parameters["estimator"]).cpu()

    def choose(self, positions: Sequence[int]) -> ModelOnGraph:
        """Select replicas; outputs computed so far are kept."""
        chosen = list(positions)
        parameters = {
            stage: {name: value[chosen] for name, value in values.items()}
            for stage, values in self.parameters.items()
        }
        selected = ModelOnGraph(self.entry, self.task.subset(chosen), parameters)
        for name in ("logits", "label_logits", "estimator_logits"):
            value = self.__dict__.get(name)
            if value is not None:
                selected.__dict__[name] = value[chosen]
        return selected
