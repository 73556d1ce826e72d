"""The order of models on a graph, and how the defects of a graph change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from hpgmn.evaluation.scores import Difference
from hpgmn.runs.compare import difference, is_ours
from hpgmn_lab.records import NONE, Record
from hpgmn_lab.reproduction.tables import Table

if TYPE_CHECKING:
    import pandas as pd

_EQUAL = 1e-4
"""Points within which means of single-precision scores are equal."""


@dataclass(frozen=True)
class Standing:
    """The order of models on a graph and the rank of HP-GMN.

    Attributes:
        means: model → mean test score in percent, the highest first.
        lead: the first minus the second.
        ours: the form of HP-GMN that the others are compared with.
        rival: the best other model.
        distance: HP-GMN minus the rival.
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


def _records(table: Table, graph: str) -> dict[str, Record]:
    """Return model → record on a graph for the competing lines."""
    entries = {line.model: line.entries.get(graph) for line in table.competing}
    return {model: entry.record for model, entry in entries.items() if entry and entry.record}


def standing(table: Table, graph: str) -> Standing | None:
    """Return the order on a graph; None without records."""
    records = _records(table, graph)
    order = sorted(records, key=lambda model: -records[model].score.mean)
    if not order:
        return None

    def minus(first: str | None, second: str | None) -> Difference | None:
        if first is None or second is None:
            return None
        return difference(records[first].metrics, records[second].metrics)

    reference = table.reference(graph)
    ours = reference.cell.model if reference and reference.cell.model in records else None
    rival = next((model for model in order if not is_ours(model)), None)
    means = {model: records[model].score.mean for model in order}
    lead = minus(order[0], order[1] if len(order) > 1 else None)
    return Standing(graph, means, lead, ours, rival, minus(ours, rival))


def paired_means(table: Table, graphs: tuple[str, str]) -> pd.DataFrame:
    """Return the mean test scores of the models that have records on both graphs."""
    import pandas as pd

    columns = {
        graph: {model: record.score.mean for model, record in _records(table, graph).items()}
        for graph in graphs
    }
    return pd.DataFrame(columns, columns=list(graphs), dtype=float).dropna()


def reversed_pairs(means: pd.DataFrame) -> int:
    """Count the pairs of models in opposite order on the two graphs."""
    rows = means.itertuples(index=False)
    return sum(
        (first[0] - second[0]) * (first[1] - second[1]) < 0
        for first, second in combinations(rows, 2)
    )


def excludes_zero(difference: Difference | None) -> bool:
    """Return whether the interval of a difference excludes zero; False without an interval."""
    if difference is None or difference.low is None or difference.high is None:
        return False
    return difference.low > 0 or difference.high < 0
