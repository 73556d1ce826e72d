"""``hpgmn serve``: a run as a service over HTTP."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

import typer

from hpgmn.base.errors import SettingError
from hpgmn.cli.console import say
from hpgmn.cli.options import ModelsSplit, OwnModel, RunFolder

VARIABLE = "HPGMN_TOKEN"
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
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse additions to the graph.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes, with --read-only.")] = 1,
    max_body: Annotated[int, typer.Option(min=1, help="Most bytes of a request.")] = 2**20,
    timeout: Annotated[float, typer.Option(min=0.001, help="Most seconds of a request.")] = 30.0,
) -> None:
    """Serve predictions, explanations and a growing graph over HTTP, until Ctrl-C or SIGTERM.

    Routes and examples: /openapi.json. If the variable HPGMN_TOKEN is set, requests must send it
    as a bearer token. Acknowledged additions are in RUN/journal.sqlite and replayed at the next
    start.
    """
    from hpgmn.service.server import ServeOptions, serve

    token = os.environ.get(VARIABLE)
    if token is not None and not token:
        raise SettingError(f"{VARIABLE} is empty.", "Set it to a token, or unset it")
    if token is None and host not in _LOCAL:
        say(f"Warning: without {VARIABLE} everyone who reaches {host} may use the service.")
    options = ServeOptions(run, own, split, host, port, read_only, workers, token)
    serve(replace(options, max_body=max_body, timeout=timeout), say)
