"""Triton kernels: what takes several passes over large arrays in tensor operations, in one.

Dropout: written in tensor operations the hash takes a dozen passes over numbers of eight bytes,
which on a GPU was a third of an epoch. Keeping the best parameters: a selection reads and writes
all of them each epoch, though a replica hardly ever becomes better.

``load_kernels()`` in :mod:`hpgmn.base.randomness` imports this file, where Triton (a part of torch
for CUDA) is installed; ``tests/test_kernels.py`` compares it with the tensor operations.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_COLUMNS = 128  # of a dense matrix that a program multiplies
LONGEST = 2**31 - _BLOCK
"""Elements of a replica above which the kernels' 32-bit places do not suffice."""


@triton.jit
def _hashed(z):
    """SplitMix64's finaliser."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit(do_not_specialize=["count", "width", "replica_step", "row_step"])
def _drop(
    x,
    out,
    starts,
    thresholds,
    scales,
    count,
    width,
    replica_step,
    row_step,
    biases,
    BIAS: tl.constexpr,
    RECTIFY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    replica = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    start = tl.load(starts + replica).to(tl.uint64, bitcast=True)
    bits = _hashed((place // 4).to(tl.uint64) * 0x9E3779B97F4A7C15 + start)
    lane = ((bits >> ((place % 4) * 16).to(tl.uint64)) & 0xFFFF).to(tl.int32)
    lane = tl.where(lane >= 32768, lane - 65536, lane)
    keep = lane >= tl.load(thresholds + replica).to(tl.int32)
    source = replica.to(tl.int64) * replica_step
    source += (place // width).to(tl.int64) * row_step + place % width
    value = tl.load(x + source, mask=inside).to(tl.float32)
    if BIAS:
        value += tl.load(biases + replica * width + place % width)
    if RECTIFY:
        value = tl.where(value < 0, 0.0, value)  # NaN stays
    value = tl.where(keep, value * tl.load(scales + replica), 0.0)
    tl.store(out + replica.to(tl.int64) * count + place, value, mask=inside)


@triton.jit(do_not_specialize=["count"])
def _pass_back(gradient, result, out, scales, count, BLOCK: tl.constexpr):
    replica = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    place = replica.to(tl.int64) * count + place
    kept = tl.load(result + place, mask=inside) > 0
    value = tl.load(gradient + place, mask=inside).to(tl.float32) * tl.load(scales + replica)
    tl.store(out + place, tl.where(kept, value, 0.0), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _replace(chosen, values, kept, count, BLOCK: tl.constexpr):
    replica = tl.program_id(1)
    if tl.load(chosen + replica) != 0:
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = place < count
        place = replica.to(tl.int64) * count + place
        tl.store(kept + place, tl.load(values + place, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["width"])
def _rows_times(starts, columns, values, dense, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    total = tl.zeros((BLOCK,), tl.float32)
    first, last = tl.load(starts + row), tl.load(starts + row + 1)
    for entry in range(first, last):
        source = tl.load(columns + entry).to(tl.int64) * width + place
        total += tl.load(values + entry) * tl.load(dense + source, mask=inside, other=0.0)
    tl.store(out + row * width + place, total, mask=inside)


def rows_times(starts: Tensor, columns: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    """The product of a CSR matrix and a dense one, each row added from its first entry on.

    One thread adds all entries of a row in their order, so that the bits are the same each time.

    Args:
        starts: (N + 1,) where the entries of each row begin.
        columns: (nnz,) of the entries.
        values: (nnz,) of the entries, float32.
        dense: (width, D) float32.

    Returns:
        (N, D) float32
    """
    dense, rows, width = dense.contiguous(), starts.numel() - 1, dense.shape[1]
    out = torch.empty(rows, width, dtype=torch.float32, device=dense.device)
    if out.numel():
        grid = (rows, triton.cdiv(width, _COLUMNS))
        _rows_times[grid](starts, columns, values, dense, out, width, BLOCK=_COLUMNS)
    return out


def drop(
    x: Tensor,
    starts: Tensor,
    threshold: Tensor,
    scale: Tensor,
    *,
    rectify: bool,
    bias: Tensor | None = None,
) -> Tensor:
    """X · mask · scale, or max(x, 0) · mask · scale.

    Args:
        x: (R, …), fewer than :data:`LONGEST` elements in a replica.
        starts: (R,) from ``Noise.starts``.
        threshold: (R,) of a ``DropRate``.
        scale: (R,) of a ``DropRate``.
        rectify: whether negative values become 0.
        bias: (R, 1, D) to be added to ``x`` first.

    Returns:
        Of the shape of ``x``, contiguous.
    """
    replicas, width = x.shape[0], x.shape[-1]
    if x.dim() != 3 or x.stride(2) != 1:
        x = x.contiguous()
    rows = x if x.dim() == 3 else x.view(replicas, -1, width)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    count = rows.shape[1] * width
    _drop[(triton.cdiv(count, _BLOCK), replicas)](
        rows,
        out,
        starts,
        threshold,
        scale,
        count,
        width,
        rows.stride(0),
        rows.stride(1),
        scale if bias is None else bias,
        BIAS=bias is not None,
        RECTIFY=rectify,
        BLOCK=_BLOCK,
    )
    return out


def check() -> None:
    """Compile and run one kernel, so that a machine that cannot is known before it trains."""
    ones = torch.ones(1, device="cuda")
    replace(torch.ones(1, dtype=torch.bool, device="cuda"), ones, torch.zeros_like(ones))


def drop_backward(gradient: Tensor, result: Tensor, scale: Tensor) -> Tensor:
    """The gradient of ``drop(…, rectify=True)``, which came out as ``result``."""
    gradient = gradient.contiguous()
    out = torch.empty_like(gradient)
    count = gradient[0].numel()
    _pass_back[(triton.cdiv(count, _BLOCK), gradient.shape[0])](
        gradient, result, out, scale, count, BLOCK=_BLOCK
    )
    return out


def replace(chosen: Tensor, values: Tensor, kept: Tensor) -> None:
    """Copy the values of the chosen replicas, in place; those of the others are not even read.

    Args:
        chosen: (R,) booleans.
        values: (R, …), contiguous.
        kept: (R, …), contiguous; overwritten.
    """
    count = values[0].numel()
    _replace[(triton.cdiv(count, _BLOCK), values.shape[0])](
        chosen.view(torch.int8), values, kept, count, BLOCK=_BLOCK
    )
