"""What the systems HP-GMN is compared with have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hpgmn.base.randomness import Noise
from hpgmn.base.settings import TrainSettings, dropout_setting, setting
from hpgmn.graph import Graph
from hpgmn.models.layers import Output
from hpgmn.models.stage import TrainingTask
from hpgmn.statistics.operators import take_nodes


@dataclass(frozen=True, kw_only=True)
class BaselineSettings(TrainSettings):
    """What every baseline can be told about its width and its input."""

    weight_decay: float = setting(
        5e-4, "weight decay (L2, added to the gradient)", low=0.0, per_replica=True
    )
    dropout: float = dropout_setting(0.5, "dropout inside the network")
    hidden_dim: int = setting(64, "width of the hidden layers", low=1)
    attributes_scaling: str = setting(
        "raw",
        "attributes as given, divided by the row's absolute sum, or of unit length",
        choices=("raw", "fraction", "unit"),
    )
    attributes_dropout: float = dropout_setting(0.0, "dropout of whole columns of the attributes")


@dataclass(frozen=True, kw_only=True)
class GraphSettings(BaselineSettings):
    """A baseline that reads edges in one direction, or both as one."""

    neighbors: str = setting(
        "undirected", "whose edges a node reads", choices=("out", "in", "undirected")
    )


class NodeModel(nn.Module, ABC):
    """A model that computes all nodes together; those asked for are taken from the result."""

    @abstractmethod
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        """Logits (R, N, C) of all nodes, and the penalties where asked for."""

    def forward(
        self,
        inputs: Mapping[str, Any],
        noise: Noise | None = None,
        nodes: Tensor | None = None,
        classify: Tensor | None = None,
        *,
        penalties: bool = False,
    ) -> Output:
        """Class logits; see :meth:`hpgmn.models.hpgmn.HPGMN.forward`."""
        output = self.outputs(inputs, noise, penalties=penalties)
        output.logits = take_nodes(take_nodes(output.logits, nodes), classify)
        return output


class RowModel(nn.Module, ABC):
    """A model that needs no more than the rows of the nodes asked for."""

    @abstractmethod
    def rows(self, inputs: Mapping[str, Any], noise: Noise | None, nodes: Tensor | None) -> Tensor:
        """Logits of some nodes (R, B, C), or of all."""

    def forward(
        self,
        inputs: Mapping[str, Any],
        noise: Noise | None = None,
        nodes: Tensor | None = None,
        classify: Tensor | None = None,
        *,
        penalties: bool = False,
    ) -> Output:
        """Class logits; see :meth:`hpgmn.models.hpgmn.HPGMN.forward`."""
        return Output(take_nodes(self.rows(inputs, noise, nodes), classify))


def attributes_input(task: TrainingTask) -> dict[str, Any]:
    """The attributes, scaled as the settings say."""
    return {"attributes": task.statistics.attributes(task.settings[0].attributes_scaling)}


def usual_floats(graph: Graph, settings: Any) -> tuple[int, int]:
    """Parameters and activations per node of a network of a few layers on the attributes."""
    layers = getattr(settings, "layers", 2)
    return graph.num_features * settings.hidden_dim, settings.hidden_dim * (6 * layers + 4)
