"""The commands of the laboratory: reproduce and bench, handed to ``hpgmn_lab``."""

from __future__ import annotations

import typer

from hpgmn.base.errors import HPGMNError

FORWARDED = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
"""Leave every option, ``--help`` included, to the laboratory's own parser."""


def reproduce(context: typer.Context) -> int:
    """Reproduce the paper's experiments (laboratory)."""
    return _forward("reproduce", context)


def bench(context: typer.Context) -> int:
    """Measure speed, memory and accuracy (laboratory)."""
    return _forward("bench", context)


def _forward(command: str, context: typer.Context) -> int:
    try:
        from hpgmn_lab.cli import app
    except ModuleNotFoundError as error:
        if error.name not in ("hpgmn_lab", "hpgmn_lab.cli"):
            raise
        raise HPGMNError(
            f"`hpgmn {command}` is part of the laboratory, which is not installed.",
            "Install it from a clone of the repository (pip install ./lab)",
        ) from None
    result = app(args=[command, *context.args], prog_name="hpgmn", standalone_mode=False)
    return result if isinstance(result, int) else 0
