"""``hpgmn evaluate``: scores on labelled nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from hpgmn.base.errors import mean_and_deviation
from hpgmn.cli.console import out, say
from hpgmn.cli.predict import OWN


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    graph: Annotated[str | None, typer.Argument(help="Another graph [the trained one].")] = None,
    own: Annotated[str | None, OWN] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Print scores on labelled nodes, by class: the test nodes, or those of another graph.

    Of another graph, nodes that the run was trained or validated on (by their ids) are left out.
    """
    from hpgmn.base.metrics import metric_words
    from hpgmn.runs.run import open_run

    opened = open_run(run, own)
    result = opened.evaluate(opened.load_graph(graph, notify=say))
    if json_:
        print(json.dumps(result, indent=1))
        return
    runs, positive = result["runs"], result["positive"]
    score = mean_and_deviation(result["score_mean"], result["score_std"])
    out.print(
        f"{result['graph']}, {result['nodes']}, {runs} run(s): "
        f"{metric_words(result['metric'], positive)} {score}",
        highlight=False,
        soft_wrap=True,
    )
    overview = Table("metric", "score")
    for name, own_score in result["metrics"].items():
        shown = mean_and_deviation(own_score["mean"], own_score["std"])
        overview.add_row(metric_words(name, positive), shown)
    out.print(overview)
    table = Table(
        *("class", "precision", "recall", "F1"),
        f"nodes, summed over {runs} runs" if runs > 1 else "nodes",
    )
    for row in result["classes"]:
        shares = [_percent(row[key]) for key in ("precision", "recall", "f1")]
        table.add_row(str(row["class"]), *shares, str(row["support"]))
    out.print(table)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"
