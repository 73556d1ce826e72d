"""The page of a reproduction: every table and the figure, beside what the paper prints.

Like the pages of :mod:`hpgmn.report` it is self-contained and loads nothing from outside.
``python -m hpgmn_lab.reproduction.html FOLDER`` writes everything anew from the records in
``FOLDER/cells``; nothing is trained.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from hpgmn.base.files import write_error, write_text
from hpgmn.report.plots import inline_svg
from hpgmn.report.rendering import Cell, Table, environment, markup, render_page
from hpgmn_lab.reproduction.cells import TUNED
from hpgmn_lab.reproduction.documents import Document, document
from hpgmn_lab.reproduction.figure import drawn
from hpgmn_lab.reproduction.grids import Block, Grid, Heading, Items, Picture, Words
from hpgmn_lab.reproduction.output import write_outputs
from hpgmn_lab.reproduction.plan import EXPERIMENTS, Experiment, experiment

PAGE = "index.html"


def write_reproduction(
    folder: Path,
    experiments: Sequence[Experiment],
    *,
    cells_folder: Path,
    options: str = "",
    others: Sequence[Experiment] = (),
) -> list[Path]:
    """Write everything a reproduction shows: tables, the figure, and the page with all of it.

    Args:
        folder: where the files go.
        experiments: what was asked for.
        cells_folder: the folder of the records.
        options: what the command had beside the experiment's name, as " --quick".
        others: what the page shows too where it has records, from earlier commands.

    Returns:
        The files, the page last.
    """
    files = write_outputs(folder, experiments, cells_folder=cells_folder, options=options)
    names = [experiment.name for experiment in experiments]
    shown = [
        experiment
        for experiment in (*experiments, *(one for one in others if one.name not in names))
        if experiment.name in names or document(experiment, cells_folder).count
    ]
    shown.sort(key=lambda experiment: EXPERIMENTS.index(experiment.name))
    return [*files, write_page(folder, shown, cells_folder=cells_folder, options=options)]


def write_page(
    folder: Path, experiments: Sequence[Experiment], *, cells_folder: Path, options: str = ""
) -> Path:
    """Write ``index.html``; the same records give the same page.

    Args:
        folder: where it goes.
        experiments: what it shows.
        cells_folder: the folder of the records.
        options: what the command had beside the experiment's name, as " --quick".
    """
    content = build_page([document(one, cells_folder, options) for one in experiments])
    path = folder / PAGE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(path, error) from None
    write_text(path, content)
    return path


def build_page(documents: Sequence[Document]) -> str:
    """The page as text."""
    return render_page(
        "base.html.j2",
        title="HP-GMN reproduced",
        about="Our test scores beside those that the paper prints.",
        opening=_opening(documents),
        titles={one.name: one.title for one in documents},
        bodies={
            one.name: Markup("\n").join(_block(block, one) for block in one.blocks)
            for one in documents
        },
    )


def _macros() -> Any:
    return environment().get_template("macros.html.j2").module


def _opening(documents: Sequence[Document]) -> Markup:
    tables = [one.table for one in documents if one.table is not None]
    every = [entry for found in tables for entry in found.entries if not entry.is_as_shipped]
    entries = {entry.cell.name: entry for entry in every}
    done = [entry for entry in entries.values() if entry.record]
    tuned = [entry for entry in done if entry.cell.variant == TUNED]  # once for each number
    verdicts = [entry.verdict for entry in tuned if entry.verdict]
    reached = sum(verdict.is_reached for verdict in verdicts)
    runs = sum(len(entry.record.metrics["val_score"]) for entry in done if entry.record)
    facts = [
        ("Cells with a record", f"{len(done)} of {len(entries)}", "a model on a graph"),
        (
            "Printed numbers reached",
            f"{reached} of {len(verdicts)}",
            "by tuned rows with a record",
        ),
        ("Trainings", f"{runs:,}", "splits × seeds of all final runs"),
        ("Trials", f"{sum(entry.trials for entry in done):,}", "scored by validation alone"),
    ]
    return Markup(_macros().tiles(facts))


def _block(block: Block, owner: Document) -> Markup:
    if isinstance(block, Heading):
        return Markup("<h3>{}</h3>").format(block.text)
    if isinstance(block, Picture):
        assert owner.table is not None
        with drawn(owner.table) as figure:
            svg = markup(inline_svg(figure, block.name, block.sentence))
        return Markup(_macros().panel(svg, owner.title))
    if isinstance(block, Grid):
        rows = [[_cell(words) for words in row] for row in block.rows]
        table = Table(block.caption, block.header, rows)
        if block.is_detail:
            return Markup(_macros().details(block.caption, table))
        return Markup(_macros().table(table))
    if isinstance(block, Items):
        items = [Markup("<li>{}</li>").format(_sentence(one)) for one in block.sentences]
        return Markup("<ul>{}</ul>").format(Markup("").join(items))
    return Markup("<p>{}</p>").format(_sentence(block))


def _sentence(plain: str) -> Markup:
    """A sentence as markup; what stands between backticks is code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(plain))))


def _cell(words: Words) -> Cell:
    return Cell(words.text, words.rest.removeprefix(",").strip(), is_strong=words.is_bold)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write everything that a folder of records shows."""
    parser = argparse.ArgumentParser(prog="python -m hpgmn_lab.reproduction.html")
    parser.add_argument("folder", type=Path, help="the folder of a whole reproduction")
    folder = parser.parse_args(arguments).folder
    cells = folder / "cells"
    if not cells.is_dir():
        parser.exit(2, f"Error: {folder} has no records; make some with hpgmn reproduce.\n")
    write_reproduction(folder, [experiment(name) for name in EXPERIMENTS], cells_folder=cells)


if __name__ == "__main__":
    main()
