"""The order of models on a graph, and how the defects of a graph change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import stats

from hpgmn.evaluation.scores import Difference
from hpgmn.runs.compare import difference, is_ours
from hpgmn_lab.records import NONE, Record
from hpgmn_lab.reproduction.tables import Table

_EQUAL = 1e-4
"""Points within which means of single-precision scores are equal."""


@dataclass(frozen=True)
class Standing:
    """The order of models on a graph and the rank of HP-GMN.

    Attributes:
        graph: the graph.
        means: model → mean test score in percent, the highest first.
        lead: the first minus the second; None with one model.
        ours: the form of HP-GMN that the others are compared with; None without a record.
        rival: the best other model; None without one.
        distance: HP-GMN minus the rival; None if one of the two is missing.
    """

    graph: str
    means: Mapping[str, float]
    lead: Difference | None
    ours: str | None
    rival: str | None
    distance: Difference | None

    @property
    def first(self) -> str:
        """The model with the highest mean."""
        return next(iter(self.means))

    def rank(self, model: str | None) -> str:
        """Return the rank of a model, such as "2 of 8"; equal means share the better rank."""
        if model is None or model not in self.means:
            return NONE
        better = sum(mean > self.means[model] + _EQUAL for mean in self.means.values())
        return f"{better + 1} of {len(self.means)}"


@dataclass(frozen=True)
class Pair:
    """Models on a graph without defects and on the one with them.

    Attributes:
        sound: the graph without.
        defective: the graph with.
        scores: model → mean test scores in percent on the sound and the defective graph.
        ranks: model → ranks on the two; equal scores share the mean rank.
        correlation: Kendall's τ of the two orders; None if undefined.
        reversed: number of pairs of models in opposite order.
    """

    sound: str
    defective: str
    scores: Mapping[str, tuple[float, float]]
    ranks: Mapping[str, tuple[float, float]]
    correlation: float | None
    reversed: int


def competing_records(table: Table, graph: str) -> dict[str, Record]:
    """Return model → record on a graph for the competing lines."""
    entries = {line.model: line.entries.get(graph) for line in table.competing}
    return {model: entry.record for model, entry in entries.items() if entry and entry.record}


def standing(table: Table, graph: str) -> Standing | None:
    """Return the order on a graph; None without records."""
    records = competing_records(table, graph)
    order = sorted(records, key=lambda model: -records[model].score.mean)
    if not order:
        return None
    reference = table.reference(graph)
    ours = reference.cell.model if reference and reference.cell.model in records else None
    rival = next((model for model in order if not is_ours(model)), None)
    return Standing(
        graph,
        {model: records[model].score.mean for model in order},
        _difference(records, order[0], order[1] if len(order) > 1 else None),
        ours,
        rival,
        _difference(records, ours, rival),
    )


def _difference(
    records: Mapping[str, Record], first: str | None, second: str | None
) -> Difference | None:
    if first is None or second is None:
        return None
    return difference(records[first].metrics, records[second].metrics)


def pair_of(table: Table, sound: str, defective: str) -> Pair:
    """Compare the models that have records on both graphs."""
    first, second = competing_records(table, sound), competing_records(table, defective)
    scores = {
        model: (first[model].score.mean, second[model].score.mean)
        for model in first
        if model in second
    }
    columns = np.array(list(scores.values())).reshape(-1, 2)
    ranks = stats.rankdata(-columns, axis=0) if scores else columns
    tau = float("nan")
    if all(len(set(column)) > 1 for column in columns.T):
        tau = float(stats.kendalltau(columns[:, 0], columns[:, 1]).statistic)
    opposite = sum(
        (one[0] - two[0]) * (one[1] - two[1]) < 0 for one, two in combinations(columns, 2)
    )
    return Pair(
        sound,
        defective,
        scores,
        {model: (float(row[0]), float(row[1])) for model, row in zip(scores, ranks, strict=True)},
        None if np.isnan(tau) else tau,
        int(opposite),
    )


def excludes_zero(found: Difference | None) -> bool:
    """Return whether the interval of a difference excludes zero; False without an interval."""
    if found is None or found.low is None or found.high is None:
        return False
    return found.low > 0 or found.high < 0
