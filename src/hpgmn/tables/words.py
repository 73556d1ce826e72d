"""Words that stand for classes or parts of a split, and which of them mean the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpgmn.graph import Array

_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
_ZEROS = re.compile(r"(?<=\d)\.0*$")


def canonical(word: str) -> str:
    """One spelling for the same value: a truth value, or a whole number, from any kind of file.

    >>> canonical("TRUE"), canonical("1.0"), canonical("007"), canonical("Red"), canonical("1.5")
    ('True', '1', '007', 'Red', '1.5')
    """
    plain = word.strip()
    if plain.casefold() in ("true", "false"):
        return plain.capitalize()
    return _ZEROS.sub("", plain) if _WHOLE.fullmatch(plain) else word


def alike(names: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of names that differ only by case, spaces around them, or a trailing ".0".

    >>> alike(["red", "blue", "Red ", "1", "1.0"])
    [('red', 'Red '), ('1', '1.0')]
    """
    first: dict[str, str] = {}
    pairs = []
    for name in names:
        before = first.setdefault(canonical(name.strip()).casefold(), name)
        if before != name:
            pairs.append((before, name))
    return pairs


@dataclass
class Words:
    """A column of words as numbers: the words in the order they came, -1 where empty."""

    numbers: dict[str, int] = field(default_factory=dict)
    codes: list[Array] = field(default_factory=list)

    def add(self, column: Any, spelt: Callable[[str], str] = str) -> None:
        """Add a batch of text.

        Args:
            column: the words.
            spelt: how a word is written instead.
        """
        encoded = column.dictionary_encode()
        places = [
            self.numbers.setdefault(spelt(word), len(self.numbers)) if word.strip() else -1
            for word in encoded.dictionary.to_pylist()
        ]
        index = encoded.indices.fill_null(len(places)).to_numpy()
        self.codes.append(np.asarray([*places, -1], np.int32)[index])

    def classes(self, known: Sequence[str] = ()) -> tuple[Array | None, list[str] | None]:
        """Labels (N,) and the names of the classes, both None where there is no column.

        Names are as written, in their order, or in that of their numbers where all are whole.

        Args:
            known: classes that come first, in their order; a word of the same value is such a
                class, however it is spelt.
        """
        if not self.codes:
            return None, list(known) or None
        same = {canonical(name): name for name in reversed(known)} | {name: name for name in known}
        words = list(self.numbers)
        names = [same.get(word, same.get(canonical(word), word)) for word in words]
        order = sorted(names)
        if all(_WHOLE.fullmatch(word) for word in words):
            order = sorted(names, key=lambda name: (int(canonical(name)), names.index(name)))
        every = list(dict.fromkeys([*known, *order]))
        number = {name: place for place, name in enumerate(every)}
        rank = np.asarray([*(number[name] for name in names), -1], np.int64)
        return rank[np.concatenate(self.codes)], every
