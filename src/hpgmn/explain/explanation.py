"""What an explanation says: plain values, and the same as text, HTML and JSON."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from html import escape
from typing import Any

STATISTICS = {
    "attributes": "its own attributes",
    "class_counts": "how many neighbours of each class it has",
    "class_means": "its neighbours' attributes, class by class",
    "diffusion": "where random walks from it lead",
    "adjacency": "which nodes it is linked to",
    "neighbor_attributes": "its neighbours' mean attributes",
    "neighbor_class_counts": "the classes two steps away",
    "neighbor_class_means": "the attributes two steps away, class by class",
    "neighbor_adjacency": "which nodes its neighbours are linked to",
}
"""What each statistic tells of a node, in words."""
DIRECTIONS = {
    "out": "their out-neighbours",
    "in": "their in-neighbours",
    "undirected": "their neighbours",
}
"""The neighbours of several nodes in each neighbour mode, in words."""
_SHOWN = 8  # rows of a long list in text and HTML; JSON has all


@dataclass(frozen=True)
class Pattern:
    """A pattern of the memory, and what it stands for.

    Attributes:
        number: which of the K.
        attention: of the explained node; for a whole model the mean over all nodes.
        classes: shares of the classes of the nodes that attend to it.
        neighborhood: for each direction the shares of the classes of these nodes' neighbours.
        typical_nodes: the nodes that attend to it most.
    """

    number: int
    attention: float
    classes: dict[str, float]
    neighborhood: dict[str, dict[str, float]]
    typical_nodes: tuple[str, ...]


@dataclass(frozen=True)
class Neighbor:
    """A neighbour, and what it does for the predicted class.

    Attributes:
        node: its id.
        counts_as: the class the model takes it for; None where it is unknown.
        is_known: whether that class is its train label.
        support: the predicted class's probability with it minus that without it.
    """

    node: str
    counts_as: str | None
    is_known: bool
    support: float


@dataclass(frozen=True)
class Without:
    """The prediction without some neighbours."""

    neighbors: tuple[str, ...]
    prediction: str
    probabilities: dict[str, float]


@dataclass(frozen=True)
class Explanation:
    """Why a node has its class.

    Attributes:
        node: its id.
        prediction: the class.
        probabilities: of every class.
        label: the train label, where it has one.
        statistics: Shapley value of each statistic for the log-probability of the class, the
            largest first; empty for a model without statistics.
        baseline: the log-probability with every statistic replaced by the mean of the train nodes.
        patterns: the patterns attended most.
        neighbors: all neighbours, the one that supports the class most first.
        without: the prediction without the first few; None where no neighbour supports the class.
        turning: the same without the fewest that change the class, taken in order; None if it
            stays.
        notes: how to read it, and what is not available.
    """

    node: str
    prediction: str
    probabilities: dict[str, float]
    label: str | None
    statistics: dict[str, float]
    baseline: float | None
    patterns: tuple[Pattern, ...]
    neighbors: tuple[Neighbor, ...]
    without: Without | None
    turning: Without | None
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Every value, for JSON."""
        return dataclasses.asdict(self)

    @property
    def summary(self) -> str:
        """The decision and its main reasons in a sentence or two."""
        chance = self.probabilities[self.prediction]
        text = f"Node {self.node} is '{self.prediction}' ({100 * chance:.0f} %)."
        speaking = [(name, value) for name, value in self.statistics.items() if value > 0]
        if speaking:
            reasons = [f"{STATISTICS[name]} ({value:+.2f})" for name, value in speaking[:2]]
            text += f" Mostly because of {' and '.join(reasons)}."
        elif self.statistics:
            text += " No statistic speaks for it more than those of an average train node."
        if self.label is not None:
            text += f" Its train label is '{self.label}'."
        return text

    def _sections(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Headings with their rows, for text and HTML."""
        found = []
        if self.statistics:
            rows = [(STATISTICS[name], _signed(value)) for name, value in self.statistics.items()]
            found.append((f"Share of each statistic in the log-probability{self._start()}", rows))
        if self.patterns:
            found.append(("Memory patterns it attends to", [_row(one) for one in self.patterns]))
        if self.neighbors:
            rows = [(_with_class(one), _points(one.support)) for one in _ends(self.neighbors)]
            count = len(self.neighbors)
            more = f", the extremes of {count}" if count > len(rows) else ""
            found.append((f"What each neighbour adds to the probability{more}", rows))
        return found

    def _start(self) -> str:
        """What the shares start from."""
        assert self.baseline is not None
        return f" (the mean train node has {100 * math.exp(self.baseline):.0f} %)"

    def _endings(self) -> list[str]:
        """Sentences after the tables."""
        fewer = {one.neighbors: one for one in (self.turning, self.without) if one is not None}
        lines = [_without_line(fewer[gone], self.prediction) for gone in sorted(fewer, key=len)]
        return [*lines, *self.notes]

    def __str__(self) -> str:
        return _as_text(self.summary, self._sections(), self._endings())

    def _repr_html_(self) -> str:
        return _as_html(self.summary, self._sections(), self._endings())


@dataclass(frozen=True)
class Wanted:
    """A node whose label would help.

    Attributes:
        node: its id.
        prediction: its most probable class.
        entropy: of its probabilities, in nats.
        degree: its neighbours.
    """

    node: str
    prediction: str
    entropy: float
    degree: int


@dataclass(frozen=True)
class ModelExplanation:
    """What a whole model has learned.

    Attributes:
        model: its name.
        statistics: mean absolute Shapley value of each statistic over a sample of nodes.
        sampled: the size of that sample.
        patterns: every pattern of the memory, the most used first.
        redundant: groups of patterns that the same nodes attend to.
        unused: patterns that hardly any node attends to.
        label_next: the nodes whose labels would help most, the best first.
        notes: how to read it, and what is not available.
    """

    model: str
    statistics: dict[str, float]
    sampled: int
    patterns: tuple[Pattern, ...]
    redundant: tuple[tuple[int, ...], ...]
    unused: tuple[int, ...]
    label_next: tuple[Wanted, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Every value, for JSON."""
        return dataclasses.asdict(self)

    @property
    def summary(self) -> str:
        """What there is in a sentence."""
        text = f"Model {self.model}."
        if self.patterns:
            again = sum(len(group) - 1 for group in self.redundant)
            text += (
                f" Its memory has {len(self.patterns)} patterns: {len(self.unused)} unused, "
                f"{again} redundant."
            )
        return text

    def _sections(self) -> list[tuple[str, list[tuple[str, str]]]]:
        found = []
        if self.statistics:
            rows = [
                (STATISTICS[name].replace("it has", "a node has"), f"{value:.2f}")
                for name, value in self.statistics.items()
            ]
            heading = f"Mean size of each statistic's share over {self.sampled} nodes"
            found.append((heading, rows))
        if self.patterns:
            used = self._distinct()
            more = f", the {_SHOWN} most used" if len(used) > _SHOWN else ""
            rows = [_row(one) for one in used[:_SHOWN]]
            found.append((f"Memory patterns{more}", rows))
        if self.redundant:
            rows = [(", ".join(str(number) for number in group), "") for group in self.redundant]
            found.append(("Patterns that the same nodes attend to", rows))
        if self.label_next:
            rows = [
                (
                    f"{place}. {one.node}, now '{one.prediction}'",
                    f"entropy {one.entropy:.2f}, degree {one.degree}",
                )
                for place, one in enumerate(self.label_next, start=1)
            ]
            found.append(("Nodes to label next", rows))
        return found

    def _distinct(self) -> list[Pattern]:
        """The used patterns, of redundant ones only the most used."""
        again: set[int] = set(self.unused)
        found = []
        for one in self.patterns:
            if one.number not in again:
                found.append(one)
                again.update(*(group for group in self.redundant if one.number in group))
        return found

    def __str__(self) -> str:
        return _as_text(self.summary, self._sections(), list(self.notes))

    def _repr_html_(self) -> str:
        return _as_html(self.summary, self._sections(), list(self.notes))


def _ends(neighbors: tuple[Neighbor, ...]) -> list[Neighbor]:
    """The neighbours that speak most for and most against the class."""
    if len(neighbors) <= _SHOWN:
        return list(neighbors)
    against = [one for one in neighbors[-3:] if one.support < 0]
    return [*neighbors[: _SHOWN - len(against)], *against]


def _signed(value: float) -> str:
    """A share with its sign; what rounds to nothing has none."""
    return f"{value:+.2f}" if abs(value) >= 5e-3 else "0.00"


def _points(support: float) -> str:
    """A difference of probabilities in percentage points."""
    if abs(support) < 5e-4:
        return "less than 0.1 points" if support else "no change"
    return f"{100 * support:+.1f} points"


def _with_class(one: Neighbor) -> str:
    if one.counts_as is None:
        return f"{one.node}, of no known class"
    return f"{one.node}, {'known' if one.is_known else 'taken'} as '{one.counts_as}'"


def _row(one: Pattern) -> tuple[str, str]:
    """A pattern in a line: whose it is, how their neighbourhood looks, and examples."""
    parts = [f"nodes of class {_largest(one.classes)}"]
    parts += [
        f"{DIRECTIONS[mode]} {_largest(shares)}"
        for mode, shares in one.neighborhood.items()
        if any(shares.values())
    ]
    parts.append(f"for example {', '.join(one.typical_nodes)}")
    return f"pattern {one.number}: {'; '.join(parts)}", f"{100 * one.attention:.0f} %"


def _largest(shares: dict[str, float], most: int = 2) -> str:
    ranked = sorted(shares.items(), key=lambda pair: -pair[1])[:most]
    return ", ".join(f"'{name}' {100 * share:.0f} %" for name, share in ranked if share >= 0.01)


def _without_line(one: Without, before: str) -> str:
    names = ", ".join(one.neighbors[:_SHOWN])
    if len(one.neighbors) > _SHOWN:
        names += f" and {len(one.neighbors) - _SHOWN} more"
    chance = 100 * one.probabilities[one.prediction]
    still = "still be" if one.prediction == before else "be"
    return f"Without {names} it would {still} '{one.prediction}' ({chance:.0f} %)."


def _as_text(
    summary: str, sections: list[tuple[str, list[tuple[str, str]]]], endings: list[str]
) -> str:
    lines = [summary]
    for heading, rows in sections:
        lines += ["", f"{heading}:"]
        width = max(len(left) for left, _ in rows)
        lines += [f"  {left:<{width}}  {right}".rstrip() for left, right in rows]
    return "\n".join([*lines, "", *endings] if endings else lines)


def _as_html(
    summary: str, sections: list[tuple[str, list[tuple[str, str]]]], endings: list[str]
) -> str:
    parts = [f"<p>{escape(summary)}</p>"]
    for heading, rows in sections:
        body = "".join(
            f'<tr><th scope="row">{escape(left)}</th><td>{escape(right)}</td></tr>'
            for left, right in rows
        )
        parts.append(f"<table><caption>{escape(heading)}</caption><tbody>{body}</tbody></table>")
    parts += [f"<p>{escape(line)}</p>" for line in endings]
    return f'<div class="hpgmn-explanation">{"".join(parts)}</div>'
