"""APPNP: an MLP whose logits are spread by personalised PageRank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from typing_extensions import override

from hpgmn.base.randomness import Noise
from hpgmn.base.settings import setting
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import GraphSettings, NodeModel, attributes_input, usual_floats
from hpgmn.models.layers import Output, StatisticMLP
from hpgmn.models.propagated import appnp_weights
from hpgmn.models.stage import ModelEntry, Parameters, TrainingStage, TrainingTask, main_stage
from hpgmn.statistics.diffusion import diffuse
from hpgmn.statistics.operators import apart, side_by_side


@dataclass(frozen=True, kw_only=True)
class APPNPSettings(GraphSettings):
    """Everything that can be set about APPNP."""

    layers: int = setting(2, "layers of the MLP", low=1, high=8)
    rounds: int = setting(10, "rounds of propagation", low=1, high=200)
    teleport: float = setting(
        0.1, "share of a node's own logits mixed in each round", low=0.0, high=1.0
    )


class APPNP(NodeModel):
    """Z₀ = MLP(X), Z_{k+1} = (1-teleport)·Â·Z_k + teleport·Z₀; Â = D̃^-½·(A + I)·D̃^-½.

    The paper and PyG also drop entries of Â, anew in each round; here dropout is inside the MLP and
    on whole columns of the attributes, so that the rounds are one linear map and nothing of them is
    kept for the way back. The paper decays the weights of the first layer alone, here all are.

    Args:
        task: gives widths, classes and the settings of the R replicas.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        settings: list[APPNPSettings] = task.settings
        first = settings[0]
        hidden = [first.hidden_dim] * (first.layers - 1)
        widths = [task.graph.num_features, *hidden, task.num_classes]
        self.encode = StatisticMLP(len(settings), widths)
        self.weights = appnp_weights(first.rounds, first.teleport)
        self.input_rate = task.drop_rate("attributes_dropout")
        self.drop_rate = task.drop_rate("dropout")

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        start: Tensor = self.encode(
            inputs["attributes"], self.input_rate, self.drop_rate, noise, "encode"
        )
        spread = diffuse(inputs["propagation"], side_by_side(start), self.weights)
        return Output(apart(spread, start.shape[0]))


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    propagation = task.statistics.propagation(task.settings[0].neighbors, "symmetric", 1.0)
    return main_stage(task, APPNP(task), attributes_input(task) | {"propagation": propagation})


def _floats(graph: Graph, settings: APPNPSettings) -> tuple[int, int]:
    parameters, per_node = usual_floats(graph, settings)
    return parameters, per_node + 6 * max(graph.num_classes, 2)


ENTRY = ModelEntry(
    "appnp",
    "MLP, then personalised PageRank on its logits",
    "Johannes Gasteiger, Aleksandar Bojchevski, Stephan Günnemann. Predict then Propagate: Graph "
    "Neural Networks meet Personalized PageRank. ICLR 2019.",
    APPNPSettings,
    {"main": _main},
    _floats,
)
