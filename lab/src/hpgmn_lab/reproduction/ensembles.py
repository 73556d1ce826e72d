"""The product's ensemble on every graph of a comparison, and each of its members alone.

The members are those of ``hpgmn train GRAPH --ensemble``, trained on all splits of the graph's
protocol. The citation graphs have one split: five times as many seeds are trained at once, and each
of five disjoint groups of seeds gives an ensemble of its own.

Records are lines of ``ensembles.jsonl``, written after each graph; see :func:`pool_record`.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.machine import hardware
from hpgmn.base.version import __version__
from hpgmn.evaluation.scores import Score, independent_values, scores
from hpgmn.graph import Graph
from hpgmn.graph.content import graph_content
from hpgmn.graph.datasets import PROTOCOLS, load
from hpgmn.runs.ensemble import ensemble_logits, ensemble_weights
from hpgmn.runs.fit import Monitor, TrainedMember, Training
from hpgmn.runs.folder import prepare_folder
from hpgmn.runs.pool import train_pool
from hpgmn.runs.portfolio import selected_members
from hpgmn.runs.spec import CONFIG_FILE, RunSpec, make_spec
from hpgmn.training.checks import class_number
from hpgmn.training.ensemble import ENSEMBLE
from hpgmn_lab import paper
from hpgmn_lab.records import read_named, write_named
from hpgmn_lab.reproduction.cells import identity, plain_values

RECORDS_FILE, WORK_FOLDER = "ensembles.jsonl", "work"
GROUPS = 5
"""Ensembles of disjoint seeds on a graph with one split."""
SEEDS = 2
"""Seeds of each member in an ensemble."""


@dataclass(frozen=True)
class PoolPlan:
    """What is trained on a graph.

    Attributes:
        seeds: of each member, on each split and in each group.
        time_limit: seconds for training the members; None for no limit.
        splits: at most that many; None for all.
    """

    graph: str
    seeds: int = SEEDS
    time_limit: float | None = None
    splits: int | None = None

    @property
    def protocol(self) -> str:
        """The protocol that defines its splits."""
        names = ("paper-heterophily", "paper-crocodile", "paper-homophily", "sound")
        return next(name for name in names if self.graph in PROTOCOLS[name].graphs)

    @property
    def groups(self) -> int:
        """The number of ensembles on each split."""
        return GROUPS if self.graph in paper.CITATION else 1

    @property
    def command(self) -> str:
        """The command that repeats the record, without the device."""
        options = f" --seeds {self.seeds}" * (self.seeds != SEEDS)
        if self.time_limit is not None:
            options += f" --time-limit {self.time_limit:g}"
        return f"hpgmn reproduce ensembles --graphs {self.graph}{options}"

    def spec(self, graph: Graph, device: str) -> RunSpec:
        """Return the specification of the ensemble, with the seeds of all groups."""
        options = {
            "model": ENSEMBLE,
            "selection": {"portfolio": ENSEMBLE, "time_limit": self.time_limit},
            "splits": "all" if self.splits is None else list(range(self.splits)),
            "seeds": self.seeds * self.groups,
            "protocol": self.protocol,
            "device": device,
        }
        return make_spec(graph, self.graph, options)

    def identity(self, graph: Graph, numbers: Sequence[int], members: Sequence[Any]) -> str:
        """Return the digest of everything that determines the record but rounding."""
        rows = [[each.name, each.model, plain_values(each.settings)] for each in members]
        plan = [self.seeds, self.groups, self.time_limit, list(numbers)]
        return identity(plan, rows, graph_content(graph, numbers))


def plans(names: Sequence[str], **options: Any) -> list[PoolPlan]:
    """Return the plans of some graphs; none for all."""
    for name in names:
        if name not in paper.COMPARED:
            raise HPGMNError.unknown("graph", name, paper.COMPARED)
    return [PoolPlan(name, **options) for name in names or paper.COMPARED]


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the finished records of a folder by graph."""
    return read_named(folder / RECORDS_FILE)


