"""Errors caused by user input, their remedies, and the formatting of values in messages.

A remedy is data, not text: :func:`str` renders it for Python (``weight="amount"``), the command
line as an option (``--weight amount``).
"""

from __future__ import annotations

import difflib
import json
import math
import re
import shlex
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

_MAX_LENGTH = 1000
_MAX_NAME_LENGTH = 200
_BREAKS = re.compile(r"\s*[\t\n\v\f\r\x1c-\x1f\x85\u2028\u2029]\s*")

MISSING = "–"
"""Printed where a value is missing or NaN."""

_CONTROLS = dict.fromkeys(
    {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
    - {ord("\n"), ord("\t")},
    "\ufffd",
)
"""Control characters a terminal interprets, and those that change the direction of text."""

_Error = TypeVar("_Error", bound="HPGMNError")


@dataclass(frozen=True)
class Remedy:
    """What to do about an error: an action, and the option, setting or command that does it.

    Alternatives are joined by ``|``, actions that belong together by ``&``. Without a ``value`` the
    option is only named; an empty string is a value.

    Args:
        action: an imperative phrase, "Name the column of edge weights".
        option: the keyword in Python, and the command's option unless ``flag`` names that.
        setting: a hyperparameter: ``--set name=value``, and a keyword in Python.
        value: the value to pass. True and False make a switch, a list repeats the option.
        flag: the option's name on the command line, without dashes, where it differs.
        command: the ``hpgmn`` command to run, such as "datasets"; ``option`` is then its option.

    >>> remedy = Remedy("Name the column of edge weights", option="weight", value="amount")
    >>> print(remedy)
    Name the column of edge weights (weight="amount").
    >>> print((remedy | "Rename the column").render(cli=True))
    Name the column of edge weights (--weight amount), or rename the column.
    >>> print(Remedy("Train in batches", setting="batch_size", value=1024).render(cli=True))
    Train in batches (--set batch_size=1024).
    >>> print(Remedy("Download it", command="datasets", option="download", value="texas"))
    Download it (`hpgmn datasets --download texas`).
    """

    action: str
    option: str | None = None
    setting: str | None = None
    value: Any = None
    flag: str | None = None
    command: str | None = None
    alternatives: tuple[Remedy, ...] = ()
    conjunction: str = "or"

    def __or__(self, other: Remedy | str) -> Remedy:
        """Add an alternative."""
        added = Remedy(other) if isinstance(other, str) else other
        first = replace(added, alternatives=())
        return replace(self, alternatives=(*self.alternatives, first, *added.alternatives))

    def __and__(self, other: Remedy) -> Remedy:
        """Add what has to be done, too."""
        return replace(self | other, conjunction="and")

    def __str__(self) -> str:
        """Render for Python."""
        return self.render()

    def render(self, cli: bool = False, without: Container[str] = ()) -> str:
        """Return the remedy as a sentence, for Python or for the command line.

        Args:
            without: options that the command lacks, such as "--weight": alternatives that need them
                are left out, or at least do not name them.
        """
        remedies = [replace(self, alternatives=()), *self.alternatives]
        feasible = [
            remedy
            for remedy in remedies
            if remedy.option is None or re.split("[ /]", remedy.as_option())[0] not in without
        ]
        remedies = feasible or [Remedy(remedy.action) for remedy in remedies]
        first, *others = (remedy._phrase(cli) for remedy in remedies)
        phrases = [first, *(_lower_first(phrase) for phrase in others)]
        if len(phrases) > 1:
            phrases[-1] = f"{self.conjunction} {phrases[-1]}"
        sentence = ", ".join(phrases)
        return sentence if sentence.endswith(("?", "!")) else f"{sentence}."

    def _phrase(self, cli: bool) -> str:
        action = self.action.rstrip(".")
        if self.command is not None:
            words = ["hpgmn", self.command]
            words += [self.as_option()] if self.option is not None else []
            return f"{action} (`{' '.join(words)}`)"
        if self.setting is not None:
            return f"{action} ({self._as_setting() if cli else self._as_keyword(self.setting)})"
        if self.option is not None:
            return f"{action} ({self.as_option() if cli else self._as_keyword(self.option)})"
        return action

    def _as_keyword(self, name: str) -> str:
        return f"{name}={'...' if self.value is None else _python(self.value)}"

    def _as_setting(self) -> str:
        value = "..." if self.value is None else shlex.quote(format_setting(self.value))
        return f"--set {self.setting}={value}"

    def as_option(self) -> str:
        """Return the option and its value as on the command line."""
        name = (self.flag or str(self.option)).replace("_", "-")
        if self.value is False and self.flag is None:
            return f"--no-{name}"
        if self.value is None or isinstance(self.value, bool):
            return f"--{name}"
        if isinstance(self.value, list):
            return " ".join(f"--{name} {shlex.quote(str(member))}" for member in self.value)
        members = self.value if isinstance(self.value, tuple) else (self.value,)
        return " ".join([f"--{name}", *(shlex.quote(str(member)) for member in members)])


def _python(value: Any) -> str:
    """Write a value as in Python code, strings in double quotes."""
    if isinstance(value, list):
        return f"[{', '.join(map(_python, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_python, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, bool | int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False)


def _lower_first(phrase: str) -> str:
    """Continue a sentence with a phrase; an acronym at its start stays."""
    return phrase if phrase[1:2].isupper() else phrase[:1].lower() + phrase[1:]


def one_line(text: str) -> str:
    r"""Make a message one printable line of at most 1,000 characters: names may hold anything.

    Of a longer message the start and the end stay, what is wrong and what to do.

    >>> print(one_line("the id 'a\nb' and \x1b[31m"))
    the id 'a b' and \x1b[31m
    """
    line = _BREAKS.sub(" ", text)
    if not line.isprintable():
        line = "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode()
            for character in line
        )
    half = _MAX_LENGTH // 2
    return line if len(line) <= _MAX_LENGTH else f"{line[:half]} … {line[-half:]}"


