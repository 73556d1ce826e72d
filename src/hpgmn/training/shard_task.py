"""Training on the row shards of a graph: the rows of one rank, and a task that reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from hpgmn.base.errors import HPGMNError, Remedy, SettingError
from hpgmn.base.metrics import metric as metric_of
from hpgmn.base.objectives import Classification, Objective
from hpgmn.base.sparse import SparseMatrix, to_device
from hpgmn.graph import Array, Split
from hpgmn.models.hpgmn import stage_on_statistics
from hpgmn.models.memory import reduce_nodes
from hpgmn.models.stage import Parameters, Replica, TrainingStage, load_parameters, replica_keys
from hpgmn.shards import Shards
from hpgmn.statistics import Statistic, statistic_names
from hpgmn.statistics.operators import DenseRows, SparseRows
from hpgmn.training.ranks import Ranks
from hpgmn.training.replicas import EpochMonitor, Progress
from hpgmn.training.state import TrainState, read_state, write_state
from hpgmn.training.trainer import train_stages

STAGE = "main"
"""The only stage: the label estimator was trained when the shards were made."""


class ShardRows:
    """The nodes of one rank.

    Args:
        shards: those of all ranks.
        parts: the numbers of this rank's ranges, consecutive.

    Attributes:
        first: its first node.
        last: the node after its last.
        y: (N,) the classes of its nodes, -1 unknown.
        split: which of its nodes are train, validation and test nodes.
    """

    def __init__(self, shards: Shards, parts: range) -> None:
        shards.check(parts)
        self.shards, self.parts = shards, parts
        self.first = shards.ranges[parts[0]][0]
        self.last = shards.ranges[parts[-1]][1]
        self.y = np.concatenate([shards.y(part) for part in parts]).astype(np.int64)
        self.split = Split(*(self._mask(name) for name in ("train", "val", "test")))

    def _mask(self, name: str) -> Array:
        return np.concatenate([self.shards.mask(name, part) for part in self.parts])

    def __len__(self) -> int:
        return self.last - self.first

    def statistic(self, name: str, device: torch.device) -> BlockRows:
        """Return a statistic of these nodes."""
        return BlockRows([self.shards.statistic(name, part) for part in self.parts], device)


class BlockRows(Statistic):
    """Rows of a statistic in several blocks, dense or sparse; the same for all replicas.

    Args:
        blocks: one below the other; dense ones may be mapped files.
    """

    def __init__(self, blocks: Sequence[Array | sp.csr_array], device: torch.device) -> None:
        self.blocks = list(blocks)
        self.device = device
        self.width = int(blocks[0].shape[1])
        self.starts = np.cumsum([0, *(block.shape[0] for block in blocks)])

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        if nodes is None:
            nodes = torch.arange(int(self.starts[-1])).expand(weight.shape[0], -1)
        return self.some(nodes).times(weight, None, columns)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        chosen = self.some(nodes.unsqueeze(0))
        return chosen.rows(torch.arange(nodes.shape[0], device=self.device))

    @override
    def some(self, nodes: Tensor) -> Statistic:
        """Return the statistic of some nodes, the same ones for all replicas."""
        requested = nodes[0].cpu().numpy()
        block_of = np.searchsorted(self.starts, requested, side="right") - 1
        positions = [np.flatnonzero(block_of == number) for number in range(len(self.blocks))]
        parts = [
            block[requested[chosen] - start]
            for block, chosen, start in zip(self.blocks, positions, self.starts[:-1], strict=True)
        ]
        order = np.concatenate(positions).argsort()
        if any(sp.issparse(block) for block in self.blocks):
            return SparseRows(SparseMatrix(_stack_sparse(parts, order), self.device).prepare())
        return DenseRows(to_device(torch.from_numpy(np.concatenate(parts)[order]), self.device))


def _stack_sparse(parts: Sequence[Array | sp.csr_array], order: Array) -> sp.csr_array:
    """Stack blocks, reorder their rows, and convert to the types that products need."""
    joined = sp.csr_array(sp.vstack([sp.csr_array(part) for part in parts], format="csr"))[order]
    joined.sort_indices()
    return sp.csr_array(
        (
            joined.data.astype(np.float32),
            joined.indices.astype(np.int32),
            joined.indptr.astype(np.int32),
        ),
        shape=joined.shape,
    )


def check_shard_settings(settings: Any, names: Sequence[str]) -> None:
    """Refuse settings that training on shards with these statistics cannot have."""
    if not settings.batch_size:
        raise SettingError(
            "Training on row shards needs a batch size, the train nodes in a step of all ranks.",
            Remedy("Set it", setting="batch_size", value=1024),
        )
    if settings.refinement:
        raise SettingError(
            "Refinement recomputes the statistics, which row shards hold.",
            Remedy("Train without it", setting="refinement", value=False),
        )
    missing = [name for name in statistic_names(settings) if name not in names]
    if missing:
        raise SettingError(
            f"The shards lack {', '.join(missing)}; they have {', '.join(names)}.",
            "Set statistics and neighbors as they were when the shards were made.",
        )


@dataclass(frozen=True)
class ShardTask:
    """Replicas of HP-GMN on the rows of one rank; they share labels and batches.

    Attributes:
        replicas: seeds and settings of one split.
        inputs: the statistics of the rows.
        balanced: (C,) class weights over the train nodes of all ranks; None: all alike.
        order_replica: the replica whose random numbers order the batches of all.
    """

    rows: ShardRows
    replicas: tuple[Replica, ...]
    ranks: Ranks
    inputs: Mapping[str, Statistic]
    balanced: Tensor | None
    order_replica: Replica

    @classmethod
    def of(cls, rows: ShardRows, replicas: Sequence[Replica], ranks: Ranks) -> ShardTask:
        """Open the statistics of a rank's rows; every rank must call this."""
        settings = replicas[0].settings
        check_shard_settings(settings, list(rows.shards.statistics))
        for part in ("train", "val"):
            labelled = int((getattr(rows.split, part) & (rows.y >= 0)).sum())
            if not sum(ranks.gather_numbers(labelled)):
                raise HPGMNError(
                    f"The shards in {rows.shards.folder} have no {part} nodes with a label.",
                    "Recreate them with a split that has some.",
                )
        inputs = {name: rows.statistic(name, ranks.device) for name in statistic_names(settings)}
        balanced = None
        if settings.class_weights != "none":
            balanced = _balanced_weights(rows, ranks)
        return cls(rows, tuple(replicas), ranks, inputs, balanced, replicas[0])

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.rows.shards.class_names)

    @property
    def device(self) -> torch.device:
        """Where tensors live."""
        return self.ranks.device

    @property
    def train_labels(self) -> Array:
        """(1, N), -1 outside the train nodes."""
        return np.where(self.rows.split.train, self.rows.y, -1)[None]

    @property
    def val_labels(self) -> Array:
        """(1, N), -1 outside the validation nodes."""
        return np.where(self.rows.split.val, self.rows.y, -1)[None]

    @property
    def objective(self) -> Objective:
        """The loss over classes, with the weights of all ranks' train nodes."""
        weights = None if self.balanced is None else self.balanced.expand(len(self.replicas), -1)
        return Classification(self.num_classes, weights)

    def subset(self, chosen: Sequence[int]) -> ShardTask:
        """Select replicas."""
        return replace(self, replicas=tuple(self.replicas[position] for position in chosen))

    def keys(self, stage: str) -> Tensor:
        """(R,) the roots of the replicas' random numbers."""
        return replica_keys(self.replicas, stage, self.device)

    def order_keys(self, stage: str) -> Tensor:
        """(1,) the root of the random numbers that order the batches of all replicas."""
        return replica_keys([self.order_replica], stage, self.device)


