"""What an engine runs and what becomes of it, whichever engine it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

ENGINES = ("local", "ray")


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
    """A task's line to the process that started it."""

    share: Share

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
    """

    name: str
    function: Callable[[Any, Any, Line], Any]
    argument: Any
    shared: Any = None


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
    """Runs tasks, several at a time."""

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
