"""The state of a service: a live graph and its journal, owned by one thread."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.parsing import read_array
from hpgmn.runs.run import Run
from hpgmn.service.journal import Journal, Row, Rows
from hpgmn.service.live import LiveRun

logger = logging.getLogger(__name__)

INLINE_IDS = 100
"""Requests for more ids are left to the worker thread, to keep the event loop short."""

SWITCH_SECONDS = 0.0005
"""How long the worker thread may hold the interpreter while the event loop waits (default 5 ms)."""

METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Names the folder in which worker processes share their metrics."""

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Limits:
    """What one request may use.

    Args:
        max_body: bytes.
        max_items: ids, nodes and edges together.
        timeout: seconds, from the head of the request to its answer.
    """

    max_body: int = 2**20
    max_items: int = 10_000
    timeout: float = 30.0


class ServedRun:
    """A live graph with its journal.

    Concurrency: whatever computes or changes runs on one worker thread, in order of arrival. The
    event loop itself only reads predictions of known nodes that are current, so these answer at
    once while others compute.

    Args:
        journal: a writable one, or one to replay only.
        predictions: a .npy file with the predictions of all nodes after the replay, to be mapped.
        workers: processes that share this machine's cores.
    """

    def __init__(
        self,
        run: Run,
        journal: Journal,
        split: int | None = None,
        *,
        predictions: Path | None = None,
        workers: int = 1,
    ) -> None:
        self.run, self.journal, self.split = run, journal, split
        self.live: LiveRun | None = None
        self.sizes: dict[str, int] = {}
        self.failure: BaseException | None = None
        self.on_ready: Callable[[], None] = lambda: None
        self.on_failure: Callable[[], None] = lambda: None
        self.on_change: Callable[[], None] = lambda: None
        self._predictions, self._workers = predictions, workers
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hpgmn")

    async def compute(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function on the worker thread; if cancelled before it starts, it never does."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)

    async def load(self) -> None:
        """Load the graph, replay the journal and compute all predictions; keep any failure."""
        try:
            self.live = await self.compute(self._load)
        except BaseException as error:
            self.failure = error
            self.on_failure()

    def _load(self) -> LiveRun:
        import torch

        live = load_live(self.run, self.journal, self.split, self._predictions)
        # One core is left to the event loop, where there are several.
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // self._workers - 1))
        sys.setswitchinterval(SWITCH_SECONDS)
        self._count(live)
        return live

    def _count(self, live: LiveRun) -> None:
        """Record the sizes, which the event loop reads without waiting for a computation."""
        self.sizes = {"nodes": live.num_nodes, "edges": live.num_edges}
        self.on_change()

    def require(self) -> LiveRun:
        """Return the live graph, or refuse before it is loaded or after it has failed."""
        if self.live is None or self.failure is not None:
            state = "is loading" if self.failure is None else "has failed and must be restarted"
            raise NotReadyError(f"The service {state}.", "Repeat the request later")
        return self.live

    async def predict(self, ids: Sequence[str | int]) -> list[dict[str, Any]]:
        """Return the predictions of known nodes."""
        live = self.require()
        if len(ids) <= INLINE_IDS and live.is_current(ids):
            return live.predict(ids)
        return await self.compute(live.predict, ids)

    async def add(self, nodes: Sequence[Row], edges: Sequence[Row]) -> None:
        """Add to the graph: checked first, then on disk, then applied."""
        await self.compute(self._add, nodes, edges)

    def _add(self, nodes: Sequence[Row], edges: Sequence[Row]) -> None:
        live = self.require()
        addition = live.prepare(nodes, edges)
        self.journal.append(Rows(list(nodes), list(edges)))
        try:
            live.apply(addition)
        except BaseException as error:  # the journal has it, memory may have half of it
            self.failure = error
            raise
        self._count(live)

    def close(self) -> None:
        """Wait for the running computation, then close the journal."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.journal.close()


class NotReadyError(HPGMNError):
    """The service is loading or has failed."""


def load_live(
    run: Run, journal: Journal, split: int | None, predictions: Path | None = None
) -> LiveRun:
    """Load the graph of a run, replay a journal and compute the predictions of all nodes."""
    mapped = None if predictions is None else read_array(predictions, "r")
    live = LiveRun(run, split, None if mapped is None else mapped[: run.graph.num_nodes])
    for rows in journal.batches():
        try:
            live.apply(live.prepare(*rows))
        except HPGMNError as error:
            raise HPGMNError(
                f"{journal.path} does not fit its run: {error.message}",
                Remedy("Restore both") | "Move the journal out of the run folder",
            ) from None
    if mapped is None:
        live.refresh()
    else:
        live.share(mapped)
    return live