def _balanced_weights(rows: ShardRows, ranks: Ranks) -> Tensor:
    """(C,) N / (C · n_c) over the train nodes of all ranks, 0 for a class without any."""
    labels = torch.from_numpy(rows.y[rows.split.train & (rows.y >= 0)])
    num_classes = len(rows.shards.class_names)
    counts = ranks.sum(torch.bincount(labels, minlength=num_classes).double().to(ranks.device))
    balanced = counts.sum() / (num_classes * counts.clamp(min=1))
    return torch.where(counts > 0, balanced, 0.0).float()


def shard_stage(task: ShardTask, parameters: Mapping[str, Parameters]) -> TrainingStage:
    """Build the stage that reads the statistics of the shards."""
    settings = [replica.settings for replica in task.replicas]
    reduction = task.ranks.reduce_nodes if task.ranks.size > 1 else reduce_nodes
    return stage_on_statistics(task.inputs, task.num_classes, settings, task.device, reduction)


def load_shard_stage(task: ShardTask, state: TrainState) -> TrainingStage:
    """Return the stage with the best parameters of each replica, for evaluation."""
    stage = shard_stage(task, {})
    stage.model.to(task.device)
    load_parameters(stage.model, state.done[STAGE])
    return stage


def fit_shards(
    task: ShardTask,
    *,
    metric: str = "accuracy",
    positive: int = 1,
    path: Path | None = None,
    identity: str = "",
    report: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> TrainState:
    """Train on the rows of all ranks; every rank must call this.

    Arguments are those of :func:`hpgmn.training.replicas.fit_replicas`, but rank 0 saves the state
    to ``path``, which all ranks read, and reports; ``should_stop`` on any rank stops all.
    """
    ranks = task.ranks
    state = TrainState() if path is None else read_common_state(ranks, path, identity)
    monitor = EpochMonitor(path, identity, (0, 1), report, should_stop, ranks)
    state = train_stages(
        task,
        {STAGE: shard_stage},
        metric=metric_of(metric, positive),
        state=state,
        watch=monitor,
        ranks=ranks,
    )
    if path is not None and ranks.is_first:
        write_state(path, state, identity)
    return state


def read_common_state(ranks: Ranks, path: Path, identity: str) -> TrainState:
    """Read the saved state, or return a new one; refuse to start where ranks see different files.

    A shared disk may show a file late, and ranks at different epochs would wait for each other.
    """
    state = TrainState()
    exists = path.exists()
    if exists:
        state = read_state(path, identity, ranks.device)
    epoch = state.current.epoch if state.current else 0
    position = [int(exists), int(STAGE in state.done), epoch]
    first = ranks.broadcast(torch.tensor(position, device=ranks.device)).tolist()
    if ranks.any(position != first):
        raise HPGMNError(
            f"The ranks do not see the same saved state {path}.",
            "Wait until every machine shows the same file, then resume.",
        )
    return state
