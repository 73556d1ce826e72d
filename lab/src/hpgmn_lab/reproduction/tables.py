"""The numbers of an experiment's table, out of the records of its cells.

Scores are in percent. Differences are fractions, as :mod:`hpgmn.runs.compare` gives them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.evaluation.scores import Difference, Score
from hpgmn.models import find_model
from hpgmn.runs.compare import difference, is_ours
from hpgmn.runs.search import planned_trials
from hpgmn_lab import paper
from hpgmn_lab.reproduction.cells import (
    SHIPPED,
    TUNED,
    Cell,
    CellRecord,
    read_cell,
    record_path,
    remedy,
)
from hpgmn_lab.reproduction.plan import Experiment, Row
from hpgmn_lab.results.records import Record, checked_record

_DECIDING = (
    *("graph", "model", "metric", "splits", "seeds"),
    *("trials", "search_splits", "search_seeds"),
)
"""What of a cell must be the same in its record."""

ENSEMBLE, VARIANT = "ensemble", "variant"
"""Kinds of lines beside tuned and shipped: averages over seeds, and changed settings."""


@dataclass(frozen=True)
class Entry:
    """What a table knows of one cell; ``record`` is None where the work is not done.

    Attributes:
        cell: the cell.
        record: its runs; of an ensemble, the scores of the averages.
        search: the record of its search, None without one.
        printed: what the paper prints for it.
        verdict: whether that is reached.
        difference: to HP-GMN in the same column, None for HP-GMN itself.
        is_best: whether no other compared with it is higher in the printed decimals.
        is_ensemble: whether the scores are those of averages over seeds.
        is_as_shipped: whether an option leaves the cell as it ships; the numbers are in the first
            row alone.
    """

    cell: Cell
    record: Record | None = None
    search: Mapping[str, Any] | None = None
    printed: paper.Published | None = None
    verdict: paper.Verdict | None = None
    difference: Difference | None = None
    is_best: bool = False
    is_ensemble: bool = False
    is_as_shipped: bool = False

    @property
    def validation(self) -> float | None:
        """The mean validation score; single runs have one, their averages have none."""
        return None if self.record is None or self.is_ensemble else self.record.validation

    @property
    def gap(self) -> float | None:
        """Validation minus test in points."""
        if self.record is None or self.validation is None:
            return None
        return self.validation - self.record.score.mean

    @property
    def trials(self) -> int:
        """How many trials of its search have a score; one that failed has none."""
        return len(self.trial_runs)

    @property
    def trial_runs(self) -> list[int]:
        """On how many runs each of those trials was scored."""
        trials = self.search["trials"] if self.search else []
        return [len(trial["val_score"]) for trial in trials if "val_score" in trial]

    @property
    def seconds(self) -> float | None:
        """Seconds of the search and the final run together."""
        if self.record is None:
            return None
        return float(self.record.metrics["seconds"]) + self.seconds_search

    @property
    def seconds_search(self) -> float:
        """Seconds of the search."""
        return float(self.search["seconds"]) if self.search else 0.0

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean, by the rule that says when a number is reached."""
        return None if self.record is None else self.record.against(0.0).interval


@dataclass(frozen=True)
class Line:
    """A row of a table with its entries, graph → entry."""

    label: str
    kind: str
    entries: Mapping[str, Entry]

    @property
    def model(self) -> str:
        """The model of the row."""
        return next((entry.cell.model for entry in self.entries.values()), self.label)


@dataclass(frozen=True)
class Table:
    """Rows × graphs of an experiment.

    Attributes:
        name: the experiment's.
        graphs: its columns.
        lines: its rows.
        references: graph → the label of the row that the others are set against.
        missing: names of the cells without a record.
        outdated: names of the cells whose record was made with another plan; it is not used.
    """

    name: str
    graphs: tuple[str, ...]
    lines: tuple[Line, ...]
    references: Mapping[str, str]
    missing: tuple[str, ...]
    outdated: tuple[str, ...]

    @property
    def entries(self) -> list[Entry]:
        """Every entry, row by row."""
        return [entry for line in self.lines for entry in line.entries.values()]

    @property
    def done(self) -> list[Entry]:
        """The entries with a record, each cell once."""
        found = {entry.cell.name: entry for entry in self.entries if entry.record}
        return list(found.values())

    def of_kind(self, *kinds: str) -> list[Line]:
        """The lines of some kinds."""
        return [line for line in self.lines if line.kind in kinds]

    def reference(self, graph: str) -> Entry | None:
        """The entry that the others of a column are set against."""
        label = self.references.get(graph)
        return next((line.entries[graph] for line in self.lines if line.label == label), None)


