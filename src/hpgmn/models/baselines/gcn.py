"""GCN, graph convolutional network (Kipf and Welling, ICLR 2017)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from typing_extensions import override

from hpgmn.base.randomness import Noise, column_factors
from hpgmn.base.settings import setting
from hpgmn.models.baselines.baseline import (
    GraphSettings,
    layer_widths,
    propagation_inputs,
    single_stage,
)
from hpgmn.models.layers import Convolution, NodeModel, Output, convolve_layers
from hpgmn.models.stage import ModelEntry, TrainingTask


@dataclass(frozen=True, kw_only=True)
class GCNSettings(GraphSettings):
    """Settings of GCN."""

    layers: int = setting(2, "number of layers", low=1, high=16)
    self_loop: float = setting(1.0, "weight of the self-loop added to every node", low=0.0)


class GCN(NodeModel):
    """H⁽ˡ⁾ = ReLU(Â·H⁽ˡ⁻¹⁾·W_l + b_l), the last one without ReLU; Â = D̃^-½·(A + I)·D̃^-½.

    With ``neighbors`` other than "undirected", rows are normalised by the degrees of the edges
    read and columns by those of the edges that lead there; PyG takes one degree for both.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        self.convolve = nn.ModuleList(
            Convolution(len(task.replicas), inputs, outputs)
            for inputs, outputs in itertools.pairwise(layer_widths(task))
        )
        self.input_rate = task.drop_rate("attributes_dropout")
        self.drop_rate = task.drop_rate("dropout")

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        attributes, propagation = inputs["attributes"], inputs["propagation"]
        columns = column_factors(attributes.width, self.input_rate, noise, "attributes")
        logits = convolve_layers(
            self.convolve, propagation, attributes, columns, self.drop_rate, noise, "hidden"
        )
        return Output(logits)


def gcn_inputs(task: TrainingTask) -> dict[str, Any]:
    """Attributes and Â with the settings' self-loop."""
    return propagation_inputs(task, task.settings[0].self_loop)


ENTRY = ModelEntry("gcn", GCNSettings, single_stage(GCN, gcn_inputs))
