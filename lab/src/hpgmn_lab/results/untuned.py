"""How far settings without tuning go: the portfolio against tuned settings and simple models.

Reads ``lab/results/portfolio/GRAPH.json`` (earlier readings are in folders beside them), the
``metrics.json`` of ``hpgmn train GRAPH.npz``: a graph
given by its path has no shipped settings, so its settings come from the portfolio. They are set
against the cells of the reproduction on the same splits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import verify_run_checksum
from hpgmn.base.parsing import read_json
from hpgmn.evaluation.scores import Difference
from hpgmn.runs.compare import difference
from hpgmn_lab import paper
from hpgmn_lab.reproduction.cells import SHIPPED, TUNED, read_cell, remedy
from hpgmn_lab.results.records import (
    Record,
    checked_record,
    difference_words,
    grid,
    in_order,
    score_words,
)

BAR, WEBKB_BAR, SIMPLE_BAR = -1.5, -3.0, -1.0
"""Points that the portfolio may stay below tuned settings (WebKB graphs), and below the better of
:data:`SIMPLE`."""

SIMPLE = ("mlp", "gcn")
_FORMS = ("hpgmn", "hpgmn-gcn", "hpgmn-appnp")


@dataclass(frozen=True)
class Untuned:
    """A graph whose settings came from the portfolio.

    Attributes:
        record: the run.
        chosen: the member that was chosen.
        tuned: HP-GMN with tuned settings; None without a record.
        simple: the better of the simple models by mean test score; None without records.
    """

    record: Record
    chosen: str
    tuned: Record | None
    simple: Record | None

    @property
    def below_tuned(self) -> Difference | None:
        """The portfolio minus tuned settings, paired over splits."""
        return _minus(self.record, self.tuned)

    @property
    def below_simple(self) -> Difference | None:
        """The portfolio minus the simple model, paired over splits."""
        return _minus(self.record, self.simple)

    @property
    def bar(self) -> float:
        """Points that the first may be below zero."""
        return WEBKB_BAR if self.record.graph in paper.WEBKB else BAR

    @property
    def is_reached(self) -> bool | None:
        """Whether both differences keep to their bars; None where one is missing."""
        if self.below_tuned is None or self.below_simple is None:
            return None
        return (
            100 * self.below_tuned.mean >= self.bar and 100 * self.below_simple.mean >= SIMPLE_BAR
        )


def _minus(record: Record, other: Record | None) -> Difference | None:
    return None if other is None else difference(record.metrics, other.metrics)


def read_untuned(folder: Path, cells: Path) -> list[Untuned]:
    """Every run of the portfolio, in the registry's order.

    Args:
        folder: of the runs, ``lab/results/portfolio``.
        cells: of the reproduction's records.
    """
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            metrics = verify_run_checksum(read_json(path))
            chosen = str(metrics["portfolio"]["chosen"])
        except (ValueError, KeyError, TypeError):
            raise HPGMNError(
                f"{path} is not the metrics.json of a portfolio's run. Move it elsewhere."
            ) from None
        record = checked_record(path.stem, metrics, path)
        simple = [_cell(cells, record.graph, model, TUNED) for model in SIMPLE]
        known = [one for one in simple if one is not None]
        best = max(known, key=lambda one: one.score.mean, default=None)
        tuned = _tuned(cells, record.graph)
        found[record.graph] = Untuned(record, chosen, tuned, best)
    return [found[graph] for graph in in_order(found)]


def _tuned(cells: Path, graph: str) -> Record | None:
    """HP-GMN as it ships for a graph, else of the common search: the best form by validation."""
    for variant in (SHIPPED, TUNED):
        every = [_cell(cells, graph, model, variant) for model in _FORMS]
        known = [one for one in every if one is not None]
        if known:
            return max(known, key=lambda one: one.validation)
    return None


def _cell(cells: Path, graph: str, model: str, variant: str) -> Record | None:
    name = f"{graph}-{model}-{variant}"
    found, path = read_cell(cells, name), cells / f"{name}.json"
    return None if found is None else checked_record(name, found.metrics, path, remedy(path))


def section(folder: Path, cells: Path) -> list[str]:
    """The heading, the table and its sentences; nothing without runs."""
    rows = read_untuned(folder, cells)
    if not rows:
        return []
    header = (
        *("graph", "chosen", "portfolio", "tuned", "minus tuned", "at least"),
        *("better of mlp and gcn", "minus that", "both reached?"),
    )
    return [
        "## Settings without tuning",
        _ABOUT,
        grid(header, [_line(row) for row in rows]),
        _verdict(rows),
        _earlier(folder, cells),
        _made(rows),
    ]


_ABOUT = f"""\
Each graph given by its path, so that shipped settings do not apply: `hpgmn train` tries the members
of its portfolio on validation nodes and trains the best. Differences are paired over splits, in
points, with their 95 % interval; the bars are those of the mean: {BAR:g} points to tuned settings
({WEBKB_BAR:g} for {", ".join(paper.WEBKB)}), {SIMPLE_BAR:g} to the better of mlp and gcn by test
score. Tuned are the settings that ship, of several forms of HP-GMN the best by validation; where
none ship, those of the common search. The members were made on validation nodes of these very
graphs, and one member is chosen for all splits of a graph, whose validation nodes are test nodes of
other splits; so the table favours the portfolio."""


def _line(row: Untuned) -> list[str]:
    record, reached = row.record, row.is_reached
    metric = " (ROC-AUC)" if record.metrics["metric"] == "roc_auc" else ""
    return [
        f"{record.graph}{metric}",
        f"{row.chosen} ({record.model})",
        score_words(record),
        _named(row.tuned),
        difference_words(row.below_tuned),
        f"{row.bar:+.1f}",
        _named(row.simple),
        difference_words(row.below_simple),
        "–" if reached is None else "yes" if reached else "no",
    ]


def _named(record: Record | None) -> str:
    if record is None:
        return "–"
    return f"{score_words(record)}, {record.folder.removeprefix(f'{record.graph}-')}"


def _verdict(rows: Sequence[Untuned]) -> str:
    known = [row for row in rows if row.is_reached is not None]
    short = [row.record.graph for row in known if not row.is_reached]
    words = f"; short: {', '.join(short)}" if short else ""
    return f"Both bars are reached on {len(known) - len(short)} of {len(known)} graphs{words}."


def _earlier(folder: Path, cells: Path) -> str:
    """What earlier portfolios came to: their test scores were read, too, before members changed."""
    readings = []
    for own in sorted(path for path in folder.glob("*") if path.is_dir()):
        rows = read_untuned(own, cells)
        short = [
            f"{row.record.graph} ({_points(row.below_tuned)} to tuned, "
            f"{_points(row.below_simple)} to the simple model)"
            for row in rows
            if row.is_reached is False
        ]
        readings.append(f"{own.name}: short on {', '.join(short)}" if short else own.name)
    if not readings:
        return ""
    return (
        f"Earlier portfolios were read on test nodes, too ({'; '.join(readings)}). What was "
        "changed after that, members and the number of splits they are tried on, was picked by "
        "validation scores; but that it was changed, test scores decided."
    )


def _points(found: Difference | None) -> str:
    return "–" if found is None else f"{100 * found.mean:+.1f}"


def _made(rows: Sequence[Untuned]) -> str:
    """The command of each run, and on what it ran."""
    lines = []
    for row in rows:
        metrics, hardware = row.record.metrics, row.record.metrics["hardware"]
        parts = [f"hpgmn train $HPGMN_DATA/{metrics['config']['graph']} --device"]
        parts.append(metrics["config"]["device"].split(":")[0])
        if metrics["metric"] != "accuracy":
            parts.append(f"--metric {metrics['metric']}")
        if metrics["seeds"] > 1:
            parts.append(f"--seeds {metrics['seeds']}")
        device = hardware.get("gpu") or hardware["device"]
        versions = f"hpgmn {metrics['version']}, torch {hardware['torch']}"
        tried = metrics["portfolio"]
        count = len(tried["splits"])
        choice = f"{len(tried['members'])} members, {count} split{'s' * (count > 1)}"
        seconds = f"{tried['seconds']:.0f} + {metrics['seconds']:.0f}"
        date = str(metrics["created"])[:10]
        lines.append([f"`{' '.join(parts)}`", choice, seconds, str(device), versions, date])
    header = ("command", "tried", "seconds, choice + run", "device", "versions", "date")
    return grid(header, lines)
