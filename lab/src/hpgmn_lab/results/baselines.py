"""The comparison in ``docs/RESULTS.md``: every baseline beside its printed number and HP-GMN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpgmn.base.errors import HPGMNError
from hpgmn.runs.compare import difference
from hpgmn_lab import paper
from hpgmn_lab.results.records import (
    Record,
    command,
    count_words,
    difference_words,
    grid,
    printed_words,
    row_record,
    score_words,
    validation_words,
)

GRAPHS = (*paper.HETEROPHILOUS, *paper.CITATION)
BASELINES = (
    *("mlp", "gcn", "gcn-jk", "mixhop", "chebnet", "gcnii", "appnp", "gprgnn", "h2gcn", "bmgcn"),
    *("cpgnn", "mmp", "lwgcn", "dssl", "linkx", "fsgnn", "dirgcn"),
)
"""The models that stand in the comparison; a new one joins when it has its records."""

VARIANTS = {"cpgnn-cheby": "cpgnn"}
"""Row → the model it is a variant of; its records are known by their folders, GRAPH-ROW."""


@dataclass(frozen=True)
class Cell:
    """One model on one graph.

    Attributes:
        row: the name of the row; a variant has its own.
        graph: the graph.
        record: our run, None where it is missing.
        target: what is printed for it, if anything.
    """

    row: str
    graph: str
    record: Record | None
    target: paper.Target | None

    @property
    def name(self) -> str:
        """What notes call it, and the folder of its record."""
        return f"{self.graph}-{self.row}"

    @property
    def allowed(self) -> float:
        """By how many points it may be lower: the printed deviation, or else our own."""
        assert self.target is not None
        assert self.record is not None
        return self.record.score.std if self.target.std is None else self.target.std

    @property
    def is_short(self) -> bool:
        """Whether our mean is more than one deviation below the printed one."""
        if self.target is None or self.record is None:
            return False
        return self.record.score.mean < self.target.mean - self.allowed - paper.ROUNDING


def row_names() -> list[str]:
    """The rows of the comparison: every baseline of it, its variants after it."""
    return [
        row
        for name in BASELINES
        for row in (name, *(row for row, model in VARIANTS.items() if model == name))
    ]


def cells_of(records: Sequence[Record]) -> dict[tuple[str, str], Cell]:
    """(row, graph) → cell, for every row and graph."""
    found = {}
    for row in row_names():
        own = [record for record in records if _row_of(record) == row]
        for graph in GRAPHS:
            record = row_record(own, graph, VARIANTS.get(row, row))
            found[row, graph] = Cell(row, graph, record, paper.target(row, graph))
    return found


def _row_of(record: Record) -> str:
    """The row a record is for: the variant that its folder names, or else its model."""
    for row in VARIANTS:
        if record.folder == f"{record.graph}-{row}":
            return row
    return record.model


def sections(
    cells: Mapping[tuple[str, str], Cell],
    ours: Mapping[str, Record],
    trials: Sequence[Mapping[str, Any]],
    notes: Mapping[str, str],
) -> list[str]:
    """The comparison's part of the page; nothing where no baseline has a record.

    Args:
        cells: from :func:`cells_of`.
        ours: for each graph the run of HP-GMN that baselines are set against.
        trials: every trial of the searches.
        notes: why a cell stays short, by GRAPH-ROW.
    """
    if not any(cell.record for cell in cells.values()):
        return []
    return [
        "## Comparison with other models",
        _INTRO,
        _table(cells, ours, paper.HETEROPHILOUS),
        _table(cells, ours, paper.CITATION),
        "### Difference to HP-GMN",
        _DIFFERENCES,
        _differences(cells, ours, paper.HETEROPHILOUS),
        _differences(cells, ours, paper.CITATION),
        "### Below the printed number",
        _short(cells, notes),
        "### Seconds and validation",
        _COST,
        _costs(cells, paper.HETEROPHILOUS),
        _costs(cells, paper.CITATION),
        "### How the baselines were set",
        _settings(cells, trials),
    ]


_INTRO = """\
Every model runs here on the same splits, with the same trainer and the same selection on
validation; `hpgmn train GRAPH --model NAME` is the only difference. A cell shows ours (mean ±
sample standard deviation over ten splits with one seed, on the citation graphs over five seeds of
the public split) and, after the stroke, the printed number: the paper's table unless the list
further down names another source. The paper prints the same numbers of gcn-jk, mixhop and appnp
for chameleon and squirrel, a slip; both stand as printed. ↓ marks a cell more than one printed
deviation below; where the source prints no deviation, our own stands in. With one seed, another
device moves a mean on the small graphs by a point or two."""

_DIFFERENCES = """\
Model minus HP-GMN in points, paired over the ten splits (seeds averaged first), with the 95 %
interval corrected for overlapping splits after Nadeau and Bengio; on the citation graphs against
the better of hpgmn-gcn and hpgmn-appnp by validation score, over seeds of one split (Welch's
interval). HP-GMN's settings come from a larger search than the baselines' (see Settings), which
favours it."""

_COST = """\
Mean validation score, and seconds of the whole run (all splits and seeds). The runs shared a
machine with others, so the seconds are upper bounds."""


def _table(
    cells: Mapping[tuple[str, str], Cell], ours: Mapping[str, Record], graphs: Sequence[str]
) -> str:
    rows = [[row, *(_words(cells[row, graph]) for graph in graphs)] for row in row_names()]
    own = ["**HP-GMN**"]
    for graph in graphs:
        record = ours.get(graph)
        cell = paper.published(record.model, graph) if record else None
        printed = f" / {printed_words(cell)}" if cell else ""
        own.append(f"**{score_words(record)}**{printed}" if record else "–")
    return grid(("model", *graphs), [*rows, own])


def _words(cell: Cell) -> str:
    if cell.record is None:
        return "–"
    words = score_words(cell.record)
    if cell.target is not None:
        words += f" / {printed_words(cell.target)}"
    return f"{words} ↓" if cell.is_short else words


def _differences(
    cells: Mapping[tuple[str, str], Cell], ours: Mapping[str, Record], graphs: Sequence[str]
) -> str:
    lines = []
    for row in row_names():
        line = [row]
        for graph in graphs:
            record = cells[row, graph].record
            gap = None
            if record is not None and graph in ours:
                gap = difference(record.metrics, ours[graph].metrics)
            line.append(difference_words(gap))
        lines.append(line)
    return grid(("model", *graphs), lines)


def _short(cells: Mapping[tuple[str, str], Cell], notes: Mapping[str, str]) -> str:
    short = [cell for cell in cells.values() if cell.is_short]
    with_target = sum(cell.target is not None for cell in cells.values())
    lines = [
        f"{len(short)} of {with_target} cells with a printed number are more than one deviation "
        f"below it."
    ]
    missing = [cell.name for cell in short if not notes.get(cell.name)]
    if missing:
        raise HPGMNError(
            f"Below the printed number without a note: {', '.join(missing)}. Say why in notes.yaml."
        )
    if short:
        lines.append("")
    for cell in short:
        assert cell.record is not None
        assert cell.target is not None
        lines.append(
            f"- **{cell.name}**: {score_words(cell.record)} against {cell.target.mean:.1f} "
            f"({cell.target.source}). {notes[cell.name]}"
        )
    sources: dict[str, list[str]] = {}
    for cell in cells.values():
        if cell.target is not None and cell.target.source != "the paper":
            sources.setdefault(f"{cell.row}: {cell.target.source}", []).append(cell.graph)
    lines += ["", "Printed numbers that are not the paper's:", ""]
    lines += [f"- {source} ({', '.join(graphs)})" for source, graphs in sources.items()]
    absent = [cell.name for cell in cells.values() if cell.record is None]
    if absent:
        lines += ["", f"No record yet: {', '.join(absent)}."]
    return "\n".join(lines)


def _costs(cells: Mapping[tuple[str, str], Cell], graphs: Sequence[str]) -> str:
    lines = []
    for row in row_names():
        words = [
            f"{validation_words(record)}, {record.metrics['seconds']:.0f} s" if record else "–"
            for record in (cells[row, graph].record for graph in graphs)
        ]
        lines.append([row, *words])
    return grid(("model", *graphs), lines)


def _settings(cells: Mapping[tuple[str, str], Cell], trials: Sequence[Mapping[str, Any]]) -> str:
    own: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in trials:
        own.setdefault((str(one.get("row", one["model"])), one["graph"]), []).append(one)
    lines = [
        [row, *(count_words(own.get((row, graph), [])) for graph in GRAPHS)] for row in row_names()
    ]
    odd = [
        f"- {cell.name}: `{command(cell.record)}`"
        for cell in cells.values()
        if cell.record is not None and "--set" in command(cell.record)
    ]
    devices = sorted(
        {
            f"{cell.record.metrics['hardware']['device']}, torch "
            f"{cell.record.metrics['hardware']['torch']}, hpgmn {cell.record.metrics['version']}"
            for cell in cells.values()
            if cell.record is not None
        }
    )
    parts = [
        _SEARCHED,
        grid(("model", *GRAPHS), lines),
        f"The runs were made on: {'; '.join(devices)}.",
    ]
    if odd:
        parts.append("Runs that need more than the command above:\n\n" + "\n".join(odd))
    return "\n\n".join(parts)


_SEARCHED = """\
Each cell's settings are those of the best trial by mean validation score (`hpgmn settings GRAPH
--model NAME` shows them; `lab/results/search` has every trial). The first trial is what the
literature gives, where it gives anything, with at most 2,000 epochs; the others are drawn at random
from one space per model and kind of graph (`hpgmn.runs.spaces`). Where the best validation
score then was below the printed number (gcn and fsgnn on chameleon and squirrel, dirgcn on
squirrel), or a cell had no trial yet, a second round followed, with the best of the first among its
trials; it decides where there is one. How many trials a cell has depended on how long they took, so
some have few, and in three cells (mixhop on squirrel, cpgnn-cheby on pubmed, dssl on crocodile)
they were not all scored on the same number of runs. The test nodes were scored afterwards, by

```sh
hpgmn train GRAPH --model NAME --splits all   # the citation graphs: --seeds 5
```

Trials × runs of each:"""
