"""The work behind one cell: a search where it has one, the final run, and its record.

Whatever is finished is kept: each group of trials, the states of the final run, the record. Work
that is killed goes on from there and ends with the same record.
"""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.files import verify_checksum, with_checksum, write_text
from hpgmn.base.parsing import read_json
from hpgmn.base.settings import make_settings, per_replica_names, plain, settings_dict
from hpgmn.graph import Graph
from hpgmn.graph.datasets import load
from hpgmn.models import find_model
from hpgmn.runs.folder import finished_run, prepare_folder
from hpgmn.runs.search import best_trials, planned_trials, run_trials
from hpgmn.runs.spec import RunSpec
from hpgmn.runs.train import train_folder
from hpgmn.training.replicas import Progress
from hpgmn_lab.reproduction.cells import Cell, CellRecord, identity, read_cell, write_cell

CELLS_FOLDER, SEARCH_FOLDER, WORK_FOLDER = "cells", "search", "work"
"""Below the folder of a reproduction: finished records, searches and final runs under way."""

_KEPT = ("val_score_mean", "val_score", "val_loss", "seconds")


@dataclass(frozen=True)
class Way:
    """How work is done; none of it decides more than the last bits of what comes out.

    Attributes:
        device: "cpu" or "cuda".
        report: called after each epoch.
        should_stop: asked after each epoch; True keeps what is finished and raises
            KeyboardInterrupt.
        memory_share: how much of the memory is for this process.
        keep: called with the content of a search's file each time it is written.
    """

    device: str = "cpu"
    report: Callable[[Progress], None] | None = None
    should_stop: Callable[[], bool] = field(default=lambda: False)
    memory_share: float = 1.0
    keep: Callable[[str], None] = field(default=lambda text: None)

    @property
    def options(self) -> dict[str, Any]:
        """The options of trainings that all of them have."""
        return {
            "report": self.report,
            "should_stop": self.should_stop,
            "memory_share": self.memory_share,
        }


def do_cell(cell: Cell, folder: Path, way: Way, graph: Graph | None = None) -> CellRecord:
    """The record of a cell; only what is not done yet is done.

    Args:
        cell: the cell.
        folder: the folder of the reproduction.
        way: how to work.
        graph: the cell's graph with its splits; None: it is loaded.
    """
    if graph is None:
        graph = load(cell.graph, cell.protocol)
    kept = done_record(cell, graph, folder)
    if kept is None:
        before = read_cell(folder / CELLS_FOLDER, cell.name)
        search = _search(cell, graph, folder, before, way) if cell.trials else None
        settings = _full_settings(cell, search)
        own = final_identity(cell, graph)
        if before is not None and _is_same_run(before, own, settings):
            metrics = before.metrics
        else:
            metrics = _final_run(cell, graph, folder, settings, own, way)
        kept = CellRecord(cell.as_dict(), own, search, metrics)
        write_cell(folder / CELLS_FOLDER, kept)
    tidy(cell, folder)
    return kept


def done_record(cell: Cell, graph: Graph, folder: Path) -> CellRecord | None:
    """The record of a cell if it was made from the same things and whole; else None.

    A search with trials that failed for a passing reason, such as memory, is not whole.
    """
    record = read_cell(folder / CELLS_FOLDER, cell.name)
    if record is None or bool(cell.trials) != (record.search is not None):
        return None
    if record.search is not None:
        every = dict(enumerate(record.search["trials"]))
        valid = _still_valid(cell, graph, record.search, every)
        if not len(valid) == len(every) == len(_trials(cell)):
            return None
    settings = _full_settings(cell, record.search)
    return record if _is_same_run(record, final_identity(cell, graph), settings) else None


def search_identity(cell: Cell, graph: Graph) -> str:
    """Of everything but the trials that decides how a search ends."""
    runs = [list(cell.search_splits), cell.search_seeds, cell.metric]
    return identity(cell.model, runs, _graph_parts(graph, cell.search_splits))


def final_identity(cell: Cell, graph: Graph) -> str:
    """Of everything but the settings that decides the metrics of the final run."""
    runs = [list(cell.splits), cell.seeds, cell.metric]
    return identity(cell.model, runs, _graph_parts(graph, cell.splits))


def _is_same_run(record: CellRecord, own: str, settings: Mapping[str, Any]) -> bool:
    """Whether a record's final run is that of the same identity and settings.

    Settings that came after the record was made are at their defaults, which change nothing.
    """
    model, recorded = record.cell["model"], record.metrics["config"]["settings"]
    return record.identity == own and _completed(model, recorded) == _completed(model, settings)


def _completed(model: str, settings: Mapping[str, Any]) -> Any:
    """Settings with the defaults of today; what the model refuses stays as it is."""
    try:
        return make_settings(find_model(model).settings, settings)
    except HPGMNError:
        return _plain(settings)


