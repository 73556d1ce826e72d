"""The experiments as documents: Markdown, CSV, LaTeX and one HTML page.

``python -m hpgmn_lab.reproduction.documents SOURCE FOLDER`` writes all of them from the records of
a folder of cells or a ``.jsonl`` file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpgmn.base.files import write_error, write_text
from hpgmn.base.settings import read_yaml
from hpgmn.graph.datasets import DATASETS
from hpgmn.runs.compare import is_ours
from hpgmn_lab import paper
from hpgmn_lab.records import (
    NONE,
    device_text,
    difference_text,
    published_text,
    score_text,
    versions_text,
)
from hpgmn_lab.rendering import frame, render
from hpgmn_lab.reproduction import figure, ranking
from hpgmn_lab.reproduction.cells import SHIPPED, TUNED, Records
from hpgmn_lab.reproduction.facts import KEYS, Facts, fact_text, recorded_facts
from hpgmn_lab.reproduction.plan import EXPERIMENTS, Experiment, experiment
from hpgmn_lab.reproduction.tables import ENSEMBLE, Entry, Line, Table, table

if TYPE_CHECKING:
    import pandas as pd

PAGE = "index.html"
_AS_SHIPPED = "as shipped"
_METRIC_NAMES = {"roc_auc": "ROC-AUC"}


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
    intro = _intro(plan.name, is_quick)
    if plan.name == "table1":
        return _facts_document(plan, records, title, intro, command)
    numbers = table(plan, records)
    grids = _LAYOUTS.get(plan.name, _options)(numbers)
    made = [_made_grid(numbers)] if numbers.done else []
    return Document(
        plan.name,
        title,
        intro,
        command,
        (
            *grids,
            _grid(numbers, "validation", is_detail=True),
            _grid(numbers, "cost", is_detail=True),
            *made,
        ),
        table=numbers,
        numbers=number_frame(numbers),
        picture=figure.text_alternative(numbers) if plan.name == "figure3" else "",
        count=len(numbers.done),
        total=len(plan.cells),
        missing=tuple(name for name in numbers.missing if name not in numbers.outdated),
        outdated=numbers.outdated,
    )


# Table 1.


def _facts_document(
    plan: Experiment, records: Records, title: str, intro: str, command: str
) -> Document:
    facts = {graph: recorded_facts(records, graph) for graph in plan.graphs}
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
    return Document(
        plan.name,
        title,
        intro,
        command,
        tuple(grids),
        numbers=frame((*header, *(f"printed_{key}" for key in KEYS)), numbers),
        count=len(known),
        total=len(plan.graphs),
        missing=tuple(graph for graph in plan.graphs if graph not in known),
    )


def _fact_cell(facts: Facts | None, key: str) -> str:
    if facts is None:
        return NONE
    mark = " ≠" if facts.differs(key) else ""
    return f"{fact_text(getattr(facts, key))} / {fact_text(facts.printed[key])}{mark}"


# Layouts.


def _comparison(numbers: Table) -> list[Grid]:
    import pandas as pd

    scores = _score_grid(numbers)
    extra = frame(list(scores.frame.columns), _elsewhere_rows(numbers))
    whole = pd.concat([scores.frame, extra], ignore_index=True)
    return [
        Grid(scores.name, scores.caption, whole),
        *_standing_grids(numbers, numbers.graphs),
        _reached_grid(numbers),
        _difference_grid(numbers),
    ]


def _sound(numbers: Table) -> list[Grid]:
    defective = [paper.DEFECTIVE[graph] for graph in numbers.graphs if graph in paper.DEFECTIVE]
    graphs = [graph for graph in numbers.graphs if graph not in defective]
    pairs = [
        (paper.DEFECTIVE[graph], graph)
        for graph in graphs
        if paper.DEFECTIVE.get(graph) in numbers.graphs
    ]
    grids = [
        _score_grid(numbers, graphs),
        *_standing_grids(numbers, numbers.graphs),
        _difference_grid(numbers),
    ]
    if pairs:
        grids.append(_orders_grid(numbers, pairs))
    return [*grids, *(_ranks_grid(numbers, pair) for pair in pairs)]


def _variants(numbers: Table) -> list[Grid]:
    header = ["variant"]
    for name in _graph_headers(numbers.graphs):
        header += [name, "95 % interval", "minus full"]
    rows = []
    for line in numbers.lines:
        row = [_label(line, numbers)]
        for graph in numbers.graphs:
            interval = line.entries[graph].interval
            row.append(_score_cell(numbers, line, graph))
            row.append("{:.1f} to {:.1f}".format(*interval) if interval else NONE)
            row.append(_difference_cell(numbers, line, graph))
        rows.append(row)
    caption = _caption("variants", metrics=_metrics(numbers.graphs))
    return [Grid(numbers.name, caption, frame(header, rows))]


def _table4(numbers: Table) -> list[Grid]:
    return [*_variants(numbers), _grid(numbers, "statistics", is_detail=True)]


def _options(numbers: Table) -> list[Grid]:
    return [_score_grid(numbers), _difference_grid(numbers)]


_LAYOUTS: dict[str, Callable[[Table], list[Grid]]] = {
    "table2": _comparison,
    "table3": _comparison,
    "figure3": _variants,
    "table4": _table4,
    "sound": _sound,
}


# Grids.


def _metric_name(graph: str) -> str:
    metric = DATASETS[graph].metric if graph in DATASETS else "accuracy"
    return _METRIC_NAMES.get(metric, metric)


def _metrics(graphs: Sequence[str]) -> str:
    return " or ".join(sorted({_metric_name(graph) for graph in graphs}, reverse=True))


def _graph_headers(graphs: Sequence[str]) -> list[str]:
    names = {graph: _metric_name(graph) for graph in graphs}
    return [graph if name == "accuracy" else f"{graph} ({name})" for graph, name in names.items()]


def _label(line: Line, numbers: Table) -> str:
    is_larger = line.kind == SHIPPED and numbers.name in ("table2", "table3")
    return figure.row_label(line.label) + (" (larger search)" if is_larger else "")


def _grid(
    numbers: Table,
    kind: str,
    *,
    graphs: Sequence[str] | None = None,
    is_detail: bool = False,
    **caption: str,
) -> Grid:
    """Return a grid of lines × graphs; ``kind`` names its cells and its caption."""
    columns = numbers.graphs if graphs is None else graphs
    cell = _CELLS[kind]
    rows = [
        [_label(line, numbers), *(cell(numbers, line, graph) for graph in columns)]
        for line in numbers.lines
        if kind != "validation" or line.kind != ENSEMBLE
    ]
    name = numbers.name if kind == "scores" else f"{numbers.name}-{kind}"
    table_frame = frame(["row", *_graph_headers(columns)], rows)
    return Grid(name, _caption(kind, **caption), table_frame, is_detail)


def _score_grid(numbers: Table, graphs: Sequence[str] | None = None) -> Grid:
    return _grid(numbers, "scores", graphs=graphs, metrics=_metrics(graphs or numbers.graphs))


def _difference_grid(numbers: Table) -> Grid:
    references = list(dict.fromkeys(numbers.references.values()))
    names = " or ".join(references) or "HP-GMN"
    if len(references) > 1:
        names += " (the better one by validation)"
    return _grid(numbers, "differences", references=names)


def _score_cell(numbers: Table, line: Line, graph: str) -> str:
    """Return our score, the paper's, and a mark if it is not reached."""
    entry = line.entries[graph]
    if entry.is_as_shipped:
        return _AS_SHIPPED
    text = score_text(entry.record) if entry.record else NONE
    text = f"**{text}**" if entry.is_best else text
    if entry.published:
        text += f" / {published_text(entry.published)}"
    return f"{text} ↓" if entry.verdict and not entry.verdict.is_reached else text


