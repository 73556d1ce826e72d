"""The command line: parsing and printing only; one module per command, imported when it is called.

``main`` prints user errors as one line and exits with code 2.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import describe_os_error
from hpgmn.cli.console import err, set_up_logging
from hpgmn.cli.options import COLUMN_FLAGS

_INTERRUPTED = 130

COMMANDS = {
    "demo": "demo",
    "train": "train",
    "train-shards": "train_shards",
    "tune": "tune",
    "predict": "predict",
    "evaluate": "evaluate",
    "explain": "explain",
    "export": "export",
    "report": "report",
    "serve": "serve",
    "statistics": "statistics",
    "audit": "audit",
    "convert": "convert",
    "shard": "shard",
    "datasets": "listings",
    "models": "listings",
    "settings": "listings",
    "reproduce": "lab",
    "bench": "lab",
}
"""Command → module of this package that holds a function of the same name."""


def make_app(names: Iterable[str] = tuple(COMMANDS)) -> typer.Typer:
    """Build the parser of some commands; importing only their modules keeps start-up short."""
    app = typer.Typer(
        name="hpgmn",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    for name in names:
        module = importlib.import_module(f"hpgmn.cli.{COMMANDS[name]}")
        settings = getattr(module, "FORWARDED", None)
        app.command(name, context_settings=settings)(getattr(module, name.replace("-", "_")))
    return app


def _print_version(value: bool) -> None:
    if value:
        import hpgmn

        print(f"hpgmn {hpgmn.__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Node classification on graphs where linked nodes differ (heterophily)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0: done; 2: user error; 130: interrupted; any other exception is a bug and propagates (1).
    """
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    command = next((word for word in words if not word.startswith("-")), "")
    without: set[str] = set()
    try:
        program: Any = typer.main.get_command(
            make_app([command] if command in COMMANDS else COMMANDS)
        )
        if command in COMMANDS:
            parameters = program.commands[command].params
            without = COLUMN_FLAGS.difference(*(parameter.opts for parameter in parameters))
        set_up_logging(without)
        result = program(args=words, prog_name="hpgmn", standalone_mode=False)
    except HPGMNError as error:
        return _print_error(error.render(cli=True, without=without))
    except OSError as error:
        if (refusal := describe_os_error(error)) is None:
            raise
        return _print_error(refusal.render(cli=True, without=without))
    except (KeyboardInterrupt, typer.Abort):
        result = _INTERRUPTED
    except typer.Exit as stop:
        result = stop.exit_code
    except Exception as error:
        message = getattr(error, "format_message", None)  # a usage error of the parser
        if message is None:
            raise
        return _print_error(_usage_error(message(), command))
    if result == _INTERRUPTED:  # some versions of the parser catch the interrupt themselves
        err.print("Interrupted.")
    return result if isinstance(result, int) else 0


def _print_error(message: str) -> int:
    err.print(f"Error: {message}", highlight=False, soft_wrap=True)
    return 2


def _usage_error(message: str, command: str) -> str:
    """Return the parser's message as one line, with the help to read."""
    text = " ".join(line.strip() for line in message.splitlines() if line.strip())
    if not text.endswith((".", "?")):
        text += "."
    words = ["hpgmn", *([command] if command in COMMANDS else []), "--help"]
    return f"{text} See `{' '.join(words)}`."
