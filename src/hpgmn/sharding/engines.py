"""Who does units of work: this process, a pool of processes, or tasks of a Ray cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Protocol

from hpgmn.errors import HPGMNError
from hpgmn.sharding.plan import Unit
from hpgmn.sharding.units import run_unit

RETRIES = 5
"""How often a task is begun anew because its node or process was lost."""

Progress = Callable[[int], None]


class Engine(Protocol):
    """Does units that need nothing of each other."""

    def run(self, folder: Path, units: Sequence[Unit], progress: Progress) -> None:
        """Do all units; ``progress`` is told how many are done."""

    def close(self) -> None:
        """Give back what the engine holds."""


class LocalEngine:
    """Units one after the other, or in several processes of this machine.

    Args:
        workers: the number of processes; 1 is this one.
    """

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def run(self, folder: Path, units: Sequence[Unit], progress: Progress) -> None:
        """Do all units; ``progress`` is told how many are done."""
        if self.workers == 1:
            for done, unit in enumerate(units, start=1):
                run_unit(folder, unit)
                progress(done)
            return
        if self._pool is None:  # kept, for a process takes seconds to start
            self._pool = ProcessPoolExecutor(
                self.workers, multiprocessing.get_context("spawn"), initializer=_follow_parent
            )
        waiting = [self._pool.submit(run_unit, folder, unit) for unit in units]
        try:
            for done, future in enumerate(as_completed(waiting), start=1):
                future.result()
                progress(done)
        except BrokenProcessPool:
            self.close()
            raise HPGMNError(
                "A worker process ended by itself, mostly for lack of memory. Give a smaller "
                "--memory or fewer --workers and run the command again: what is finished is kept."
            ) from None
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _follow_parent() -> None:
    """Leave Ctrl-C to the first process, which then cancels what has not begun."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class RayEngine:
    """Units as tasks of a Ray cluster; those of a lost node, and no others, are begun anew.

    Every node must see the folder of the shards and the graph folder under the same path.

    Args:
        address: of the cluster; None starts one on this machine.
        memory: bytes that a task asks of its node, so that it gets no more tasks than it can hold.
        cpus: of a task.
        work: does a unit: folder, unit, name of the node.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        memory: int | None = None,
        cpus: float = 1,
        work: Callable[[str, Unit, str], None] = run_unit,
    ) -> None:
        try:
            import ray
        except ImportError:
            raise HPGMNError(
                "The engine ray needs Ray. Install it: pip install 'hpgmn[ray]'"
            ) from None
        self._ray: Any = ray
        self._owns = not ray.is_initialized()
        if self._owns:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            try:
                ray.init(
                    address=address or "local",  # never one that happens to run here
                    include_dashboard=None if address else False,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                )
            except ConnectionError:
                raise HPGMNError(
                    f"No Ray cluster answers at {address}. Check --address, or start one: "
                    "ray start --head"
                ) from None

        def task(folder: str, unit: Unit) -> None:
            work(folder, unit, ray.get_runtime_context().get_node_id())

        options: dict[str, Any] = {"num_cpus": cpus, "max_retries": RETRIES}
        if memory is not None:
            options["memory"] = memory
        self._task = ray.remote(**options)(task)

    def run(self, folder: Path, units: Sequence[Unit], progress: Progress) -> None:
        """Do all units; ``progress`` is told how many are done."""
        ray = self._ray
        waiting = [self._task.remote(str(folder), unit) for unit in units]
        every = len(waiting)
        try:
            while waiting:
                done, waiting = ray.wait(waiting, num_returns=1)
                ray.get(done)
                progress(every - len(waiting))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, HPGMNError):
                raise HPGMNError(str(error.cause)) from None
            raise
        except ray.exceptions.RayError as error:
            raise HPGMNError(
                f"A task was lost {RETRIES + 1} times ({type(error).__name__}), mostly for lack of "
                "memory. Give a smaller --memory and run the command again: what is finished is "
                "kept."
            ) from None
        finally:
            for task in waiting:
                ray.cancel(task, force=True)

    def close(self) -> None:
        """Leave the cluster, or end it where it was started for this."""
        if self._owns:
            self._ray.shutdown()
