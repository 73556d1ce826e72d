"""The command line: parsing and printing only.

``main`` turns every mistake of the user into one sentence and exit code 2; the libraries that do
the work are imported by the command that needs them, so that ``hpgmn --help`` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import describe_os_error
from hpgmn.cli import audit, convert, explain, lab, shard, show, train, train_shards, tune, use
from hpgmn.cli.console import err, set_up_logging

_INTERRUPTED = 130

app = typer.Typer(
    name="hpgmn",
    help="Node classification on graphs where linked nodes differ (heterophily).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    train.demo,
    train.train,
    train_shards.train_shards,
    tune.tune,
    use.predict,
    use.evaluate,
    explain.explain,
    use.statistics,
    audit.audit,
    convert.convert,
    shard.shard,
    show.datasets,
    show.models,
    show.settings,
):
    app.command()(command)
for forwarded in (lab.reproduce, lab.bench):
    app.command(context_settings=lab.FORWARDED)(forwarded)


def _print_version(value: bool) -> None:
    if value:
        import hpgmn

        print(f"hpgmn {hpgmn.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Node classification on graphs where linked nodes differ (heterophily)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    0 done; 2 the user's mistake; 130 interrupted; an exception of ours is a bug and passes (1).
    """
    set_up_logging()
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        result = app(args=given, prog_name="hpgmn", standalone_mode=False)
    except HPGMNError as error:
        return _refuse(str(error))
    except OSError as error:
        if (refusal := describe_os_error(error)) is None:
            raise
        return _refuse(str(refusal))
    except (KeyboardInterrupt, typer.Abort):
        result = _INTERRUPTED
    except typer.Exit as stop:
        result = stop.exit_code
    except Exception as error:
        message = getattr(error, "format_message", None)  # a usage error of the parser
        if message is None:
            raise
        return _refuse(_with_nearest(message(), given))
    if result == _INTERRUPTED:  # some versions of the parser catch the interrupt themselves
        err.print("Interrupted.")
    return result if isinstance(result, int) else 0


def _refuse(message: str) -> int:
    err.print(f"Error: {message}", highlight=False, soft_wrap=True)
    return 2


def _with_nearest(message: str, given: Sequence[str]) -> str:
    """The parser's message in one line, with where to look next."""
    text = " ".join(line.strip() for line in message.splitlines() if line.strip())
    if not text.endswith((".", "?")):
        text += "."
    names = _commands(app)
    chosen = next((name for name in given if name in names), None)
    where = f"hpgmn {chosen} --help" if chosen else "hpgmn --help"
    return f"{text} See `{where}`."


def _commands(group: typer.Typer) -> list[str]:
    """The names of a group's commands and of the groups inside it."""
    named = [
        command.callback.__name__.replace("_", "-")
        for command in group.registered_commands
        if command.callback
    ]
    return named + [str(inner.name) for inner in group.registered_groups]
