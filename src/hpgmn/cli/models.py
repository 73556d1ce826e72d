"""The command that lists models."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Column, Table

from hpgmn.cli.console import out


def models(json_: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False) -> None:
    """List the models with their citations."""
    from hpgmn.models import listings

    rows = [
        {"name": name, "summary": listing.summary, "citation": listing.citation}
        for name, listing in listings().items()
    ]
    if json_:
        print(json.dumps(rows))
        return
    table = Table(Column("name", no_wrap=True), "what it is", "source")
    for row in rows:
        table.add_row(*row.values())
    out.print(table)
