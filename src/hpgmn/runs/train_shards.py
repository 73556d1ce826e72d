"""Train on row shards as a command requests it: alone, as a rank of torchrun, or by Ray Train."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpgmn.base.files import lock_folder
from hpgmn.base.parsing import parse_json
from hpgmn.graph.datasets import DATASETS
from hpgmn.runs.folder import finished_run, prepare_folder
from hpgmn.runs.shard_run import Report, made_with_shards, run_on_shards, shard_spec
from hpgmn.runs.spec import RunSpec, changes
from hpgmn.shards import Shards
from hpgmn.training.ranks import Ranks, join_ranks

logger = logging.getLogger(__name__)

_REFUSED, _FINISHED = "refused", "finished"  # what rank 0 broadcasts instead of a specification


@dataclass(frozen=True)
class ShardTraining:
    """A requested training on row shards.

    Attributes:
        shards: the folder of the shards, on a disk that every rank sees.
        folder: the run folder, on such a disk.
        options: keywords of :func:`shard_spec`; the metric defaults to that of the dataset.
        config: the ``config.yaml`` of an earlier run to compare with; empty without one.
        resume: continue the interrupted run in the folder.
        overwrite: replace the run in the folder.
        watch: opens the log and the progress of a training.
    """

    shards: Path
    folder: Path
    options: Mapping[str, Any]
    config: Mapping[str, Any]
    resume: bool
    overwrite: bool
    watch: Callable[[RunSpec, Shards], AbstractContextManager[Report]]

    def spec(self, device: str, ranks: int) -> tuple[RunSpec, Shards]:
        """Check the request for so many ranks; log what differs from the earlier run."""
        shards = Shards(self.shards)
        shards.shares(ranks)
        metric = DATASETS[shards.source].metric if shards.source in DATASETS else "accuracy"
        spec = shard_spec(shards, device=device, **({"metric": metric} | dict(self.options)))
        if self.config.get("made_with"):
            for line in changes(self.config, made_with_shards(shards, ranks, device)):
                logger.warning(line)
        return spec, shards

    def run(self, device: str) -> dict[str, Any] | None:
        """Train as one of torchrun's processes, or alone; return the metrics on rank 0."""
        with join_ranks(device) as ranks:
            if ranks.is_first:
                return self._run_first(ranks, device)
            message = ranks.broadcast_text("")
            if message not in (_REFUSED, _FINISHED):  # torchrun ends all with a failed rank
                spec = RunSpec.from_dict(parse_json(message))
                run_on_shards(spec, Shards(self.shards), self.folder, ranks)
            return None

    def _run_first(self, ranks: Ranks, device: str) -> dict[str, Any]:
        """Check, prepare the folder and train: rank 0 alone refuses, writes and reports."""
        with ExitStack() as stack:
            try:
                spec, shards = self.spec(device, ranks.size)
                stack.enter_context(lock_folder(self.folder))
                metrics = self._prepare(spec)
            except Exception:
                ranks.broadcast_text(_REFUSED)
                ranks.leave()
                raise
            if metrics is not None:
                ranks.broadcast_text(_FINISHED)
                return metrics
            ranks.broadcast_text(json.dumps(spec.as_dict()))
            with self.watch(spec, shards) as report:
                metrics = run_on_shards(spec, shards, self.folder, ranks, report=report)
        assert metrics is not None
        return metrics

    def run_with_ray(self, device: str, workers: int) -> dict[str, Any]:
        """Train by Ray Train on the connected cluster."""
        from hpgmn.engines.ray import connect_ray
        from hpgmn.runs.ray_train import require_room, run_with_ray

        spec, shards = self.spec(device, workers)
        with connect_ray() as ray:
            require_room(ray, device, workers)
        with lock_folder(self.folder):
            metrics = self._prepare(spec)
            if metrics is not None:
                return metrics
            with self.watch(spec, shards) as report:
                return run_with_ray(spec, shards, self.folder, workers, report=report)

    def _prepare(self, spec: RunSpec) -> dict[str, Any] | None:
        """Prepare the run folder; return the metrics of a run that only lacks its report."""
        prepare_folder(self.folder, spec, resume=self.resume, overwrite=self.overwrite)
        return finished_run(self.folder) if self.resume else None
