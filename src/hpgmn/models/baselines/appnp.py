"""APPNP: an MLP, then personalised PageRank on its logits (Gasteiger et al., ICLR 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from typing_extensions import override

from hpgmn.base.randomness import Noise
from hpgmn.base.settings import setting
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import (
    Baseline,
    GraphSettings,
    layer_widths,
    propagation_inputs,
    single_stage,
)
from hpgmn.models.layers import NodeModel, Output, StatisticMLP
from hpgmn.models.propagated import appnp_weights
from hpgmn.models.stage import ModelEntry, TrainingTask, default_floats
from hpgmn.statistics.diffusion import diffuse
from hpgmn.statistics.operators import join_replicas, split_replicas


@dataclass(frozen=True, kw_only=True)
class APPNPSettings(GraphSettings):
    """Settings of APPNP."""

    layers: int = setting(2, "layers of the MLP", low=1, high=8)
    rounds: int = setting(10, "rounds of propagation", low=1, high=200)
    teleport: float = setting(
        0.1, "share of a node's own logits mixed in each round", low=0.0, high=1.0
    )


class APPNP(Baseline, NodeModel):
    """Z₀ = MLP(X), Z_{k+1} = (1-teleport)·Â·Z_k + teleport·Z₀; Â = D̃^-½·(A + I)·D̃^-½.

    The paper and PyG also drop entries of Â in each round; here dropout is inside the MLP and on
    whole columns of the attributes, so that the rounds are one linear map that stores nothing for
    the backward pass. The paper decays the weights of the first layer alone, here all are decayed.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        first: APPNPSettings = task.settings[0]
        self.encode = StatisticMLP(len(task.replicas), layer_widths(task))
        self.weights = appnp_weights(first.rounds, first.teleport)

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        start: Tensor = self.encode(
            inputs["attributes"], self.input_rate, self.drop_rate, noise, "encode"
        )
        spread = diffuse(inputs["propagation"], join_replicas(start), self.weights)
        return Output(split_replicas(spread, start.shape[0]))


def _floats(graph: Graph, settings: APPNPSettings) -> tuple[int, int]:
    parameters, per_node = default_floats(graph, settings)
    return parameters, per_node + 6 * max(graph.num_classes, 2)


ENTRY = ModelEntry(
    "appnp", APPNPSettings, single_stage(APPNP, partial(propagation_inputs, self_loop=1.0)), _floats
)
