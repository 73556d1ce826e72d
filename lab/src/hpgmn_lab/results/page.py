"""Write ``docs/RESULTS.md`` and its picture from the records in ``lab/results`` (``make results``).

Reads ``runs.jsonl`` (``metrics.json`` of ``hpgmn train``), ``search.jsonl`` (trials),
``reproduction.jsonl`` (cells of ``hpgmn reproduce``), ``portfolio.jsonl`` (graphs given by path)
and ``notes.yaml`` (what was tried on rows that fall short). The same records give the same page.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpgmn.base.errors import HPGMNError, format_setting
from hpgmn.base.files import write_text
from hpgmn.base.settings import read_yaml
from hpgmn.graph.datasets import DATASETS
from hpgmn.models import MODELS, settings_for
from hpgmn_lab import paper
from hpgmn_lab.records import (
    NONE,
    Record,
    changed_settings,
    check_run,
    command,
    origin_texts,
    published_text,
    rank_in_search,
    read_runs,
    read_trials,
    row_record,
    runs_text,
    score_text,
    sort_graphs,
    trials_text,
)
from hpgmn_lab.rendering import frame, render
from hpgmn_lab.reproduction.cells import SHIPPED, CellRecord, Records
from hpgmn_lab.reproduction.documents import Document, document, markdown
from hpgmn_lab.reproduction.figure import write_figure
from hpgmn_lab.reproduction.plan import EXPERIMENTS, experiment, shipped
from hpgmn_lab.reproduction.tables import is_as_planned
from hpgmn_lab.results import baselines, portfolio

if TYPE_CHECKING:
    import pandas as pd

PAGE, PICTURES = "RESULTS.md", "pictures"
ROUNDS = ("first", "second", "third", "finalists")

_CITATION_MODELS = ("hpgmn-gcn", "hpgmn-appnp")
Rows = dict[tuple[str, str], Record | None]
"""(graph, model) → record, None where the run is missing."""


def documents_of(cells: Records) -> list[Document]:
    """Return the document of every experiment."""
    return [document(experiment(name), cells) for name in EXPERIMENTS]


def shipped_records(cells: Records) -> list[Record]:
    """Return the cells of the settings shipped now, named GRAPH-MODEL."""
    records = []
    for name in sorted(cells.contents):
        record = cells.cell(name) if name.endswith(f"-{SHIPPED}") else None
        if record is not None and _is_shipped(record):
            short = name.removesuffix(f"-{SHIPPED}")
            records.append(check_run(short, record.metrics, cells.source, cells.remedy(name)))
    return records


def _is_shipped(record: CellRecord) -> bool:
    graph, model = record.cell["graph"], record.cell["model"]
    if graph not in DATASETS or model not in MODELS:
        return False
    return is_as_planned(shipped(model, graph), record)


def table_rows(records: Sequence[Record]) -> tuple[Rows, Rows, list[Record]]:
    """Return the rows of the two tables, and the records that are in neither."""
    heterophily: Rows = {}
    for graph in sort_graphs({*paper.HETEROPHILOUS, *(record.graph for record in records)}):
        record = row_record(records, graph, "hpgmn")
        if graph not in paper.CITATION and (record or graph in paper.HETEROPHILOUS):
            heterophily[graph, "hpgmn"] = record
    citation: Rows = {
        (graph, model): row_record(records, graph, model)
        for model in _CITATION_MODELS
        for graph in paper.CITATION
    }
    used = {record.name for record in (*heterophily.values(), *citation.values()) if record}
    return heterophily, citation, [record for record in records if record.name not in used]


def verdict_of(record: Record) -> paper.Verdict | None:
    """Compare a record with the paper; None where it has no such cell."""
    published = paper.published(record.model, record.graph)
    return record.against(published.mean) if published else None


def short_rows(rows: Rows) -> dict[str, paper.Verdict]:
    """Return the rows that do not reach the paper: GRAPH-MODEL → verdict."""
    verdicts = {
        f"{graph}-{model}": verdict_of(record) for (graph, model), record in rows.items() if record
    }
    return {
        name: verdict for name, verdict in verdicts.items() if verdict and not verdict.is_reached
    }


def read_notes(path: Path, short: Collection[str], known: Collection[str]) -> dict[str, str]:
    """Read the notes by row; every row short of its published number must have one.

    Args:
        path: the file.
        short: names of the rows that need a note.
        known: names of all rows.
    """
    content = read_yaml(path) if path.exists() else {}
    notes = {str(name): " ".join(str(text).split()) for name, text in content.items()}
    if unknown := sorted(set(notes) - set(known)):
        raise HPGMNError(f"{path} has notes on unknown rows: {', '.join(unknown)}.", "Remove them")
    if missing := [name for name in short if not notes.get(name)]:
        raise HPGMNError(
            f"Short of the published number without a note: {', '.join(missing)}.",
            f"Say in {path} what was tried, as 'GRAPH-MODEL: sentence'",
        )
    return notes


# The page.


def page(results: Path) -> str:
    """Return the text of ``docs/RESULTS.md`` for a folder of records."""
    cells = Records.read(results / "reproduction.jsonl")
    records = [*read_runs(results / "runs.jsonl"), *shipped_records(cells)]
    trials = read_trials(results / "search.jsonl")
    heterophily, citation, further = table_rows(records)
    rows = heterophily | citation
    compared = baselines.cells_of(records)
    notes = read_notes(
        results / "notes.yaml",
        [*short_rows(rows), *(cell.name for cell in compared.values() if cell.is_short)],
        [*map("-".join, rows), *(cell.name for cell in compared.values())],
    )
    names = {cell.record.name for cell in compared.values() if cell.record}
    further = [record for record in further if record.name not in names]
    shown = documents_of(cells)
    earlier = portfolio.read_untuned(results / "portfolio.jsonl", cells)
    untuned = earlier.pop("")
    return render(
        "results.md.j2",
        paper=paper,
        documents=[
            markdown(own, level=2, pictures=f"{PICTURES}/").strip() for own in shown if own.count
        ],
        absent=[own.command for own in shown if not own.count],
        untuned=untuned,
        untuned_scores=portfolio.score_frame(untuned),
        untuned_reached=sum(row.is_reached is True for row in untuned),
        untuned_earlier=portfolio.earlier_frame(earlier),
        untuned_commands=portfolio.command_frame(untuned),
        limits=(portfolio.LIMIT, portfolio.WEBKB_LIMIT, portfolio.SIMPLE_LIMIT),
        heterophily=results_frame(heterophily),
        heterophily_commands=command_frame(heterophily.values()),
        citation=results_frame(citation),
        citation_commands=command_frame(citation.values()),
        next_best=[
            f"{graph} {' '.join(map(str, own.next_best))}"
            for graph, own in paper.ELSEWHERE.items()
            if own.next_best
        ],
        comparison=_comparison(compared, _references(rows), trials, notes),
        further=_further_frame(further),
        further_commands=command_frame(further),
        short=_short_frame(rows, notes),
        missing=[f"{graph}-{model}" for (graph, model), own in rows.items() if own is None],
        search=_search_frame(rows, trials),
        settings=_settings_frame(rows),
        defects={graph: _defects(graph) for graph in sort_graphs({graph for graph, _ in rows})},
        cornell=rows.get(("cornell", "hpgmn")),
        cornell_geomgcn=rows.get(("cornell-geomgcn", "hpgmn")),
        score_text=score_text,
    )


def _references(rows: Rows) -> dict[str, Record]:
    """Return graph → the run of HP-GMN that baselines are compared with, best by validation."""
    references: dict[str, Record] = {}
    for (graph, _), record in rows.items():
        best = references.get(graph)
        if record and (best is None or record.validation > best.validation):
            references[graph] = record
    return references


def _comparison(
    cells: baselines.Cells,
    ours: Mapping[str, Record],
    trials: Sequence[Mapping[str, Any]],
    notes: Mapping[str, str],
) -> dict[str, Any]:
    """Return the tables of the comparison; empty where no baseline has a record."""
    if not any(cell.record for cell in cells.values()):
        return {}
    kinds = (paper.HETEROPHILOUS, paper.CITATION)
    return {
        "scores": [baselines.score_frame(cells, ours, graphs) for graphs in kinds],
        "differences": [baselines.difference_frame(cells, ours, graphs) for graphs in kinds],
        "short": baselines.short_frame(cells, notes),
        "targets": sum(cell.target is not None for cell in cells.values()),
        "sources": baselines.source_frame(cells),
        "missing": [cell.name for cell in cells.values() if cell.record is None],
        "costs": [baselines.cost_frame(cells, graphs) for graphs in kinds],
        "trials": baselines.trial_frame(cells, trials),
        "devices": baselines.devices(cells),
        "commands": baselines.command_frame(cells),
    }


def results_frame(rows: Rows) -> pd.DataFrame:
    """Return our scores, the paper's and the best elsewhere."""
    header = ["graph", "model", "ours", "runs = splits × seeds", "the paper", "reached?"]
    header += ["best published elsewhere", "validation", "label estimator", "seconds"]
    return frame(header, [_row(graph, model, record) for (graph, model), record in rows.items()])


