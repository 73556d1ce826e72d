"""What differences and orders of rows say: facts, and sentences made of them.

Which rows can be told from the one they are set against, who is first, and what the defects of a
graph do to the order of the models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import stats

from hpgmn.evaluation.scores import Difference
from hpgmn.runs.compare import difference, is_ours
from hpgmn_lab.reproduction.tables import Table, competing
from hpgmn_lab.results.records import Record, difference_words


@dataclass(frozen=True)
class Place:
    """Who is first on a graph, and where HP-GMN stands.

    Attributes:
        graph: the graph.
        order: the models from the highest mean test score to the lowest.
        lead: the first minus the second, run by run; None with one model.
        ours: HP-GMN, of several forms the one that the others are set against; None without.
        rival: the best of the other models; None without.
        distance: HP-GMN minus that; None where one of the two is missing.
    """

    graph: str
    order: tuple[str, ...]
    lead: Difference | None
    ours: str | None
    rival: str | None
    distance: Difference | None

    @property
    def is_level(self) -> bool:
        """Whether HP-GMN and the best of the others have the same mean, scores being float32."""
        return self.distance is not None and abs(self.distance.mean) < 1e-6

    @property
    def is_first(self) -> bool:
        """Whether HP-GMN is first of all, and alone."""
        return self.order[0] == self.ours and not self.is_level


@dataclass(frozen=True)
class Pair:
    """The models on a graph without the defects and on the one with them, mean test scores.

    Attributes:
        sound: the graph without.
        defective: the graph with.
        scores: model → (score on the sound graph, on the defective one), percent.
        ranks: model → its rank on each, 1 the best; equal scores share the mean rank.
        correlation: Kendall's τ of the two orders; None where there is none.
        reversed: how many pairs of models stand in opposite order on the two.
    """

    sound: str
    defective: str
    scores: Mapping[str, tuple[float, float]]
    ranks: Mapping[str, tuple[float, float]]
    correlation: float | None
    reversed: int

    @property
    def falls(self) -> dict[str, float]:
        """Model → by how many points it falls when the defects go."""
        return {model: defective - sound for model, (sound, defective) in self.scores.items()}


def records_on(table: Table, graph: str) -> dict[str, Record]:
    """Model → its runs on a graph, for the rows that compete."""
    found = {
        line.model: line.entries[graph].record
        for line in competing(table.lines)
        if graph in line.entries
    }
    return {model: record for model, record in found.items() if record is not None}


def place_on(table: Table, graph: str) -> Place | None:
    """The order on a graph; None without records."""
    found = records_on(table, graph)
    order = sorted(found, key=lambda model: -found[model].score.mean)
    if not order:
        return None
    reference = table.reference(graph)
    ours = reference.cell.model if reference and reference.cell.model in found else None
    rival = next((model for model in order if not is_ours(model)), None)
    lead = distance = None
    if len(order) > 1:
        lead = difference(found[order[0]].metrics, found[order[1]].metrics)
    if ours and rival:
        distance = difference(found[ours].metrics, found[rival].metrics)
    return Place(graph, tuple(order), lead, ours, rival, distance)


def pair_of(table: Table, sound: str, defective: str) -> Pair:
    """The models that have records on both graphs."""
    first, second = records_on(table, sound), records_on(table, defective)
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


def place_sentence(place: Place) -> str:
    """Where HP-GMN stands on a graph, and whether the distance is told apart from zero."""
    first, count = place.order[0], len(place.order)
    if place.ours is None:
        return f"On {place.graph} HP-GMN has no record; {first} is first of {count}."
    if place.distance is None:
        return f"On {place.graph} {place.ours} has no rival with a record."
    words = f"{difference_words(place.distance)} points"
    number = place.order.index(place.ours) + 1
    if place.is_level:
        return f"On {place.graph} {place.ours} and {place.rival} have the same mean."
    if number == 1:
        side = f"is first of {count}, {words} above the best other model, {place.rival}"
    elif first == place.rival:
        side = f"is number {number} of {count}, {words} from the first, {first}"
    else:
        side = f"is number {number} of {count}, {words} from the best other model, {place.rival}"
    return f"On {place.graph} {place.ours} {side}{_zero(place.distance)}."


def pair_sentences(table: Table, pair: Pair) -> list[str]:
    """What changes between the two graphs of a pair."""
    count = len(pair.scores)
    if count < 2:
        return [
            f"{pair.defective} and {pair.sound}: {count} "
            f"{'model has' if count == 1 else 'models have'} records on both, too few for an order."
        ]
    falls = pair.falls
    least, most = min(falls, key=lambda one: falls[one]), max(falls, key=lambda one: falls[one])
    pairs = count * (count - 1) // 2
    sentences = [
        f"From {pair.defective} to {pair.sound} the mean test score changes by "
        f"{-falls[most]:+.1f} points ({most}) to {-falls[least]:+.1f} ({least}).",
        f"{pair.reversed} of {pairs} pairs of models change their order"
        + (f" (Kendall's τ {pair.correlation:.2f})." if pair.correlation is not None else "."),
    ]
    places = [place_on(table, graph) for graph in (pair.defective, pair.sound)]
    before, after = (place for place in places if place)  # two models have records on both
    return [*sentences, _lead_sentence(before, after)]


def _lead_sentence(before: Place, after: Place) -> str:
    """What becomes of the first on the graph with defects once they are gone."""
    first = before.order[0]
    start = f"On {before.graph} {first} is first, {_lead(before)}"
    if first not in after.order:
        return f"{start}; it has no record on {after.graph}."
    if after.order[0] != first:
        number = after.order.index(first) + 1
        return (
            f"{start}; on {after.graph} that lead is gone: {first} is number {number} of "
            f"{len(after.order)} and {after.order[0]} is first, {_lead(after)}."
        )
    if excludes_zero(before.lead) and not excludes_zero(after.lead):
        return f"{start}; on {after.graph} it is still first, but only {_lead(after)}."
    return f"{start}; on {after.graph} it is still first, {_lead(after)}."


def _lead(place: Place) -> str:
    return f"{difference_words(place.lead)} points above {place.order[1]}{_zero(place.lead)}"


def excludes_zero(found: Difference | None) -> bool:
    """Whether zero is outside the interval of a difference; without an interval it is not."""
    if found is None or found.low is None or found.high is None:
        return False
    return found.low > 0 or found.high < 0


def _zero(found: Difference | None) -> str:
    if found is None or found.low is None:
        return ""
    verb = "excludes" if excludes_zero(found) else "holds"
    return f" (the interval {verb} zero)"


def told_apart(table: Table) -> str:
    """Which differences to the reference have an interval that excludes zero; empty without any."""
    found = [
        (line.label, graph, entry.difference)
        for line in table.lines
        for graph, entry in line.entries.items()
        if entry.difference is not None and entry.difference.low is not None
    ]
    if not found:
        return ""
    clear = [
        f"{label} on {graph} ({100 * one.mean:+.1f})"
        for label, graph, one in found
        if one.low is not None and one.high is not None and (one.low > 0 or one.high < 0)
    ]
    which = f"in {len(clear)}: {', '.join(clear)}" if clear else "in none"
    rest = "" if len(clear) == len(found) else " The others cannot be told from chance."
    if not clear:
        rest = " So none can be told from chance."
    return (
        f"{len(found)} differences to the row they are set against have an interval; zero is "
        f"outside it {which}.{rest}"
    )
