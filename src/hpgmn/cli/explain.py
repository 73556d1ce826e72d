"""``hpgmn explain``: why a node has its class, or what the model has learned."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from hpgmn.cli.console import out, say
from hpgmn.cli.options import Add, Json, ModelsSplit, OwnModel, RunFolder, require_graph


def explain(
    run: RunFolder,
    node: Annotated[str | None, typer.Option(help="A node's id [the whole model].")] = None,
    split: ModelsSplit = None,
    columns: Annotated[
        bool, typer.Option("--columns", help="Print the effect of every column and nothing else.")
    ] = False,
    graph: Annotated[str | None, typer.Option(help="Another graph [the trained one].")] = None,
    add: Add = False,
    own: OwnModel = None,
    json_: Json = False,
) -> None:
    """Explain why a node has its class; without --node, what the model has learned.

    The answer is that of `hpgmn predict`: averaged over the seeds of one split.
    """
    require_graph(graph, add)
    from hpgmn.explain.explanation import columns_text
    from hpgmn.runs.run import open_run

    opened = open_run(run, own)
    loaded = opened.load_graph(graph, add=add, notify=say)
    explanation = opened.explain(node, split=split, graph=loaded)
    if json_:
        print(json.dumps(explanation.as_dict(), indent=1))
        return
    text = columns_text(explanation) if columns else str(explanation)
    out.print(text, highlight=False, soft_wrap=True)
