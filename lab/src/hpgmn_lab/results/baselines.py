"""The comparison in ``docs/RESULTS.md``: baselines with their shipped settings and HP-GMN."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpgmn.runs.compare import difference
from hpgmn_lab import paper
from hpgmn_lab.records import (
    NONE,
    Record,
    command,
    difference_text,
    published_text,
    row_record,
    score_text,
    trials_text,
)
from hpgmn_lab.rendering import frame

if TYPE_CHECKING:
    import pandas as pd

GRAPHS = (*paper.HETEROPHILOUS, *paper.CITATION)
BASELINES = (
    *("mlp", "gcn", "gcn-jk", "mixhop", "chebnet", "gcnii", "appnp", "gprgnn", "h2gcn", "bmgcn"),
    *("cpgnn", "mmp", "lwgcn", "dssl", "linkx", "fsgnn", "dirgcn"),
)
"""The models of the comparison."""

VARIANTS = {"cpgnn-cheby": "cpgnn"}
"""Row → the model it is a variant of; its records are named GRAPH-ROW."""


@dataclass(frozen=True)
class BaselineCell:
    """A row of the comparison on a graph: our run and the published number, if any."""

    row: str
    graph: str
    record: Record | None
    target: paper.Published | None

    @property
    def name(self) -> str:
        """The name in notes and of the record."""
        return f"{self.graph}-{self.row}"

    @property
    def is_short(self) -> bool:
        """Whether our mean is more than one published deviation, or else ours, below."""
        if self.target is None or self.record is None:
            return False
        allowed = self.record.score.std if self.target.std is None else self.target.std
        return self.record.score.mean < self.target.mean - allowed - paper.ROUNDING


Cells = Mapping[tuple[str, str], BaselineCell]


def row_names() -> list[str]:
    """Return the rows: every baseline, followed by its variants."""
    return [
        row
        for name in BASELINES
        for row in (name, *(row for row, model in VARIANTS.items() if model == name))
    ]


def cells_of(records: Sequence[Record]) -> dict[tuple[str, str], BaselineCell]:
    """Return (row, graph) → cell for every row and graph."""
    cells = {}
    for row in row_names():
        candidates = [record for record in records if _row_of(record) == row]
        for graph in GRAPHS:
            record = row_record(candidates, graph, VARIANTS.get(row, row))
            cells[row, graph] = BaselineCell(row, graph, record, paper.target(row, graph))
    return cells


def _row_of(record: Record) -> str:
    """Return the variant in the record's name, or else its model."""
    for row in VARIANTS:
        if record.name == f"{record.graph}-{row}":
            return row
    return record.model


def _frame(
    cells: Cells, graphs: Sequence[str], text: Callable[[BaselineCell], str]
) -> pd.DataFrame:
    rows = [[row, *(text(cells[row, graph]) for graph in graphs)] for row in row_names()]
    return frame(("model", *graphs), rows)


def score_frame(cells: Cells, ours: Mapping[str, Record], graphs: Sequence[str]) -> pd.DataFrame:
    """Return scores / published numbers; the last row is HP-GMN."""
    scores = _frame(cells, graphs, _score_text)
    row = ["**HP-GMN**"]
    for graph in graphs:
        record = ours.get(graph)
        published = paper.published(record.model, graph) if record else None
        text = f"**{score_text(record)}**" if record else NONE
        row.append(f"{text} / {published_text(published)}" if published else text)
    scores.loc[len(scores)] = row
    return scores


def _score_text(cell: BaselineCell) -> str:
    if cell.record is None:
        return NONE
    text = score_text(cell.record)
    if cell.target is not None:
        text += f" / {published_text(cell.target)}"
    return f"{text} ↓" if cell.is_short else text


def difference_frame(
    cells: Cells, ours: Mapping[str, Record], graphs: Sequence[str]
) -> pd.DataFrame:
    """Return each row minus HP-GMN."""

    def text(cell: BaselineCell) -> str:
        if cell.record is None or cell.graph not in ours:
            return NONE
        return difference_text(difference(cell.record.metrics, ours[cell.graph].metrics))

    return _frame(cells, graphs, text)


def cost_frame(cells: Cells, graphs: Sequence[str]) -> pd.DataFrame:
    """Return validation score and seconds of each run."""

    def text(cell: BaselineCell) -> str:
        record = cell.record
        return f"{record.validation:.1f}, {record.metrics['seconds']:.0f} s" if record else NONE

    return _frame(cells, graphs, text)


def short_frame(cells: Cells, notes: Mapping[str, str]) -> pd.DataFrame:
    """Return the cells below their published number, each with its note."""
    rows = [
        [
            cell.name,
            score_text(cell.record),
            f"{cell.target.mean:.1f}",
            cell.target.source,
            notes[cell.name],
        ]
        for cell in cells.values()
        if cell.is_short and cell.record and cell.target
    ]
    return frame(("cell", "ours", "published", "source", "note"), rows)


def source_frame(cells: Cells) -> pd.DataFrame:
    """Return the sources of published numbers that are not the paper's."""
    sources: dict[tuple[str, str], list[str]] = {}
    for cell in cells.values():
        if cell.target is not None and cell.target.source != "the paper":
            sources.setdefault((cell.row, cell.target.source), []).append(cell.graph)
    rows = [[row, source, ", ".join(graphs)] for (row, source), graphs in sources.items()]
    return frame(("model", "source", "graphs"), rows)


def trial_frame(cells: Cells, trials: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the number of trials of each cell."""
    by_cell: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for trial in trials:
        by_cell.setdefault((str(trial.get("row", trial["model"])), trial["graph"]), []).append(
            trial
        )
    return _frame(cells, GRAPHS, lambda cell: trials_text(by_cell.get((cell.row, cell.graph), [])))


def command_frame(cells: Cells) -> pd.DataFrame:
    """Return the commands of runs whose settings are not the shipped ones."""
    commands = {cell.name: command(cell.record) for cell in cells.values() if cell.record}
    rows = [[name, f"`{text}`"] for name, text in commands.items() if "--set" in text]
    return frame(("run", "command"), rows)


def devices(cells: Cells) -> list[str]:
    """Return the devices and versions of the runs."""
    metrics = [cell.record.metrics for cell in cells.values() if cell.record]
    return sorted(
        {
            f"{run['hardware']['device']}, torch {run['hardware']['torch']}, hpgmn {run['version']}"
            for run in metrics
        }
    )
