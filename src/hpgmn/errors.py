"""The errors a user can cause; the command line prints them without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HPGMNError(Exception):
    """A mistake in what the user gave: the message says what was wrong and what to do."""


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
    return f"Unknown {kind} '{name}'.{hint} Choose from: {', '.join(names)}."
