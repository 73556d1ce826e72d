"""Explanations as plain values, with text, HTML and JSON representations."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Sized
from dataclasses import dataclass, field
from typing import Any

from hpgmn.base.errors import count_noun
from hpgmn.explain.descriptions import (
    DIRECTIONS,
    Section,
    as_html,
    as_text,
    describe_statistic,
    format_points,
    largest_shares,
    picture_values,
)

_SHOWN = 8  # rows of a long list in text and HTML; JSON has all

SHOWN_COLUMNS = 5
"""The number of columns shown for a node, those with the largest effects."""

PATTERNS = 3
"""The number of patterns described for a node, those it attends to most."""

SHARES_NOTE = (
    "Shares are exact Shapley values of the log-probability; a removed statistic is replaced by "
    "the mean encoding of the train nodes."
)

TARGETS_NOTE = (
    "Contributions are in the unit of the target: Shapley values of the predicted number against "
    "the mean train node; for a neighbour, the prediction with it minus that without it."
)

COLUMNS_NOTE = (
    "Contributions are Shapley values (TreeSHAP) of the log-odds of the class against the mean of "
    "the other classes, before calibration."
)


@dataclass(frozen=True)
class Pattern:
    """A pattern of the memory.

    Attributes:
        number: from 0 to K - 1.
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
    """A neighbour and its effect on the predicted class.

    Attributes:
        node: its id.
        counts_as: its pseudo-label; None if it is unknown.
        is_known: whether that class is its train label.
        support: the predicted class's probability with it minus that without it.
        edge_types: of the edges between both, if the graph has types.
    """

    node: str
    counts_as: str | None
    is_known: bool
    support: float
    edge_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class Without:
    """The prediction without some neighbours."""

    neighbors: tuple[str, ...]
    prediction: str
    probabilities: dict[str, float]


@dataclass(frozen=True)
class ColumnEffect:
    """A column of a node and its effect on the predicted class.

    Attributes:
        column: its name.
        value: that of the node, in the unit of the table; None if it is missing.
        effect: its Shapley value for the log-odds.
        error: the standard error of a sampled effect, 0 if it is exact.
    """

    column: str
    value: float | str | None
    effect: float
    error: float

    def __str__(self) -> str:
        value = self.value
        if isinstance(value, float):
            value = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        return f"{self.column} = {'missing' if value is None else value}"


@dataclass(frozen=True)
class _Printed(ABC):
    """What all explanations have: values for JSON, text and HTML."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """One sentence."""

    @abstractmethod
    def _sections(self) -> list[Section]: ...

    @abstractmethod
    def _endings(self) -> list[str]: ...

    def as_dict(self) -> dict[str, Any]:
        """Return every value, for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return as_text(self.summary, self._sections(), self._endings())

    def _repr_html_(self) -> str:
        return as_html(self.summary, self._sections(), self._endings(), picture_values(self))


