"""The work of one cell: its search, if any, the final run, and the record.

Everything finished is saved: each group of trials, the states of the final run, the record. Killed
work resumes from there and gives the same record.
"""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.files import verify_checksum, with_checksum, write_text
from hpgmn.base.parsing import read_json
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.graph import Graph
from hpgmn.graph.datasets import load
from hpgmn.models import find_model
from hpgmn.runs.fit import fit_run
from hpgmn.runs.folder import finished_run, prepare_folder
from hpgmn.runs.spec import RunSpec
from hpgmn.runs.trials import best_record, run_trials
from hpgmn.training.replicas import Progress, group_by_shape, valid_settings
from hpgmn_lab.reproduction.cells import (
    Cell,
    CellRecord,
    identity,
    plain_values,
    read_cell,
    write_cell,
)

CELLS_FOLDER, SEARCH_FOLDER, WORK_FOLDER = "cells", "search", "work"
"""In the folder of a reproduction: records, unfinished searches, unfinished final runs."""

_TRIAL_KEYS = ("val_score_mean", "val_score", "val_loss", "seconds")


@dataclass(frozen=True)
class Execution:
    """How work is executed; it influences results only by rounding.

    Attributes:
        should_stop: called after each epoch; True saves finished work and raises
            KeyboardInterrupt.
        save_search: called with the content of the search's file after each write.
    """

    device: str = "cpu"
    report: Callable[[Progress], None] | None = None
    should_stop: Callable[[], bool] = field(default=lambda: False)
    memory_share: float = 1.0
    save_search: Callable[[str], None] = field(default=lambda text: None)

    @property
    def options(self) -> dict[str, Any]:
        """The options common to all trainings."""
        return {
            "report": self.report,
            "should_stop": self.should_stop,
            "memory_share": self.memory_share,
        }


def do_cell(
    cell: Cell, folder: Path, execution: Execution, graph: Graph | None = None
) -> CellRecord:
    """Return the record of a cell; do only the work missing in the reproduction's folder."""
    if graph is None:
        graph = load(cell.graph, cell.protocol)
    record = finished_record(cell, graph, folder)
    if record is None:
        previous = read_cell(folder / CELLS_FOLDER, cell.name)
        search = _search(cell, graph, folder, previous, execution) if cell.trials else None
        settings = _final_settings(cell, search)
        run_identity = final_identity(cell, graph)
        if previous is not None and _is_same_run(previous, run_identity, settings):
            metrics = previous.metrics
        else:
            metrics = _final_run(cell, graph, folder, settings, run_identity, execution)
        record = CellRecord(cell.as_dict(), run_identity, search, metrics)
        write_cell(folder / CELLS_FOLDER, record)
    remove_unfinished(cell, folder)
    return record


def finished_record(cell: Cell, graph: Graph, folder: Path) -> CellRecord | None:
    """Return the record of a cell if it is complete and of the same inputs, else None.

    A search with trials that failed for a temporary reason, such as memory, is not complete.
    """
    record = read_cell(folder / CELLS_FOLDER, cell.name)
    if record is None or bool(cell.trials) != (record.search is not None):
        return None
    if record.search is not None:
        trials = dict(enumerate(record.search["trials"]))
        valid = _valid_trials(cell, graph, record.search, trials)
        if not len(valid) == len(trials) == len(cell.trial_settings()):
            return None
    settings = _final_settings(cell, record.search)
    return record if _is_same_run(record, final_identity(cell, graph), settings) else None


# Identities.


def search_identity(cell: Cell, graph: Graph) -> str:
    """Return the digest of the inputs of a search except its trials."""
    runs = [list(cell.search_splits), cell.search_seeds, cell.metric]
    return identity(cell.model, runs, _graph_parts(graph, cell.search_splits))


def final_identity(cell: Cell, graph: Graph) -> str:
    """Return the digest of the inputs of the final run except its settings."""
    runs = [list(cell.splits), cell.seeds, cell.metric]
    return identity(cell.model, runs, _graph_parts(graph, cell.splits))


def _graph_parts(graph: Graph, splits: Sequence[int]) -> list[Any]:
    """Return what identifies a graph and some of its splits."""
    masks = hashlib.sha256()
    for number in splits:
        split = graph.split(number)
        for mask in (split.train, split.val, split.test):
            masks.update(np.packbits(mask).tobytes())
    return [graph.name, graph.fingerprint, graph.y.tolist(), masks.hexdigest()]


def _is_same_run(record: CellRecord, run_identity: str, settings: Mapping[str, Any]) -> bool:
    """Return whether a record's final run has this identity and these settings.

    Settings introduced after the record was made have their defaults, which change nothing.
    """
    model, recorded = record.cell["model"], record.metrics["config"]["settings"]
    return record.identity == run_identity and _with_defaults(model, recorded) == _with_defaults(
        model, settings
    )


def _with_defaults(model: str, settings: Mapping[str, Any]) -> Any:
    """Return settings with the current defaults; settings that the model rejects unchanged."""
    return valid_settings(find_model(model).settings, settings) or plain_values(settings)


def _defaults(model: str) -> dict[str, Any]:
    return settings_dict(find_model(model).settings())


# Searches.


