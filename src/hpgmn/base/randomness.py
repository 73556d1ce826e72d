"""Counter-based random numbers: a hash of (seed, split, stage, step, layer, element).

Resumed runs, single replicas and replayed CUDA graphs therefore draw the same numbers. The hash is
the finaliser of SplitMix64, in integer tensor operations.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

logger = logging.getLogger(__name__)

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB


def stable_key(*parts: object) -> int:
    """Return a signed 64-bit hash of printable parts, the same on every machine.

    >>> stable_key("seed", 0) == stable_key("seed", 0) != stable_key("seed", 1)
    True
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def step_key(step: int | str) -> int:
    """Return the key of a step for :class:`Noise`."""
    return stable_key("step", step)


def _mix(bits: Tensor) -> Tensor:
    """Apply SplitMix64's finaliser in place, with logical shifts."""
    shifted = bits >> 30
    bits.bitwise_xor_(shifted.bitwise_and_((1 << 34) - 1)).mul_(_FIRST)
    torch.bitwise_right_shift(bits, 27, out=shifted)
    bits.bitwise_xor_(shifted.bitwise_and_((1 << 37) - 1)).mul_(_SECOND)
    torch.bitwise_right_shift(bits, 31, out=shifted)
    return bits.bitwise_xor_(shifted.bitwise_and_((1 << 33) - 1))


def text_keys(names: npt.NDArray[np.str_]) -> Tensor:
    """Return a signed 64-bit hash of each name, (N,), independent of machine and of other names.

    >>> bool(text_keys(np.array(["ab", "c"]))[1] == text_keys(np.array(["c"]))[0])
    True
    """
    characters = np.ascontiguousarray(names).view(np.uint32).reshape(names.size, -1)
    keys = torch.full((names.size,), stable_key("text"))
    for position in range(characters.shape[1]):
        code = torch.from_numpy(characters[:, position].astype(np.int64))
        keys = torch.where(code > 0, _mix(keys ^ (code + ((position + 1) << 32))), keys)
    return keys


def signs(keys: Tensor, first: int, last: int) -> Tensor:
    """Return (N, last - first) random signs: column j is bit j % 64 of SplitMix64's output j // 64.

    Args:
        keys: (N,) int64 seeds, from :func:`text_keys`.
    """
    start, stop = first // 64, -(-last // 64)
    counter = torch.arange(start + 1, stop + 1, dtype=torch.int64, device=keys.device)
    words = _mix(keys.unsqueeze(1) + counter.mul_(_GOLDEN))
    shifts = torch.arange(8, dtype=torch.uint8, device=keys.device)
    bits = (words.view(torch.uint8).unsqueeze(-1) >> shifts).bitwise_and_(1).flatten(1)
    return bits[:, first - 64 * start : last - 64 * start].float().mul_(2).sub_(1)


class DropRate:
    """One dropout probability in [0, 1) per replica, as a multiple of 2⁻¹⁶."""

    def __init__(self, rates: Sequence[float], device: torch.device | str = "cpu") -> None:
        steps = [min(round(rate * 65536), 65535) for rate in rates]
        self.is_zero = not any(steps)
        self.threshold = torch.tensor(
            [step - 32768 for step in steps], dtype=torch.int16, device=device
        )
        self.scale = torch.tensor([65536 / (65536 - step) for step in steps], device=device)


