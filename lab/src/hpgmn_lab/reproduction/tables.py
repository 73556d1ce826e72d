"""The numbers of an experiment's table, computed from the records of its cells.

Scores are in percent. Differences are fractions, as in :mod:`hpgmn.runs.compare`.
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
from hpgmn.runs.trials import planned_trials
from hpgmn_lab import paper
from hpgmn_lab.records import Record, check_run
from hpgmn_lab.reproduction.cells import SHIPPED, TUNED, Cell, CellRecord, Records
from hpgmn_lab.reproduction.plan import Experiment, Row

_PLANNED_KEYS = (
    *("graph", "model", "metric", "splits", "seeds"),
    *("trials", "search_splits", "search_seeds"),
)
"""The keys of a cell that must be equal in its record."""

ENSEMBLE, VARIANT = "ensemble", "variant"
"""Kinds of lines besides tuned and shipped: averages over seeds, and changed settings."""


@dataclass(frozen=True)
class Entry:
    """A cell in a table; ``record`` is None where the work is not done.

    Attributes:
        record: its runs; of an ensemble, the scores of the averages.
        search: the record of its search, if any.
        difference: to the reference line of the column; None for the reference itself.
        is_best: whether no competing line is higher in the decimals shown.
        is_ensemble: whether the scores are those of averages over seeds.
        is_as_shipped: whether an option changes nothing; only the first line has the numbers.
    """

    cell: Cell
    record: Record | None = None
    search: Mapping[str, Any] | None = None
    published: paper.Published | None = None
    verdict: paper.Verdict | None = None
    difference: Difference | None = None
    is_best: bool = False
    is_ensemble: bool = False
    is_as_shipped: bool = False

    @property
    def validation(self) -> float | None:
        """The mean validation score of single runs; averages have none."""
        return None if self.record is None or self.is_ensemble else self.record.validation

    @property
    def gap(self) -> float | None:
        """Validation minus test in points."""
        if self.record is None or self.validation is None:
            return None
        return self.validation - self.record.score.mean

    @property
    def runs_per_trial(self) -> list[int]:
        """The number of runs that scored each trial; failed trials are left out."""
        trials = self.search["trials"] if self.search else []
        return [len(trial["val_score"]) for trial in trials if "val_score" in trial]

    @property
    def seconds_search(self) -> float:
        """Seconds of the search."""
        return float(self.search["seconds"]) if self.search else 0.0

    @property
    def seconds(self) -> float | None:
        """Seconds of search and final run."""
        if self.record is None:
            return None
        return float(self.record.metrics["seconds"]) + self.seconds_search

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95 % interval of the mean."""
        return None if self.record is None else self.record.against(0.0).interval


@dataclass(frozen=True)
class Line:
    """A row of a table: graph → entry."""

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
        references: graph → label of the line that the others are compared with.
        missing: names of the cells without a record.
        outdated: names of the cells whose record is of another plan and not used.
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
        return list({entry.cell.name: entry for entry in self.entries if entry.record}.values())

    @property
    def competing(self) -> list[Line]:
        """The lines that compete for the best of a column: the tuned ones, else all."""
        return [line for line in self.lines if line.kind == TUNED] or list(self.lines)

    def reference(self, graph: str) -> Entry | None:
        """Return the entry that the others of a column are compared with."""
        label = self.references.get(graph)
        return next((line.entries[graph] for line in self.lines if line.label == label), None)


def table(experiment: Experiment, records: Records) -> Table:
    """Return the table of an experiment; records of another plan are listed and not used."""
    recorded = {cell.name: records.cell(cell.name) for cell in experiment.cells}
    planned = {cell.name: cell for cell in experiment.cells}
    usable = {
        name: record
        for name, record in recorded.items()
        if record is not None and is_as_planned(planned[name], record)
    }
    outdated = [name for name, record in recorded.items() if record and name not in usable]
    lines = [_line(row, experiment, usable, records) for row in experiment.rows]
    references = _references(lines, experiment.graphs)
    lines = [_with_differences(line, lines, references) for line in lines]
    whole = Table(
        name=experiment.name,
        graphs=experiment.graphs,
        lines=tuple(lines),
        references={graph: lines[index].label for graph, index in references.items()},
        missing=tuple(name for name in planned if name not in usable),
        outdated=tuple(outdated),
    )
    return dataclasses.replace(whole, lines=tuple(_with_best(line, whole) for line in lines))


def is_as_planned(cell: Cell, record: CellRecord) -> bool:
    """Return whether a record has the planned runs and trials, and the best trial's settings.

    Settings are compared with defaults filled in.
    """
    planned = cell.as_dict()
    if any(record.cell.get(key) != planned[key] for key in _PLANNED_KEYS):
        return False
    kind = find_model(cell.model).settings
    try:
        chosen = _chosen_settings(cell, record)
        if chosen is None:
            return False
        recorded = make_settings(kind, record.metrics["config"]["settings"])
        return settings_dict(recorded) == settings_dict(make_settings(kind, chosen))
    except (HPGMNError, LookupError, TypeError):
        return False


