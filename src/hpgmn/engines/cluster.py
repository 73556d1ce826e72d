"""Tasks on a Ray cluster: on the machines that an address names, or on this one alone.

Ray places the tasks; this module begins those anew whose machine is lost, carries messages, and
ends everything when it is asked to. Ray itself is imported late: it is an extra of the package.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from hpgmn.base.errors import HPGMNError
from hpgmn.base.version import __version__
from hpgmn.engines.tasks import FAREWELL_SECONDS, LOOK_SECONDS, Ended, Seldom, Share, Task, done

ROOM_SECONDS = 10.0
"""How often to look whether the machines that are left have room for the tasks."""
REACH_SECONDS = 5.0
"""So long a cluster may take to accept a connection."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of a change to come
}


def require_ray() -> ModuleType:
    """Ray, if it is installed; it sends no usage statistics."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise HPGMNError("--engine ray needs Ray. Run: pip install 'hpgmn[ray]'") from None
    found: ModuleType = ray
    return found


@contextmanager
def connected(address: str | None = None, **options: Any) -> Iterator[ModuleType]:
    """Ray with a cluster; one that was started here is stopped in the end.

    A connection that this process has already is used and left as it is.

    Args:
        address: of a cluster, or "auto" for the one on this machine; None: what ``RAY_ADDRESS``
            names, else Ray is started here.
        options: of ``ray.init``, where Ray is started here.
    """
    ray = require_ray()
    if ray.is_initialized():
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _check_address(address)
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **(options if address == "local" else {}),
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        ray.shutdown()
        raise _unreachable(address, str(error).strip().split("\n")[0]) from None
    finally:
        signal.signal(signal.SIGTERM, before)  # Ray takes it
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse a cluster that does not answer at once; Ray itself would try for a minute."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if address in ("local", "auto"):
        return
    if not host or not port.isdigit():
        raise HPGMNError(f"--address takes HOST:PORT or auto (got '{address}').")
    try:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from None


def _unreachable(address: str, reason: str) -> HPGMNError:
    return HPGMNError(
        f"Cannot join a Ray cluster at {address} ({reason}). Start one with `ray start --head`, "
        "set RAY_AUTH_MODE=token if it asks for a token, or leave --address out to start Ray on "
        "this machine."
    )


@dataclass
class _Attempt:
    """A task that is running: how often it was begun, and what it was begun with."""

    task: Task
    number: int
    count: int
    shared: Any


class RayEngine:
    """Runs tasks on a cluster, each with its part of a machine.

    Args:
        ray: Ray, connected.
        device: "cpu" or "cuda".
        workers: how many tasks at a time; None: as many as there are cores, or GPUs.
    """

    is_local = False

    def __init__(self, ray: ModuleType, device: str = "cpu", workers: int | None = None) -> None:
        self._ray, self.device = ray, device
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self.nodes = [node for node in nodes if node.get("CPU", 0) >= 1]
        if not self.nodes:
            raise HPGMNError("The Ray cluster has no machine with a free core. Add one.")
        self.cores = int(sum(node["CPU"] for node in self.nodes))
        self.gpus = int(sum(node.get("GPU", 0) for node in self.nodes))
        if device == "cuda" and not self.gpus:
            raise HPGMNError("The Ray cluster has no GPU. Use --device cpu (or auto).")
        self.workers = workers or (self.gpus if device == "cuda" else self.cores)
        self._counter = 0
        self._placed: dict[int, tuple[Any, Any]] = {}

    def __repr__(self) -> str:
        counts = [(len(self.nodes), "machine"), (self.cores, "core"), (self.gpus, "GPU")]
        words = [f"{count} {what}{'s' * (count > 1)}" for count, what in counts if count]
        return f"Ray: {', '.join(words)}; {self.workers} at a time"

    def share(self, at_a_time: int) -> tuple[Share, dict[str, float]]:
        """What each of so many tasks gets, for the task and for Ray.

        Cores are divided so that so many tasks find room at the same time, GPUs likewise; of tasks
        on one GPU each has the same part.
        """
        if self.device == "cuda":
            together = math.ceil(at_a_time / self.gpus)
            cores = min(
                node["CPU"] / min(at_a_time, node["GPU"] * together)
                for node in self.nodes
                if node.get("GPU", 0) >= 1
            )
            threads = max(1, int(cores))
            resources = {"num_cpus": min(threads, cores), "num_gpus": 1 / together}
            return Share(threads, 1 / together), resources
        sizes = [int(node["CPU"]) for node in self.nodes]
        fitting = [
            number
            for number in range(1, max(sizes) + 1)
            if sum(size // number for size in sizes) >= at_a_time
        ]
        threads = max(fitting, default=1)
        memory = 1 / max(1, min(at_a_time, max(sizes) // threads))
        return Share(threads, memory), {"num_cpus": threads}

    def run(
        self,
        next_task: Callable[[], Task | None],
        told: Callable[[Ended], None],
        *,
        answer: Callable[[str, Any], Any] = lambda name, message: None,
        should_stop: Callable[[], bool] = lambda: False,
        tries: int = 1,
        lost: Callable[[str], None] = lambda name: None,
        at_a_time: int | None = None,
    ) -> None:
        """Run tasks; see :class:`hpgmn.engines.Engine`."""
        ray = self._ray
        most = max(1, min(self.workers, at_a_time or self.workers))
        share, resources = self.share(most)
        remote = ray.remote(max_retries=0, **resources)(work)
        desk = ray.remote(**_beside(ray))(Desk).remote()
        running: dict[Any, _Attempt] = {}
        is_time = Seldom(ROOM_SECONDS)

        def begin(task: Task, count: int) -> None:
            self._counter += 1
            self._check_room(task, resources)
            shared = self._place(task.shared, running)
            about = (self._counter, share, __version__)
            own = remote.options(memory=task.memory).remote(
                task.function, task.argument, shared, desk, about
            )
            running[own] = _Attempt(task, self._counter, count, shared)

        letters = desk.take.remote()
        try:
            while True:
                while len(running) < most and (task := next_task()) is not None:
                    begin(task, 1)
                if not running:
                    return
                if should_stop():
                    raise KeyboardInterrupt
                if is_time():
                    for attempt in running.values():
                        self._check_room(attempt.task, resources)
                ray.wait([letters, *running], timeout=LOOK_SECONDS)
                every = [letters, *running]
                ready, _ = ray.wait(every, num_returns=len(every), timeout=0)
                if letters in ready:
                    self._hear(letters, desk, running, answer)
                    letters = desk.take.remote()
                for own in ready:
                    if own not in running:
                        continue
                    attempt = running.pop(own)
                    ended = self._ended(own, attempt.task)
                    if ended.is_lost and attempt.count < tries:
                        lost(attempt.task.name)
                        begin(attempt.task, attempt.count + 1)
                    else:
                        told(ended)
        finally:
            self._cancel(list(running))
            self._placed.clear()
            with suppress(ray.exceptions.RayError):
                ray.get([desk.close.remote(), letters], timeout=REACH_SECONDS)
            ray.kill(desk)

    def _check_room(self, task: Task, resources: dict[str, float]) -> None:
        """Refuse a task that no machine has room for, or none any more: Ray would wait for one."""
        cores, gpus = resources["num_cpus"], resources.get("num_gpus", 0)
        asked = {"CPU": cores, "GPU": gpus, "memory": task.memory or 0}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if any(all(node.get(name, 0) >= asked[name] for name in asked) for node in nodes):
            return
        words = [f"{cores:g} core{'s' * (cores > 1)}"] + [f"{gpus:g} GPU"] * (gpus > 0)
        remedy = ""
        if task.memory is not None:
            words.append(f"{task.memory / 2**30:.1f} GiB")
            remedy = " or give a smaller --memory,"
        raise HPGMNError(
            f"No machine of the cluster has room for a task of {', '.join(words)}. Add one,{remedy}"
            " and repeat the command."
        )

    def _place(self, shared: Any, running: dict[Any, _Attempt]) -> Any:
        """Put what tasks share where they find it, once; what no task needs any more goes."""
        if shared is None:
            return None
        if id(shared) not in self._placed:
            used = [attempt.shared for attempt in running.values()]
            for key, (_, place) in list(self._placed.items()):
                if place not in used:
                    del self._placed[key]
            self._placed[id(shared)] = (shared, self._ray.put(shared))
        return self._placed[id(shared)][1]

    def _hear(
        self,
        letters: Any,
        desk: Any,
        running: dict[Any, _Attempt],
        answer: Callable[[str, Any], Any],
    ) -> None:
        """Answer what tasks have told and asked; those that are lost no longer count."""
        names = {attempt.number: attempt.task.name for attempt in running.values()}
        for attempt, number, message in self._ray.get(letters):
            if attempt in names:
                found = answer(names[attempt], message)
                if number is not None:
                    desk.answer.remote(number, found)

    def _ended(self, own: Any, task: Task) -> Ended:
        """What became of a task."""
        errors = self._ray.exceptions
        try:
            value, reason, trace = self._ray.get(own)
        except errors.RayTaskError as error:  # before the task's own function could begin
            reason = str(error).strip().split("\n")[-1]
            return Ended(
                task.name,
                reason=f"A machine of the cluster cannot run tasks of hpgmn ({reason}). Install "
                f"hpgmn {__version__} on all of them.",
            )
        except errors.RayError as error:
            what = "memory was short" if isinstance(error, errors.OutOfMemoryError) else "lost"
            return Ended(
                task.name,
                reason=f"Its process or machine is gone ({type(error).__name__}: {what}). Repeat "
                "the command, with fewer --workers if memory is short.",
                is_lost=True,
            )
        return Ended(task.name, value, reason, trace)

    def _cancel(self, running: list[Any]) -> None:
        """End tasks: they may tidy up for a while, then they are killed."""
        for is_forced in (False, True):
            for own in running:
                with suppress(self._ray.exceptions.RayError, ValueError):
                    self._ray.cancel(own, force=is_forced)
            if running:
                wanted = len(running)
                _, running = self._ray.wait(
                    running, num_returns=wanted, timeout=FAREWELL_SECONDS, fetch_local=False
                )


def _beside(ray: ModuleType) -> dict[str, Any]:
    """Options of an actor that is to be on the machine of this process, and costs no core.

    Where that machine is lost it is begun elsewhere, and what was said to it is said again.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    return {
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True),
    }


