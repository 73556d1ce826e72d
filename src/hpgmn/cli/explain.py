"""The command that says why: ``hpgmn explain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hpgmn.cli.console import out
from hpgmn.cli.predict import OWN, opened, seeds_of


def explain(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    node: Annotated[str | None, typer.Option(help="A node's id [the whole model].")] = None,
    split: Annotated[int | None, typer.Option(help="Which split's models [the first].")] = None,
    graph: Annotated[str | None, typer.Option(help="Another graph [the trained one].")] = None,
    own: Annotated[str | None, OWN] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Why a node has its class; without --node, what the model has learned.

    The answer is that of `hpgmn predict`: averaged over the seeds of one split.
    """
    from hpgmn.explain import explain_model, explain_node

    model, spec, loaded = opened(run, graph, own)
    _, places = seeds_of(model, spec, split)
    chosen = model.choose(places)
    found = explain_model(chosen, loaded) if node is None else explain_node(chosen, loaded, node)
    if json_:
        print(json.dumps(found.as_dict(), indent=1))
        return
    out.print(str(found), highlight=False, soft_wrap=True)
