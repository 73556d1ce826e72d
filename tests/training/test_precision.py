"""The precision of products is set on a GPU only, and set back."""

from __future__ import annotations

import pytest
import torch

from hpgmn.training.precision import products_in


@pytest.mark.parametrize(
    ("precision", "device", "inside"),
    [
        ("tf32", "cuda", "high"),
        ("tf32", "cpu", "highest"),
        ("float32", "cuda", "highest"),
        ("bfloat16", "cuda", "highest"),
    ],
)
def test_tf32_is_for_a_gpu_and_for_a_while(precision: str, device: str, inside: str) -> None:
    assert torch.get_float32_matmul_precision() == "highest"
    found = []

    def work() -> None:
        with products_in(precision, torch.device(device)):
            found.append(torch.get_float32_matmul_precision())
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert found == [inside]
    assert torch.get_float32_matmul_precision() == "highest"
