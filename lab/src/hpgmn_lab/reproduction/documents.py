"""The experiments as documents: Markdown, CSV, LaTeX and one HTML page.

``python -m hpgmn_lab.reproduction.documents SOURCE FOLDER`` writes all of them from the records of
a folder of cells or a ``.jsonl`` file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from hpgmn.base.errors import format_duration
from hpgmn.base.files import write_error, write_text
from hpgmn.base.settings import read_yaml
from hpgmn.graph.datasets import DATASETS
from hpgmn.runs.compare import is_ours
from hpgmn_lab import paper
from hpgmn_lab.records import NONE, device_text, difference_text, interval_text, versions_text
from hpgmn_lab.rendering import frame, render
from hpgmn_lab.reproduction import figure
from hpgmn_lab.reproduction.cells import SHIPPED, TUNED, Records
from hpgmn_lab.reproduction.facts import KEYS, Facts, fact_text, recorded_facts
from hpgmn_lab.reproduction.plan import EXPERIMENTS, Experiment, experiment
from hpgmn_lab.reproduction.tables import (
    ENSEMBLE,
    Table,
    paired_means,
    reversed_pairs,
    runs_per_trial,
    standing,
    table,
)

PAGE = "index.html"

Line = Any
"""A line of :attr:`Table.numbers`, as ``itertuples`` gives it."""


@dataclass(frozen=True)
class Grid:
    """A table of texts with a caption; details are folded where the format allows."""

    name: str
    caption: str
    frame: pd.DataFrame
    is_detail: bool = False
    heading: str = ""


@dataclass(frozen=True)
class Document:
    """An experiment to be rendered.

    Attributes:
        table: its numbers; None for Table 1 and for an experiment without graphs.
        numbers: one row per cell with all numbers, for the CSV.
        picture: the text alternative of its figure.
        count: number of cells, or graphs of Table 1, with a record, of ``total``.
        missing: those without a record.
        outdated: those whose record is of another plan.
    """

    name: str
    title: str
    intro: str
    command: str
    grids: tuple[Grid, ...] = ()
    table: Table | None = None
    numbers: pd.DataFrame | None = None
    picture: str = ""
    count: int = 0
    total: int = 0
    missing: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()


@cache
def _texts() -> dict[str, Any]:
    return read_yaml(Path(__file__).with_name("texts.yaml"))


def _caption(name: str, **values: str) -> str:
    return str(_texts()["captions"][name]).format(**values)


def _intro(name: str, is_quick: bool) -> str:
    texts = _texts()
    short = texts["short"].format(
        webkb_margin=paper.WEBKB_MARGIN,
        webkb=", ".join(paper.WEBKB),
        margin=paper.MARGIN,
        confidence=100 * paper.CONFIDENCE,
    )
    intro = texts["experiments"][name]["intro"]
    text = intro.format(search=texts["search"], bold=texts["bold"], short=short)
    return f"{texts['quick']} {text}" if is_quick else text


def document(plan: Experiment, records: Records, *, is_quick: bool = False) -> Document:
    """Return the document of an experiment."""
    title = _texts()["experiments"][plan.name]["title"]
    command = f"hpgmn reproduce {plan.name}{' --quick' if is_quick else ''}"
    if not plan.graphs:
        return Document(plan.name, title, "No graph of this experiment is included.", command)
    empty = Document(plan.name, title, _intro(plan.name, is_quick), command)
    if plan.name == "table1":
        return _with_facts(empty, plan.graphs, records)
    shown = table(plan, records)
    grids = [
        *_LAYOUTS.get(plan.name, _options)(shown),
        _grid(shown, "validation", is_detail=True),
        _grid(shown, "cost", is_detail=True),
        *([_made_grid(shown)] if shown.done else []),
    ]
    return replace(
        empty,
        grids=tuple(grids),
        table=shown,
        numbers=_csv_numbers(shown),
        picture=figure.text_alternative(shown) if plan.name == "figure3" else "",
        count=len(shown.done),
        total=len(plan.cells),
        missing=shown.missing,
        outdated=shown.outdated,
    )


def _csv_numbers(shown: Table) -> pd.DataFrame:
    """Return the lines and columns that have numbers, with types that CSV shows plainly."""
    numbers = shown.numbers[~shown.numbers["is_as_shipped"].astype(bool)]
    numbers = numbers.drop(columns="is_as_shipped").dropna(axis=1, how="all").infer_objects()
    for column in numbers.columns.intersection(["runs", "splits", "seeds", "trials"]):
        numbers[column] = numbers[column].astype("Int64")
    for column in numbers.columns.intersection(["is_reached", "is_best"]):
        numbers[column] = numbers[column].map({True: "true", False: "false"})
    return numbers


# Table 1.


def _with_facts(empty: Document, graphs: Sequence[str], records: Records) -> Document:
    facts = {graph: recorded_facts(records, graph) for graph in graphs}
    known = {graph: measured for graph, measured in facts.items() if measured is not None}
    rows = [
        [graph, *(_fact_cell(measured, key) for key in KEYS)] for graph, measured in facts.items()
    ]
    differing = [
        (graph, key, measured.explanations.get(key, "not explained"))
        for graph, measured in known.items()
        for key in KEYS
        if measured.differs(key)
    ]
    header = ("graph", *KEYS)
    grids = [Grid("table1", _caption("facts"), frame(header, rows))]
    if differing:
        explained = frame(("graph", "number", "explanation"), differing)
        grids.append(Grid("table1-explanations", _caption("explanations"), explained))
    numbers = [
        [graph, *(getattr(measured, key) for key in KEYS), *(measured.printed[key] for key in KEYS)]
        for graph, measured in known.items()
    ]
    return replace(
        empty,
        grids=tuple(grids),
        numbers=frame((*header, *(f"printed_{key}" for key in KEYS)), numbers),
        count=len(known),
        total=len(graphs),
        missing=tuple(graph for graph in graphs if graph not in known),
    )


def _fact_cell(facts: Facts | None, key: str) -> str:
    if facts is None:
        return NONE
    mark = " ≠" if facts.differs(key) else ""
    return f"{fact_text(getattr(facts, key))} / {fact_text(facts.printed[key])}{mark}"


# Layouts.


def _comparison(shown: Table) -> list[Grid]:
    scores = _score_grid(shown)
    extra = frame(list(scores.frame.columns), _elsewhere_rows(shown))
    whole = pd.concat([scores.frame, extra], ignore_index=True)
    return [
        Grid(scores.name, scores.caption, whole),
        *_standing_grids(shown),
        _reached_grid(shown),
        _difference_grid(shown),
    ]


def _sound(shown: Table) -> list[Grid]:
    graphs = shown.plan.graphs
    pairs = [
        (paper.DEFECTIVE[graph], graph) for graph in graphs if paper.DEFECTIVE.get(graph) in graphs
    ]
    defective = [pair[0] for pair in pairs]
    return [
        _score_grid(shown, [graph for graph in graphs if graph not in defective]),
        *_standing_grids(shown),
        _difference_grid(shown),
        *([_orders_grid(shown, pairs)] if pairs else []),
        *(_ranks_grid(shown, pair) for pair in pairs),
    ]


def _variants(shown: Table) -> list[Grid]:
    """Return scores, intervals and differences: three columns for each graph."""
    graphs = shown.plan.graphs
    parts = [_wide(shown, cell) for cell in (_score_cell, _interval_cell, _difference_cell)]
    columns = [part[graph] for graph in graphs for part in parts]
    header = ["variant"]
    for name in _graph_headers(graphs):
        header += [name, "95 % interval", "minus full"]
    caption = _caption("variants", metrics=_metrics(graphs))
    rows = list(zip(parts[0].index, *columns, strict=True))
    return [Grid(shown.plan.name, caption, frame(header, rows))]


def _table4(shown: Table) -> list[Grid]:
    rows = [
        [row.label, *(", ".join(cell.settings["statistics"]) for cell in row.cells.values())]
        for row in shown.plan.rows
    ]
    statistics = frame(["row", *_graph_headers(shown.plan.graphs)], rows)
    grid = Grid("table4-statistics", _caption("statistics"), statistics, is_detail=True)
    return [*_variants(shown), grid]


def _options(shown: Table) -> list[Grid]:
    return [_score_grid(shown), _difference_grid(shown)]


_LAYOUTS: dict[str, Callable[[Table], list[Grid]]] = {
    "table2": _comparison,
    "table3": _comparison,
    "figure3": _variants,
    "table4": _table4,
    "sound": _sound,
}


# Grids of rows × graphs.


def _metric_name(graph: str) -> str:
    return "ROC-AUC" if DATASETS[graph].metric == "roc_auc" else "accuracy"


def _metrics(graphs: Sequence[str]) -> str:
    return " or ".join(sorted({_metric_name(graph) for graph in graphs}, reverse=True))


def _graph_headers(graphs: Sequence[str]) -> list[str]:
    names = {graph: _metric_name(graph) for graph in graphs}
    return [graph if name == "accuracy" else f"{graph} ({name})" for graph, name in names.items()]


def _label(line: Line) -> str:
    is_larger = line.kind == SHIPPED and line.experiment in ("table2", "table3")
    return figure.row_label(line.row) + (" (larger search)" if is_larger else "")


def _wide(shown: Table, cell: Callable[[Line], str]) -> pd.DataFrame:
    """Return the text of every line, rows × graphs."""
    lines = list(shown.numbers.itertuples())
    texts = pd.DataFrame(
        {
            "row": [_label(line) for line in lines],
            "graph": [line.graph for line in lines],
            "text": ["as shipped" if line.is_as_shipped else cell(line) for line in lines],
        }
    )
    wide = texts.pivot(index="row", columns="graph", values="text")
    return wide.loc[texts["row"].unique(), list(shown.plan.graphs)]


def _grid(
    shown: Table,
    kind: str,
    *,
    graphs: Sequence[str] | None = None,
    is_detail: bool = False,
    **caption: str,
) -> Grid:
    """Return a grid of rows × graphs; ``kind`` names its cells and its caption."""
    columns = list(shown.plan.graphs if graphs is None else graphs)
    wide = _wide(shown, _CELLS[kind])[columns]
    if kind == "validation":
        wide = wide[[not row.is_ensemble for row in shown.plan.rows]]
    texts = wide.reset_index().set_axis(["row", *_graph_headers(columns)], axis=1)
    name = shown.plan.name if kind == "scores" else f"{shown.plan.name}-{kind}"
    return Grid(name, _caption(kind, **caption), texts, is_detail)


def _score_grid(shown: Table, graphs: Sequence[str] | None = None) -> Grid:
    return _grid(shown, "scores", graphs=graphs, metrics=_metrics(graphs or shown.plan.graphs))


def _difference_grid(shown: Table) -> Grid:
    references = list(shown.numbers["reference"].dropna().unique())
    names = " or ".join(references) or "HP-GMN"
    if len(references) > 1:
        names += " (the better one by validation)"
    return _grid(shown, "differences", references=names)


def _score_cell(line: Line) -> str:
    """Return our score, the paper's, and a mark if it is not reached."""
    text = NONE if pd.isna(line.test_mean) else f"{line.test_mean:.1f} ± {line.test_std:.1f}"
    text = f"**{text}**" if line.is_best is True else text
    if pd.notna(line.printed_mean):
        text += f" / {line.printed_mean:.1f} ± {line.printed_std:.1f}"
    return f"{text} ↓" if line.is_reached is False else text


