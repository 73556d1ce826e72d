"""``hpgmn export``: a trained run as ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpgmn.cli.console import say
from hpgmn.cli.options import ModelsSplit, OwnModel, RunFolder, refuse_url


def export(
    run: RunFolder,
    *,
    onnx: Annotated[Path, typer.Option(metavar="FILE", help="The ONNX file to write.")],
    split: ModelsSplit = None,
    own: OwnModel = None,
) -> None:
    """Write the part from rows of statistics to probabilities as ONNX, memory included.

    FILE.json describes inputs, outputs and decision. Rows of nodes: `Run.statistics` in Python.
    """
    refuse_url("--onnx", onnx)
    from hpgmn.runs.run import open_run

    description = open_run(run, own).export_onnx(onnx, split)
    say(f"ONNX file: {onnx}")
    say(f"Description: {description}")