def _difference_cell(numbers: Table, line: Line, graph: str) -> str:
    entry = line.entries[graph]
    if numbers.references.get(graph) == line.label:
        return "reference"
    if entry.is_as_shipped:
        return _AS_SHIPPED
    text = difference_text(entry.difference)
    return f"**{text}**" if ranking.excludes_zero(entry.difference) else text


def _validation_cell(numbers: Table, line: Line, graph: str) -> str:
    entry = line.entries[graph]
    if entry.is_as_shipped:
        return _AS_SHIPPED
    return NONE if entry.record is None else f"{entry.validation:.1f} ({entry.gap:+.1f})"


def _cost_cell(numbers: Table, line: Line, graph: str) -> str:
    entry = line.entries[graph]
    if entry.record is None:
        return _AS_SHIPPED if entry.is_as_shipped else NONE
    metrics, count = entry.record.metrics, len(entry.record.score.values)
    noun = "average" if entry.is_ensemble else "run"
    parts = [f"{count} {noun}{'' if count == 1 else 's'}", f"{entry.seconds:.0f} s"]
    if metrics.get("peak_memory_mb") is not None:
        where = "" if metrics["hardware"]["device"] == "cpu" else " of the GPU"
        parts.append(f"{metrics['peak_memory_mb']:.0f} MB{where}")
    if entry.search:
        parts.append(f"{len(entry.runs_per_trial)} trials")
    return ", ".join(parts)