def do_pool(
    plan: PoolPlan, folder: Path, device: str, monitor: Monitor
) -> tuple[dict[str, Any], bool]:
    """Return the record of a graph, and whether it was there already.

    An interrupted training resumes from the folder ``work``.
    """
    graph = load(plan.graph, plan.protocol)
    spec = plan.spec(graph, device)
    members, _ = selected_members(spec.selection, graph, spec.graph)
    key = plan.identity(graph, spec.splits, members)
    known = read_records(folder).get(plan.graph)
    if known is not None and known.get("identity") == key:
        return known, True
    work = folder / WORK_FOLDER / f"{plan.graph}-{key[:8]}"
    is_resumed = (work / CONFIG_FILE).exists()
    prepare_folder(work, spec, resume=is_resumed, overwrite=not is_resumed)
    training = Training.start(
        spec,
        graph,
        work,
        report=lambda now: monitor.progress(plan.graph, now),
        should_stop=monitor.should_stop,
    )
    pool = train_pool(training, members, time_limit=plan.time_limit)
    if pool.is_interrupted:
        raise KeyboardInterrupt
    record = {
        **pool_record(plan, spec, graph, pool.trained),
        "skipped": [
            {"name": row["name"], "model": row["model"], "reason": row["failure"]}
            for row in pool.rows
            if row["failure"] is not None
        ],
        "seconds": pool.seconds,
        "identity": key,
    }
    write_named(folder / RECORDS_FILE, {**read_records(folder), plan.graph: record})
    shutil.rmtree(work)
    return record, False


def summary(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return mean and deviation of the ensembles, and of the best member by validation score."""
    best = max(
        record["members"],
        key=lambda member: (np.mean(member["val_score"]), -np.mean(member["val_loss"])),
    )
    splits = len(record["splits"])
    values = {
        "ensembles": record["test_score"],
        "single": independent_values(best["test_score"], splits, len(best["test_score"]) // splits),
    }
    found = {name: Score.of(scores) for name, scores in values.items()}
    means = {name: {"mean": score.mean, "std": score.std} for name, score in found.items()}
    means["single"]["member"] = best["name"]
    return means


def pool_record(
    plan: PoolPlan, spec: RunSpec, graph: Graph, trained: Sequence[TrainedMember]
) -> dict[str, Any]:
    """Select an ensemble for each split and group, score once; return the record.

    ``test_score`` and ``val_score`` are of the ensembles, split by split, groups inside; those of a
    member are of its runs, split by split, seeds inside. ``weight`` is a member's mean share.
    """
    splits = [graph.split(number) for number in spec.splits]
    val, test = [split.val for split in splits], [split.test for split in splits]
    positive = class_number(spec.positive, graph.class_names)
    shares = dict.fromkeys((each.member.name for each in trained), 0.0)
    val_scores, test_scores = [], []
    for group in range(plan.groups):
        chosen = [_seeds_of(each, group * plan.seeds, plan.seeds) for each in trained]
        weights = ensemble_weights(spec, graph, chosen, splits)
        logits = ensemble_logits(spec, chosen, weights)
        val_scores.append(scores(logits, graph.y, val, spec.metric, positive))
        test_scores.append(scores(logits, graph.y, test, spec.metric, positive))
        for name, values in weights.items():
            shares[name] += float(np.sum(values)) / (len(splits) * plan.groups)
    seeds = plan.seeds * plan.groups
    members = [
        {
            "name": each.member.name,
            "model": each.spec.model,
            "settings": plain_values(each.member.settings),
            "weight": shares[each.member.name],
            "val_score": each.fitted.val_score.tolist(),
            "val_loss": each.fitted.val_loss.tolist(),
            "test_score": scores(
                each.fitted.logits,
                graph.y,
                [mask for mask in test for _ in range(seeds)],
                spec.metric,
                positive,
            ),
            "seconds": each.seconds,
        }
        for each in trained
    ]
    return {
        "graph": plan.graph,
        "protocol": plan.protocol,
        "metric": spec.metric,
        "splits": list(spec.splits),
        "groups": plan.groups,
        "seeds": plan.seeds,
        "time_limit": plan.time_limit,
        "test_score": np.transpose(test_scores).ravel().tolist(),
        "val_score": np.transpose(val_scores).ravel().tolist(),
        "members": members,
        "nodes": {
            part: [int(getattr(split, part).sum()) for split in splits]
            for part in ("train", "val", "test")
        },
        "version": __version__,
        "hardware": hardware(spec.device),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"{plan.command} --device {spec.device}",
    }


def _seeds_of(trained: TrainedMember, first: int, count: int) -> TrainedMember:
    """Return a trained member with some of its seeds only."""
    fitted = trained.fitted
    places = [
        place
        for place, replica in enumerate(fitted.replicas)
        if first <= replica.seed < first + count
    ]
    part = torch.tensor(places)
    fitted = dataclasses.replace(
        fitted,
        replicas=[fitted.replicas[place] for place in places],
        logits=fitted.logits[part],
        val_score=fitted.val_score[part],
        val_loss=fitted.val_loss[part],
    )
    model = trained.model.choose(places)
    return dataclasses.replace(trained, fitted=fitted, model=model)
