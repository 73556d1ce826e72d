"""``hpgmn report``: write the page of finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpgmn.cli.console import out


def report(runs: Annotated[list[Path], typer.Argument(help="Run folders.")]) -> None:
    """Write report.html into each run folder: one self-contained HTML page."""
    from hpgmn.runs.report_data import write_report

    for folder in runs:
        out.print(str(write_report(folder)), highlight=False, soft_wrap=True, markup=False)
