"""The MLP against PyTorch Geometric's, and its formula with dropout."""

import pytest
import torch
from torch_geometric.nn import MLP


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_it_is_pygs_mlp(build, layers):
    built = build("mlp", layers=layers)
    names = ["encode.first", *(f"encode.rest.layers.{n}" for n in range(layers - 1))]

    def expected(replica):
        reference = MLP([7, *[6] * (layers - 1), 4], norm=None, act="relu").eval()
        with torch.no_grad():
            for name, linear in zip(names, reference.lins, strict=True):
                linear.weight.copy_(built.parameter(f"{name}.weight", replica).T)
                linear.bias.copy_(built.parameter(f"{name}.bias", replica)[0])
            return reference(built.x)

    built.assert_logits(expected)


def test_training_is_the_formula_with_dropout(build):
    built = build("mlp", dropout=0.5, attributes_dropout=0.25)
    columns = built.dropout("encode.columns", (7,), 0.25)
    entries = built.dropout("encode.hidden", (23, 6), 0.5)
    built.assert_logits(
        lambda replica: built.mlp("encode", built.x * columns[replica], replica, entries[replica]),
        built.training_logits,
    )