@dataclass(frozen=True)
class Explanation(_Printed):
    """The explanation of the prediction of a node.

    Attributes:
        node: its id.
        prediction: the class; of a regression the number, and all effects are in its unit.
        probabilities: of every class; empty for a regression.
        label: the train label, if it has one.
        statistics: Shapley value of each statistic for the log-probability of the class, the
            largest first; empty for models without statistics.
            For trees that of the columns of each statistic for the log-odds.
        baseline: the log-probability with every statistic replaced by the mean of the train nodes;
            None for trees.
        patterns: the patterns with the most attention.
        neighbors: all neighbours, the strongest support first.
        without: the prediction without the first few; None if no neighbour supports the class.
        turning: the prediction without the fewest neighbours, in that order, that change it; None
            if it does not change.
        notes: how values were computed, and what is not available.
        columns: for trees the contribution of each column, the largest first.
        column_effects: what the node's own columns contribute to the log-odds of the class, the
            largest first; those without any effect are left out.
        main_reason: the largest contribution, in a few words.
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
    columns: dict[str, float] = field(default_factory=dict)
    column_effects: tuple[ColumnEffect, ...] = ()
    main_reason: str = ""

    @property
    def summary(self) -> str:
        """The prediction and its main reasons."""
        text = f"Node {self.node}: {_outcome(self.prediction, self.probabilities)}."
        largest = [pair for pair in self.statistics.items() if pair[1] > 0]
        if not self.probabilities:  # a number may be low for a reason
            largest = sorted(self.statistics.items(), key=lambda pair: -abs(pair[1]))
        if largest:
            reasons = [f"{describe_statistic(n)} ({self._signed(v)})" for n, v in largest[:2]]
            text += f" Main reasons: {', '.join(reasons)}."
        elif self.statistics:
            text += " No statistic supports it more than that of an average train node."
        if self.label is not None:
            text += f" Train label: '{self.label}'."
        return text

    def _sections(self) -> list[Section]:
        sections: list[Section] = []
        if self.statistics:
            heading = f"Contribution to the {self._explained}"
            if self.baseline is not None and self.probabilities:
                start = f"{100 * math.exp(self.baseline):.0f} %"
                heading = f"Contribution to the log-probability (mean train node: {start})"
            elif self.baseline is not None:
                heading += f" (mean train node: {self.baseline:.4g})"
            shares = {describe_statistic(name): share for name, share in self.statistics.items()}
            sections.append((heading, self._signed_rows(shares)))
        if self.column_effects:
            sections.append(self.column_section(SHOWN_COLUMNS))
        elif self.columns:
            largest = sorted(self.columns, key=lambda name: -abs(self.columns[name]))[:_SHOWN]
            shown = {name: value for name, value in self.columns.items() if name in largest}
            heading = f"Contribution of columns, the {len(shown)} largest of {len(self.columns)}"
            sections.append((heading, self._signed_rows(shown)))
        if self.patterns:
            rows = [_pattern_row(pattern) for pattern in self.patterns]
            sections.append(("Attention to memory patterns", rows))
        if self.neighbors:
            rows = [
                (
                    _with_class(one),
                    (format_points if self.probabilities else self._signed)(one.support),
                )
                for one in _extremes(self.neighbors)
            ]
            what = "probability" if self.probabilities else self._explained
            more = _shown_of(rows, self.neighbors)
            sections.append((f"Effect of each neighbour on the {what}{more}", rows))
        return sections

    @property
    def _explained(self) -> str:
        return "log-odds" if self.probabilities else "predicted number"

    def _signed(self, value: float) -> str:
        if not self.probabilities:
            return f"{value:+.3g}"
        return f"{value:+.2f}" if abs(value) >= 5e-3 else "0.00"

    def _signed_rows(self, values: dict[str, float]) -> list[tuple[str, str]]:
        return [(name, self._signed(value)) for name, value in values.items()]

    def column_section(self, most: int | None = None) -> Section:
        """Return the effects of the node's own columns."""
        rows = []
        for column in self.column_effects[:most]:
            error = f" ± {self._signed(column.error)[1:]}" if column.error else ""
            rows.append((str(column), self._signed(column.effect) + error))
        more = _shown_of(rows, self.column_effects)
        return f"Contribution of its own columns to the {self._explained}{more}", rows

    def _endings(self) -> list[str]:
        removals = {r.neighbors: r for r in (self.turning, self.without) if r is not None}
        lines = [_without_line(removals[removed]) for removed in sorted(removals, key=len)]
        return [*lines, *self.notes]


@dataclass(frozen=True)
class LabelCandidate:
    """A node whose label would help; its entropy is in nats."""

    node: str
    prediction: str
    entropy: float
    degree: int


