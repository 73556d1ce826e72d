"""The errors a user can cause; the command line prints them without a traceback."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_LONGEST = 1000
_LONGEST_NAME = 200
_BREAKS = re.compile(r"\s*[\t\n\v\f\r\x1c-\x1f\x85\u2028\u2029]\s*")


def one_line(text: str) -> str:
    r"""A message as one line to be printed: names from data may hold anything.

    Characters that a terminal would obey or hide are spelt out, and of a very long message the
    beginning and the end are kept: what is wrong, and what to do.

    >>> print(one_line("the id 'a\nb' and \x1b[31m"))
    the id 'a b' and \x1b[31m
    """
    line = _BREAKS.sub(" ", text)
    if not line.isprintable():
        line = "".join(
            one if one.isprintable() else one.encode("unicode_escape").decode() for one in line
        )
    half = _LONGEST // 2
    return line if len(line) <= _LONGEST else f"{line[:half]} … {line[-half:]}"


class HPGMNError(Exception):
    """A mistake in what the user gave: the message says what was wrong and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(str(message)))


class GraphError(HPGMNError):
    """A graph, or a file that should hold one, is not valid."""


class SettingError(HPGMNError):
    """A setting, option or config file is unknown or out of range."""


class DataNotFoundError(HPGMNError):
    """A dataset is known by name, but its file is not on this machine."""


def nearest(name: str, choices: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The choice most alike to a mistyped name, if any is alike by more than ``cutoff`` of 1.

    >>> nearest("chamelon", ["texas", "chameleon"])
    'chameleon'
    """
    spelt = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(name.lower(), list(spelt), n=1, cutoff=cutoff)
    return spelt[found[0]] if found else None


def unknown_name(kind: str, name: str, choices: Iterable[str]) -> str:
    """The sentence for a name that does not exist: what it was, the nearest one, all of them.

    >>> print(unknown_name("dataset", "chamelon", ["chameleon", "squirrel"]))
    Unknown dataset 'chamelon'. Did you mean 'chameleon'? Choose from: chameleon, squirrel.
    """
    names = list(choices)
    best = nearest(str(name), names)
    hint = f" Did you mean '{best}'?" if best else ""
    told = str(name) if len(str(name)) <= _LONGEST_NAME else f"{str(name)[:_LONGEST_NAME]}…"
    return f"Unknown {kind} '{told}'.{hint} Choose from: {', '.join(names)}."
