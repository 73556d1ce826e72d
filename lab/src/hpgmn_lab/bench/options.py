"""Command-line options that several benchmarks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from typer import Option

from hpgmn.base.errors import SettingError
from hpgmn.base.settings import parse_assignments

Nodes = Annotated[int, Option(help="Nodes of the generated graph.")]
Degree = Annotated[float, Option(help="Edges per node of the generated graph.")]
Attributes = Annotated[int, Option(help="Attributes of the generated graph.")]
Seed = Annotated[int, Option(help="Of the generated graph and of the training.")]
Epochs = Annotated[int, Option(min=1, help="Epochs of HP-GMN.")]
Repeats = Annotated[int, Option(min=1, help="Repeats of both sides.")]
Graphs = Annotated[str, Option(help="Datasets, graph files or folders, with commas.")]
Splits = Annotated[str, Option(help="all, or numbers: 0,3.")]
Seeds = Annotated[int, Option(min=1, help="Seeds per split.")]
Assignments = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
]


def names(text: str) -> list[str]:
    """Return the names of an option, each once.

    >>> names("texas, cora,texas"), names("")
    (['texas', 'cora'], [])
    """
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def numbers(option: str, text: str) -> list[float]:
    """Return the numbers of an option such as ``--dropouts 0.6,0``."""
    return _parse(option, text, float, "numbers such as 1,0.5")


def integers(option: str, text: str) -> list[int]:
    """Return the numbers of an option such as ``--nodes 1000,2000``."""
    return _parse(option, text, int, "integers such as 1000,2000")


def _parse(option: str, text: str, kind: Callable[[str], Any], expected: str) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"{option} takes {expected} (got '{text}').") from None


def split_numbers(text: str) -> list[int] | None:
    """Return the numbers of ``--splits``; None for all."""
    return None if text == "all" else integers("--splits", text)


def changes(assignments: list[str] | None) -> dict[str, Any]:
    """Return the settings of ``--set``."""
    return parse_assignments(assignments or [])