def _statistics_cell(numbers: Table, line: Line, graph: str) -> str:
    return ", ".join(line.entries[graph].cell.settings["statistics"])


_CELLS: dict[str, Callable[[Table, Line, str], str]] = {
    "scores": _score_cell,
    "differences": _difference_cell,
    "validation": _validation_cell,
    "cost": _cost_cell,
    "statistics": _statistics_cell,
}


def _elsewhere_rows(numbers: Table) -> list[list[str]]:
    """Return the best published elsewhere, and HP-GMN minus that."""
    best = {graph: paper.ELSEWHERE.get(graph) for graph in numbers.graphs}
    texts = [
        f"{elsewhere.mean:.1f}, {elsewhere.source}" if elsewhere else NONE
        for elsewhere in best.values()
    ]
    rows = [["best published elsewhere", *texts]]
    for kind, label in (
        (TUNED, "HP-GMN minus that"),
        (SHIPPED, "HP-GMN, shipped, minus that"),
        (ENSEMBLE, "HP-GMN, seeds averaged, minus that"),
    ):
        ours = [line for line in numbers.lines if line.kind == kind and is_ours(line.model)]
        row = [label]
        for graph, elsewhere in best.items():
            records = [record for line in ours if (record := line.entries[graph].record)]
            record = max(records, key=lambda record: record.validation, default=None)
            row.append(
                f"{record.score.mean - elsewhere.mean:+.1f}" if record and elsewhere else NONE
            )
        rows.append(row)
    return rows


def _standing_grids(numbers: Table, graphs: Sequence[str]) -> list[Grid]:
    standings = [standing for graph in graphs if (standing := ranking.standing(numbers, graph))]
    if not standings:
        return []
    rows = [
        [
            standing.graph,
            standing.ours or NONE,
            standing.rank(standing.ours),
            standing.rival or NONE,
            difference_text(standing.distance),
        ]
        for standing in standings
    ]
    header = ("graph", "HP-GMN", "rank", "best other model", "difference")
    return [Grid(f"{numbers.name}-standing", _caption("standing"), frame(header, rows))]


def _reached_grid(numbers: Table) -> Grid:
    ours = [line for line in numbers.lines if is_ours(line.model)]
    others = [line for line in numbers.lines if not is_ours(line.model)]
    rows = []
    for label, lines in [*((line.label, [line]) for line in ours), ("other models", others)]:
        verdicts = {
            f"{line.model} on {graph}" if len(lines) > 1 else graph: entry.verdict
            for line in lines
            for graph, entry in line.entries.items()
            if entry.verdict
        }
        short = [
            f"{name} {verdict.short_by:.2f}"
            for name, verdict in verdicts.items()
            if not verdict.is_reached
        ]
        reached = f"{len(verdicts) - len(short)} of {len(verdicts)}"
        rows.append([label, reached, ", ".join(short) or NONE])
    header = ("row", "reached", "short by")
    return Grid(f"{numbers.name}-reached", _caption("reached"), frame(header, rows))


def _ranks_grid(numbers: Table, pair: tuple[str, str]) -> Grid:
    defective, sound = pair
    means = ranking.paired_means(numbers, pair)
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
    return Grid(f"{numbers.name}-{sound}", caption, frame(header, rows))