class Desk:
    """Where tasks leave messages, and wait for answers."""

    def __init__(self) -> None:
        self._letters: list[tuple[int, int | None, Any]] = []
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._arrived = asyncio.Event()

    async def tell(self, attempt: int, message: Any, number: int | None = None) -> None:
        """Leave a message."""
        self._letters.append((attempt, number, message))
        self._arrived.set()

    async def ask(self, attempt: int, message: Any) -> Any:
        """Leave a message and wait for the answer."""
        self._count += 1
        number = self._count
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self.tell(attempt, message, number)
        return await self._answers[number]

    async def take(self) -> list[tuple[int, int | None, Any]]:
        """Wait for messages and take them all."""
        await self._arrived.wait()
        self._arrived.clear()
        found, self._letters = self._letters, []
        return found

    async def close(self) -> None:
        """Let who takes messages go home."""
        self._arrived.set()

    async def answer(self, number: int, value: Any) -> None:
        """Answer one who asked; a desk that was begun anew knows of no earlier question."""
        if number in self._answers:
            self._answers.pop(number).set_result(value)


class DeskLine:
    """The line of a task on a cluster.

    Args:
        desk: where messages go.
        attempt: which of all attempts of the run this is.
        share: what the task may take of its machine.
    """

    def __init__(self, desk: Any, attempt: int, share: Share) -> None:
        self._desk, self._attempt, self.share = desk, attempt, share

    @property
    def where(self) -> str:
        """The machine of the cluster, as Ray names it."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def tell(self, message: Any) -> None:
        """Send a message and go on."""
        self._desk.tell.remote(self._attempt, message)

    def ask(self, message: Any) -> Any:
        """Send a message and wait for the answer."""
        import ray

        return ray.get(self._desk.ask.remote(self._attempt, message))

    def should_stop(self) -> bool:
        """Never: Ray interrupts a task that is to end."""
        return False


def work(
    function: Callable[..., Any],
    argument: Any,
    shared: Any,
    desk: Any,
    about: tuple[int, Share, str],
) -> tuple[Any, str, str]:
    """What a machine of the cluster does: the value of a task, or the reason and trace of an error.

    Args:
        function: the task's.
        argument: the task's.
        shared: the task's.
        desk: where its messages go.
        about: the number of the attempt, its share, and the version of hpgmn that asks for it.
    """
    import torch

    attempt, share, version = about
    if version != __version__:
        return (
            None,
            f"The machine {socket.gethostname()} of the cluster has hpgmn {__version__}, this one "
            f"{version}. Install the same version on all of them.",
            "",
        )
    torch.set_num_threads(share.threads)
    # What tasks share lies in memory that nobody may write; torch says so.
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
    return done(function, argument, shared, DeskLine(desk, attempt, share))