def _chosen_settings(cell: Cell, record: CellRecord) -> Mapping[str, Any] | None:
    """Return the settings of the final run; None if other trials are planned."""
    if not cell.trials:
        return cell.settings
    if record.search is None:
        return None
    trials = [trial["settings"] for trial in record.search["trials"]]
    planned = [
        dataclasses.replace(cell, settings={**trial, **cell.settings}).as_dict()["settings"]
        for trial in planned_trials(cell.model, cell.graph, cell.trials)
    ]
    return trials[record.search["best"]] if trials == planned else None


def _line(
    row: Row, experiment: Experiment, usable: Mapping[str, CellRecord], records: Records
) -> Line:
    first = experiment.rows[0]
    entries = {}
    for graph, cell in row.cells.items():
        if row is not first and cell == first.cells.get(graph):
            entries[graph] = Entry(cell, is_as_shipped=True)
        else:
            record = usable.get(cell.name)
            entries[graph] = _entry(cell, row, experiment.name, record, records)
    variants = {cell.variant for cell in row.cells.values()}
    kind = ENSEMBLE if row.is_ensemble else VARIANT
    if variants in ({TUNED}, {SHIPPED}) and not all(
        entry.is_as_shipped for entry in entries.values()
    ):
        kind = variants.pop()
    return Line(row.label, kind, entries)


def _entry(
    cell: Cell, row: Row, experiment: str, cell_record: CellRecord | None, records: Records
) -> Entry:
    published = _published(cell, row, experiment)
    if cell_record is None:
        return Entry(cell, published=published, is_ensemble=row.is_ensemble)
    remedy = records.remedy(cell.name)
    record = check_run(cell.name, cell_record.metrics, records.source, remedy)
    if row.is_ensemble:
        record = _ensemble_record(record, records.source, remedy)
    return Entry(
        cell,
        record,
        cell_record.search,
        published,
        verdict=record.against(published.mean) if published else None,
        is_ensemble=row.is_ensemble,
    )


def _published(cell: Cell, row: Row, experiment: str) -> paper.Published | None:
    """Return what the paper prints; it has changed settings only in Table 4."""
    if experiment == "table4":
        return paper.TABLE_4.get(row.label, {}).get(cell.graph)
    if row.is_ensemble or cell.variant in (TUNED, SHIPPED):
        return paper.published(cell.model, cell.graph)
    return None


def _ensemble_record(record: Record, source: Path, remedy: str) -> Record:
    """Return the record with the scores of averages over seeds instead of single runs."""
    try:
        values = [float(value) for value in record.metrics["ensemble"]["test_score"]]
        mean = 100 * float(record.metrics["ensemble"]["test_score_mean"])
    except (KeyError, TypeError):
        raise HPGMNError(f"{source} ({record.name}) has no ensemble scores.", remedy) from None
    splits = len(record.metrics["splits"])
    score = Score.of([100 * value for value in values])
    if len(values) % splits or abs(score.mean - mean) > 1e-6:
        raise HPGMNError(
            f"{source} ({record.name}): count or mean of the ensemble scores is wrong.", remedy
        )
    metrics = {**record.metrics, "test_score": values, "seeds": len(values) // splits}
    return dataclasses.replace(record, score=score, metrics=metrics)


def _references(lines: Sequence[Line], graphs: Sequence[str]) -> dict[str, int]:
    """Return graph → index of the line that the others are compared with.

    Among tuned lines it is HP-GMN's best by validation; else the first line.
    """
    is_tuned = any(line.kind == TUNED for line in lines)
    candidates = [
        index
        for index, line in enumerate(lines)
        if (line.kind == TUNED and is_ours(line.model) if is_tuned else index == 0)
    ]
    references = {}
    for graph in graphs:
        scores = {
            index: score
            for index in candidates
            if (score := lines[index].entries[graph].validation) is not None
        }
        if scores:
            references[graph] = max(scores, key=lambda index: scores[index])
    return references


def _with_differences(line: Line, lines: Sequence[Line], references: Mapping[str, int]) -> Line:
    entries = {}
    for graph, entry in line.entries.items():
        index = references.get(graph)
        other = None if index is None or lines[index] is line else lines[index].entries[graph]
        paired = None
        if entry.record and other and other.record:
            paired = difference(entry.record.metrics, other.record.metrics)
        entries[graph] = dataclasses.replace(entry, difference=paired)
    return dataclasses.replace(line, entries=entries)


def _with_best(line: Line, whole: Table) -> Line:
    """Mark the entries of a competing line with the highest mean of their column, as printed."""
    if line not in whole.competing:
        return line
    entries = {}
    for graph, entry in line.entries.items():
        rivals = [rival.entries[graph].record for rival in whole.competing]
        best = max((np.round(record.score.mean, 1) for record in rivals if record), default=None)
        is_best = entry.record is not None and np.round(entry.record.score.mean, 1) == best
        entries[graph] = dataclasses.replace(entry, is_best=bool(is_best))
    return dataclasses.replace(line, entries=entries)
