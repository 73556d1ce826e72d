"""What an engine runs and what becomes of it, whichever engine it is."""

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
LOOK_SECONDS = 0.2
"""How often an engine looks whether the user wants to stop."""
FAREWELL_SECONDS = 5.0
"""So long a task that is cancelled may tidy up; then its process is killed."""


@dataclass(frozen=True)
class Share:
    """What one task may take of the machine it is on.

    Attributes:
        threads: how many threads.
        memory: which part of the memory.
    """

    threads: int = 1
    memory: float = 1.0


class Line(Protocol):
    """A task's line to the process that started it.

    Attributes:
        share: what the task may take of its machine.
    """

    share: Share

    @property
    def where(self) -> str:
        """Which machine of a cluster this is; "" on that of the process that started it."""

    def tell(self, message: Any) -> None:
        """Send a message and go on; another one may arrive before it."""

    def ask(self, message: Any) -> Any:
        """Send a message and wait for the answer."""

    def should_stop(self) -> bool:
        """Whether the task is to keep what is finished and raise KeyboardInterrupt."""


@dataclass(frozen=True)
class Task:
    """A piece of work that needs no other.

    Attributes:
        name: unique among the tasks of a run.
        function: called with the argument, the shared thing and the line; of a module, so that
            other machines find it.
        argument: small.
        shared: what several tasks have in common, such as a graph: sent once to a machine.
        memory: bytes that it may hold; a cluster gives no machine more tasks than it has room for.
    """

    name: str
    function: Callable[[Any, Any, Line], Any]
    argument: Any
    shared: Any = None
    memory: int | None = None


@dataclass(frozen=True)
class Ended:
    """What became of a task.

    Attributes:
        name: the task's.
        value: what its function gave.
        reason: one sentence why there is no value.
        trace: where an error that nobody foresaw came from.
        is_lost: the process or the machine is gone; it may go better elsewhere.
    """

    name: str
    value: Any = None
    reason: str = ""
    trace: str = ""
    is_lost: bool = False


class Engine(Protocol):
    """Runs tasks, several at a time.

    Attributes:
        workers: how many at a time.
        is_local: whether tasks see the files of this process.
    """

    workers: int
    is_local: bool

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
        """Run tasks until there are no more; what is asked to stop raises KeyboardInterrupt.

        Args:
            next_task: called whenever one more can be begun; None: there is none now.
            told: called with the end of each task, in the order in which they end.
            answer: called with a task's name and message; what it returns goes to a task that asks.
            should_stop: asked all the time; True ends all tasks.
            tries: how often a task is begun whose process or machine is lost.
            lost: called with the name of a task that was lost and is begun again.
            at_a_time: how many there can be at most, where they are fewer than the workers.
        """


def done(function: Callable[..., Any], *arguments: Any) -> tuple[Any, str, str]:
    """The value of a function, or the reason and (of one nobody foresaw) the trace of an error."""
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


class Seldom:
    """Lets a thing through no more often than once in so many seconds.

    Args:
        seconds: the time between two.
    """

    def __init__(self, seconds: float = 0.5) -> None:
        self._seconds, self._last = seconds, -math.inf

    def __call__(self) -> bool:
        """Whether it is time again."""
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True
