"""The MLP against PyTorch Geometric's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.nn import MLP

from hpgmn.base.randomness import Noise

Build = Callable[..., Any]


def names(number):
    """The prefix of a layer's parameters."""
    return f"encode.rest.layers.{number - 1}" if number else "encode.first"


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_it_is_pygs_mlp(build, layers):
    built = build("mlp", layers=layers)
    for replica, found in enumerate(built.logits):
        reference = MLP([7, *[6] * (layers - 1), 4], norm=None, act="relu").eval()
        with torch.no_grad():
            for number, linear in enumerate(reference.lins):
                linear.weight.copy_(built.parameter(f"{names(number)}.weight", replica).T)
                linear.bias.copy_(built.parameter(f"{names(number)}.bias", replica)[0])
            torch.testing.assert_close(found, reference(built.x), rtol=1e-4, atol=1e-5)


def test_training_drops_columns_and_hidden_entries(build):
    whole = build("mlp", dropout=0.0).logits
    for name in ("dropout", "attributes_dropout"):
        off = {"dropout": 0.0, "attributes_dropout": 0.0}
        built = build("mlp", **(off | {name: 0.5}))
        noise = Noise(built.task.keys("main"), 1)
        assert (built.stage.model(built.stage.inputs, noise).logits != whole).any(dim=-1).all()