def _interval_cell(line: Line) -> str:
    return NONE if pd.isna(line.test_low) else f"{line.test_low:.1f} to {line.test_high:.1f}"


def _difference_cell(line: Line) -> str:
    if line.reference == line.row:
        return "reference"
    if pd.isna(line.difference):
        return NONE
    text = interval_text([line.difference, line.difference_low, line.difference_high])
    return f"**{text}**" if line.difference_low > 0 or line.difference_high < 0 else text


def _validation_cell(line: Line) -> str:
    if pd.isna(line.validation_mean):
        return NONE
    return f"{line.validation_mean:.1f} ({line.validation_minus_test:+.1f})"


def _cost_cell(line: Line) -> str:
    if pd.isna(line.test_mean):
        return NONE
    noun = "average" if line.kind == ENSEMBLE else "run"
    parts = [f"{line.runs} {noun}{'' if line.runs == 1 else 's'}", f"{line.seconds:.0f} s"]
    if pd.notna(line.peak_memory_mb):
        where = "" if line.device == "cpu" else " of the GPU"
        parts.append(f"{line.peak_memory_mb:.0f} MB{where}")
    if line.kind == TUNED:
        parts.append(f"{line.trials} trials")
    return ", ".join(parts)


_CELLS: dict[str, Callable[[Line], str]] = {
    "scores": _score_cell,
    "differences": _difference_cell,
    "validation": _validation_cell,
    "cost": _cost_cell,
}


