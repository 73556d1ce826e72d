"""``hpgmn evaluate``: scores on labelled nodes."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from hpgmn.base.errors import MISSING, count_noun, mean_and_deviation
from hpgmn.cli.console import out, print_table, say
from hpgmn.cli.options import Add, Json, OtherGraph, OwnModel, RunFolder, require_graph


def evaluate(
    run: RunFolder,
    graph: OtherGraph = None,
    add: Add = False,
    own: OwnModel = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Metrics with commas, such as precision@50,average_precision [that of the run "
            "and all others but precision@K]."
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Print scores on labelled nodes, by class: the test nodes, or those of another graph.

    Test nodes are scored from the predictions in the run folder. Of another graph, nodes that the
    run was trained or validated on (by their ids) are left out; with --add new nodes are scored.
    """
    require_graph(graph, add)
    from hpgmn.base.metrics import metric_words
    from hpgmn.runs.run import open_run

    opened = open_run(run, own)
    loaded = None if graph is None else opened.load_graph(graph, add=add, notify=say)
    result = opened.evaluate(loaded, metric, only_new=add)
    if json_:
        print(json.dumps(result, indent=1))
        return
    runs, positive = count_noun(result["runs"], "run"), result["positive"]
    score = mean_and_deviation(result["score_mean"], result["score_std"], result["metric"])
    out.print(
        f"{result['graph']}, {result['nodes']}, {runs}: "
        f"{metric_words(result['metric'], positive)} {score}",
        highlight=False,
        soft_wrap=True,
    )
    scores = [
        (metric_words(name, positive), mean_and_deviation(values["mean"], values["std"], name))
        for name, values in result["metrics"].items()
    ]
    print_table(("metric", "score"), scores, has_lines=True)
    if "intervals" in result:
        rows = [
            (f"{100 * row['nominal']:.0f} %", f"{100 * row['coverage']:.1f} %")
            for row in result["intervals"]
        ]
        print_table(("interval", "holds the target of"), rows, has_lines=True)
    if "classes" not in result:
        return
    nodes = f"nodes, summed over {runs}" if result["runs"] > 1 else "nodes"
    classes = [
        (
            str(row["class"]),
            *(
                MISSING if row[key] is None else f"{100 * row[key]:.1f}"
                for key in ("precision", "recall", "f1")
            ),
            str(row["support"]),
        )
        for row in result["classes"]
    ]
    title = None
    if thresholds := result.get("threshold"):
        ends = dict.fromkeys(f"{value:.3g}" for value in (min(thresholds), max(thresholds)))
        title = f"By class, '{positive}' at probability {' to '.join(ends)} or more"
    columns = ("class", "precision", "recall", "F1", nodes)
    print_table(columns, classes, has_lines=True, title=title)
