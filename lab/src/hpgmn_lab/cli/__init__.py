"""The commands of the laboratory: ``hpgmn reproduce`` and ``hpgmn bench``."""

from __future__ import annotations

import typer

from hpgmn_lab.cli import bench, reproduce

app = typer.Typer(
    name="hpgmn", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
app.command()(reproduce.reproduce)
app.add_typer(bench.app, name="bench")
