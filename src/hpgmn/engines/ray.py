"""Run tasks on a Ray cluster, or on a Ray instance of this machine.

Ray schedules the tasks; this module restarts those whose machine dies and carries messages. Ray is
an extra of the package and imported on use.
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

from typing_extensions import override

from hpgmn.base.errors import HPGMNError, Remedy, count_noun, format_bytes
from hpgmn.base.version import __version__
from hpgmn.engines.processes import (
    GRACE_SECONDS,
    POLL_SECONDS,
    Callbacks,
    Channel,
    Engine,
    RateLimiter,
    Share,
    Task,
    TaskResult,
    run_safely,
)

CAPACITY_SECONDS = 10.0
"""How often to check that the remaining machines can run the tasks."""
CONNECT_SECONDS = 5.0
"""Timeout of a connection to a cluster."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of a change to come
}


def require_ray() -> ModuleType:
    """Import Ray with usage statistics off; raise HPGMNError if it is missing."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise HPGMNError(
            "The engine 'ray' needs Ray, which is not installed.", "Run: pip install 'hpgmn[ray]'"
        ) from None
    module: ModuleType = ray
    return module


@contextmanager
def connect_ray(address: str | None = None, **options: Any) -> Iterator[ModuleType]:
    """Connect to a cluster, or start Ray here and stop it at the end.

    An existing connection of this process is reused.

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
    """Raise HPGMNError for a cluster that does not respond; Ray itself would try for a minute."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if address in ("local", "auto"):
        return
    if not host or not port.isdigit():
        raise HPGMNError(
            f"The address of a Ray cluster must be HOST:PORT or auto (got '{address}').",
            Remedy("Correct it", option="address", value="auto"),
        )
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from None


def _unreachable(address: str, reason: str) -> HPGMNError:
    return HPGMNError(
        f"Cannot connect to a Ray cluster at {address} ({reason}).",
        Remedy("Start one with `ray start --head`")
        | "Set RAY_AUTH_MODE=token if it requires a token"
        | "Leave the address out to start Ray on this machine",
    )


@dataclass
class _Attempt:
    """A running task: the number of the attempt, and how often the task was started."""

    task: Task
    number: int
    count: int
    shared: Any


class RayEngine(Engine):
    """Runs tasks on a cluster, each with a share of a machine.

    Args:
        ray: Ray, connected.
        device: "cpu" or "cuda".
        workers: the number of concurrent tasks; None: one per core, or per GPU.
    """

    is_local = False

    def __init__(self, ray: ModuleType, device: str = "cpu", workers: int | None = None) -> None:
        self._ray, self.device = ray, device
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self.nodes = [node for node in nodes if node.get("CPU", 0) >= 1]
        if not self.nodes:
            raise HPGMNError("The Ray cluster has no machine with a CPU core.", "Add a machine")
        self.cores = int(sum(node["CPU"] for node in self.nodes))
        self.gpus = int(sum(node.get("GPU", 0) for node in self.nodes))
        if device == "cuda" and not self.gpus:
            raise HPGMNError(
                "The Ray cluster has no GPU.", Remedy("Use the CPU", option="device", value="cpu")
            )
        self.workers = workers or (self.gpus if device == "cuda" else self.cores)
        self._counter = 0
        self._placed: dict[int, tuple[Any, Any]] = {}

    def __repr__(self) -> str:
        counts = [(len(self.nodes), "machine"), (self.cores, "core"), (self.gpus, "GPU")]
        words = [count_noun(count, what) for count, what in counts if count]
        return f"Ray: {', '.join(words)}; {self.workers} at a time"

    def share(self, at_a_time: int) -> tuple[Share, dict[str, float]]:
        """Return the share of each concurrent task, and Ray's resource options."""
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

    @override
    def run_tasks(self, most: int, calls: Callbacks) -> None:
        ray = self._ray
        share, resources = self.share(most)
        remote = ray.remote(max_retries=0, **resources)(work)
        mailbox = ray.remote(**_local_actor(ray))(Mailbox).remote()
        running: dict[Any, _Attempt] = {}
        is_time = RateLimiter(CAPACITY_SECONDS)

        def begin(task: Task, count: int) -> None:
            self._counter += 1
            self._check_room(task, resources)
            shared = self._place(task.shared, running)
            context = (self._counter, share, __version__)
            reference = remote.options(memory=task.memory).remote(
                task.function, task.argument, shared, mailbox, context
            )
            running[reference] = _Attempt(task, self._counter, count, shared)

        messages = mailbox.take.remote()
        try:
            while True:
                while len(running) < most and (task := calls.next_task()) is not None:
                    begin(task, 1)
                if not running:
                    return
                if calls.should_stop():
                    raise KeyboardInterrupt
                if is_time():
                    for attempt in running.values():
                        self._check_room(attempt.task, resources)
                ray.wait([messages, *running], timeout=POLL_SECONDS)
                every = [messages, *running]
                ready, _ = ray.wait(every, num_returns=len(every), timeout=0)
                if messages in ready:
                    self._receive(messages, mailbox, running, calls)
                    messages = mailbox.take.remote()
                for reference in ready:
                    if reference not in running:
                        continue
                    attempt = running.pop(reference)
                    ended = self._result(reference, attempt.task)
                    if ended.is_lost and attempt.count < calls.tries:
                        calls.on_lost(attempt.task.name)
                        begin(attempt.task, attempt.count + 1)
                    else:
                        calls.on_result(ended)
        finally:
            self._cancel(list(running))
            self._placed.clear()
            with suppress(ray.exceptions.RayError):
                ray.get([mailbox.close.remote(), messages], timeout=CONNECT_SECONDS)
            ray.kill(mailbox)

    def _check_room(self, task: Task, resources: dict[str, float]) -> None:
        """Raise HPGMNError if no machine can run a task: Ray would wait for one."""
        cores, gpus = resources["num_cpus"], resources.get("num_gpus", 0)
        required = {"CPU": cores, "GPU": gpus, "memory": task.memory or 0}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if any(all(node.get(name, 0) >= required[name] for name in required) for node in nodes):
            return
        words = [f"{cores:g} CPU cores"] + [f"{gpus:g} GPU"] * (gpus > 0)
        remedy = Remedy("Add a machine")
        if task.memory is not None:
            words.append(format_bytes(task.memory))
            remedy |= Remedy("Limit the memory of a task", option="memory")
        raise HPGMNError(
            f"No machine of the cluster can run a task that needs {', '.join(words)}.", remedy
        )

    def _place(self, shared: Any, running: dict[Any, _Attempt]) -> Any:
        """Store shared data on the cluster, once; drop what no running task uses."""
        if shared is None:
            return None
        if id(shared) not in self._placed:
            used = [attempt.shared for attempt in running.values()]
            for key, (_, reference) in list(self._placed.items()):
                if reference not in used:
                    del self._placed[key]
            self._placed[id(shared)] = (shared, self._ray.put(shared))
        return self._placed[id(shared)][1]

    def _receive(
        self, messages: Any, mailbox: Any, running: dict[Any, _Attempt], calls: Callbacks
    ) -> None:
        """Handle the messages of running tasks."""
        names = {attempt.number: attempt.task.name for attempt in running.values()}
        for attempt, number, message in self._ray.get(messages):
            if attempt in names:
                answer = calls.on_message(names[attempt], message)
                if number is not None:
                    mailbox.answer.remote(number, answer)

    def _result(self, reference: Any, task: Task) -> TaskResult:
        """Return the result of a finished task."""
        errors = self._ray.exceptions
        try:
            value, reason, trace = self._ray.get(reference)
        except errors.RayTaskError as error:  # before the task's function started
            reason = str(error).strip().split("\n")[-1]
            return TaskResult(
                task.name,
                reason=f"A machine of the cluster cannot run tasks of hpgmn ({reason}). Install "
                f"hpgmn {__version__} on all of them.",
            )
        except errors.RayError as error:
            what = "memory was short" if isinstance(error, errors.OutOfMemoryError) else "lost"
            return TaskResult(
                task.name,
                reason=f"Its process or machine died ({type(error).__name__}: {what}). Retry, with "
                "fewer workers if memory is short.",
                is_lost=True,
            )
        return TaskResult(task.name, value, reason, trace)

    def _cancel(self, running: list[Any]) -> None:
        """Cancel tasks, by force after a grace period."""
        for is_forced in (False, True):
            for reference in running:
                with suppress(self._ray.exceptions.RayError, ValueError):
                    self._ray.cancel(reference, force=is_forced)
            if running:
                count = len(running)
                _, running = self._ray.wait(
                    running, num_returns=count, timeout=GRACE_SECONDS, fetch_local=False
                )


