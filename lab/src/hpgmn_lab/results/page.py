"""Write ``docs/RESULTS.md`` and its picture from the records in ``lab/results`` (``make results``).

Reads ``ensembles.jsonl`` and ``reproduction.jsonl`` (``hpgmn reproduce``), ``portfolio.jsonl``
(graphs given by path), ``regression.jsonl`` and ``shipped-runs.md`` (a note of earlier runs). The
same records give the same page.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import write_text
from hpgmn.graph.datasets import DATASETS
from hpgmn_lab import paper
from hpgmn_lab.records import read_named
from hpgmn_lab.rendering import render
from hpgmn_lab.reproduction.cells import Records
from hpgmn_lab.reproduction.documents import Document, document, markdown
from hpgmn_lab.reproduction.figure import write_figure
from hpgmn_lab.reproduction.plan import EXPERIMENTS, experiment
from hpgmn_lab.results import ensembles, portfolio, regression

PAGE, PICTURES = "RESULTS.md", "pictures"


def page(results: Path) -> tuple[str, list[Document]]:
    """Return the text of ``docs/RESULTS.md`` for a folder of records, and its experiments."""
    cells = Records.read(results / "reproduction.jsonl")
    documents = [document(experiment(name), cells) for name in EXPERIMENTS]
    earlier = portfolio.read_untuned(results / "portfolio.jsonl", cells)
    untuned = earlier.pop("")
    pools = ensembles.read_pools(results / "ensembles.jsonl")
    targets = read_named(results / "regression.jsonl")
    note = results / "shipped-runs.md"
    text = render(
        "results.md.j2",
        paper=paper,
        pools=pools,
        single=ensembles.single_frame(pools),
        ensemble=ensembles.ensemble_frame(pools),
        pool_commands=ensembles.command_frame(pools),
        regression=regression.regression_frame(targets) if targets else None,
        documents=[
            markdown(each, level=2, pictures=f"{PICTURES}/").strip()
            for each in documents
            if each.count
        ],
        absent=[each.command for each in documents if not each.count],
        untuned=untuned,
        untuned_scores=portfolio.score_frame(untuned),
        untuned_reached=sum(row.is_reached is True for row in untuned),
        untuned_earlier=portfolio.earlier_frame(earlier),
        untuned_commands=portfolio.command_frame(untuned),
        limits=(portfolio.LIMIT, portfolio.WEBKB_LIMIT, portfolio.SIMPLE_LIMIT),
        shipped_runs=note.read_text(encoding="utf-8").strip() if note.exists() else "",
        datasets=DATASETS,
    )
    return text, documents


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page and the figure; errors in the records exit with code 2."""
    parser = argparse.ArgumentParser(prog="python -m hpgmn_lab.results.page")
    parser.add_argument("--results", type=Path, default=Path("lab/results"), help="the records")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="where the page goes")
    options = parser.parse_args(arguments)
    try:
        text, documents = page(options.results)
    except HPGMNError as error:
        parser.exit(2, f"Error: {error}\n")
    (options.docs / PICTURES).mkdir(parents=True, exist_ok=True)
    write_text(options.docs / PAGE, text)
    for each in documents:
        if each.picture and each.table and each.count:
            png, _ = write_figure(each.table, options.docs / PICTURES / each.name)
            png.unlink()  # the page shows the SVG


if __name__ == "__main__":
    main()