class Noise:
    """The random numbers of one step for R replicas.

    Args:
        keys: (R,) int64, one per replica, from :func:`stable_key`.
        step: the epoch, or a tensor with its :func:`step_key`, which a CUDA graph can re-read.
        rows: (B,) positions of the local rows among all rows of the step, for a rank that holds a
            part of them; None for all.
    """

    def __init__(
        self, keys: Tensor, step: int | str | Tensor = 0, rows: Tensor | None = None
    ) -> None:
        self.keys = keys
        self.step = step if isinstance(step, Tensor) else step_key(step)
        self.rows = rows

    def starts(self, name: str) -> Tensor:
        """Return the counter start of each replica for a named layer: (R,)."""
        return _mix((self.keys + stable_key(name)) ^ self.step)

    def bits(self, name: str, count: int) -> Tensor:
        """Return (R, count) hashed 64-bit numbers for a named layer."""
        start = self.starts(name)
        counter = torch.arange(count, dtype=torch.int64, device=self.keys.device)
        return _mix(counter.mul_(_GOLDEN).unsqueeze(0) + start.unsqueeze(1))

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        """Return (R, *shape) floats, uniform in [0, 1)."""
        bits = self.bits(name, math.prod(shape))
        fraction = ((bits >> 40) & ((1 << 24) - 1)).float() / (1 << 24)
        return fraction.view(self.keys.shape[0], *shape)

    def keep(self, name: str, shape: Sequence[int], rate: DropRate) -> Tensor:
        """Return (R, *shape) booleans, false with each replica's dropout probability."""
        return self._lanes(name, shape) >= rate.threshold.view(-1, *[1] * len(shape))

    def mask(self, name: str, shape: Sequence[int], rate: DropRate) -> Tensor:
        """Return :meth:`keep` as numbers 0 and 1, which a CPU multiplies several times faster."""
        return self._lanes(name, shape).float().ge_(rate.threshold.view(-1, *[1] * len(shape)))

    def _lanes(self, name: str, shape: Sequence[int]) -> Tensor:
        """Return (R, *shape) 16-bit numbers."""
        if self.rows is not None and len(shape) == 2:
            return self._lanes_of_rows(name, self.rows, shape[1])
        count = math.prod(shape)
        lanes = self.bits(name, -(-count // 4)).view(torch.int16)[:, :count]
        return lanes.view(self.keys.shape[0], *shape)

    def _lanes_of_rows(self, name: str, rows: Tensor, width: int) -> Tensor:
        """Return 16-bit lanes (R, B, width) of some rows, four per hashed number."""
        first = rows * width
        count = -(-(width + 3) // 4) if width % 4 else width // 4  # a row may begin within one
        counter = (first // 4).unsqueeze(1) + torch.arange(count, device=rows.device)
        bits = _mix(counter.mul_(_GOLDEN).unsqueeze(0) + self.starts(name).view(-1, 1, 1))
        lanes = bits.view(torch.int16)
        if width % 4 == 0:
            return lanes
        index = (first % 4).unsqueeze(1) + torch.arange(width, device=rows.device)
        return lanes.gather(2, index.expand(lanes.shape[0], -1, -1))


@cache
def load_kernels() -> Any:
    """Return :mod:`hpgmn.base.kernels`, or None where Triton is missing or cannot compile."""
    try:
        kernels = importlib.import_module("hpgmn.base.kernels")
    except ImportError:
        return None
    try:
        kernels.check()  # kernels are compiled when they are used, which needs a C compiler
    except Exception as error:
        logger.info("Dropout runs without Triton kernels: %s", str(error).splitlines()[:1])
        return None
    return kernels


class _Masked(torch.autograd.Function):
    """x · mask · scale; saves the mask for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(mask, scale)
        return (x * mask).mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        mask, scale = ctx.saved_tensors
        return (gradient * mask).mul_(scale), None, None


class _MaskedInPlace(_Masked):
    """:class:`_Masked` in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(mask, scale)
        ctx.mark_dirty(x)
        return x.mul_(mask).mul_(scale)


class _Dropped(torch.autograd.Function):
    """:class:`_Masked` as one kernel, which recomputes the mask in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, starts: Tensor, rate: DropRate) -> Tensor:
        ctx.rate = rate
        ctx.save_for_backward(starts)
        result: Tensor = load_kernels().drop(x, starts, rate.threshold, rate.scale, rectify=False)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (starts,), rate = ctx.saved_tensors, ctx.rate
        back = load_kernels().drop(gradient, starts, rate.threshold, rate.scale, rectify=False)
        return back, None, None


def _by_kernel(x: Tensor, noise: Noise) -> bool:
    """Return whether the Triton kernel applies; it counts entries from 0."""
    if not x.is_cuda or noise.rows is not None:
        return False
    return load_kernels() is not None and x[0].numel() < load_kernels().LONGEST


def dropout(
    x: Tensor, rate: DropRate, noise: Noise | None, name: str, *, in_place: bool = False
) -> Tensor:
    """Apply elementwise dropout; return the input itself in evaluation.

    Args:
        x: (R, …).
        noise: the step's random numbers, or None in evaluation.
        name: of the layer, unique in the model.
        in_place: whether ``x`` may be overwritten.
    """
    if noise is None or rate.is_zero:
        return x
    if _by_kernel(x, noise):
        result: Tensor = cast(Any, _Dropped).apply(x, noise.starts(name), rate)
        return result
    mask = noise.mask(name, x.shape[1:], rate)
    function = cast(Any, _MaskedInPlace if in_place else _Masked)
    result = function.apply(x, mask, rate.scale.view(-1, *[1] * (x.dim() - 1)))
    return result


class _RectifiedMasked(torch.autograd.Function):
    """max(x, 0) · mask · scale; saves only its output for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: Tensor) -> Tensor:
        result = torch.relu(x).mul_(mask).mul_(scale)
        ctx.save_for_backward(result, scale)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        result, scale = ctx.saved_tensors
        rectified: Tensor = torch.ops.aten.threshold_backward(gradient, result, 0)
        return rectified.mul_(scale), None, None


class _RectifiedDropped(torch.autograd.Function):
    """:class:`_RectifiedMasked` as one kernel per pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, starts: Tensor, rate: DropRate) -> Tensor:
        drop = load_kernels().drop
        result: Tensor = drop(x, starts, rate.threshold, rate.scale, rectify=True, bias=bias)
        ctx.scale, ctx.has_bias = rate.scale, bias is not None
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        (result,) = ctx.saved_tensors
        back: Tensor = load_kernels().drop_backward(gradient, result, ctx.scale)
        return back, back.sum(dim=1, keepdim=True) if ctx.has_bias else None, None, None


def relu_dropout(
    x: Tensor, rate: DropRate, noise: Noise | None, name: str, bias: Tensor | None = None
) -> Tensor:
    """Apply ReLU and :func:`dropout` in one step, saving one array for the backward pass.

    Args:
        x: (R, …); overwritten if there is a bias.
        bias: (R, 1, D), added to ``x`` first.
    """
    drops = noise is not None and not rate.is_zero
    if noise is not None and drops and _by_kernel(x, noise):
        result: Tensor = cast(Any, _RectifiedDropped).apply(x, bias, noise.starts(name), rate)
        return result
    if bias is not None:
        x = x.add_(bias)
    if noise is None or not drops:
        return torch.relu(x)
    mask = noise.mask(name, x.shape[1:], rate)
    scale = rate.scale.view(-1, *[1] * (x.dim() - 1))
    result = cast(Any, _RectifiedMasked).apply(x, mask, scale)
    return result


def column_factors(width: int, rate: DropRate, noise: Noise | None, name: str) -> Tensor | None:
    """Return (R, width) factors that drop whole input columns, or None; see :func:`dropout`."""
    if noise is None or rate.is_zero:
        return None
    return noise.keep(name, (width,), rate) * rate.scale.unsqueeze(1)