class HPGMNError(Exception):
    """An error in user input: what is wrong, what was received, and the remedy.

    >>> remedy = Remedy("Replace it", option="overwrite", value=True)
    >>> error = HPGMNError("runs/mine exists.", remedy)
    >>> print(error)
    runs/mine exists. Replace it (overwrite=True).
    >>> print(error.render(cli=True))
    runs/mine exists. Replace it (--overwrite).
    """

    def __init__(self, message: str, remedy: Remedy | str | None = None) -> None:
        self.message = one_line(str(message))
        self.remedy = Remedy(remedy) if isinstance(remedy, str) else remedy
        super().__init__(self.message, self.remedy)  # the arguments with which pickle rebuilds it

    def __str__(self) -> str:
        """Render for Python."""
        return self.render()

    def render(self, cli: bool = False, without: Container[str] = ()) -> str:
        """Return message and remedy as one line; see :meth:`Remedy.render`."""
        if self.remedy is None:
            return self.message
        return one_line(f"{self.message} {self.remedy.render(cli, without)}")

    def prefixed(self: _Error, prefix: str) -> _Error:
        """Return this error with the same remedy and text before its message."""
        return type(self)(f"{prefix}{self.message}", self.remedy)

    @classmethod
    def unknown(cls: type[_Error], kind: str, name: str, choices: Iterable[str]) -> _Error:
        """Return the error for a name that does not exist; the remedy's value is the nearest one.

        >>> print(HPGMNError.unknown("dataset", "chamelon", ["chameleon", "squirrel"]))
        Unknown dataset 'chamelon'. Did you mean 'chameleon'? Choose from: chameleon, squirrel.
        """
        names = list(choices)
        best = nearest(str(name), names)
        hint = f"Did you mean '{best}'? " if best else ""
        shown = str(name)
        if len(shown) > _MAX_NAME_LENGTH:
            shown = f"{shown[:_MAX_NAME_LENGTH]}…"
        remedy = Remedy(f"{hint}Choose from: {', '.join(names)}", value=best)
        return cls(f"Unknown {kind} '{shown}'.", remedy)


class GraphError(HPGMNError):
    """A graph, or a file that should hold one, is not valid."""


class SettingError(HPGMNError):
    """A setting, option or config file is unknown or out of range."""


class DataNotFoundError(HPGMNError):
    """A known dataset has no local copy."""