def _still_valid(
    cell: Cell, graph: Graph, search: Mapping[str, Any], trials: Mapping[int, Mapping[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Those of a search's trials that a search of today would end with, too, by their number.

    They are of the same runs and the same settings, filled in with the defaults of their day; one
    that failed is among them only if its settings are refused for good.
    """
    if search["identity"] != search_identity(cell, graph):
        return {}
    planned, today = _trials(cell), _defaults(cell.model)
    then = {**today, **search["defaults"]}
    return {
        place: dict(trial)
        for place, trial in trials.items()
        if place < len(planned)
        and trial.get("is_passing") is not True
        and _completed(cell.model, {**then, **trial["settings"]})
        == _completed(cell.model, {**today, **planned[place]})
    }


def _defaults(model: str) -> dict[str, Any]:
    return settings_dict(find_model(model).settings())


def _graph_parts(graph: Graph, splits: Sequence[int]) -> list[Any]:
    """What a graph and some of its splits are known by."""
    masks = hashlib.sha256()
    for number in splits:
        split = graph.split(number)
        for mask in (split.train, split.val, split.test):
            masks.update(np.packbits(mask).tobytes())
    return [graph.name, graph.fingerprint, graph.y.tolist(), masks.hexdigest()]


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in settings.items()}


def _trials(cell: Cell) -> list[dict[str, Any]]:
    """The settings of each trial; those of the cell go before the planned ones."""
    planned = planned_trials(cell.model, cell.graph, cell.trials)
    return [{**trial, **cell.settings} for trial in planned]


def _full_settings(cell: Cell, search: Mapping[str, Any] | None) -> dict[str, Any]:
    """All settings of the final run."""
    chosen = cell.settings if search is None else search["trials"][search["best"]]["settings"]
    return settings_dict(make_settings(find_model(cell.model).settings, chosen))


def _search(
    cell: Cell, graph: Graph, folder: Path, before: CellRecord | None, way: Way
) -> dict[str, Any]:
    """A cell's search, taken from where it is already done, else trained group by group."""
    own, path = search_identity(cell, graph), folder / SEARCH_FOLDER / f"{cell.name}.json"
    trials, found = _trials(cell), _begun(path, cell, graph)
    if before is not None and before.search is not None:
        recorded = dict(enumerate(before.search["trials"]))
        found = _still_valid(cell, graph, before.search, recorded) | found
    start = {"identity": own, "defaults": _defaults(cell.model)}
    for places in _groups(cell.model, trials):
        missing = [place for place in places if place not in found]
        if not missing:
            continue
        records = _train_group(cell, graph, [trials[place] for place in missing], way)
        found |= dict(zip(missing, records, strict=True))
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(with_checksum({**start, "trials": found}), indent=1) + "\n"
        write_text(path, text)
        way.keep(text)
    every = [found[place] for place in range(len(trials))]
    scored = [trial for trial in every if "failed" not in trial]
    if not scored:
        raise HPGMNError(
            f"Every trial of {cell.name} failed. {every[0]['failed']} Then repeat the command."
        )
    (best,) = best_trials(scored)
    return {
        **start,
        "best": every.index(dict(best)),
        "seconds": sum(trial.get("seconds", 0.0) for trial in every),
        "trials": every,
    }


def _begun(path: Path, cell: Cell, graph: Graph) -> dict[int, dict[str, Any]]:
    """The finished trials of a search that was killed, by their number."""
    try:
        content = verify_checksum(read_json(path))
        every = {int(place): trial for place, trial in content["trials"].items()}
        return _still_valid(cell, graph, content, every)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _groups(model: str, trials: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """The numbers of the trials that are trained together: those of equal shapes."""
    settings = find_model(model).settings
    free = per_replica_names(settings)
    groups: dict[str, list[int]] = {}
    for place, trial in enumerate(trials):
        try:
            full = settings_dict(make_settings(settings, trial))
        except HPGMNError:  # told where it is trained
            full = {"place": place}
        shape = {name: value for name, value in full.items() if name not in free}
        groups.setdefault(json.dumps(shape, sort_keys=True), []).append(place)
    return list(groups.values())


def _train_group(
    cell: Cell, graph: Graph, trials: Sequence[Mapping[str, Any]], way: Way
) -> list[dict[str, Any]]:
    """The records of trials that are trained together; if that fails, of each alone."""
    try:
        records = run_trials(
            graph,
            cell.model,
            trials,
            splits=cell.search_splits,
            seeds=cell.search_seeds,
            device=way.device,
            metric=cell.metric,
            **way.options,
        )
    except HPGMNError as error:
        free_memory(way.device)
        if len(trials) > 1:
            return [_train_group(cell, graph, [trial], way)[0] for trial in trials]
        is_passing = not isinstance(error, SettingError)
        return [{"settings": _plain(trials[0]), "failed": str(error), "is_passing": is_passing}]
    return [
        {"settings": _plain(trial)} | {name: record[name] for name in _KEPT}
        for trial, record in zip(trials, records, strict=True)
    ]


def _final_run(
    cell: Cell, graph: Graph, folder: Path, settings: dict[str, Any], own: str, way: Way
) -> dict[str, Any]:
    """The metrics of the final run; one that was interrupted goes on."""
    spec = RunSpec(
        graph=cell.graph,
        model=cell.model,
        settings=settings,
        splits=cell.splits,
        seeds=cell.seeds,
        protocol=cell.protocol,
        metric=cell.metric,
        device=way.device,
    )
    above = folder / WORK_FOLDER / cell.name
    place = above / identity(own, spec.as_dict())[:16]  # another version or device begins anew
    for other in above.glob("*"):
        if other != place:
            shutil.rmtree(other)
    prepare_folder(place, spec, resume=True, overwrite=False)
    metrics = finished_run(place)
    return train_folder(spec, graph, place, **way.options) if metrics is None else metrics


def tidy(cell: Cell, folder: Path) -> None:
    """Remove what a finished cell needs no longer."""
    shutil.rmtree(folder / WORK_FOLDER / cell.name, ignore_errors=True)
    (folder / SEARCH_FOLDER / f"{cell.name}.json").unlink(missing_ok=True)


def free_memory(device: str) -> None:
    """Give memory that is no longer in use back, for other processes on the same GPU."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