@dataclass(frozen=True)
class ModelExplanation(_Printed):
    """The explanation of a whole model.

    Attributes:
        model: its name.
        statistics: mean absolute Shapley value of each statistic over a sample of nodes.
        sampled: the size of that sample.
        patterns: every pattern of the memory, the most used first.
        redundant: groups of patterns that the same nodes attend to.
        unused: patterns that hardly any node attends to.
        label_next: the nodes whose labels would help most, the best first.
        columns: mean absolute effect of a node's own columns on the log-odds of its class, over
            that sample or a part of it, the largest first.
        notes: how values were computed, and what is not available.
    """

    model: str
    statistics: dict[str, float]
    sampled: int
    patterns: tuple[Pattern, ...]
    redundant: tuple[tuple[int, ...], ...]
    unused: tuple[int, ...]
    label_next: tuple[LabelCandidate, ...]
    notes: tuple[str, ...]
    columns: dict[str, float] = field(default_factory=dict)
    is_regression: bool = False

    @property
    def summary(self) -> str:
        """The model and the size of its memory."""
        text = f"Model {self.model}."
        if self.patterns:
            redundant = sum(len(group) - 1 for group in self.redundant)
            text += (
                f" Its memory has {len(self.patterns)} patterns: {len(self.unused)} unused, "
                f"{redundant} redundant."
            )
        return text

    def _sections(self) -> list[Section]:
        sections: list[Section] = []
        if self.statistics:
            rows = [
                (describe_statistic(name).replace("it has", "a node has"), self._size(value))
                for name, value in self.statistics.items()
            ]
            heading = f"Mean absolute contribution over {self.sampled} nodes"
            sections.append((heading, rows))
        if self.columns:
            sections.append(self.column_section(_SHOWN))
        if self.patterns:
            used = self._distinct()
            more = f", the {_SHOWN} most used" if len(used) > _SHOWN else ""
            rows = [_pattern_row(pattern) for pattern in used[:_SHOWN]]
            sections.append((f"Memory patterns{more}", rows))
        if self.redundant:
            rows = [(", ".join(str(number) for number in group), "") for group in self.redundant]
            sections.append(("Redundant patterns", rows))
        if self.label_next:
            rows = [
                (
                    f"{rank}. {node.node}, predicted '{node.prediction}'",
                    f"entropy {node.entropy:.2f}, degree {node.degree}",
                )
                for rank, node in enumerate(self.label_next, start=1)
            ]
            sections.append(("Nodes to label next", rows))
        return sections

    def column_section(self, most: int | None = None) -> Section:
        """Return the importance of columns."""
        rows = [(name, self._size(size)) for name, size in list(self.columns.items())[:most]]
        what = "predicted number" if self.is_regression else "log-odds"
        more = _shown_of(rows, self.columns)
        return f"Mean absolute contribution of own columns to the {what}{more}", rows

    def _size(self, value: float) -> str:
        return f"{value:.3g}" if self.is_regression else f"{value:.2f}"

    def _distinct(self) -> list[Pattern]:
        """Return the used patterns, of redundant ones only the most used."""
        skipped: set[int] = set(self.unused)
        distinct = []
        for pattern in self.patterns:
            if pattern.number not in skipped:
                distinct.append(pattern)
                skipped.update(*(group for group in self.redundant if pattern.number in group))
        return distinct

    def _endings(self) -> list[str]:
        return list(self.notes)


@dataclass(frozen=True)
class MemberVote:
    """A member of an ensemble.

    Attributes:
        weight: its share of the ensemble, all seeds together.
        prediction: its own class for the explained node; None for a whole model.
        probability: what it gives to the ensemble's class.
    """

    name: str
    model: str
    weight: float
    prediction: str | None = None
    probability: float | None = None