def _row(graph: str, model: str, record: Record | None) -> list[str]:
    published, best = paper.published(model, graph), paper.ELSEWHERE.get(graph)
    theirs = published_text(published) if published else NONE
    elsewhere = f"{best.mean:.1f}, {best.source}" if best else NONE
    if record is None:
        return [graph, model, NONE, NONE, theirs, "no record yet", elsewhere, NONE, NONE, NONE]
    metrics, verdict = record.metrics, verdict_of(record)
    if best:
        elsewhere += f" ({verdict_text(record.against(best.mean))})"
    estimator = metrics["label_estimator"]
    return [
        graph if metrics["metric"] == "accuracy" else f"{graph} ({metrics['metric']})",
        model,
        f"**{score_text(record)}**",
        runs_text(record),
        theirs,
        verdict_text(verdict) if verdict else "not in the paper",
        elsewhere,
        f"{record.validation:.1f}",
        f"{100 * estimator['test_accuracy_mean']:.1f}" if estimator else NONE,
        f"{metrics['seconds']:.0f}",
    ]


def verdict_text(verdict: paper.Verdict) -> str:
    """Format a verdict."""
    if not verdict.is_reached:
        return f"short by {verdict.short_by:.2f}"
    return f"reached, {verdict.short_by:.2f} lower" if verdict.short_by else "reached"


