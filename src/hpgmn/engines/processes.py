"""Tasks, engines, and the engine that runs tasks on this machine.

Worker processes receive tasks and send results through a pipe; its end tells them to stop, also
when the parent process dies.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from typing_extensions import override

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import describe_os_error

ENGINES = ("local", "ray")
POLL_SECONDS = 0.2
"""How often an engine checks whether to stop."""
GRACE_SECONDS = 5.0
"""Time for a cancelled task to clean up before its process is killed."""


@dataclass(frozen=True)
class Share:
    """The resources of a machine that one task may use.

    Attributes:
        threads: the number of threads.
        memory: the fraction of memory.
    """

    threads: int = 1
    memory: float = 1.0


class Channel:
    """The connection of a task to the process that started it; this one serves the same process.

    Attributes:
        share: the resources that the task may use.
    """

    def __init__(
        self,
        share: Share,
        on_message: Callable[[Any], Any] = lambda message: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.share, self._on_message, self._should_stop = share, on_message, should_stop

    @property
    def node(self) -> str:
        """The machine of a cluster; "" on the machine of the process that started the task."""
        return ""

    def send(self, message: Any) -> None:
        """Send a message without waiting; messages may overtake each other."""
        self._on_message(message)

    def request(self, message: Any) -> Any:
        """Send a message and wait for the answer."""
        return self._on_message(message)

    def should_stop(self) -> bool:
        """Return whether the task must save its work and raise KeyboardInterrupt."""
        return self._should_stop()


@dataclass(frozen=True)
class Task:
    """An independent unit of work.

    Attributes:
        name: unique among the tasks of a run.
        function: a function of a module, called with argument, shared and a channel.
        argument: small.
        shared: data that several tasks read, such as a graph; sent once to a machine.
        memory: bytes that it needs, for the scheduling of a cluster.
    """

    name: str
    function: Callable[[Any, Any, Channel], Any]
    argument: Any
    shared: Any = None
    memory: int | None = None


@dataclass(frozen=True)
class TaskResult:
    """The result of a task.

    Attributes:
        name: of the task.
        value: what its function returned.
        reason: the error message if it failed.
        trace: the traceback of an unexpected error.
        is_lost: whether its process or machine died; a retry may succeed.
    """

    name: str
    value: Any = None
    reason: str = ""
    trace: str = ""
    is_lost: bool = False


@dataclass(frozen=True)
class Callbacks:
    """What an engine runs and whom it informs; see :meth:`Engine.run`."""

    next_task: Callable[[], Task | None]
    on_result: Callable[[TaskResult], None]
    on_message: Callable[[str, Any], Any] = lambda name, message: None
    should_stop: Callable[[], bool] = lambda: False
    tries: int = 1
    on_lost: Callable[[str], None] = lambda name: None


class Engine(ABC):
    """Runs tasks, several at a time.

    Attributes:
        workers: the number of concurrent tasks.
        is_local: whether tasks see the files of this process.
    """

    workers: int = 1
    is_local = True

    def run(
        self,
        next_task: Callable[[], Task | None],
        on_result: Callable[[TaskResult], None],
        *,
        max_tasks: int | None = None,
        **callbacks: Any,
    ) -> None:
        """Run tasks until there are no more; raise KeyboardInterrupt when stopped.

        Args:
            next_task: called whenever a worker is free; returns None if there is no task now.
            on_result: called with each result, in the order of completion.
            max_tasks: the number of concurrent tasks, if below the number of workers.
            **callbacks: ``on_message``, called with a task's name and message, whose value answers
                a request; ``should_stop``, polled, ends all tasks if it is True; ``tries``, how
                often a task is started whose process or machine dies; ``on_lost``, called with the
                name of a task that died and is restarted.
        """
        most = max(1, min(self.workers, max_tasks or self.workers))
        self.run_tasks(most, Callbacks(next_task, on_result, **callbacks))

    @abstractmethod
    def run_tasks(self, most: int, calls: Callbacks) -> None:
        """Run tasks with a limit on concurrency; see :meth:`run`."""


def run_safely(function: Callable[..., Any], *arguments: Any) -> tuple[Any, str, str]:
    """Return the value of a function, or the message and, if unexpected, traceback of its error."""
    try:
        return function(*arguments), "", ""
    except HPGMNError as error:
        return None, str(error), ""
    except Exception as error:
        known = describe_os_error(error) if isinstance(error, OSError) else None
        if known is not None:
            return None, str(known), ""
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return None, reason, traceback.format_exc()


class RateLimiter:
    """Allows an action at most once per interval."""

    def __init__(self, seconds: float = 0.5) -> None:
        self._seconds, self._last = seconds, -math.inf

    def __call__(self) -> bool:
        """Return whether the action is allowed now."""
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


class LocalEngine(Engine):
    """Runs tasks on this machine.

    Args:
        workers: the number of processes; 1 runs tasks in this one.
    """

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers

    @override
    def run_tasks(self, most: int, calls: Callbacks) -> None:
        import torch

        threads = torch.get_num_threads()
        if most > 1:
            _Crew(most, Share(max(1, threads // most), 1 / most), calls).run()
            return
        while True:
            if calls.should_stop():
                raise KeyboardInterrupt
            task = calls.next_task()
            if task is None:
                return
            on_message = partial(calls.on_message, task.name)
            channel = Channel(Share(threads), on_message, calls.should_stop)
            result = run_safely(task.function, task.argument, task.shared, channel)
            calls.on_result(TaskResult(task.name, *result))


class _Crew:
    """The worker processes."""

    def __init__(self, size: int, share: Share, calls: Callbacks) -> None:
        self._size, self._share, self._calls = size, share, calls
        self._again: list[tuple[Task, int]] = []
        self._workers: list[_Worker] = []

    def run(self) -> None:
        """Run tasks until there are no more."""
        try:
            while True:
                if self._calls.should_stop():
                    raise KeyboardInterrupt
                self._assign_tasks()
                busy = {worker.line: worker for worker in self._workers if worker.task is not None}
                if not busy:
                    return
                for line in wait(list(busy), POLL_SECONDS):
                    ended = self._receive(busy[line])  # type: ignore[index]
                    if ended is not None:
                        self._calls.on_result(ended)
        finally:
            self._stop()

    def _assign_tasks(self) -> None:
        """Give every idle worker a task."""
        assigned: list[tuple[Task, int]] = []
        while sum(worker.task is not None for worker in self._workers) + len(assigned) < self._size:
            if self._again:
                assigned.append(self._again.pop())
            elif (task := self._calls.next_task()) is not None:
                assigned.append((task, 1))
            else:
                break
        free = [worker for worker in self._workers if worker.task is None]
        started = [_Worker(self._share) for _ in assigned[len(free) :]]  # start together
        self._workers += started
        for worker, (task, count) in zip([*free, *started], assigned, strict=False):
            worker.give(task, count)

    def _receive(self, worker: _Worker) -> TaskResult | None:
        """Handle a message of a worker; return the result of its task, if it is one."""
        task = worker.task
        assert task is not None
        try:
            kind, content = worker.line.recv()
        except (EOFError, OSError):
            self._workers.remove(worker)
            if worker.count < self._calls.tries:
                self._calls.on_lost(task.name)
                self._again.append((task, worker.count + 1))
                return None
            return TaskResult(task.name, reason=worker.describe_exit(), is_lost=True)
        if kind == "ended":
            worker.task = None
            return TaskResult(task.name, *content)
        answer = self._calls.on_message(task.name, content)
        if kind == "request":
            worker.send(answer)
        return None

    def _stop(self) -> None:
        """End the workers, by force after a grace period."""
        for worker in self._workers:
            worker.line.close()
        until = time.monotonic() + GRACE_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, until - time.monotonic()))
            worker.process.kill()
            worker.process.join()


class _Worker:
    """A process, the pipe to it, and its task."""

    def __init__(self, share: Share) -> None:
        context = multiprocessing.get_context("spawn")  # a GPU cannot be used after a fork
        self.line, far_end = context.Pipe()
        self.process = context.Process(target=_process, args=(far_end, share), daemon=True)
        with _interrupts_ignored():  # Ctrl-C reaches all processes; only this one handles it
            self.process.start()
        far_end.close()  # so that the line ends when the process does
        self.task: Task | None = None
        self.count = 0
        self._shared: Any = None

    def give(self, task: Task, count: int) -> None:
        """Assign a task; data shared with the previous one is not sent again."""
        self.task, self.count = task, count
        is_new = task.shared is not self._shared
        self._shared = task.shared
        self.send((task.function, task.argument, is_new, task.shared if is_new else None))

    def send(self, content: Any) -> None:
        """Send a message; a dead process is noticed when its pipe is read."""
        try:
            self.line.send(content)
        except OSError:
            return

    def describe_exit(self) -> str:
        """Return why the process died."""
        self.process.join()
        self.line.close()
        code = self.process.exitcode or 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        reason = " (perhaps for lack of memory)" if code == -signal.SIGKILL else ""
        return f"Its process {how}{reason}. Retry with fewer workers."


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Let processes that are started inside the block ignore Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class PipeChannel(Channel):
    """The channel of a task in a worker process."""

    def __init__(self, line: Connection, share: Share) -> None:
        super().__init__(share)
        self._line = line

    @override
    def send(self, message: Any) -> None:
        self._send("message", message)

    @override
    def request(self, message: Any) -> Any:
        self._send("request", message)
        try:
            return self._line.recv()
        except (EOFError, OSError):
            raise KeyboardInterrupt from None

    @override
    def should_stop(self) -> bool:
        try:
            return self._line.poll()  # closed: nothing else is sent without a request
        except OSError:
            return True

    def _send(self, kind: str, message: Any) -> None:
        try:
            self._line.send((kind, message))
        except OSError:
            raise KeyboardInterrupt from None


def _process(line: Connection, share: Share) -> None:
    """Run a worker and exit at once: torch's cleanup is slow."""
    work(line, share)
    os._exit(0)


def work(line: Connection, share: Share) -> None:
    """Run tasks from the pipe until it is closed."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("hpgmn").addHandler(logging.NullHandler())  # the parent process warns
    torch.set_num_threads(share.threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    shared = None
    while True:
        try:
            function, argument, is_new, new = line.recv()
            shared = new if is_new else shared
            result = run_safely(function, argument, shared, PipeChannel(line, share))
            _answer(line, result)
        except (EOFError, OSError, KeyboardInterrupt):
            return


def _answer(line: Connection, result: tuple[Any, str, str]) -> None:
    """Send a result; a value that cannot be pickled is an error of the task."""
    _, reason, trace = run_safely(line.send, ("ended", result))
    if trace:
        line.send(("ended", (None, reason, trace)))


def _end_with_parent() -> None:
    """Exit some time after the parent process, even if a task does not notice."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    time.sleep(GRACE_SECONDS)
    os._exit(1)
