"""The command that lists settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from hpgmn.cli.console import out


def settings(
    graph: Annotated[
        str | None, typer.Argument(help="A dataset, graph file or folder: show the values for it.")
    ] = None,
    model: Annotated[str, typer.Option(help="The model's name.")] = "hpgmn",
    json_: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """List the --set keys with meaning, value and allowed values."""
    from hpgmn.base.settings import describe_settings, make_settings, settings_dict
    from hpgmn.graph.datasets import known_dataset
    from hpgmn.models import find_model, settings_for

    entry = find_model(model)
    if graph is not None and not Path(graph).expanduser().exists():
        known_dataset(graph)
    values = settings_dict(make_settings(entry.settings, settings_for(graph, model)))
    rows = [
        {key: row[key] for key in ("name", "type", "allowed", "help")}
        | {"value": values[row["name"]]}
        for row in describe_settings(entry.settings)
    ]
    if json_:
        print(json.dumps(rows, indent=1))
        return
    values_for = Column(f"value for {graph or 'a new graph'}", overflow="fold")
    table = Table(Column("key", no_wrap=True), values_for, "allowed", "meaning")
    for row in rows:
        value = ", ".join(row["value"]) if isinstance(row["value"], list) else str(row["value"])
        table.add_row(row["name"], value, row["allowed"], row["help"])
    out.print(table)
