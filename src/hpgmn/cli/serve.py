"""``hpgmn serve``: a run as a service over HTTP."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from hpgmn.base.errors import HPGMNError, Remedy, SettingError
from hpgmn.cli.console import say
from hpgmn.cli.options import ModelsSplit, OwnModel, RunFolder

VARIABLE = "HPGMN_TOKEN"
_LONGEST_TOKEN = 4096
_LOCAL = ("127.0.0.1", "::1", "localhost")


def serve(
    run: RunFolder,
    *,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0: all of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: a free one.")] = 8000,
    split: ModelsSplit = None,
    own: OwnModel = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"The bearer token that requests must send [{VARIABLE}, else none].",
        ),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse additions to the graph.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes, with --read-only.")] = 1,
    max_body: Annotated[int, typer.Option(min=1, help="Most bytes of a request.")] = 2**20,
    timeout: Annotated[float, typer.Option(min=0.001, help="Most seconds of a request.")] = 30.0,
) -> None:
    """Serve predictions, explanations and a growing graph over HTTP, until Ctrl-C or SIGTERM.

    Routes and examples: /openapi.json. Acknowledged additions are in RUN/journal.sqlite and
    replayed at the next start.
    """
    from hpgmn.service.server import ServeOptions, serve

    token = _read_token(token_file)
    if token is None and host not in _LOCAL:
        say(f"Warning: without a token everyone who reaches {host} may use the service.")
    options = ServeOptions(run, own, split, host, port, read_only, workers, token)
    serve(replace(options, max_body=max_body, timeout=timeout), say)


def _read_token(path: Path | None) -> str | None:
    """Return the token of a file, or of the environment; None if neither is given."""
    if path is None and VARIABLE not in os.environ:
        return None
    source = VARIABLE if path is None else str(path)
    try:
        content = os.environ[VARIABLE] if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise HPGMNError(f"The file {path} cannot be read ({reason}).", "Check the path") from None
    token = content.strip()
    if not (token.isascii() and token.isprintable() and 0 < len(token) <= _LONGEST_TOKEN):
        raise SettingError(
            f"{source} holds no token: one line of up to {_LONGEST_TOKEN:,} ASCII characters.",
            Remedy("Write one to a file", option="token_file", value="token.txt"),
        )
    return token
