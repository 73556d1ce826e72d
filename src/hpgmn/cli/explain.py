"""``hpgmn explain``: why a node has its class, or what the model has learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hpgmn.cli.console import out, say
from hpgmn.cli.predict import OWN


def explain(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    node: Annotated[str | None, typer.Option(help="A node's id [the whole model].")] = None,
    split: Annotated[int | None, typer.Option(help="Which split's models [the first].")] = None,
    graph: Annotated[str | None, typer.Option(help="Another graph [the trained one].")] = None,
    own: Annotated[str | None, OWN] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Explain why a node has its class; without --node, what the model has learned.

    The answer is that of `hpgmn predict`: averaged over the seeds of one split.
    """
    from hpgmn.runs.run import open_run

    opened = open_run(run, own)
    loaded = opened.load_graph(graph, notify=say)
    explanation = opened.explain(node, split=split, graph=loaded)
    if json_:
        print(json.dumps(explanation.as_dict(), indent=1))
        return
    out.print(str(explanation), highlight=False, soft_wrap=True)