def nearest(name: str, choices: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the choice most similar to a mistyped name, if its similarity exceeds ``cutoff``.

    >>> nearest("chamelon", ["texas", "chameleon"])
    'chameleon'
    """
    by_lower = {choice.lower(): choice for choice in choices}
    matches = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None


def without_controls(text: str) -> str:
    r"""Replace control characters, which names of nodes and files may contain.

    >>> without_controls("red: \x1b[31m")
    'red: \ufffd[31m'
    """
    return text.translate(_CONTROLS)


def format_setting(value: object) -> str:
    """Format a value as ``--set`` takes it.

    >>> format_setting(["out", "in"]), format_setting(None), format_setting(0.1)
    ('out,in', 'none', '0.1')
    """
    if isinstance(value, list | tuple):
        return ",".join(format_setting(member) for member in value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)


def format_bytes(size: float) -> str:
    """Format a number of bytes.

    >>> format_bytes(3 * 2**29)
    '1.5 GiB'
    """
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def format_duration(seconds: float) -> str:
    """Format a duration.

    >>> format_duration(1.234), format_duration(75.2), format_duration(3725)
    ('1.2 s', '75 s', '1 h 02 min')
    """
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_time(created: object) -> str:
    """Shorten an ISO timestamp to minutes; return anything else as it is.

    >>> format_time("2026-01-31T12:34:56+00:00")
    '2026-01-31 12:34'
    """
    stamp = str(created)
    is_timestamp = stamp[10:11] == "T" and len(stamp) >= 16
    return f"{stamp[:10]} {stamp[11:16]}" if is_timestamp else stamp


def percent(value: float) -> str:
    """Format a fraction in percent with two decimals; NaN is a dash."""
    return MISSING if math.isnan(value) else f"{value:.2%}"


def points(value: float) -> str:
    """Format a fraction in percentage points; NaN is a dash."""
    return MISSING if math.isnan(value) else f"{100 * value:.2f}"


TARGET_METRICS = ("r2", "rmse", "mae", "spearman")
"""Metrics of targets: none of them is a percentage."""


def unit_of(metric: str) -> str:
    """Return what follows the value of a metric.

    >>> unit_of("accuracy"), unit_of("r2")
    (' %', '')
    """
    return "" if metric in TARGET_METRICS else " %"


def format_score(metric: str, score: float, digits: int = 1) -> str:
    """Format the value of a metric: in percent for classes, as a number for targets.

    >>> format_score("accuracy", 0.8125), format_score("r2", 0.8125), format_score("mae", 1234.56)
    ('81.2', '0.812', '1234.56')
    """
    if metric in TARGET_METRICS:
        return f"{score:.{digits + 2}f}" if abs(score) < 100 else f"{score:.6g}"
    return f"{100 * score:.{digits}f}"


def mean_and_deviation(mean: float | None, std: float | None, metric: str = "accuracy") -> str:
    """Format the mean and standard deviation of a metric, in percent for classes.

    A deviation of 0, as of one run, is left out.

    >>> mean_and_deviation(0.8512, 0.031), mean_and_deviation(0.5, 0)
    ('85.1 ± 3.1', '50.0')
    >>> mean_and_deviation(0.8512, 0.031, "r2")
    '0.851 ± 0.031'
    """
    if mean is None:
        return MISSING
    score = format_score(metric, mean)
    return f"{score} ± {format_score(metric, std)}" if std else score


def count_noun(number: int, noun: str) -> str:
    """Format a count with its noun.

    >>> count_noun(1, "seed"), count_noun(2000, "seed"), count_noun(3, "class")
    ('1 seed', '2,000 seeds', '3 classes')
    """
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def list_names(names: Iterable[object], most: int = 3, quote: str = "'") -> str:
    """List the first few names.

    >>> list_names("ab"), list_names("abcde"), list_names("abc", most=2, quote="")
    ("'a', 'b'", "'a', 'b', 'c' and 2 more", 'a, b and 1 more')
    """
    listed = [f"{quote}{name}{quote}" for name in names]
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def format_difference(difference: Mapping[str, Any] | None, metric: str = "accuracy") -> str:
    """Return a difference, in points for classes, with its interval.

    >>> format_difference({"mean": -0.0744, "low": -0.091, "high": -0.0575})
    '-7.4 (-9.1 to -5.8)'
    """
    if difference is None:
        return ""
    if difference["low"] is None:
        return _signed(metric, difference["mean"])
    mean, low, high = (_signed(metric, difference[key]) for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def _signed(metric: str, value: float) -> str:
    text = format_score(metric, value)
    return text if text.startswith("-") else f"+{text}"
