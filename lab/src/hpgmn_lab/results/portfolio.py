"""How far the portfolio goes without tuning, compared with tuned settings and simple models.

``portfolio.jsonl`` holds the ``metrics.json`` of ``hpgmn train GRAPH.npz``: a graph given by its
path has no shipped settings, so the portfolio chooses them. Names such as ``reading-1/texas`` are
of earlier portfolios. They are compared with cells of the reproduction on the same splits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpgmn.base.errors import HPGMNError
from hpgmn.evaluation.scores import Difference
from hpgmn.runs.compare import difference
from hpgmn_lab import paper
from hpgmn_lab.records import (
    NONE,
    Record,
    check_run,
    device_text,
    difference_text,
    read_runs,
    score_text,
    sort_graphs,
    versions_text,
)
from hpgmn_lab.rendering import frame
from hpgmn_lab.reproduction.cells import SHIPPED, TUNED, Records

if TYPE_CHECKING:
    import pandas as pd

LIMIT, WEBKB_LIMIT, SIMPLE_LIMIT = -1.5, -3.0, -1.0
"""Lowest accepted differences in points: to tuned settings, the same on WebKB graphs, and to the
better of :data:`SIMPLE`."""

SIMPLE = ("mlp", "gcn")
_FORMS = ("hpgmn", "hpgmn-gcn", "hpgmn-appnp")


@dataclass(frozen=True)
class Untuned:
    """A run with settings of the portfolio, HP-GMN with tuned settings and the better simple model.

    ``chosen`` is the member that the portfolio chose.
    """

    record: Record
    chosen: str
    tuned: Record | None
    simple: Record | None

    @property
    def to_tuned(self) -> Difference | None:
        """The portfolio minus tuned settings, paired over splits."""
        return _difference(self.record, self.tuned)

    @property
    def to_simple(self) -> Difference | None:
        """The portfolio minus the simple model, paired over splits."""
        return _difference(self.record, self.simple)

    @property
    def limit(self) -> float:
        """The lowest accepted difference to tuned settings."""
        return WEBKB_LIMIT if self.record.graph in paper.WEBKB else LIMIT

    @property
    def is_reached(self) -> bool | None:
        """Whether both differences are accepted; None if one is missing."""
        if self.to_tuned is None or self.to_simple is None:
            return None
        return 100 * self.to_tuned.mean >= self.limit and 100 * self.to_simple.mean >= SIMPLE_LIMIT


def _difference(record: Record, other: Record | None) -> Difference | None:
    return None if other is None else difference(record.metrics, other.metrics)


def read_untuned(path: Path, cells: Records) -> dict[str, list[Untuned]]:
    """Read the runs of portfolios: "" for the present one, else the name of an earlier one."""
    found: dict[str, dict[str, Untuned]] = {"": {}}
    for record in read_runs(path):
        if "chosen" not in record.metrics.get("portfolio", {}):
            raise HPGMNError(f"{path} ({record.name}) is not a run of a portfolio.", "Remove it")
        simple = [own for model in SIMPLE if (own := _cell(cells, record.graph, model, TUNED))]
        found.setdefault(record.name.rpartition("/")[0], {})[record.graph] = Untuned(
            record,
            str(record.metrics["portfolio"]["chosen"]),
            _tuned(cells, record.graph),
            max(simple, key=lambda own: own.score.mean, default=None),
        )
    return {name: [own[graph] for graph in sort_graphs(own)] for name, own in found.items()}


def _tuned(cells: Records, graph: str) -> Record | None:
    """Return HP-GMN as shipped, else of the common search; of its forms the best by validation."""
    for variant in (SHIPPED, TUNED):
        known = [own for model in _FORMS if (own := _cell(cells, graph, model, variant))]
        if known:
            return max(known, key=lambda own: own.validation)
    return None


def _cell(cells: Records, graph: str, model: str, variant: str) -> Record | None:
    name = f"{graph}-{model}-{variant}"
    cell_record = cells.cell(name)
    if cell_record is None:
        return None
    return check_run(name, cell_record.metrics, cells.source, cells.remedy(name))


def score_frame(rows: Sequence[Untuned]) -> pd.DataFrame:
    """Return the table of scores and differences."""
    header = (
        *("graph", "chosen", "portfolio", "tuned", "minus tuned", "at least"),
        *("better of mlp and gcn", "minus that", "both reached?"),
    )
    return frame(header, [_score_row(row) for row in rows])


def _score_row(row: Untuned) -> list[str]:
    record, is_reached = row.record, row.is_reached
    metric = " (ROC-AUC)" if record.metrics["metric"] == "roc_auc" else ""
    return [
        f"{record.graph}{metric}",
        f"{row.chosen} ({record.model})",
        score_text(record),
        _named_score(row.tuned),
        difference_text(row.to_tuned),
        f"{row.limit:+.1f}",
        _named_score(row.simple),
        difference_text(row.to_simple),
        NONE if is_reached is None else "yes" if is_reached else "no",
    ]


def _named_score(record: Record | None) -> str:
    if record is None:
        return NONE
    return f"{score_text(record)}, {record.name.removeprefix(f'{record.graph}-')}"


def earlier_frame(readings: dict[str, list[Untuned]]) -> pd.DataFrame:
    """Return the graphs on which earlier portfolios fell short."""
    rows = [
        [name, row.record.graph, difference_text(row.to_tuned), difference_text(row.to_simple)]
        for name, own in readings.items()
        for row in own
        if row.is_reached is False
    ]
    return frame(("portfolio", "graph", "minus tuned", "minus the simple model"), rows)


def command_frame(rows: Sequence[Untuned]) -> pd.DataFrame:
    """Return the command, time, device and versions of each run."""
    lines = []
    for row in rows:
        metrics = row.record.metrics
        config, tried = metrics["config"], metrics["portfolio"]
        parts = [f"hpgmn train $HPGMN_DATA/{config['graph']}"]
        parts.append(f"--device {config['device'].split(':')[0]}")
        if metrics["metric"] != "accuracy":
            parts.append(f"--metric {metrics['metric']}")
        if metrics["seeds"] > 1:
            parts.append(f"--seeds {metrics['seeds']}")
        count = len(tried["splits"])
        lines.append(
            [
                f"`{' '.join(parts)}`",
                f"{len(tried['members'])} members, {count} split{'s' * (count > 1)}",
                f"{tried['seconds']:.0f} + {metrics['seconds']:.0f}",
                device_text(metrics["hardware"]),
                versions_text(metrics),
                str(metrics["created"])[:10],
            ]
        )
    header = ("command", "tried", "seconds, choice + run", "device", "versions", "date")
    return frame(header, lines)
