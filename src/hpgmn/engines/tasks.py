"""Tasks, their results, and the interface of engines."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

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


class Channel(Protocol):
    """The connection of a task to the process that started it.

    Attributes:
        share: the resources that the task may use.
    """

    share: Share

    @property
    def node(self) -> str:
        """The machine of a cluster; "" on the machine of the process that started the task."""

    def send(self, message: Any) -> None:
        """Send a message without waiting; messages may overtake each other."""

    def request(self, message: Any) -> Any:
        """Send a message and wait for the answer."""

    def should_stop(self) -> bool:
        """Return whether the task must save its work and raise KeyboardInterrupt."""


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


class Engine(Protocol):
    """Runs tasks, several at a time.

    Attributes:
        workers: the number of concurrent tasks.
        is_local: whether tasks see the files of this process.
    """

    workers: int
    is_local: bool

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
        """Run tasks until there are no more; raise KeyboardInterrupt when stopped.

        Args:
            next_task: called whenever a worker is free; returns None if there is no task now.
            on_result: called with each result, in the order of completion.
            on_message: called with a task's name and message; its value answers a request.
            should_stop: polled; True ends all tasks.
            tries: how often a task is started whose process or machine dies.
            on_lost: called with the name of a task that died and is restarted.
            max_tasks: the number of concurrent tasks, if below the number of workers.
        """


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
    """Allows an action at most once in so many seconds."""

    def __init__(self, seconds: float = 0.5) -> None:
        self._seconds, self._last = seconds, -math.inf

    def __call__(self) -> bool:
        """Return whether the action is allowed now."""
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True
