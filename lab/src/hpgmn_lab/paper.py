"""Published numbers to compare with, and the rule that decides when one is reached.

The numbers are in ``published.yaml``; accuracies in percent, as printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import stdtrit  # scipy.stats would take half a second to import

from hpgmn.base.settings import read_yaml
from hpgmn.runs.trials import DEFECTIVE as DEFECTIVE

_CONTENT = read_yaml(Path(__file__).with_name("published.yaml"))
_GRAPHS: dict[str, tuple[str, ...]] = {
    kind: tuple(names) for kind, names in _CONTENT["graphs"].items()
}

HETEROPHILOUS, CITATION = _GRAPHS["heterophilous"], _GRAPHS["citation"]
"""The columns of the paper's Tables 2 and 3, in its order."""
MODERN = _GRAPHS["modern"]
"""Graphs beyond the paper that later work compares on."""
COMPARED = (*HETEROPHILOUS, *CITATION, *MODERN)
WEBKB, ABLATED = _GRAPHS["webkb"], _GRAPHS["ablated"]
WEBKB_MARGIN, MARGIN = 1.0, 0.3
"""By how many points our mean may be lower while the published one is inside our interval."""
CONFIDENCE = 0.95
ROUNDING = 1e-5
"""Points within which two means are equal: scores are recorded in single precision."""


@dataclass(frozen=True)
class Published:
    """An accuracy in percent that the paper prints."""

    mean: float
    std: float


@dataclass(frozen=True)
class Elsewhere:
    """The best score in percent published for the same splits."""

    mean: float
    source: str


@dataclass(frozen=True)
class Disputed:
    """A published result that does not count."""

    method: str
    claim: str
    reason: str


@dataclass(frozen=True)
class PrintedFacts:
    """A line of the paper's Table 1."""

    nodes: int
    edges: int
    attributes: int
    classes: int
    homophily: float


def _table(
    rows: Mapping[str, Sequence[Sequence[float]]], graphs: Sequence[str]
) -> dict[str, dict[str, Published]]:
    return {
        label: {
            graph: Published(mean, std) for graph, (mean, std) in zip(graphs, cells, strict=True)
        }
        for label, cells in rows.items()
    }


TABLE_1 = {graph: PrintedFacts(**facts) for graph, facts in _CONTENT["table1"].items()}
TABLE_2 = _table(_CONTENT["table2"], HETEROPHILOUS)
TABLE_3 = _table(_CONTENT["table3"], CITATION)
TABLE_4 = _table(_CONTENT["table4"], ABLATED)
"""Row → graph → accuracy; Table 1: graph → facts."""
ELSEWHERE = {graph: Elsewhere(**entry) for graph, entry in _CONTENT["elsewhere"].items()}
DISPUTED = [Disputed(**entry) for entry in _CONTENT["disputed"]]


def published(model: str, graph: str) -> Published | None:
    """Return what the paper prints for a model on a graph, or None.

    >>> published("hpgmn", "texas")
    Published(mean=85.1, std=4.2)
    >>> published("hpgmn", "cornell") is None
    True
    """
    return (TABLE_2.get(model, {}) | TABLE_3.get(model, {})).get(graph)


@dataclass(frozen=True)
class Verdict:
    """Whether a published mean is reached, and the numbers behind it (percent).

    ``interval`` is the 95 % interval of our mean, None for a single value.
    """

    is_reached: bool
    mean: float
    published_mean: float
    interval: tuple[float, float] | None
    count: int

    @property
    def short_by(self) -> float:
        """By how many points our mean is lower; 0 where it is not."""
        distance = self.published_mean - self.mean
        return distance if distance > ROUNDING else 0.0


def reached(graph: str, values: Sequence[float], published_mean: float) -> Verdict:
    """Decide whether our runs reach a published mean.

    They do when our mean is at least as high, or when it is lower by at most the margin of the
    graph and the published mean is inside Student's 95 % interval of our mean.
    The values are independent: with several splits, the seeds of each are averaged first.

    >>> reached("texas", [84.0, 85.0, 84.5], 85.1).is_reached
    True
    >>> reached("squirrel", [71.0, 72.0, 71.5], 72.3).is_reached
    False
    """
    if not values:
        raise ValueError("A verdict needs at least one value.")
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    margin = WEBKB_MARGIN if graph in WEBKB else MARGIN
    interval = None
    if array.size > 1:
        quantile = float(stdtrit(array.size - 1, (1 + CONFIDENCE) / 2))
        half = quantile * float(array.std(ddof=1)) / float(np.sqrt(array.size))
        interval = (mean - half, mean + half)
    is_near = mean >= published_mean - margin - ROUNDING
    is_inside = interval is not None and (
        interval[0] - ROUNDING <= published_mean <= interval[1] + ROUNDING
    )
    is_reached = mean >= published_mean - ROUNDING or (is_near and is_inside)
    return Verdict(is_reached, mean, published_mean, interval, int(array.size))
