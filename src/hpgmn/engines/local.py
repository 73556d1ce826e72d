"""Tasks on this machine: one after the other in this process, or several processes at a time.

A process is told of a task through a pipe and answers through it. The end of the pipe is the sign
to stop: it comes when the first process asks for it, and also when that one is gone.
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

from hpgmn.engines.tasks import FAREWELL_SECONDS, LOOK_SECONDS, Ended, Share, Task, done


class LocalEngine:
    """Runs tasks on this machine.

    Args:
        workers: how many processes; 1 is this one.
    """

    is_local = True

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers

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
        import torch

        most = self.workers if at_a_time is None else min(self.workers, at_a_time)
        threads = torch.get_num_threads()
        if most > 1:
            crew = _Crew(most, Share(max(1, threads // most), 1 / most), next_task, tries, lost)
            crew.run(told, answer, should_stop)
            return
        while True:
            if should_stop():
                raise KeyboardInterrupt
            task = next_task()
            if task is None:
                return
            line = HereLine(Share(threads), partial(answer, task.name), should_stop)
            told(Ended(task.name, *done(task.function, task.argument, task.shared, line)))


class HereLine:
    """The line of a task in the process that started it."""

    where = ""

    def __init__(
        self, share: Share, answer: Callable[[Any], Any], should_stop: Callable[[], bool]
    ) -> None:
        self.share, self.tell, self.ask, self.should_stop = share, answer, answer, should_stop


class _Crew:
    """Processes and what each of them does.

    Args:
        size: how many at a time.
        share: of each.
        next_task: called whenever a process is free.
        tries: how often a task is begun whose process is lost.
        lost: called with the name of a task that is begun again.
    """

    def __init__(
        self,
        size: int,
        share: Share,
        next_task: Callable[[], Task | None],
        tries: int,
        lost: Callable[[str], None],
    ) -> None:
        self._size, self._share, self._tries, self._lost = size, share, tries, lost
        self._next_task, self._again = next_task, list[tuple[Task, int]]()
        self._workers: list[_Worker] = []

    def run(
        self,
        told: Callable[[Ended], None],
        answer: Callable[[str, Any], Any],
        should_stop: Callable[[], bool],
    ) -> None:
        """Run tasks until there are no more."""
        try:
            while True:
                if should_stop():
                    raise KeyboardInterrupt
                self._hand_out()
                busy = {one.line: one for one in self._workers if one.task is not None}
                if not busy:
                    return
                for line in wait(list(busy), LOOK_SECONDS):
                    ended = self._hear(busy[line], answer)  # type: ignore[index]
                    if ended is not None:
                        told(ended)
        finally:
            self._stop()

    def _hand_out(self) -> None:
        """Give every free process a task, as long as there are some."""
        found: list[tuple[Task, int]] = []
        while sum(one.task is not None for one in self._workers) + len(found) < self._size:
            if self._again:
                found.append(self._again.pop())
            elif (task := self._next_task()) is not None:
                found.append((task, 1))
            else:
                break
        free = [one for one in self._workers if one.task is None]
        started = [_Worker(self._share) for _ in found[len(free) :]]  # all of them start together
        self._workers += started
        for worker, (task, count) in zip([*free, *started], found, strict=False):
            worker.give(task, count)

    def _hear(self, worker: _Worker, answer: Callable[[str, Any], Any]) -> Ended | None:
        """Take what a process says; the end of its task, if that is it."""
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
            return Ended(task.name, reason=worker.how_it_ended(), is_lost=True)
        if kind == "ended":
            worker.task = None
            return Ended(task.name, *content)
        found = answer(task.name, content)
        if kind == "ask":
            worker.send(found)
        return None

    def _stop(self) -> None:
        """End the processes: they may tidy up for a while, then they are killed."""
        for worker in self._workers:
            worker.line.close()
        until = time.monotonic() + FAREWELL_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, until - time.monotonic()))
            worker.process.kill()
            worker.process.join()


class _Worker:
    """A process, the line to it, and its task."""

    def __init__(self, share: Share) -> None:
        context = multiprocessing.get_context("spawn")  # a GPU cannot be used after a fork
        self.line, far_end = context.Pipe()
        self.process = context.Process(target=_process, args=(far_end, share), daemon=True)
        with _interrupts_ignored():  # the terminal sends Ctrl-C to all; one answers it
            self.process.start()
        far_end.close()  # so that the line ends when the process does
        self.task: Task | None = None
        self.count = 0
        self._shared: Any = None

    def give(self, task: Task, count: int) -> None:
        """Hand it a task; what it shares with the one before is not sent again."""
        self.task, self.count = task, count
        is_new = task.shared is not self._shared
        self._shared = task.shared
        self.send((task.function, task.argument, is_new, task.shared if is_new else None))

    def send(self, content: Any) -> None:
        """Send it something; one that has died meanwhile is found out by its silence."""
        try:
            self.line.send(content)
        except OSError:
            return

    def how_it_ended(self) -> str:
        """A sentence on a process that is gone, and what to do."""
        self.process.join()
        self.line.close()
        code = self.process.exitcode or 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        reason = " (perhaps for lack of memory)" if code == -signal.SIGKILL else ""
        return f"Its process {how}{reason}. Repeat the command with fewer --workers."


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """What is started meanwhile ignores Ctrl-C from its first moment on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class PipeLine:
    """The line of a task in a process of its own.

    Args:
        line: to the first process.
        share: what the task may take of the machine.
    """

    where = ""

    def __init__(self, line: Connection, share: Share) -> None:
        self._line, self.share = line, share

    def tell(self, message: Any) -> None:
        """Send a message and go on."""
        self._send("tell", message)

    def ask(self, message: Any) -> Any:
        """Send a message and wait for the answer."""
        self._send("ask", message)
        try:
            return self._line.recv()
        except (EOFError, OSError):
            raise KeyboardInterrupt from None

    def should_stop(self) -> bool:
        """Whether the line has ended: nothing else is sent to a task that has not asked."""
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
    """A process that works, and ends at once when it is not needed: tidying torch up takes long."""
    work(line, share)
    os._exit(0)


def work(line: Connection, share: Share) -> None:
    """What a process does: the tasks that it is handed, until nobody is at the other end.

    Args:
        line: to the first process.
        share: what it may take of the machine.
    """
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("hpgmn").addHandler(logging.NullHandler())  # the first process has warned
    torch.set_num_threads(share.threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    shared = None
    while True:
        try:
            function, argument, is_new, new = line.recv()
            shared = new if is_new else shared
            found = done(function, argument, shared, PipeLine(line, share))
            _answer(line, found)
        except (EOFError, OSError, KeyboardInterrupt):
            return


def _answer(line: Connection, found: tuple[Any, str, str]) -> None:
    """Send the end of a task; a value that cannot be sent is an error of the task."""
    _, reason, trace = done(line.send, ("ended", found))
    if trace:
        line.send(("ended", (None, reason, trace)))


def _end_with_parent() -> None:
    """Without the first process there is no work; a task that does not hear of it is ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    time.sleep(FAREWELL_SECONDS)
    os._exit(1)
