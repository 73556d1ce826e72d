"""MLP on the attributes, without edges (Rumelhart, Hinton and Williams, 1986)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from typing_extensions import override

from hpgmn.base.randomness import Noise
from hpgmn.base.settings import setting
from hpgmn.models.baselines.baseline import (
    Baseline,
    BaselineSettings,
    attributes_input,
    layer_widths,
    single_stage,
)
from hpgmn.models.layers import RowModel, StatisticMLP
from hpgmn.models.stage import ModelEntry, TrainingTask


@dataclass(frozen=True, kw_only=True)
class MLPSettings(BaselineSettings):
    """Settings of the MLP."""

    layers: int = setting(2, "number of layers", low=1, high=8)


class AttributesMLP(Baseline, RowModel):
    """H = ReLU(X·W₁ + b₁), …, logits = H·W_L + b_L, with dropout between the layers."""

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        self.encode = StatisticMLP(len(task.replicas), layer_widths(task))

    @override
    def rows(self, inputs: Mapping[str, Any], noise: Noise | None, nodes: Tensor | None) -> Tensor:
        logits: Tensor = self.encode(
            inputs["attributes"], self.input_rate, self.drop_rate, noise, "encode", nodes
        )
        return logits


ENTRY = ModelEntry("mlp", MLPSettings, single_stage(AttributesMLP, attributes_input))