@dataclass(frozen=True)
class EnsembleExplanation(_Printed):
    """The explanation of an ensemble: its members, and one of them in detail.

    Attributes:
        members: the largest weight first.
        explained: the name of the member in detail.
        explanation: that of the member.
        node: the explained node's id; None for a whole model.
        prediction: the class of the ensemble.
        probabilities: of every class.
    """

    members: tuple[MemberVote, ...]
    explained: str
    explanation: Explanation | ModelExplanation
    node: str | None = None
    prediction: str | None = None
    probabilities: dict[str, float] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The prediction, or the number of members."""
        count = count_noun(len(self.members), "member")
        if self.prediction is None:
            return f"Ensemble of {count}."
        text = f"Node {self.node}: {_outcome(self.prediction, self.probabilities)}"
        if not self.probabilities:
            return f"{text}, the weighted mean of {count}."
        agree = sum(member.prediction == self.prediction for member in self.members)
        return f"{text}, predicted by {agree} of {count}."

    def _sections(self) -> list[Section]:
        rows = []
        for member in self.members:
            model = "" if member.name == member.model else f" ({member.model})"
            facts = f"weight {member.weight:.2f}"
            if member.probability is not None:
                facts += f", {100 * member.probability:.0f} %"
            if member.prediction != self.prediction:
                facts += f", predicts '{member.prediction}'"
            rows.append((f"{member.name}{model}", facts))
        heading = "Members"
        if self.probabilities:
            heading += f", and the probability each gives to '{self.prediction}'"
        return [(heading, rows)]

    def _endings(self) -> list[str]:
        return [f"The member '{self.explained}' in detail:"]

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{self.explanation}"

    def _repr_html_(self) -> str:
        return super()._repr_html_() + self.explanation._repr_html_()


def columns_text(explanation: Explanation | ModelExplanation | EnsembleExplanation) -> str:
    """Return the effects of all columns alone."""
    member = ""
    if isinstance(explanation, EnsembleExplanation):
        weight = next(m.weight for m in explanation.members if m.name == explanation.explained)
        member = f"Member '{explanation.explained}' of the ensemble, weight {weight:.2f}. "
        explanation = explanation.explanation
    start = explanation.summary
    if isinstance(explanation, ModelExplanation):
        start = f"Model {explanation.model}."
    heading, rows = explanation.column_section()
    if not rows:
        return as_text(member + start, [], list(explanation.notes))
    return as_text(member + start, [(heading, rows)], [])


def _outcome(prediction: str, probabilities: dict[str, float]) -> str:
    """Return a class with its probability, or the number of a regression."""
    if not probabilities:
        return prediction
    return f"'{prediction}' ({100 * probabilities[prediction]:.0f} %)"


def _shown_of(rows: Sized, every: Sized) -> str:
    return f", {len(rows)} of {len(every)}" if len(every) > len(rows) else ""


def _extremes(neighbors: tuple[Neighbor, ...]) -> list[Neighbor]:
    """Return the neighbours with the strongest effects for and against the class."""
    if len(neighbors) <= _SHOWN:
        return list(neighbors)
    against = [neighbor for neighbor in neighbors[-3:] if neighbor.support < 0]
    return [*neighbors[: _SHOWN - len(against)], *against]


def _with_class(neighbor: Neighbor) -> str:
    name = neighbor.node
    if neighbor.edge_types:
        name += f" ({', '.join(neighbor.edge_types)})"
    if neighbor.counts_as is None:
        return f"{name}, class unknown"
    kind = "label" if neighbor.is_known else "pseudo-label"
    return f"{name}, {kind} '{neighbor.counts_as}'"


def _pattern_row(pattern: Pattern) -> tuple[str, str]:
    parts = [f"nodes of class {largest_shares(pattern.classes)}"]
    parts += [
        f"{DIRECTIONS[mode]} {largest_shares(shares)}"
        for mode, shares in pattern.neighborhood.items()
        if any(shares.values())
    ]
    parts.append(f"for example {', '.join(pattern.typical_nodes)}")
    return f"pattern {pattern.number}: {'; '.join(parts)}", f"{100 * pattern.attention:.0f} %"


def _without_line(removal: Without) -> str:
    names = ", ".join(removal.neighbors[:_SHOWN])
    if len(removal.neighbors) > _SHOWN:
        names += f" and {len(removal.neighbors) - _SHOWN} more"
    return f"Without {names}: {_outcome(removal.prediction, removal.probabilities)}."
