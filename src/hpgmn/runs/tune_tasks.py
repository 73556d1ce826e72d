"""The trials of a search as tasks of an engine.

This process alone asks and writes the study. A task is handed the settings of a trial, asks now and
then whether to go on, and answers with the record. So the study has one writer, the number of
trials is exact, and a process or machine that is lost leaves a trial whose number is known.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hpgmn.base.errors import HPGMNError
from hpgmn.engines import Channel, Engine, Task, TaskResult
from hpgmn.graph import Graph
from hpgmn.runs.tune import HopelessTrialError, TuneSpec, Tuning, train_trial

if TYPE_CHECKING:
    from optuna.trial import Trial

TRIES = 2
"""A trial whose process or machine is lost is not begun more often than this by one command."""


def trial_task(
    argument: tuple[TuneSpec, Mapping[str, Any]], graph: Graph, line: Channel
) -> tuple[str, Any]:
    """The end of one trial: a word for it, and the record or the reason.

    Args:
        argument: what is searched, and the settings of the trial.
        graph: the graph.
        line: asked after some epochs whether the trial is hopeless.
    """
    spec, settings = argument

    def judge(epoch: int, score: float) -> bool:
        return bool(line.request((epoch, score)))

    try:
        record = train_trial(graph, spec, settings, judge, line.should_stop, line.share.memory)
    except HopelessTrialError:
        return "hopeless", None
    except HPGMNError as error:
        return "error", str(error)
    return "done", record


def tune_on(
    engine: Engine,
    tuning: Tuning,
    count: int,
    *,
    deadline: float = math.inf,
    should_stop: Callable[[], bool] = lambda: False,
    told: Callable[[], None] = lambda: None,
    lost: Callable[[str], None] = lambda line: None,
) -> None:
    """Train the trials that are still to be done.

    Args:
        engine: where tasks run.
        tuning: the search.
        count: how many trials there are to be in all.
        deadline: no trial begins later, by ``time.monotonic``.
        should_stop: asked now and then; True ends the search as Ctrl-C does.
        told: called after each trial.
        lost: told in a sentence when the machine of a trial is lost.
    """
    places = tuning.places(count)
    number = len(places)
    begun: Counter[int] = Counter()
    running: dict[str, Trial] = {}

    def next_task() -> Task | None:
        if not places or time.monotonic() > deadline:
            return None
        place = places.pop(0)
        begun[place] += 1
        trial = tuning.begin(place)
        running[str(trial.number)] = trial
        settings = trial.user_attrs["settings"]
        return Task(str(trial.number), trial_task, (tuning.spec, settings), tuning.graph)

    def answer(name: str, message: tuple[int, float]) -> bool:
        return tuning.judge(running[name], *message)

    def ended(end: TaskResult) -> None:
        trial = running[end.name]
        if end.trace:
            raise RuntimeError(f"A worker failed:\n{end.trace}")
        if end.value is None and not end.is_lost:
            raise HPGMNError(end.reason)
        del running[end.name]
        if end.is_lost:
            tuning.abandon(trial)
            place = trial.user_attrs["place"]
            if begun[place] < TRIES:
                places.insert(0, place)
            lost(f"Trial {trial.number} counts as failed. {end.reason}")
            return
        kind, content = end.value
        if kind == "done":
            tuning.end(trial, content)
        elif kind == "hopeless":
            tuning.give_up(trial)
        else:
            tuning.refuse(trial, content)
        told()

    try:
        engine.run(next_task, ended, on_message=answer, should_stop=should_stop, max_tasks=number)
    finally:
        for trial in running.values():
            tuning.abandon(trial)