def read_cells(folder: Path, experiment: Experiment) -> dict[str, CellRecord]:
    """The records of an experiment that are there: name of the cell → record."""
    found = {cell.name: read_cell(folder, cell.name) for cell in experiment.cells}
    return {name: record for name, record in found.items() if record is not None}


def table(
    experiment: Experiment, records: Mapping[str, CellRecord], folder: Path = Path()
) -> Table:
    """The table of an experiment, as far as there are records.

    A record counts where it was made for the cell as planned; one of another plan (other splits,
    settings or trials) is named and left out.

    Args:
        experiment: whose table.
        records: name of the cell → record.
        folder: of the records, for the sentence about one that does not hold together.
    """
    outdated = [
        cell.name
        for cell in experiment.cells
        if cell.name in records and not is_as_planned(cell, records[cell.name])
    ]
    usable = {name: record for name, record in records.items() if name not in outdated}
    lines = [_line(row, experiment, usable, folder) for row in experiment.rows]
    references = _references(lines, experiment.graphs)
    lines = [_with_differences(line, lines, references) for line in lines]
    best = {graph: _best(lines, graph) for graph in experiment.graphs}
    missing = [cell.name for cell in experiment.cells if cell.name not in usable]
    return Table(
        name=experiment.name,
        graphs=experiment.graphs,
        lines=tuple(_with_best(line, best) for line in lines),
        references={graph: lines[place].label for graph, place in references.items()},
        missing=tuple(missing),
        outdated=tuple(outdated),
    )


def is_as_planned(cell: Cell, record: CellRecord) -> bool:
    """Whether a record is of a cell: same runs and trials, and a final run of their best.

    Settings of the final run are compared with their defaults filled in, so that a setting spelt
    out and one left to its default are the same.
    """
    planned = cell.as_dict()
    if any(record.cell.get(name) != planned[name] for name in _DECIDING):
        return False
    kind = find_model(cell.model).settings
    try:
        chosen = _chosen(cell, record)
        if chosen is None:
            return False
        own = make_settings(kind, record.metrics["config"]["settings"])
        return settings_dict(own) == settings_dict(make_settings(kind, chosen))
    except (HPGMNError, LookupError, TypeError):
        return False


def _chosen(cell: Cell, record: CellRecord) -> Mapping[str, Any] | None:
    """The settings of the final run; None if the record's trials are not those planned now."""
    if not cell.trials:
        return cell.settings
    if record.search is None:
        return None
    trials = [trial["settings"] for trial in record.search["trials"]]
    planned = planned_trials(cell.model, cell.graph, cell.trials)
    wanted = [
        dataclasses.replace(cell, settings={**trial, **cell.settings}).as_dict()["settings"]
        for trial in planned
    ]
    return trials[record.search["best"]] if trials == wanted else None


def _line(
    row: Row, experiment: Experiment, records: Mapping[str, CellRecord], folder: Path
) -> Line:
    first = experiment.rows[0]
    entries = {}
    for graph, cell in row.cells.items():
        if row is not first and cell == first.cells.get(graph):
            entries[graph] = Entry(cell, is_as_shipped=True)
        else:
            found = records.get(cell.name)
            entries[graph] = _entry(cell, row, experiment.name, found, folder)
    variants = {cell.variant for cell in row.cells.values()}
    kind = ENSEMBLE if row.is_ensemble else VARIANT
    if variants in ({TUNED}, {SHIPPED}) and not all(one.is_as_shipped for one in entries.values()):
        kind = variants.pop()
    return Line(row.label, kind, entries)


