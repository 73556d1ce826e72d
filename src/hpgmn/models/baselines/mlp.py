"""MLP: the attributes alone, no edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from typing_extensions import override

from hpgmn.base.randomness import Noise
from hpgmn.base.settings import setting
from hpgmn.models.baselines.baseline import (
    BaselineSettings,
    RowModel,
    attributes_input,
    usual_floats,
)
from hpgmn.models.layers import StatisticMLP
from hpgmn.models.stage import ModelEntry, Parameters, TrainingStage, TrainingTask, main_stage


@dataclass(frozen=True, kw_only=True)
class MLPSettings(BaselineSettings):
    """Everything that can be set about the MLP."""

    layers: int = setting(2, "number of layers", low=1, high=8)


class AttributesMLP(RowModel):
    """H = ReLU(X·W₁ + b₁), …, logits = H·W_L + b_L, with dropout between the layers.

    Args:
        task: gives widths, classes and the settings of the R replicas.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        settings: list[MLPSettings] = task.settings
        hidden = [settings[0].hidden_dim] * (settings[0].layers - 1)
        widths = [task.graph.num_features, *hidden, task.num_classes]
        self.encode = StatisticMLP(len(settings), widths)
        self.input_rate = task.drop_rate("attributes_dropout")
        self.drop_rate = task.drop_rate("dropout")

    @override
    def rows(self, inputs: Mapping[str, Any], noise: Noise | None, nodes: Tensor | None) -> Tensor:
        logits: Tensor = self.encode(
            inputs["attributes"], self.input_rate, self.drop_rate, noise, "encode", nodes
        )
        return logits


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    return main_stage(task, AttributesMLP(task), attributes_input(task))


ENTRY = ModelEntry(
    "mlp",
    "multilayer perceptron on the attributes, no edges",
    "David E. Rumelhart, Geoffrey E. Hinton, Ronald J. Williams. Learning Representations by "
    "Back-Propagating Errors. Nature 323, 1986.",
    MLPSettings,
    {"main": _main},
    usual_floats,
)
