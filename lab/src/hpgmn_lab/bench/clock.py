"""Seconds of every stage and epoch of a training, from the progress that it reports."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from hpgmn.graph import Graph
from hpgmn.models import find_model
from hpgmn.models.stage import Replica
from hpgmn.training.replicas import Fitted, Progress, fit_replicas
from hpgmn_lab.bench.machine import peak_bytes

LINE_SECONDS = 5.0
"""A measured process prints a line of progress this often."""


class StageClock:
    """A ``report`` of ``fit_replicas`` that times one batch of replicas.

    The training has waited for its device when it reports, so the times are true on a GPU, too.

    Attributes:
        prepared: for each stage the seconds before its first epoch (statistics, transfers).
        epochs: for each stage the seconds of each epoch; those told of together have the mean.
        curve: (seconds since the clock was made, best validation score so far) after each epoch of
            the stage under way.
        peaks: for each stage the process's peak memory at its end.

    Args:
        tell: called with each progress, too.
    """

    def __init__(self, tell: Callable[[Progress], None] | None = None) -> None:
        self.prepared: dict[str, float] = {}
        self.epochs: dict[str, list[float]] = {}
        self.curve: list[tuple[float, float]] = []
        self.peaks: dict[str, int] = {}
        self._tell, self._statistics = tell, 0.0
        self.began = self.last = time.perf_counter()

    def __call__(self, progress: Progress) -> None:
        """After an epoch."""
        now, stage = time.perf_counter(), progress.stage
        prepared = progress.seconds_statistics - self._statistics
        self._statistics = progress.seconds_statistics
        if stage not in self.epochs:
            self.epochs[stage], self.prepared[stage], self.curve = [], 0.0, []
        self.prepared[stage] += prepared
        number = max(progress.epoch - len(self.epochs[stage]), 1)  # a GPU does not tell of each
        self.epochs[stage] += [(now - self.last - prepared) / number] * number
        self.curve.append((now - self.began, progress.val_score))
        self.peaks[stage] = peak_bytes()
        self.last = now
        if self._tell is not None:
            self._tell(progress)

    def seconds(self, stage: str) -> float:
        """All seconds of a stage, its preparation included."""
        return self.prepared[stage] + sum(self.epochs[stage])


class Lines:
    """Progress as plain lines on standard error, one now and then.

    Args:
        what: what the lines begin with.
    """

    def __init__(self, what: str) -> None:
        self.what, self._told = what, time.monotonic()

    def __call__(self, now: Progress) -> None:
        """After an epoch."""
        if time.monotonic() - self._told > LINE_SECONDS:
            self.say(f"{now.stage} epoch {now.epoch}/{now.epochs} val {now.val_score:.3f}")

    def say(self, words: str) -> None:
        """Print a line."""
        self._told = time.monotonic()
        print(f"{self.what}: {words}", file=sys.stderr, flush=True)


def fit_once(
    graph: Graph,
    model: str,
    settings: Any,
    *,
    split: int = 0,
    seed: int = 0,
    device: str = "cpu",
    report: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Fitted:
    """One model on one split, the way that ``hpgmn train`` takes."""
    own = graph.split(split)
    return fit_replicas(
        graph,
        find_model(model),
        [Replica(split, seed, settings)],
        [(own.train, own.val)],
        device=device,
        report=report,
        should_stop=should_stop,
    )
