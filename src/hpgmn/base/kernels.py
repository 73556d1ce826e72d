"""Triton kernels for dropout, copies of parameters and CSR products.

``load_kernels()`` in :mod:`hpgmn.base.randomness` imports this module if Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_COLUMNS = 128  # of a dense matrix that a program multiplies
LONGEST = 2**31 - _BLOCK
"""Elements of a replica from which 32-bit indices do not suffice."""


@triton.jit
def _hash(z):
    """Apply SplitMix64's finaliser."""
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
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    start = tl.load(starts + replica).to(tl.uint64, bitcast=True)
    bits = _hash((index // 4).to(tl.uint64) * 0x9E3779B97F4A7C15 + start)
    lane = ((bits >> ((index % 4) * 16).to(tl.uint64)) & 0xFFFF).to(tl.int32)
    lane = tl.where(lane >= 32768, lane - 65536, lane)
    keep = lane >= tl.load(thresholds + replica).to(tl.int32)
    source = replica.to(tl.int64) * replica_step
    source += (index // width).to(tl.int64) * row_step + index % width
    value = tl.load(x + source, mask=inside).to(tl.float32)
    if BIAS:
        value += tl.load(biases + replica * width + index % width)
    if RECTIFY:
        value = tl.where(value < 0, 0.0, value)  # NaN stays
    value = tl.where(keep, value * tl.load(scales + replica), 0.0)
    tl.store(out + replica.to(tl.int64) * count + index, value, mask=inside)


@triton.jit(do_not_specialize=["count"])
def _pass_back(gradient, result, out, scales, count, BLOCK: tl.constexpr):
    replica = tl.program_id(1)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    index = replica.to(tl.int64) * count + index
    is_kept = tl.load(result + index, mask=inside) > 0
    value = tl.load(gradient + index, mask=inside).to(tl.float32) * tl.load(scales + replica)
    tl.store(out + index, tl.where(is_kept, value, 0.0), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _replace(chosen, values, kept, count, BLOCK: tl.constexpr):
    replica = tl.program_id(1)
    if tl.load(chosen + replica) != 0:
        index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = index < count
        index = replica.to(tl.int64) * count + index
        tl.store(kept + index, tl.load(values + index, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["width"])
def _rows_times(starts, columns, values, dense, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = index < width
    total = tl.zeros((BLOCK,), tl.float32)
    first, last = tl.load(starts + row), tl.load(starts + row + 1)
    for entry in range(first, last):
        source = tl.load(columns + entry).to(tl.int64) * width + index
        total += tl.load(values + entry) * tl.load(dense + source, mask=inside, other=0.0)
    tl.store(out + row * width + index, total, mask=inside)


def rows_times(starts: Tensor, columns: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    """Return a CSR matrix times a dense one, (N, D), each row summed in order by one thread."""
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
    """Return x · mask · scale, or max(x, 0) · mask · scale, contiguous.

    Args:
        x: (R, …), fewer than :data:`LONGEST` elements per replica.
        starts: (R,) from ``Noise.starts``; threshold and scale are those of a ``DropRate``.
        rectify: whether to apply ReLU.
        bias: (R, 1, D), added to ``x`` first.
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
    """Compile and run one kernel; raises where Triton does not work."""
    ones = torch.ones(1, device="cuda")
    replace(torch.ones(1, dtype=torch.bool, device="cuda"), ones, torch.zeros_like(ones))


def drop_backward(gradient: Tensor, result: Tensor, scale: Tensor) -> Tensor:
    """Return the gradient of ``drop(…, rectify=True)``, whose output was ``result``."""
    gradient = gradient.contiguous()
    out = torch.empty_like(gradient)
    count = gradient[0].numel()
    _pass_back[(triton.cdiv(count, _BLOCK), gradient.shape[0])](
        gradient, result, out, scale, count, BLOCK=_BLOCK
    )
    return out


def replace(chosen: Tensor, values: Tensor, kept: Tensor) -> None:
    """Copy the values of the chosen replicas into ``kept`` in place, without reading the others.

    Both are (R, …) and contiguous; ``chosen`` are (R,) booleans.
    """
    count = values[0].numel()
    _replace[(triton.cdiv(count, _BLOCK), values.shape[0])](
        chosen.view(torch.int8), values, kept, count, BLOCK=_BLOCK
    )