# Other grids.


def _elsewhere_rows(shown: Table) -> list[list[str]]:
    """Return the best published elsewhere, and HP-GMN minus that."""
    best = {graph: paper.ELSEWHERE.get(graph) for graph in shown.plan.graphs}
    texts = [
        f"{elsewhere.mean:.1f}, {elsewhere.source}" if elsewhere else NONE
        for elsewhere in best.values()
    ]
    rows = [["best published elsewhere", *texts]]
    ours = shown.numbers[shown.numbers["model"].map(is_ours)]
    for kind, label in (
        (TUNED, "HP-GMN minus that"),
        (SHIPPED, "HP-GMN, shipped, minus that"),
        (ENSEMBLE, "HP-GMN, seeds averaged, minus that"),
    ):
        names = ours.loc[ours["kind"] == kind, "row"].unique()
        row = [label]
        for graph, elsewhere in best.items():
            records = [record for name in names if (record := shown.records.get((name, graph)))]
            record = max(records, key=lambda record: record.validation, default=None)
            row.append(
                f"{record.score.mean - elsewhere.mean:+.1f}" if record and elsewhere else NONE
            )
        rows.append(row)
    return rows


def _standing_grids(shown: Table) -> list[Grid]:
    rows = [
        [
            graph,
            order.ours or NONE,
            order.rank(order.ours),
            order.rival or NONE,
            difference_text(order.distance),
        ]
        for graph in shown.plan.graphs
        if (order := standing(shown, graph))
    ]
    if not rows:
        return []
    header = ("graph", "HP-GMN", "rank", "best other model", "difference")
    return [Grid(f"{shown.plan.name}-standing", _caption("standing"), frame(header, rows))]


