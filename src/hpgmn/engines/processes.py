"""Run tasks on this machine, in this process or in several worker processes.

Workers receive tasks and send results through a pipe; its end tells them to stop, also when the
parent process dies.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from hpgmn.engines.tasks import GRACE_SECONDS, POLL_SECONDS, Share, Task, TaskResult, run_safely


class LocalEngine:
    """Runs tasks on this machine.

    Args:
        workers: the number of processes; 1 runs tasks in this one.
    """

    is_local = True

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers

    def run(
        self,
        next_task: Callable[[], Task | None],
        on_result: Callable[[TaskResult], None],
        *,
        on_message: Callable[[str, Any], Any] = lambda name, message: None,
        should_stop: Callable[[], bool] = lambda: False,
        tries: int = 1,
        on_lost: Callable[[str], None] = lambda name: None,
        max_tasks: int | None = None,
    ) -> None:
        """Run tasks; see :class:`hpgmn.engines.Engine`."""
        import torch

        most = self.workers if max_tasks is None else min(self.workers, max_tasks)
        threads = torch.get_num_threads()
        if most > 1:
            crew = _Crew(most, Share(max(1, threads // most), 1 / most), next_task, tries, on_lost)
            crew.run(on_result, on_message, should_stop)
            return
        while True:
            if should_stop():
                raise KeyboardInterrupt
            task = next_task()
            if task is None:
                return
            line = DirectChannel(Share(threads), partial(on_message, task.name), should_stop)
            on_result(
                TaskResult(task.name, *run_safely(task.function, task.argument, task.shared, line))
            )


class DirectChannel:
    """The channel of a task in the process that started it."""

    node = ""

    def __init__(
        self, share: Share, on_message: Callable[[Any], Any], should_stop: Callable[[], bool]
    ) -> None:
        self.share, self.should_stop = share, should_stop
        self.send = self.request = on_message


class _Crew:
    """The worker processes; arguments as in :meth:`Engine.run`."""

    def __init__(
        self,
        size: int,
        share: Share,
        next_task: Callable[[], Task | None],
        tries: int,
        on_lost: Callable[[str], None],
    ) -> None:
        self._size, self._share, self._tries, self._lost = size, share, tries, on_lost
        self._next_task, self._again = next_task, list[tuple[Task, int]]()
        self._workers: list[_Worker] = []

    def run(
        self,
        on_result: Callable[[TaskResult], None],
        on_message: Callable[[str, Any], Any],
        should_stop: Callable[[], bool],
    ) -> None:
        """Run tasks until there are no more."""
        try:
            while True:
                if should_stop():
                    raise KeyboardInterrupt
                self._assign_tasks()
                busy = {worker.line: worker for worker in self._workers if worker.task is not None}
                if not busy:
                    return
                for line in wait(list(busy), POLL_SECONDS):
                    ended = self._receive(busy[line], on_message)  # type: ignore[index]
                    if ended is not None:
                        on_result(ended)
        finally:
            self._stop()

    def _assign_tasks(self) -> None:
        """Give every idle worker a task."""
        assigned: list[tuple[Task, int]] = []
        while sum(worker.task is not None for worker in self._workers) + len(assigned) < self._size:
            if self._again:
                assigned.append(self._again.pop())
            elif (task := self._next_task()) is not None:
                assigned.append((task, 1))
            else:
                break
        free = [worker for worker in self._workers if worker.task is None]
        started = [
            _Worker(self._share) for _ in assigned[len(free) :]
        ]  # all of them start together
        self._workers += started
        for worker, (task, count) in zip([*free, *started], assigned, strict=False):
            worker.give(task, count)

    def _receive(self, worker: _Worker, on_message: Callable[[str, Any], Any]) -> TaskResult | None:
        """Handle a message of a worker; return the result of its task, if it is one."""
        task = worker.task
        assert task is not None
        try:
            kind, content = worker.line.recv()
        except (EOFError, OSError):
            self._workers.remove(worker)
            if worker.count < self._tries:
                self._lost(task.name)
                self._again.append((task, worker.count + 1))
                return None
            return TaskResult(task.name, reason=worker.describe_exit(), is_lost=True)
        if kind == "ended":
            worker.task = None
            return TaskResult(task.name, *content)
        answer = on_message(task.name, content)
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


class PipeChannel:
    """The channel of a task in a worker process."""

    node = ""

    def __init__(self, line: Connection, share: Share) -> None:
        self._line, self.share = line, share

    def send(self, message: Any) -> None:
        """Send a message without waiting."""
        self._send("message", message)

    def request(self, message: Any) -> Any:
        """Send a message and wait for the answer."""
        self._send("request", message)
        try:
            return self._line.recv()
        except (EOFError, OSError):
            raise KeyboardInterrupt from None

    def should_stop(self) -> bool:
        """Return whether the pipe was closed: nothing else is sent without a request."""
        try:
            return self._line.poll()
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
