"""A model's few trials on one split, in the measured process: timed, chosen by validation."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hpgmn.base.machine import reset_peak_memory
from hpgmn.base.settings import make_settings
from hpgmn.evaluation.scores import scores
from hpgmn.graph import Graph
from hpgmn.graph.datasets import load
from hpgmn.graph.synthetic import trading_network
from hpgmn.models import find_model
from hpgmn.training.replicas import Progress
from hpgmn_lab.bench.clock import Lines, StageClock, fit_once
from hpgmn_lab.bench.machine import Neighbours, device_peak_bytes, peak_bytes
from hpgmn_lab.bench.records import Record

PYG = "pyg-"
"""What the names of PyTorch Geometric's own models begin with; the rest is that of ours."""


def label(model: str) -> str:
    """A model as tables call it.

    >>> label("pyg-gcn"), label("gcn"), label("hpgmn")
    ('PyG GCN', 'gcn', 'hpgmn')
    """
    return f"PyG {model.removeprefix(PYG).upper()}" if model.startswith(PYG) else model


@dataclass(frozen=True)
class Trial:
    """One training with its times.

    Attributes:
        epochs: the seconds of each epoch.
        curve: (seconds since the beginning, best validation score so far) after each epoch.
        is_finished: whether all epochs were trained.
        logits: (N, C) at the best epoch; None where the training was cut.
    """

    epochs: list[float]
    curve: list[tuple[float, float]]
    is_finished: bool
    logits: Tensor | None

    @property
    def best(self) -> float:
        """The best validation score; -1 without an epoch."""
        return self.curve[-1][1] if self.curve else -1.0

    @property
    def preparation(self) -> float | None:
        """Seconds before the first epoch of the model itself; None without one."""
        return self.curve[0][0] - self.epochs[0] if self.curve else None


Fit = Callable[..., Trial]
"""fit(graph, settings, split, seed, device, deadline, tell): a training that is cut at the
deadline, a value of ``time.perf_counter``."""


def run_trials(
    source: str,
    split: int,
    model: str,
    candidates: Sequence[dict[str, Any]],
    seed: int,
    device: str,
    limit: float | None,
    launched: float,
) -> Record:
    """Train every candidate, choose one by validation, read its test score; a task of the worker.

    Args:
        source: a dataset's name, or the path of a graph file or folder.
        split: the number of the split.
        model: one of ours, or ``pyg-`` and the name of the same model.
        candidates: settings, one mapping for each trial.
        seed: of every trial.
        device: "cpu" or "cuda".
        limit: seconds for all trials together; None for no limit.
        launched: when the process was started, in seconds since 1970.
    """
    name = model.removeprefix(PYG)
    each = [make_settings(find_model(name).settings, one) for one in candidates]
    fit = _fit_of(model)
    few = make_settings(find_model(name).settings, candidates[0] | {"epochs": 1})
    fit(trading_network(200, num_features=4).graph, few, 0, 0, device, float("inf"), None)
    graph = load(source)
    edges = graph.num_edges  # merges the edges into the adjacency, for every model alike
    startup = time.time() - launched
    reset_peak_memory(device)
    level, neighbours, lines = peak_bytes(), Neighbours(), Lines(label(model))
    deadline = float("inf") if limit is None else time.perf_counter() + limit
    rows: list[Record] = []
    chosen: Trial | None = None
    for settings, values in zip(each, candidates, strict=True):
        if rows and time.perf_counter() > deadline:
            break
        trial = fit(graph, settings, split, seed, device, deadline, lines)
        rows.append({"settings": values} | _row(trial, settings.epochs))
        lines.say(f"trial {len(rows)} of {len(each)}: validation {trial.best:.4f}")
        if chosen is None or (trial.is_finished, trial.best) > (chosen.is_finished, chosen.best):
            chosen, number = trial, len(rows) - 1
        del trial
        gc.collect()
    assert chosen is not None
    test = graph.split(split).test
    score = None
    if chosen.logits is not None and test.any():
        score = scores(chosen.logits[None], graph.y, [test], "accuracy")[0]
    return {
        "nodes": graph.num_nodes,
        "edges": edges,
        "trials": rows,
        "chosen": number,
        "curve": chosen.curve,
        "test_accuracy": score,
        "startup_seconds": startup,
        "peak_bytes": peak_bytes(),
        "level_bytes": level,
        "device_peak_bytes": device_peak_bytes(device),
        "cores_taken_by_others": neighbours.cores_taken(),
    }


def _row(trial: Trial, epochs: int) -> Record:
    return {
        "val_accuracy": trial.best if trial.curve else None,
        "preparation_seconds": trial.preparation,
        "epoch_seconds": statistics.median(trial.epochs) if trial.epochs else None,
        "seconds": trial.curve[-1][0] if trial.curve else None,
        "epochs_trained": len(trial.epochs),
        "epochs": epochs,
        "is_finished": trial.is_finished,
    }


def _fit_of(model: str) -> Fit:
    if model.startswith(PYG):
        from hpgmn_lab.bench.pyg import fitting

        return fitting(model.removeprefix(PYG))

    def fit(
        graph: Graph,
        settings: Any,
        split: int,
        seed: int,
        device: str,
        deadline: float,
        tell: Callable[[Progress], None] | None,
    ) -> Trial:
        clock, was_cut = StageClock(tell), False

        def should_stop() -> bool:
            nonlocal was_cut
            was_cut = time.perf_counter() > deadline
            return was_cut

        logits = None
        try:
            fitted = fit_once(
                graph,
                model,
                settings,
                split=split,
                seed=seed,
                device=device,
                report=clock,
                should_stop=should_stop,
            )
            logits = fitted.logits[0]
        except KeyboardInterrupt:
            if not was_cut:
                raise
        has_begun = "main" in clock.epochs
        return Trial(
            clock.epochs["main"] if has_begun else [],
            clock.curve if has_begun else [],
            logits is not None,
            logits,
        )

    return fit
