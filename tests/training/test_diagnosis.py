"""Why a loss is not finite; whole trainings are in tests/reliability/test_numeric_trouble.py."""

from __future__ import annotations

import math

import pytest
import scipy.sparse as sp
import torch
from torch import nn

from hpgmn.models import MODELS
from hpgmn.models.stage import Replica, TrainingStage
from hpgmn.statistics import LocalStatistics
from hpgmn.training.diagnosis import explain_nonfinite_loss, largest

NODES = torch.tensor([0, 1])


def stage_with(inputs: object, **values: object) -> TrainingStage:
    own = {"lr": [0.01], "weight_decay": [0.0], "epochs": 1, "patience": 0} | values
    return TrainingStage("main", nn.Identity(), {"attributes": inputs}, **own)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_the_largest_value_of_anything_that_a_model_reads() -> None:
    from hpgmn.graph import Graph

    assert largest(torch.tensor([1.0, -3.0]), NODES) == 3
    assert largest(torch.eye(2).to_sparse_csr() * -2, NODES) == 2
    assert largest(torch.zeros(0), NODES) == 0
    assert largest({"a": [torch.ones(2)], "b": (torch.ones(1) * 7, "text")}, NODES) == 7
    assert math.isnan(largest([torch.tensor([math.nan]), torch.tensor([math.inf])], NODES) or 0)
    assert largest("text", NODES) is None
    assert largest([], NODES) is None
    graph = Graph(sp.csr_array([[1.0, -5.0], [0.0, 2.0]]), [[0], [1]])
    assert largest(LocalStatistics(graph).attributes("raw"), NODES) == 5


@pytest.mark.parametrize(
    ("value", "values", "settings", "told"),
    [
        (
            1e12,
            {},
            {},
            "Statistic 'attributes' holds up to 1e+12: set attributes_scaling=unit, or ",
        ),
        (
            math.inf,
            {},
            {},
            "Statistic 'attributes' holds inf: set attributes_scaling=unit, or divi",
        ),
        (1e12, {}, {"attributes_scaling": "unit"}, "'attributes' holds up to 1e+12: divide attri"),
        (
            1.0,
            {"lr": [5.0]},
            {},
            "Setting lr is 5, and no statistic holds large values (at most 1)",
        ),
        (1.0, {"precision": "bfloat16"}, {}, "Lower lr, or set precision=float32."),
        (1.0, {}, {"weight_decay": 1e9}, "Setting weight_decay is 1e+09, and no statistic"),
        (None, {}, {}, "Setting lr is 0.01. Lower lr."),
    ],
)
def test_a_cause_is_a_statistic_or_else_a_setting(
    value: float | None, values: dict[str, object], settings: dict[str, object], told: str
) -> None:
    stage = stage_with(None if value is None else torch.tensor([value]), **values)
    replica = Replica(0, 0, MODELS["mlp"].settings(**settings))
    assert told in explain_nonfinite_loss(stage, replica, NODES)
