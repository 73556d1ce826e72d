"""Several trials at a time: processes that train, while this one alone writes the study.

A worker is handed the settings of a trial and answers with its record. So the study has one
writer, the number of trials is exact, and a worker that dies leaves a trial whose number is known.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import torch

from hpgmn.datasets import load
from hpgmn.errors import HPGMNError
from hpgmn.experiments.tuning import HopelessTrialError, TuneSpec, Tuning, train_trial
from hpgmn.graph import Graph

if TYPE_CHECKING:
    from optuna.trial import Trial

LOOK_SECONDS = 0.2
"""How often to look whether the user wants to stop."""
TRIES = 2
"""A trial whose worker died is not begun more often than this by one command."""


class _Worker:
    """A process, the line to it, and the trial it is training."""

    def __init__(self, spec: TuneSpec, threads: int, memory_share: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.line, far_end = context.Pipe()
        given = (far_end, spec, threads, memory_share)
        self.process = context.Process(target=work, args=given, daemon=True)
        self.process.start()
        far_end.close()  # so that the line ends when the worker does
        self.trial: Trial | None = None
        self.place = -1

    def give(self, place: int, trial: Trial) -> None:
        """Hand it a trial; one that has died meanwhile is found out by its silence."""
        self.place, self.trial = place, trial
        self.send(trial.user_attrs["settings"])

    def send(self, content: Any) -> None:
        """Send it something, if it lives."""
        try:
            self.line.send(content)
        except OSError:
            return

    def stop(self) -> None:
        """End the process, whatever it does."""
        self.process.terminate()
        self.process.join()
        self.line.close()


def work(line: Connection, spec: TuneSpec, threads: int, memory_share: float) -> None:
    """What a worker does: train what it is handed until nobody is at the other end.

    Args:
        line: to the process that keeps the study.
        spec: what is searched.
        threads: how many threads torch may use.
        memory_share: of what one process would take.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends Ctrl-C to all; one answers it
    torch.set_num_threads(threads)
    graph = load(spec.graph, spec.protocol)
    while True:
        try:
            line.send(_answer(line, spec, graph, line.recv(), memory_share))
        except (EOFError, BrokenPipeError, KeyboardInterrupt):
            return


def _answer(
    line: Connection, spec: TuneSpec, graph: Graph, settings: Any, memory_share: float
) -> tuple[Any, ...]:
    """The end of one trial in words that can be sent."""

    def judge(epoch: int, score: float) -> bool:
        line.send(("score", epoch, score))
        return bool(line.recv())

    def is_left_alone() -> bool:
        parent = multiprocessing.parent_process()
        return parent is not None and not parent.is_alive()

    try:
        return ("done", train_trial(graph, spec, settings, judge, is_left_alone, memory_share))
    except HopelessTrialError:
        return ("hopeless",)
    except HPGMNError as error:
        return ("error", str(error))
    except (EOFError, BrokenPipeError):
        raise
    except Exception:
        return ("bug", traceback.format_exc())


def tune_in_workers(
    tuning: Tuning,
    count: int,
    workers: int,
    *,
    deadline: float = math.inf,
    should_stop: Callable[[], bool] = lambda: False,
    told: Callable[[], None] = lambda: None,
    lost: Callable[[str], None] = lambda line: None,
) -> None:
    """Train the trials that are still to be done, several at a time.

    Args:
        tuning: the search.
        count: how many trials there are to be in all.
        workers: how many processes.
        deadline: no trial begins later, by ``time.monotonic``.
        should_stop: asked now and then; True ends the search as Ctrl-C does.
        told: called after each trial.
        lost: told in a sentence when a worker has died.
    """
    places = tuning.places(count)
    threads = max(1, torch.get_num_threads() // workers)
    number = min(workers, len(places))
    crew = [_Worker(tuning.spec, threads, 1 / number) for _ in range(number)]
    begun: Counter[int] = Counter()
    try:
        while crew:
            for worker in crew:
                if worker.trial is None and places and time.monotonic() <= deadline:
                    place = places.pop(0)
                    begun[place] += 1
                    worker.give(place, tuning.begin(place))
            busy = {worker.line: worker for worker in crew if worker.trial is not None}
            if not busy:
                return
            for line in wait(list(busy), LOOK_SECONDS):
                worker = busy[line]  # type: ignore[index]
                try:
                    answer = worker.line.recv()
                except (EOFError, OSError):
                    crew.remove(worker)
                    _bury(tuning, worker, lost)
                    if begun[worker.place] < TRIES:
                        places.insert(0, worker.place)
                    continue
                if _hear(tuning, worker, answer):
                    told()
            if should_stop():
                raise KeyboardInterrupt
    finally:
        for worker in crew:
            worker.stop()
            if worker.trial is not None:
                tuning.abandon(worker.trial)


def _bury(tuning: Tuning, worker: _Worker, lost: Callable[[str], None]) -> None:
    """A worker has died: its trial is to be run again."""
    assert worker.trial is not None
    worker.process.join()
    tuning.abandon(worker.trial)
    worker.line.close()
    code = worker.process.exitcode or 0
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    reason = " (perhaps for lack of memory)" if code == -signal.SIGKILL else ""
    lost(
        f"A worker {how}{reason}; its trial {worker.trial.number} counts as failed and is run "
        "again. All other trials are kept."
    )


def _hear(tuning: Tuning, worker: _Worker, answer: tuple[Any, ...]) -> bool:
    """Take what a worker says; returns whether its trial has ended."""
    trial = worker.trial
    assert trial is not None
    kind, *content = answer
    if kind == "score":
        worker.send(tuning.judge(trial, *content))
        return False
    if kind == "bug":
        raise RuntimeError(f"A worker failed:\n{content[0]}")
    worker.trial = None
    if kind == "done":
        tuning.end(trial, content[0])
    elif kind == "hopeless":
        tuning.give_up(trial)
    else:
        tuning.refuse(trial, content[0])
    return True