def _reached_grid(shown: Table) -> Grid:
    compared = shown.numbers[shown.numbers["is_reached"].notna()]
    labels = {row.label: [row.label] for row in shown.plan.rows if is_ours(row.model)}
    labels["other models"] = [row.label for row in shown.plan.rows if row.label not in labels]
    rows = []
    for label, names in labels.items():
        lines = list(compared[compared["row"].isin(names)].itertuples())
        short = [
            f"{f'{line.model} on ' if len(names) > 1 else ''}{line.graph} {line.short_by:.2f}"
            for line in lines
            if not line.is_reached
        ]
        reached = f"{len(lines) - len(short)} of {len(lines)}"
        rows.append([label, reached, ", ".join(short) or NONE])
    header = ("row", "reached", "short by")
    return Grid(f"{shown.plan.name}-reached", _caption("reached"), frame(header, rows))


def _ranks_grid(shown: Table, pair: tuple[str, str]) -> Grid:
    defective, sound = pair
    means = paired_means(shown, pair)
    ranks = means.rank(ascending=False)
    rows = [
        [
            model,
            f"{means[defective][model]:.1f}",
            f"{ranks[defective][model]:g}",
            f"{means[sound][model]:.1f}",
            f"{ranks[sound][model]:g}",
            f"{round(means[defective][model] - means[sound][model], 1) + 0.0:.1f}",  # no -0.0
        ]
        for model in ranks.sort_values([sound, defective]).index
    ]
    header = ("model", defective, "rank", sound, "rank", "falls by, points")
    caption = _caption("ranks", defective=defective, sound=sound)
    return Grid(f"{shown.plan.name}-{sound}", caption, frame(header, rows))


def _orders_grid(shown: Table, pairs: Sequence[tuple[str, str]]) -> Grid:
    rows = []
    for pair in pairs:
        means = paired_means(shown, pair)
        before, after = (standing(shown, graph) for graph in pair)
        tau = means[pair[0]].corr(means[pair[1]], method="kendall")
        rows.append(
            [
                *pair,
                f"{reversed_pairs(means)} of {len(means) * (len(means) - 1) // 2}",
                f"{tau:.2f}" if tau == tau else NONE,  # not a number: one model, or all equal
                f"{before.first}, {difference_text(before.lead)}" if before else NONE,
                f"{after.first}, {difference_text(after.lead)}" if after else NONE,
                after.rank(before.first) if before and after else NONE,
            ]
        )
    header = (
        *("with defects", "without", "changed pairs", "τ", "first with defects, lead"),
        *("first without, lead", "rank without of the first with"),
    )
    heading = "Effect of the defects on the ranking"
    name, caption = f"{shown.plan.name}-orders", _caption("orders")
    return Grid(name, caption, frame(header, rows), heading=heading)


