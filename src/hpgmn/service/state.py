"""The state of a service: a live graph and its journal, owned by one thread."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.runs.run import Run
from hpgmn.service.journal import Journal, Row
from hpgmn.service.live import LiveRun

INLINE_IDS = 100
"""Requests for more ids are left to the worker thread, to keep the event loop short."""

SWITCH_SECONDS = 0.0005
"""How long the worker thread may hold the interpreter while the event loop waits (default 5 ms)."""

_Result = TypeVar("_Result")


class NotReadyError(HPGMNError):
    """The service is loading or has failed."""


class ServedRun:
    """A live graph with its journal.

    Concurrency: whatever computes or changes runs on one worker thread, in order of arrival. The
    event loop itself only reads predictions of known nodes that are current, so these answer at
    once while others compute.

    Args:
        journal: a writable one, or one to replay only.
        workers: processes that share this machine's cores.
    """

    def __init__(
        self, run: Run, journal: Journal, split: int | None = None, *, workers: int = 1
    ) -> None:
        self.run, self.journal, self.split = run, journal, split
        self.live: LiveRun | None = None
        self._has_failed, self._workers = False, workers
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hpgmn")

    async def compute(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function on the worker thread; if cancelled before it starts, it never does."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)

    async def load(self) -> None:
        """Load the graph, replay the journal and compute all predictions."""
        self.live = await self.compute(self._load)

    def _load(self) -> LiveRun:
        import torch

        live = LiveRun(self.run, self.split)
        for nodes, edges in self.journal.batches():
            try:
                live.apply(live.prepare(nodes, edges))
            except HPGMNError as error:
                raise HPGMNError(
                    f"{self.journal.path} does not fit its run: {error.message}",
                    Remedy("Restore both") | "Move the journal out of the run folder",
                ) from None
        live.refresh()
        # One core is left to the event loop, where there are several.
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // self._workers - 1))
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.collect()
        gc.freeze()  # full collections would visit the whole graph, for some 100 ms
        return live

    @property
    def sizes(self) -> dict[str, int]:
        """Nodes and edges of the current graph; nothing before it is loaded."""
        live = self.live
        return {} if live is None else {"nodes": live.num_nodes, "edges": live.num_edges}

    def require(self) -> LiveRun:
        """Return the live graph, or refuse before it is loaded or after it has failed."""
        if self.live is None or self._has_failed:
            state = "has failed and must be restarted" if self._has_failed else "is loading"
            raise NotReadyError(f"The service {state}.", "Repeat the request later")
        return self.live

    async def predict(self, ids: Sequence[str | int]) -> list[dict[str, Any]]:
        """Return the predictions of known nodes."""
        live = self.require()
        rows = live.read(ids) if len(ids) <= INLINE_IDS else None
        return rows if rows is not None else await self.compute(live.predict, ids)

    async def add(self, nodes: Sequence[Row], edges: Sequence[Row]) -> None:
        """Add to the graph: checked first, then on disk, then applied."""
        await self.compute(self._add, nodes, edges)

    def _add(self, nodes: Sequence[Row], edges: Sequence[Row]) -> None:
        live = self.require()
        addition = live.prepare(nodes, edges)
        self.journal.append(nodes, edges)
        try:
            live.apply(addition)
        except BaseException:  # the journal has it, memory may have half of it
            self._has_failed = True
            raise

    def close(self) -> None:
        """Wait for the running computation, then close the journal."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.journal.close()
