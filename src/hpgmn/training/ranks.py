"""The processes (ranks) that train one model together, and their collective operations."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hpgmn.base.errors import HPGMNError


class _Sum(torch.autograd.Function):
    """Sum over all ranks, each of which then computes the same function of it.

    Every rank has the same gradient of the sum, so the gradients' sum needs no message. (A
    collective in the backward pass could meet those of DistributedDataParallel in another order.)
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.detach().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * dist.get_world_size()


def _with_strides(gradient: Tensor, strides: Sequence[int]) -> Tensor:
    """Return a gradient in the layout of its parameter, which gradient buckets expect."""
    return gradient.contiguous().as_strided(gradient.shape, strides)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; alone by default.

    Attributes:
        rank: its number; rank 0 writes files and reports progress.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum over all ranks.

        Where every rank computes the same loss from such sums, the mean over ranks of their
        gradients is the gradient of that loss.
        """
        if self.size == 1:
            return values
        total: Tensor = cast(Any, _Sum).apply(values)
        return total

    def reduce_nodes(self, values: Tensor, reduction: str = "mean") -> Tensor:
        """Mean or sum of (R, B, …) over the nodes of all ranks."""
        sums = values.sum(dim=1)
        count = sums.new_full((1,), values.shape[1])
        total = self.sum(torch.cat([sums.flatten(), count]))
        result = total[:-1].view_as(sums)
        return result / total[-1] if reduction == "mean" else result

    def average_gradients(self, model: nn.Module) -> nn.Module:
        """Wrap a model so that each backward pass averages its gradients over ranks."""
        if self.size == 1:
            return model
        for parameter in model.parameters():
            if parameter.requires_grad:
                hook = partial(_with_strides, strides=parameter.stride())
                cast(Any, parameter).register_hook(hook)
        return nn.parallel.DistributedDataParallel(model)

    def gather_numbers(self, number: int) -> list[int]:
        """Return the number of each rank, on every rank."""
        if self.size == 1:
            return [number]
        numbers = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        numbers[self.rank] = number
        dist.all_reduce(numbers)
        return [int(value) for value in numbers.tolist()]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return any(self.gather_numbers(int(flag)))

    def gather(self, values: Tensor) -> Tensor:
        """Concatenate (R, B, …) along axis 1 on rank 0, B may differ; other ranks get B = 0."""
        if self.size == 1:
            return values
        counts = self.gather_numbers(values.shape[1])
        padded = values.new_zeros(values.shape[0], max(counts), *values.shape[2:])
        padded[:, : values.shape[1]] = values
        parts = [torch.empty_like(padded) for _ in counts] if self.is_first else None
        dist.gather(padded, parts)
        if parts is None:
            return values[:, :0]
        return torch.cat([part[:, :count] for part, count in zip(parts, counts, strict=True)], 1)

    def broadcast(self, values: Tensor) -> Tensor:
        """Return the values of rank 0; the shape is the same on every rank."""
        if self.size > 1:
            dist.broadcast(values, 0)
        return values

    def broadcast_text(self, text: str) -> str:
        """Return the text of rank 0."""
        content = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self.device)
        length = int(self.broadcast(torch.tensor([len(content)], device=self.device)).item())
        if not self.is_first:
            content = torch.empty(length, dtype=torch.uint8, device=self.device)
        return bytes(self.broadcast(content).tolist()).decode()

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.gather_numbers(0)

    def leave(self) -> None:
        """Disconnect before an error that every rank knows of: its threads may abort otherwise."""
        if self.size > 1:
            dist.destroy_process_group()


@contextmanager
def join_ranks(device: str) -> Iterator[Ranks]:
    """Join the processes started by torchrun or Ray Train; alone without either.

    Args:
        device: "cpu" (gloo) or "cuda" (nccl, one GPU for each rank of a machine).
    """
    if dist.is_initialized():  # Ray Train joins before it calls
        yield _current_ranks(device)
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks(device=torch.device(device))
        return
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    ranks = _current_ranks(device)
    yield ranks
    ranks.leave()  # not after an error: other ranks may wait for this one


def _current_ranks(device: str) -> Ranks:
    rank_device = torch.device(device)
    if device == "cuda":
        local, available = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= available:
            raise HPGMNError(
                f"Local rank {local} has no GPU: this machine has {available}.",
                "Start at most one rank per GPU (torchrun --nproc-per-node), or train on the CPU.",
            )
        rank_device = torch.device("cuda", local)
        torch.cuda.set_device(rank_device)
    return Ranks(dist.get_rank(), dist.get_world_size(), rank_device)