def _orders_grid(numbers: Table, pairs: Sequence[tuple[str, str]]) -> Grid:
    rows = []
    for pair in pairs:
        means = ranking.paired_means(numbers, pair)
        before, after = (ranking.standing(numbers, graph) for graph in pair)
        tau = means[pair[0]].corr(means[pair[1]], method="kendall")
        rows.append(
            [
                *pair,
                f"{ranking.reversed_pairs(means)} of {len(means) * (len(means) - 1) // 2}",
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
    name, caption = f"{numbers.name}-orders", _caption("orders")
    return Grid(name, caption, frame(header, rows), heading=heading)


def _made_grid(numbers: Table) -> Grid:
    """Return searches, runs, time, versions, devices and dates behind a table."""
    done = numbers.done
    metrics = [entry.record.metrics for entry in done if entry.record]
    searched = [entry for entry in done if entry.search]
    trials = [count for entry in searched for count in entry.runs_per_trial]
    planned = sum(len(entry.search["trials"]) for entry in searched if entry.search)
    dates = sorted({str(run["created"])[:10] for run in metrics})
    rows = {
        "searches": str(len(searched)),
        "trials": f"{len(trials)}, {planned - len(trials)} failed",
        "runs per trial": ", ".join(str(count) for count in sorted(set(trials))) or NONE,
        "search time": duration_text(sum(entry.seconds_search for entry in done)),
        "final runs": str(len(done)),
        "time of final runs": duration_text(sum(float(run["seconds"]) for run in metrics)),
        "versions": "; ".join(sorted({versions_text(run) for run in metrics})),
        "devices": "; ".join(sorted({device_text(run["hardware"]) for run in metrics})),
        "dates": " to ".join(dict.fromkeys((dates[0], dates[-1]))),
    }
    if not searched:
        rows = {name: text for name, text in rows.items() if name not in list(rows)[:4]}
    grid = frame(list(rows), [list(rows.values())])
    return Grid(f"{numbers.name}-made", _caption("made"), grid, is_detail=True)


def duration_text(seconds: float) -> str:
    """Format seconds.

    >>> duration_text(59.4), duration_text(61), duration_text(3723)
    ('59 s', '1 min 01 s', '1 h 02 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


# All numbers.


def number_frame(numbers: Table) -> pd.DataFrame:
    """Return one row per cell with all numbers: scores in percent, differences in points."""
    import pandas as pd

    return pd.DataFrame(
        [
            _cell_numbers(numbers, line, graph, entry)
            for line in numbers.lines
            for graph, entry in line.entries.items()
            if not entry.is_as_shipped
        ]
    )


def _cell_numbers(numbers: Table, line: Line, graph: str, entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {
        "experiment": numbers.name,
        "row": line.label,
        "kind": line.kind,
        "graph": graph,
        "model": entry.cell.model,
        "variant": entry.cell.variant,
        "metric": entry.cell.metric,
        "reference": numbers.references.get(graph),
    }
    if entry.published:
        row |= {"printed_mean": entry.published.mean, "printed_std": entry.published.std}
    if elsewhere := paper.ELSEWHERE.get(graph):
        row |= {"elsewhere_mean": elsewhere.mean, "elsewhere_source": elsewhere.source}
    if entry.verdict:
        is_reached = str(entry.verdict.is_reached).lower()
        row |= {"is_reached": is_reached, "short_by": entry.verdict.short_by}
    if paired := entry.difference:
        ends = {"": paired.mean, "_low": paired.low, "_high": paired.high}
        row |= {f"difference{name}": _points(value) for name, value in ends.items()}
    if record := entry.record:
        metrics, (low, high) = record.metrics, entry.interval or (None, None)
        row |= {
            "runs": str(len(record.score.values)),
            "splits": str(len(metrics["splits"])),
            "seeds": str(metrics["seeds"]),
            "test_mean": record.score.mean,
            "test_std": record.score.std,
            "test_low": low,
            "test_high": high,
            "is_best": str(entry.is_best).lower(),
            "validation_mean": entry.validation,
            "validation_minus_test": entry.gap,
            "seconds": entry.seconds,
            "seconds_search": entry.seconds_search,
            "peak_memory_mb": metrics.get("peak_memory_mb"),
            "trials": str(len(entry.runs_per_trial)),
            "version": metrics["version"],
            "device": metrics["hardware"]["device"],
            "created": metrics["created"],
        }
    return row


def _points(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


# Files.


def markdown(shown: Document, *, level: int = 1, pictures: str = "") -> str:
    """Return a document as Markdown.

    Args:
        shown: the document.
        level: of its heading.
        pictures: path of the folder of pictures, such as "pictures/".
    """
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

    Args:
        folder: where the files go.
        documents: the requested experiments.
        others: other experiments, on the page only and where they have records.

    Returns:
        The files, the page last; the same records give the same bytes.
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
