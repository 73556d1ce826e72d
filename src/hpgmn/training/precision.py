"""The arithmetic of products on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def products_in(precision: str, device: torch.device) -> Iterator[None]:
    """Products of single-precision matrices in TF32 where asked for, on a GPU only.

    Args:
        precision: the setting; "tf32" rounds factors to ten bits of mantissa, "bfloat16" is the
            business of the training step (:mod:`hpgmn.training.running`).
        device: where the products happen.
    """
    before = torch.get_float32_matmul_precision()
    if precision == "tf32" and device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