def _entry(cell: Cell, row: Row, experiment: str, found: CellRecord | None, folder: Path) -> Entry:
    printed = _printed(cell, row, experiment)
    if found is None:
        return Entry(cell, printed=printed, is_ensemble=row.is_ensemble)
    path = record_path(folder, cell.name)
    record = checked_record(cell.name, found.metrics, path, remedy(path))
    if row.is_ensemble:
        record = _averaged(record, path)
    return Entry(
        cell,
        record,
        found.search,
        printed,
        verdict=record.against(printed.mean) if printed else None,
        is_ensemble=row.is_ensemble,
    )


def _printed(cell: Cell, row: Row, experiment: str) -> paper.Published | None:
    """What the paper prints; a changed model has a number in Table 4 alone."""
    if experiment == "table4":
        return paper.TABLE_4.get(row.label, {}).get(cell.graph)
    if row.is_ensemble or cell.variant in (TUNED, SHIPPED):
        return paper.published(cell.model, cell.graph)
    return None


def _averaged(record: Record, path: Path) -> Record:
    """The record with the scores of the averages over seeds in place of those of single runs."""
    try:
        values = [float(value) for value in record.metrics["ensemble"]["test_score"]]
        mean = 100 * float(record.metrics["ensemble"]["test_score_mean"])
    except (KeyError, TypeError):
        raise HPGMNError(f"{path} has no averages over seeds. {remedy(path)}") from None
    splits = len(record.metrics["splits"])
    score = Score.of([100 * value for value in values])
    if len(values) % splits or abs(score.mean - mean) > 1e-6:
        raise HPGMNError(f"{path}: the averages over seeds do not hold together. {remedy(path)}")
    metrics = {**record.metrics, "test_score": values, "seeds": len(values) // splits}
    return dataclasses.replace(record, score=score, metrics=metrics)


def _references(lines: Sequence[Line], graphs: Sequence[str]) -> dict[str, int]:
    """Graph → the place of the line that the others are set against.

    Among tuned rows it is HP-GMN's, of several the best by validation; else the first row.
    """
    tuned = [place for place, line in enumerate(lines) if line.kind == TUNED]
    ours = [place for place in tuned if is_ours(lines[place].model)]
    candidates = ours if tuned else [place for place in range(len(lines)) if place == 0]
    found = {}
    for graph in graphs:
        scores = {place: lines[place].entries[graph].validation for place in candidates}
        known = {place: score for place, score in scores.items() if score is not None}
        if known:
            found[graph] = max(known, key=lambda place: known[place])
    return found


def _with_differences(line: Line, lines: Sequence[Line], references: Mapping[str, int]) -> Line:
    entries = {}
    for graph, entry in line.entries.items():
        place = references.get(graph)
        other = None if place is None or lines[place] is line else lines[place].entries[graph]
        found = None
        if entry.record and other and other.record:
            found = difference(entry.record.metrics, other.record.metrics)
        entries[graph] = dataclasses.replace(entry, difference=found)
    return dataclasses.replace(line, entries=entries)


def competing(lines: Sequence[Line]) -> list[Line]:
    """The lines among which a column has its best: the tuned ones, else all."""
    return [line for line in lines if line.kind == TUNED] or list(lines)


def _best(lines: Sequence[Line], graph: str) -> tuple[float, set[str]]:
    """The highest mean as printed, and the labels of the lines that compete for it."""
    rivals = competing(lines)
    means = [line.entries[graph].record for line in rivals]
    scores = [np.round(record.score.mean, 1) for record in means if record]
    return max(scores, default=float("nan")), {line.label for line in rivals}


def _with_best(line: Line, best: Mapping[str, tuple[float, set[str]]]) -> Line:
    entries = {}
    for graph, entry in line.entries.items():
        highest, labels = best[graph]
        mean = np.round(entry.record.score.mean, 1) if entry.record else None
        is_best = line.label in labels and mean == highest
        entries[graph] = dataclasses.replace(entry, is_best=bool(is_best))
    return dataclasses.replace(line, entries=entries)
