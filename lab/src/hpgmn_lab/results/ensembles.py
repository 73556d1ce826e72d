"""The tables "single model" and "ensemble": pools of members beside the best published.

``ensembles.jsonl`` holds the records of ``hpgmn reproduce ensembles``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpgmn.base.errors import HPGMNError, count_noun
from hpgmn.evaluation.scores import Difference, Score, independent_values, paired_difference
from hpgmn.graph.datasets import DATASETS
from hpgmn.runs.compare import is_ours
from hpgmn_lab import paper
from hpgmn_lab.records import NONE, device_text, difference_text, read_named, versions_text
from hpgmn_lab.rendering import frame

if TYPE_CHECKING:
    import pandas as pd

SHOWN_WEIGHT = 0.05
"""Members with a smaller mean weight are only counted."""


@dataclass(frozen=True)
class Pool:
    """The record of a graph: an ensemble for each split or group of seeds, and its members."""

    record: Mapping[str, Any]

    @property
    def graph(self) -> str:
        """The graph's name."""
        return str(self.record["graph"])

    @property
    def members(self) -> list[Mapping[str, Any]]:
        """The trained members, the best by validation score first, ties by validation loss."""

        def order(member: Mapping[str, Any]) -> tuple[float, float]:
            return -float(np.mean(member["val_score"])), float(np.mean(member["val_loss"]))

        return sorted(self.record["members"], key=order)

    @property
    def best_ours(self) -> Mapping[str, Any] | None:
        """The best member by validation score among the forms of HP-GMN."""
        return next((member for member in self.members if is_ours(member["model"])), None)

    @property
    def ensemble(self) -> list[float]:
        """The test scores of the ensembles in percent, independent values."""
        return [100 * value for value in self.record["test_score"]]

    def single(self, member: Mapping[str, Any]) -> list[float]:
        """Return the test scores of a member in percent; the seeds of a split are averaged."""
        splits, values = len(self.record["splits"]), member["test_score"]
        return [100 * value for value in independent_values(values, splits, len(values) // splits)]

    @property
    def gain(self) -> Difference:
        """The ensemble minus the best member by validation score."""
        nodes = self.record["nodes"]
        return paired_difference(
            self.record["test_score"],
            self.members[0]["test_score"],
            splits=len(self.record["splits"]),
            test_per_train=float(np.mean(np.divide(nodes["test"], nodes["train"]))),
        )


def read_pools(path: Path) -> list[Pool]:
    """Read the records of a file in the order of the known datasets; verify their counts."""
    pools = {}
    for name, record in read_named(path).items():
        try:
            _check(record)
            pools[record["graph"]] = Pool(record)
        except (KeyError, TypeError, ValueError) as error:
            raise HPGMNError(
                f"{path} ({name}) is not the record of an ensemble: {error}.", "Remove the line"
            ) from None
    return [pools[graph] for graph in paper.COMPARED if graph in pools]


def _check(record: Mapping[str, Any]) -> None:
    if record["graph"] not in paper.COMPARED:
        raise ValueError(f"unknown graph '{record['graph']}'")
    ensembles = len(record["splits"]) * record["groups"]
    for key in ("test_score", "val_score"):
        if len(record[key]) != ensembles:
            raise ValueError(f"{len(record[key])} of {ensembles} values of {key}")
    if not record["members"]:
        raise ValueError("no members")
    for member in record["members"]:
        for key in ("test_score", "val_score"):
            if len(member[key]) != ensembles * record["seeds"]:
                raise ValueError(f"'{member['name']}' has another number of values of {key}")
    if abs(sum(member["weight"] for member in record["members"]) - 1) > 1e-6:
        raise ValueError("the weights do not add up to one")


def _score(graph: str, values: Sequence[float]) -> str:
    """Format mean and deviation; on the small graphs with the interval of the mean."""
    score = Score.of(values)
    text = f"{score.mean:.1f} ± {score.std:.1f}"
    interval = paper.reached(graph, values, score.mean).interval
    if graph in paper.WEBKB and interval is not None:
        text += f" ({interval[0]:.1f} to {interval[1]:.1f})"
    return text


def _graph(graph: str) -> str:
    return f"{graph} (ROC-AUC)" if DATASETS[graph].metric == "roc_auc" else graph


def _published(graph: str, values: Sequence[float]) -> list[str]:
    """Return the best published, its source, and whether it is reached."""
    best = paper.ELSEWHERE.get(graph)
    if best is None:
        return [NONE, NONE]
    verdict = paper.reached(graph, values, best.mean)
    answer = "yes" if verdict.is_reached else f"no, {verdict.short_by:.1f} short"
    return [f"{best.mean:g}, {best.source}", answer]


def single_frame(pools: Sequence[Pool]) -> pd.DataFrame:
    """Return the table of the best members alone."""
    header = (
        *("graph", "model", "test score", "best published", "reached?"),
        *("best form of HP-GMN", "its test score", "the paper's", "reached?"),
    )
    rows = []
    for pool in pools:
        best, ours, graph = pool.members[0], pool.best_ours, pool.graph
        values = pool.single(best)
        row = [_graph(graph), _member(best), _score(graph, values), *_published(graph, values)]
        if ours is None:
            rows.append([*row, *[NONE] * 4])
            continue
        values = pool.single(ours)
        printed = _paper_mean(graph)
        row += [_member(ours), _score(graph, values)]
        if printed is None:
            rows.append([*row, NONE, NONE])
            continue
        is_reached = paper.reached(graph, values, printed).is_reached
        rows.append([*row, f"{printed:.1f}", "yes" if is_reached else "no"])
    return frame(header, rows)


def _paper_mean(graph: str) -> float | None:
    """Return the paper's best form of HP-GMN on a graph."""
    known = [paper.published(model, graph) for model in ("hpgmn", "hpgmn-gcn", "hpgmn-appnp")]
    return max((one.mean for one in known if one is not None), default=None)


def _member(member: Mapping[str, Any]) -> str:
    name, model = member["name"], member["model"]
    return name if model in name else f"{model}, {name}"


def ensemble_frame(pools: Sequence[Pool]) -> pd.DataFrame:
    """Return the table of the ensembles."""
    header = (
        *("graph", "test score", "best published", "reached?"),
        *("minus the single model", "members by weight"),
    )
    rows = []
    for pool in pools:
        graph, values = pool.graph, pool.ensemble
        rows.append(
            [
                _graph(graph),
                _score(graph, values),
                *_published(graph, values),
                difference_text(pool.gain),
                _weights(pool),
            ]
        )
    return frame(header, rows)


def _weights(pool: Pool) -> str:
    members = sorted(pool.members, key=lambda member: -member["weight"])
    shown = [member for member in members if member["weight"] >= SHOWN_WEIGHT]
    text = ", ".join(f"{_member(member)} {member['weight']:.2f}" for member in shown)
    others = sum(0 < member["weight"] < SHOWN_WEIGHT for member in members)
    parts = [text] * bool(shown) + [count_noun(others, "other")] * bool(others)
    return "; ".join(parts)


def command_frame(pools: Sequence[Pool]) -> pd.DataFrame:
    """Return command, size of the pool, time, device and versions of each record."""
    rows = []
    for pool in pools:
        record = pool.record
        trained, skipped = len(record["members"]), len(record["skipped"])
        rows.append(
            [
                f"`{record['command']}`",
                f"{trained} of {trained + skipped}",
                str(record["seeds"]),
                f"{record['seconds']:.0f}",
                device_text(record["hardware"]),
                versions_text(record),
                str(record["created"])[:10],
            ]
        )
    header = ("command", "members", "seeds", "seconds", "device", "versions", "date")
    return frame(header, rows)