def _valid_trials(
    cell: Cell, graph: Graph, search: Mapping[str, Any], trials: Mapping[int, Mapping[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Return the trials of a search, by index, that the planned search would repeat.

    They have the same runs and settings, completed with the defaults of their time. A failed trial
    is valid only if its settings are rejected permanently.
    """
    if search["identity"] != search_identity(cell, graph):
        return {}
    planned, defaults = cell.trial_settings(), _defaults(cell.model)
    recorded_defaults = {**defaults, **search["defaults"]}
    return {
        index: dict(trial)
        for index, trial in trials.items()
        if index < len(planned)
        and trial.get("is_passing") is not True
        and _with_defaults(cell.model, {**recorded_defaults, **trial["settings"]})
        == _with_defaults(cell.model, {**defaults, **planned[index]})
    }


def _search(
    cell: Cell, graph: Graph, folder: Path, previous: CellRecord | None, execution: Execution
) -> dict[str, Any]:
    """Return a cell's search; train the missing trials group by group."""
    path = folder / SEARCH_FOLDER / f"{cell.name}.json"
    trials, done = cell.trial_settings(), _unfinished_search(path, cell, graph)
    if previous is not None and previous.search is not None:
        recorded = dict(enumerate(previous.search["trials"]))
        done = _valid_trials(cell, graph, previous.search, recorded) | done
    head = {"identity": search_identity(cell, graph), "defaults": _defaults(cell.model)}
    missing = [index for index in range(len(trials)) if index not in done]

    def train(positions: Sequence[int]) -> list[dict[str, Any]]:
        try:
            return run_trials(
                graph,
                cell.model,
                [trials[missing[position]] for position in positions],
                splits=cell.search_splits,
                seeds=cell.search_seeds,
                device=execution.device,
                metric=cell.metric,
                **execution.options,
            )
        except HPGMNError:
            free_memory(execution.device)
            raise

    for results in run_trials_by_shape([(cell.model, trials[i]) for i in missing], train):
        for position, result in results.items():
            index = missing[position]
            done[index] = _trial_record(trials[index], result)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(with_checksum({**head, "trials": done}), indent=1) + "\n"
        write_text(path, text)
        execution.save_search(text)
    ordered = [done[index] for index in range(len(trials))]
    scored = [trial for trial in ordered if "failed" not in trial]
    if not scored:
        raise HPGMNError(
            f"Every trial of {cell.name} failed. {ordered[0]['failed']}", "Repeat the command"
        )
    best = best_record(scored)
    return {
        **head,
        "best": ordered.index(dict(best)),
        "seconds": sum(trial.get("seconds", 0.0) for trial in ordered),
        "trials": ordered,
    }


def _unfinished_search(path: Path, cell: Cell, graph: Graph) -> dict[int, dict[str, Any]]:
    """Return the finished trials of a killed search by index."""
    try:
        content = verify_checksum(read_json(path))
        trials = {int(index): trial for index, trial in content["trials"].items()}
        return _valid_trials(cell, graph, content, trials)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _trial_record(
    settings: Mapping[str, Any], result: Mapping[str, Any] | HPGMNError
) -> dict[str, Any]:
    """Return what is stored of a trial; a failure may pass unless its settings are rejected."""
    record = {"settings": plain_values(settings)}
    if isinstance(result, HPGMNError):
        is_passing = not isinstance(result, SettingError)
        return record | {"failed": str(result), "is_passing": is_passing}
    return record | {name: result[name] for name in _TRIAL_KEYS}


# The final run.


def _final_settings(cell: Cell, search: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return all settings of the final run."""
    chosen = cell.settings if search is None else search["trials"][search["best"]]["settings"]
    return settings_dict(make_settings(find_model(cell.model).settings, chosen))


def _final_run(
    cell: Cell,
    graph: Graph,
    folder: Path,
    settings: dict[str, Any],
    run_identity: str,
    execution: Execution,
) -> dict[str, Any]:
    """Return the metrics of the final run; resume it if it was interrupted."""
    spec = RunSpec(
        graph=cell.graph,
        model=cell.model,
        settings=settings,
        splits=cell.splits,
        seeds=cell.seeds,
        protocol=cell.protocol,
        metric=cell.metric,
        device=execution.device,
    )
    parent = folder / WORK_FOLDER / cell.name
    # Another version or device starts over.
    run_folder = parent / identity(run_identity, spec.as_dict())[:16]
    for other in parent.glob("*"):
        if other != run_folder:
            shutil.rmtree(other)
    prepare_folder(run_folder, spec, resume=True, overwrite=False)
    metrics = finished_run(run_folder)
    if metrics is None:
        metrics = fit_run(spec, graph, run_folder, **execution.options).metrics
    return metrics


def remove_unfinished(cell: Cell, folder: Path) -> None:
    """Remove the files of unfinished work of a finished cell."""
    shutil.rmtree(folder / WORK_FOLDER / cell.name, ignore_errors=True)
    (folder / SEARCH_FOLDER / f"{cell.name}.json").unlink(missing_ok=True)


def free_memory(device: str) -> None:
    """Release unused memory, for other processes on the same GPU."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def run_trials_by_shape(
    trials: Sequence[tuple[str, Mapping[str, Any]]],
    train: Callable[[Sequence[int]], list[dict[str, Any]]],
) -> Iterator[dict[int, dict[str, Any] | HPGMNError]]:
    """Train trials of equal shapes together; where that fails, one by one.

    Args:
        trials: model and settings of each.
        train: trains the trials at some positions together; returns their records.

    Yields:
        For each group, position → record or error.
    """
    settings = [valid_settings(find_model(model).settings, values) for model, values in trials]
    for group in group_by_shape(settings, [model for model, _ in trials]):
        yield _train_together(group, train)


def _train_together(
    positions: Sequence[int], train: Callable[[Sequence[int]], list[dict[str, Any]]]
) -> dict[int, dict[str, Any] | HPGMNError]:
    try:
        return dict(zip(positions, train(positions), strict=True))
    except HPGMNError as error:
        if len(positions) == 1:
            return {positions[0]: error}
    results: dict[int, dict[str, Any] | HPGMNError] = {}
    for position in positions:
        results |= _train_together([position], train)
    return results