def command_frame(records: Iterable[Record | None]) -> pd.DataFrame:
    """Return the command, device and versions of each run."""
    rows = [
        [record.name, f"`{command(record)}`", *origin_texts(record.metrics)]
        for record in records
        if record
    ]
    return frame(("run", "command", "device", "versions", "date"), rows)


def _further_frame(records: Sequence[Record]) -> pd.DataFrame:
    rows = [
        [record.name, score_text(record), runs_text(record), f"{record.validation:.1f}"]
        for record in records
    ]
    return frame(("run", "test", "runs = splits × seeds", "validation"), rows)


def _short_frame(rows: Rows, notes: Mapping[str, str]) -> pd.DataFrame:
    lines = []
    for name, verdict in short_rows(rows).items():
        interval = f"{NONE}, 1 value"
        if verdict.interval:
            low, high = verdict.interval
            interval = f"{low:.2f} to {high:.2f} over {verdict.count} values"
        numbers = (verdict.mean, verdict.published_mean, verdict.short_by)
        lines.append([name, *(f"{number:.2f}" for number in numbers), interval, notes[name]])
    return frame(("row", "ours", "the paper", "short by", "95 % interval", "note"), lines)


def _settings_frame(rows: Rows) -> pd.DataFrame:
    lines = []
    for record in filter(None, rows.values()):
        changes = changed_settings(record, settings_for(None, record.model))
        values = [f"`{name}={format_setting(value)}`" for name, value in changes.items()]
        lines.append([f"{record.graph}-{record.model}", ", ".join(values) or NONE])
    return frame(("row", "settings that differ from the defaults"), lines)


def _search_frame(rows: Rows, trials: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the trials of each round, and the rank of the row's settings among them."""
    rounds = [*ROUNDS, *sorted({str(trial["round"]) for trial in trials} - set(ROUNDS))]
    own: dict[tuple[str, str], list[Mapping[str, Any]]] = {
        key: [] for key, record in rows.items() if record
    }
    for trial in trials:
        if trial["model"] not in baselines.BASELINES:
            own.setdefault((trial["graph"], trial["model"]), []).append(trial)
    lines = []
    for model in MODELS:
        for graph in sort_graphs(graph for graph, other in own if other == model):
            found, record = own[graph, model], rows.get((graph, model))
            counts = [
                trials_text([trial for trial in found if trial["round"] == name]) for name in rounds
            ]
            lines.append([graph, model, *counts, rank_in_search(record, found) if record else NONE])
    return frame(("graph", "model", *rounds, "settings of the row"), lines)


def _defects(graph: str) -> str:
    return DATASETS[graph].defects if graph in DATASETS else ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page and the figure; errors in the records exit with code 2."""
    parser = argparse.ArgumentParser(prog="python -m hpgmn_lab.results.page")
    parser.add_argument("--results", type=Path, default=Path("lab/results"), help="the records")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="where the page goes")
    options = parser.parse_args(arguments)
    try:
        text = page(options.results)
        shown = documents_of(Records.read(options.results / "reproduction.jsonl"))
    except HPGMNError as error:
        parser.exit(2, f"Error: {error}\n")
    (options.docs / PICTURES).mkdir(parents=True, exist_ok=True)
    write_text(options.docs / PAGE, text)
    for item in shown:
        if item.picture and item.table and item.count:
            png, _ = write_figure(item.table, options.docs / PICTURES / item.name)
            png.unlink()  # the page shows the SVG


if __name__ == "__main__":
    main()
