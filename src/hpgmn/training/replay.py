"""An epoch, or a step on a batch, as a CUDA graph: recorded once, replayed by a single launch.

On small graphs the host needs far longer to launch the kernels of an epoch than they take to run.
Nothing in a recording comes from the host: it counts its own epochs, looks up the key of its random
numbers in a table, and writes results into a table of all epochs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from hpgmn.base.randomness import Noise, step_key

logger = logging.getLogger(__name__)

Recording = TypeVar("Recording")


class Replay:
    """Epochs after some point of a stage, replayed.

    Args:
        epoch: runs one epoch, given its number as a tensor and the noise of each pass; returns
            the values to record.
        keys: (R,) the roots of the replicas' random numbers.
        noise_steps: for each epoch from 0 to the last, the numbers by which its passes draw.
        done: epochs finished before.
        shape: of the values to record.
    """

    def __init__(
        self,
        epoch: Callable[[Tensor, list[Noise]], Tensor],
        keys: Tensor,
        noise_steps: Sequence[Sequence[int]],
        done: int,
        shape: Sequence[int],
    ) -> None:
        device = keys.device
        self._table = torch.tensor(
            [[step_key(number) for number in passes] for passes in noise_steps], device=device
        )
        self._count = torch.full((), done, dtype=torch.int64, device=device)
        self._done = done
        # Allocated before the recording, whose own memory each replay overwrites.
        self._records = torch.full((len(noise_steps), *shape), float("nan"), device=device)

        def run_epoch() -> None:
            self._count += 1
            here = self._count.view(1)
            drawn = self._table.index_select(0, here)[0]
            noises = [Noise(keys, drawn[number]) for number in range(drawn.shape[0])]
            values = epoch(self._count, noises)
            self._records.index_copy_(0, here, values.unsqueeze(0))

        self._replay = record(run_epoch)

    def next(self) -> Tensor:
        """Run the next epoch; return its values, available once the GPU has caught up."""
        self._replay()
        self._done += 1
        return self._records[self._done]


class StepReplay:
    """Steps on batches of one size, replayed.

    Args:
        step: makes one step, given a batch's tensors and its noise; returns the loss.
        keys: (R,) the roots of the replicas' random numbers.
        batch: the tensors of any batch; those of others must have their shapes.
    """

    def __init__(
        self,
        step: Callable[[Sequence[Tensor], Noise], Tensor],
        keys: Tensor,
        batch: Sequence[Tensor],
    ) -> None:
        self._batch = [tensor.clone() for tensor in batch]
        self._key = torch.zeros((), dtype=torch.int64, device=keys.device)
        self._loss = torch.zeros(keys.shape[0], device=keys.device)

        def run_step() -> None:
            self._loss.copy_(step(self._batch, Noise(keys, self._key)))

        self._replay = record(run_step)

    def fits(self, batch: Sequence[Tensor]) -> bool:
        """Whether a batch has the size that was recorded."""
        pairs = zip(batch, self._batch, strict=True)
        return all(tensor.shape == template.shape for tensor, template in pairs)

    def step(self, batch: Sequence[Tensor], number: int) -> Tensor:
        """Make a step; return its loss, (R,)."""
        for recorded_tensor, tensor in zip(self._batch, batch, strict=True):
            recorded_tensor.copy_(tensor)
        self._key.fill_(step_key(number))
        self._replay()
        return self._loss.clone()


def record(work: Callable[[], None]) -> Callable[[], None]:
    """Record what a function does on the GPU; return a call that repeats it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def attempt(make: Callable[[], Recording]) -> Recording | None:
    """Return a recording, or None (logged) if the work cannot be recorded."""
    try:
        return make()
    except RuntimeError as error:
        torch.cuda.synchronize()
        logger.info("No CUDA graph of this stage: %s", str(error).splitlines()[0])
        return None
