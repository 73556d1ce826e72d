"""The processes that train one model together: who they are, and what they say to each other."""

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
from torch.nn.parallel import DistributedDataParallel

from hpgmn.base.errors import HPGMNError


class _Total(torch.autograd.Function):
    """The sum over all ranks, of which every rank then computes the same function.

    So every rank has the same gradient of the total, and their sum is known without a message.
    A collective on the way back could meet those of DistributedDataParallel in another order.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.detach().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * dist.get_world_size()


def _laid_out(gradient: Tensor, strides: Sequence[int]) -> Tensor:
    """A gradient in the layout of its parameter, which the buckets of gradients expect."""
    return gradient.contiguous().as_strided(gradient.shape, strides)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together.

    Attributes:
        rank: its number; 0 writes files and speaks to the user.
        size: how many there are.
        device: where its tensors live.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """The sum over all ranks.

        Differentiable in this sense: where every rank computes one and the same loss from totals,
        the mean over ranks of their gradients is the gradient of that loss.
        """
        if self.size == 1:
            return values
        result: Tensor = cast(Any, _Total).apply(values)
        return result

    def parallel(self, model: nn.Module) -> nn.Module:
        """The model with gradients that are the mean over ranks after each backward pass."""
        if self.size == 1:
            return model
        for parameter in model.parameters():
            if parameter.requires_grad:
                hook = partial(_laid_out, strides=parameter.stride())
                cast(Any, parameter).register_hook(hook)
        return DistributedDataParallel(model)

    def counts(self, own: int) -> list[int]:
        """A number of each rank, known to all."""
        if self.size == 1:
            return [own]
        every = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        every[self.rank] = own
        dist.all_reduce(every)
        return [int(number) for number in every.tolist()]

    def gathered(self, values: Tensor) -> Tensor:
        """Rank 0 has the values of all ranks, one after the other along axis 1; others none.

        Args:
            values: (R, B, …), where B may differ from rank to rank.
        """
        if self.size == 1:
            return values
        counts = self.counts(values.shape[1])
        padded = values.new_zeros(values.shape[0], max(counts), *values.shape[2:])
        padded[:, : values.shape[1]] = values
        parts = [torch.empty_like(padded) for _ in counts] if self.is_first else None
        dist.gather(padded, parts)
        if parts is None:
            return values[:, :0]
        return torch.cat([part[:, :count] for part, count in zip(parts, counts, strict=True)], 1)

    def agreed(self, values: Tensor) -> Tensor:
        """What rank 0 has of some values; their shape is known to all."""
        if self.size > 1:
            dist.broadcast(values, 0)
        return values

    def says(self, answer: bool) -> bool:
        """What rank 0 answers."""
        return bool(self.agreed(torch.tensor([answer], device=self.device).int()).item())

    def words(self, text: str) -> str:
        """What rank 0 says in words."""
        spoken = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self.device)
        length = int(self.agreed(torch.tensor([len(spoken)], device=self.device)).item())
        if not self.is_first:
            spoken = torch.empty(length, dtype=torch.uint8, device=self.device)
        return bytes(self.agreed(spoken).tolist()).decode()

    def wait(self) -> None:
        """Until every rank is here."""
        self.counts(0)

    def leave(self) -> None:
        """Part from the others in good order: before an error of which every rank knows.

        A process that ends while it is still connected may be aborted by its own threads.
        """
        if self.size > 1:
            dist.destroy_process_group()


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """This process among those that torchrun or Ray Train has started; alone without either.

    Args:
        device: "cpu" (gloo) or "cuda" (nccl, one GPU for each rank of a machine).
    """
    if dist.is_initialized():  # Ray Train joins before it calls
        yield _own_ranks(device)
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks(device=torch.device(device))
        return
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    ranks = _own_ranks(device)
    yield ranks
    ranks.leave()  # not after an error: other ranks may wait for this one


def _own_ranks(device: str) -> Ranks:
    where = torch.device(device)
    if device == "cuda":
        local, present = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= present:
            raise HPGMNError(
                f"Rank {local} of this machine has no GPU: there are {present}. Start as many "
                "ranks as there are GPUs (--nproc-per-node), or use --device cpu."
            )
        where = torch.device("cuda", local)
        torch.cuda.set_device(where)
    return Ranks(dist.get_rank(), dist.get_world_size(), where)