def _local_actor(ray: ModuleType) -> dict[str, Any]:
    """Return the options of an actor on this machine that uses no core and is restarted."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    return {
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True),
    }


class Mailbox:
    """An actor through which tasks send messages and receive answers."""

    def __init__(self) -> None:
        self._messages: list[tuple[int, int | None, Any]] = []
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._arrived = asyncio.Event()

    async def send(self, attempt: int, message: Any, number: int | None = None) -> None:
        """Queue a message."""
        self._messages.append((attempt, number, message))
        self._arrived.set()

    async def request(self, attempt: int, message: Any) -> Any:
        """Queue a message and wait for the answer."""
        self._count += 1
        number = self._count
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self.send(attempt, message, number)
        return await self._answers[number]

    async def take(self) -> list[tuple[int, int | None, Any]]:
        """Wait for messages and return them all."""
        await self._arrived.wait()
        self._arrived.clear()
        messages, self._messages = self._messages, []
        return messages

    async def close(self) -> None:
        """Let :meth:`take` return."""
        self._arrived.set()

    async def answer(self, number: int, value: Any) -> None:
        """Answer a request; a restarted actor has no earlier ones."""
        if number in self._answers:
            self._answers.pop(number).set_result(value)


class RayChannel(Channel):
    """The channel of a task on a cluster; Ray interrupts a task itself."""

    def __init__(self, mailbox: Any, attempt: int, share: Share) -> None:
        super().__init__(share)
        self._mailbox, self._attempt = mailbox, attempt

    @property
    @override
    def node(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())

    @override
    def send(self, message: Any) -> None:
        self._mailbox.send.remote(self._attempt, message)

    @override
    def request(self, message: Any) -> Any:
        import ray

        return ray.get(self._mailbox.request.remote(self._attempt, message))


def work(
    function: Callable[..., Any],
    argument: Any,
    shared: Any,
    mailbox: Any,
    context: tuple[int, Share, str],
) -> tuple[Any, str, str]:
    """Run a task on a machine of the cluster; see :func:`run_safely`.

    Args:
        context: the number of the attempt, its share, and the caller's version of hpgmn.
    """
    import torch

    attempt, share, version = context
    if version != __version__:
        return (
            None,
            f"The machine {socket.gethostname()} of the cluster has hpgmn {__version__}, this one "
            f"{version}. Install the same version on all of them.",
            "",
        )
    torch.set_num_threads(share.threads)
    # Shared data is read-only, of which torch warns.
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
    return run_safely(function, argument, shared, RayChannel(mailbox, attempt, share))