def _made_grid(shown: Table) -> Grid:
    """Return searches, runs, time, versions, devices and dates behind a table."""
    metrics = [record.metrics for record in shown.done.values()]
    searches = [record.search for record in shown.done.values() if record.search]
    trials = [count for search in searches for count in runs_per_trial(search)]
    planned = sum(len(search["trials"]) for search in searches)
    dates = sorted({str(run["created"])[:10] for run in metrics})
    rows = {
        "searches": str(len(searches)),
        "trials": f"{len(trials)}, {planned - len(trials)} failed",
        "runs per trial": ", ".join(str(count) for count in sorted(set(trials))) or NONE,
        "search time": format_duration(sum(float(search["seconds"]) for search in searches)),
        "final runs": str(len(metrics)),
        "time of final runs": format_duration(sum(float(run["seconds"]) for run in metrics)),
        "versions": "; ".join(sorted({versions_text(run) for run in metrics})),
        "devices": "; ".join(sorted({device_text(run["hardware"]) for run in metrics})),
        "dates": " to ".join(dict.fromkeys((dates[0], dates[-1]))),
    }
    if not searches:
        rows = {name: text for name, text in rows.items() if name not in list(rows)[:4]}
    grid = frame(list(rows), [list(rows.values())])
    return Grid(f"{shown.plan.name}-made", _caption("made"), grid, is_detail=True)


# Files.


def markdown(shown: Document, *, level: int = 1, pictures: str = "") -> str:
    """Return a document as Markdown; ``pictures`` is a path such as "pictures/"."""
    return render("document.md.j2", document=shown, level=level, pictures=pictures)


def csv(shown: Document) -> str:
    """Return the numbers of a document as CSV."""
    if shown.numbers is None:
        return ""
    return str(shown.numbers.to_csv(index=False, float_format="%.4f"))


def latex(shown: Document) -> str:
    """Return a document as LaTeX to be included."""
    return render("document.tex.j2", document=shown)


def page(documents: Sequence[Document]) -> str:
    """Return all documents as one self-contained HTML page."""
    figures = {
        shown.name: figure.inline_svg(shown.table)
        for shown in documents
        if shown.picture and shown.table
    }
    return render("reproduction.html.j2", documents=documents, figures=figures)


def write_documents(
    folder: Path, documents: Sequence[Document], others: Sequence[Document] = ()
) -> list[Path]:
    """Write documents as Markdown, CSV and LaTeX, the figure, and the page of all.

    ``others`` are on the page only, where they have records. Return the files, the page last; the
    same records give the same bytes.
    """
    files: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in documents:
            for ending, text in (("md", markdown(each)), ("csv", csv(each)), ("tex", latex(each))):
                files.append(folder / f"{each.name}.{ending}")
                write_text(files[-1], text)
            if each.picture and each.table:
                files += figure.write_figure(each.table, folder / each.name)
        shown = {each.name: each for each in others if each.count} | {
            each.name: each for each in documents
        }
        files.append(folder / PAGE)
        write_text(files[-1], page([shown[name] for name in EXPERIMENTS if name in shown]))
    except OSError as error:
        raise write_error(folder, error) from None
    return files


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the documents of all experiments from records."""
    parser = argparse.ArgumentParser(prog="python -m hpgmn_lab.reproduction.documents")
    parser.add_argument("source", type=Path, help="a folder of cells or a .jsonl file")
    parser.add_argument("folder", type=Path, help="where the files go")
    options = parser.parse_args(arguments)
    records = Records.read(options.source)
    if not records.contents:
        parser.exit(2, f"Error: {options.source} has no records; run hpgmn reproduce first.\n")
    write_documents(options.folder, [document(experiment(name), records) for name in EXPERIMENTS])


if __name__ == "__main__":
    main()
