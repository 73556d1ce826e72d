"""Settings without tuning: try a portfolio on validation nodes and take the best member.

One member is taken for all splits: where splits overlap, validation nodes of one that are test
nodes of another influence the choice, as in any search over such splits.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hpgmn.base.errors import HPGMNError, Remedy, SettingError, count_noun
from hpgmn.base.metrics import metric_words, require_metric
from hpgmn.base.parsing import read_json
from hpgmn.base.settings import make_settings, read_yaml, settings_dict, settings_names, to_plain
from hpgmn.graph import Graph
from hpgmn.models import find_model
from hpgmn.runs.ensemble import Member
from hpgmn.runs.fit import Monitor
from hpgmn.runs.spec import RunSpec
from hpgmn.runs.trials import run_trials, run_trials_by_shape
from hpgmn.training.checks import check_split, class_number, positive_class, seen_labels
from hpgmn.training.replicas import Progress
from hpgmn.training.trainer import deterministic_algorithms

logger = logging.getLogger(__name__)

TIME_LIMIT = 900.0
"""Seconds after which no further member is trained."""
LARGE_NODES = 20_000
"""A graph with more nodes gets the portfolio of large graphs."""
MAX_SPLITS, ENOUGH_NODES = 5, 1000
"""Members are tried on at most five splits, fewer if those have 1,000 validation nodes together."""
MAX_GAP, MIN_EPOCHS = 0.2, 100
"""A member trained alone is stopped if its best validation score after MIN_EPOCHS epochs of a
classifying stage is MAX_GAP below that of the best member."""

_OVERWRITE = Remedy("Restart", option="overwrite", value=True)


@dataclass(frozen=True)
class Choice:
    """The result of trying a portfolio.

    Attributes:
        name: the chosen member.
        model: its model.
        settings: its settings over the model's defaults, ready for ``HPGMNClassifier``.
        content: everything, see :meth:`as_dict`.
    """

    name: str
    model: str
    settings: dict[str, Any]
    content: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON stores it.

        ``chosen``, ``metric``, ``positive``, ``splits``, ``seeds``, ``seconds``, ``note`` and
        ``members``. A member has ``name``, ``model``, ``settings``, ``val_score`` of each run with
        ``val_score_mean``, ``val_loss_mean``, ``seconds``, and ``failure``: why it was skipped.
        """
        return self.content

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Choice:
        """Read what :meth:`as_dict` returned."""
        try:
            [member] = [row for row in content["members"] if row["name"] == content["chosen"]]
            return cls(member["name"], member["model"], dict(member["settings"]), content)
        except (KeyError, TypeError, ValueError) as error:
            raise HPGMNError(
                f"The choice of settings in the run folder is damaged ({error!r}).", _OVERWRITE
            ) from None

    def sentence(self) -> str:
        """Summarise what was chosen, and by how much."""
        scored = [row for row in self.content["members"] if row["failure"] is None]
        others = [row["val_score_mean"] for row in scored if row["name"] != self.name]
        [best] = [row["val_score_mean"] for row in scored if row["name"] == self.name]
        splits = count_noun(len(self.content["splits"]), "split")
        metric = metric_words(self.content["metric"], self.content.get("positive"))
        text = (
            f"Chosen on the validation nodes of {splits}: '{self.name}' ({self.model}), {metric} "
            f"{100 * best:.1f}"
        )
        return f"{text}; the next has {100 * max(others):.1f}." if others else f"{text}."


@cache
def portfolio_members(is_large: bool = False) -> tuple[Member, ...]:
    """Return the members for usual or for large graphs (``portfolio.yaml``)."""
    content = read_yaml(Path(__file__).with_name("portfolio.yaml"))
    members = []
    for row in content["large" if is_large else "members"]:
        parts = [content["blocks"][name] for name in row.get("blocks", ())]
        settings: dict[str, Any] = {}
        for part in (*parts, row.get("settings", {})):
            settings |= part
        values = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in settings.items()
        }
        members.append(Member(row["name"], row["model"], values))
    return tuple(members)


def members_for(graph: Graph) -> tuple[tuple[Member, ...], str | None]:
    """Return the members to try on a graph, and a remark where they are not the usual ones."""
    members = portfolio_members()
    if graph.num_nodes > LARGE_NODES:
        large = portfolio_members(is_large=True)
        return large, (
            f"The graph has more than {LARGE_NODES:,} nodes: trying {len(large)} members instead "
            f"of {len(members)}, with mini-batches and fewer epochs."
        )
    if graph.directed and (graph.is_weighted or graph.has_one_way_edges):
        return members, None
    different: dict[str, Member] = {}
    for member in members:
        settings = dict(member.settings)
        if settings.get("neighbors") in ("out", "in"):
            settings["neighbors"] = "undirected"
        different.setdefault(repr((member.model, sorted(settings.items()))), member)
    return tuple(different.values()), (
        f"The graph is symmetric: skipping {len(members) - len(different)} of {len(members)} "
        "members that differ only in edge direction."
    )


def read_choice(path: Path) -> Choice | None:
    """Read ``portfolio.json``; None if it does not exist."""
    if not path.exists():
        return None
    try:
        content = read_json(path)
    except ValueError:
        raise HPGMNError(f"{path} is damaged.", _OVERWRITE) from None
    return Choice.from_dict(content)


def choose_settings(
    spec: RunSpec, graph: Graph, settings: Mapping[str, Any] | None, monitor: Monitor
) -> Choice:
    """Try the portfolio for a run: on its splits, with its metric and device."""
    members, reason = members_for(graph)
    splits = count_noun(len(splits_to_try(graph, spec.splits)), "split")
    monitor.note(f"Trying {len(members)} settings on the validation nodes of {splits}.")
    if reason is not None:
        monitor.note(reason)
    with deterministic_algorithms(spec.deterministic, spec.device):
        choice = choose(
            graph,
            spec.splits,
            device=spec.device,
            metric=spec.metric,
            positive=spec.positive,
            settings=settings,
            report=monitor.progress,
            should_stop=monitor.should_stop,
        )
    metric = metric_words(spec.metric, choice.content["positive"])
    for row in choice.content["members"]:
        if row["failure"] is None:
            member = f"'{row['name']}' ({row['model']}), {metric}"
            score, seconds = 100 * row["val_score_mean"], row["seconds"]
            logger.info("Portfolio: %s %.1f, %.1f seconds", member, score, seconds)
    monitor.note(choice.sentence())
    return choice


def splits_to_try(graph: Graph, splits: Sequence[int]) -> list[int]:
    """Return the first splits that have enough validation nodes together, five at most."""
    chosen: list[int] = []
    nodes = 0
    for number in splits[:MAX_SPLITS]:
        if nodes >= ENOUGH_NODES:
            break
        chosen.append(number)
        nodes += int(graph.split(number).val.sum())
    return chosen


def choose(
    graph: Graph,
    splits: Sequence[int] | None = None,
    *,
    seeds: int = 1,
    device: torch.device | str = "cpu",
    metric: str = "accuracy",
    positive: str | None = None,
    settings: Mapping[str, Any] | None = None,
    members: Sequence[Member] | None = None,
    budget: float = TIME_LIMIT,
    report: Callable[[str, Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Choice:
    """Train the members of the portfolio and take the best on validation nodes.

    Members that cannot be trained, or for which no time is left, are skipped with a warning. The
    highest mean validation score wins; ties go to the lower validation loss.

    Args:
        splits: the stored splits to choose on, of which the first few are taken
            (:func:`splits_to_try`); None for all.
        seeds: seeds per split.
        device: "cpu" or "cuda".
        metric: what selects epochs and the member.
        positive: of two classes the one that average_precision or precision@K looks for; None for
            the rarest among train and validation nodes.
        settings: of every member whose model has them, over its own, such as
            ``{"class_weights": "balanced"}``.
        members: what to try; None for :func:`members_for`.
        budget: seconds after which no further member is trained; one always is.
        report: called after each epoch with the names of the members in training and their
            progress: ``lambda names, now: print(names, now.stage, now.epoch, "of", now.epochs)``.
        should_stop: polled after each epoch; True raises KeyboardInterrupt.

    >>> from hpgmn import trading_network
    >>> graph = trading_network(num_nodes=200, seed=1).graph
    >>> short = {"epochs": 2, "estimator_epochs": 2, "hidden_dim": 4}
    >>> choose(graph, [0], members=[Member("short", "hpgmn", short)]).settings
    {'epochs': 2, 'estimator_epochs': 2, 'hidden_dim': 4}
    """
    started = time.perf_counter()
    require_metric(metric, graph.num_classes, f"'{graph.name}'")
    tried, note = members_for(graph) if members is None else (tuple(members), None)
    tried = _with_settings(tried, settings or {})
    if splits is None:
        graph.split(0)  # raises the error of a graph without splits
        splits = range(len(graph.splits or ()))
    numbers = splits_to_try(graph, splits)
    for number in numbers:
        check_split(graph, graph.split(number), number)
    labels = seen_labels(graph, [graph.split(number) for number in numbers])
    sought = positive_class(metric, labels, graph.class_names, positive)
    limit = _Budget(started + budget, report)

    def train(positions: Sequence[int]) -> list[dict[str, Any]]:
        group = [tried[position] for position in positions]
        limit.check_time()
        records = run_trials(
            graph,
            group[0].model,
            [member.settings for member in group],
            splits=numbers,
            seeds=seeds,
            device=device,
            metric=metric,
            positive=class_number(sought, graph.class_names),
            report=limit.epoch_callback(group),
            should_stop=should_stop,
        )
        limit.record(records)
        return records

    rows: dict[int, dict[str, Any]] = {}
    group_started = time.perf_counter()
    for results in run_trials_by_shape([member[1:] for member in tried], train):
        seconds = (time.perf_counter() - group_started) / len(results)
        group_started = time.perf_counter()
        for position, result in results.items():
            rows[position] = _row(tried[position], result, seconds)
    members_rows = [rows[position] for position in range(len(tried))]
    content = {
        "chosen": _best(members_rows, graph)["name"],
        "metric": metric,
        "positive": sought,
        "splits": numbers,
        "seeds": seeds,
        "seconds": time.perf_counter() - started,
        "note": note,
        "members": members_rows,
    }
    return Choice.from_dict(content)


def _with_settings(members: Sequence[Member], settings: Mapping[str, Any]) -> tuple[Member, ...]:
    """Override settings of the members whose models have them; at least one must."""
    kinds = {member.model: find_model(member.model).settings for member in members}
    known = {model: settings_names(kind) for model, kind in kinds.items()}
    names = sorted(set().union(*known.values()))
    for name in settings:
        if name not in names:
            raise SettingError.unknown("setting", name, names)
    changed = []
    for member in members:
        given = {name: value for name, value in settings.items() if name in known[member.model]}
        typed = settings_dict(make_settings(kinds[member.model], given))
        values = {name: typed[name] for name in given}
        changed.append(member._replace(settings=member.settings | values))
    return tuple(changed)


class _SkippedMemberError(HPGMNError):
    """A member is stopped; the message says why."""


class _Budget:
    """Stops members without time or prospects left, and passes progress on."""

    def __init__(self, end: float, report: Callable[[str, Progress], None] | None) -> None:
        self.end, self.report = end, report
        self.best: float | None = None  # the mean validation score of the best member so far

    def record(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Update the best score."""
        scores = [*(float(record["val_score_mean"]) for record in records), self.best]
        known = [score for score in scores if score is not None and not math.isnan(score)]
        self.best = max(known, default=None)

    def check_time(self) -> None:
        """Stop training after the time limit, if any member was trained."""
        if self.best is not None and time.perf_counter() > self.end:
            raise _SkippedMemberError("time limit reached")

    def epoch_callback(self, members: Sequence[Member]) -> Callable[[Progress], None]:
        """Return the callback of a group's training; only a member alone can be far behind."""
        names = " and ".join(f"'{member.name}'" for member in members)
        highest: dict[str, float] = {}

        def on_epoch(now: Progress) -> None:
            self.check_time()
            if not math.isnan(now.val_score):
                highest[now.stage] = max(now.val_score, highest.get(now.stage, now.val_score))
            if len(members) == 1 and now.stage != "estimator" and now.epoch >= MIN_EPOCHS:
                score = highest.get(now.stage, math.nan)
                if self.best is not None and score < self.best - MAX_GAP:
                    raise _SkippedMemberError(
                        f"validation {100 * score:.1f} after {now.epoch} epochs, the best has "
                        f"{100 * self.best:.1f}"
                    )
            if self.report is not None:
                self.report(names, now)

        return on_epoch


def _row(member: Member, result: Mapping[str, Any] | HPGMNError, seconds: float) -> dict[str, Any]:
    """Return a member as JSON stores it; warn if it failed."""
    row = {
        "name": member.name,
        "model": member.model,
        "settings": {name: to_plain(value) for name, value in member.settings.items()},
    }
    if isinstance(result, HPGMNError):
        logger.warning("Skipping '%s': %s", member.name, result)
        scores: dict[str, Any] = {"val_score": [], "val_score_mean": None, "val_loss_mean": None}
        return {**row, **scores, "seconds": seconds, "failure": str(result)}
    return {
        **row,
        "val_score": result["val_score"],
        "val_score_mean": result["val_score_mean"],
        "val_loss_mean": sum(result["val_loss"]) / len(result["val_loss"]),
        "seconds": result["seconds"],
        "failure": None,
    }


def _best(rows: Sequence[Mapping[str, Any]], graph: Graph) -> Mapping[str, Any]:
    scored = [
        row for row in rows if row["failure"] is None and not math.isnan(row["val_score_mean"])
    ]
    if not scored:
        raise HPGMNError(
            f"No member of the portfolio can be trained on '{graph.name}'. {rows[0]['name']}: "
            f"{rows[0]['failure']}",
            Remedy("Train the default", option="portfolio", value=False)
            | Remedy("Name a model", option="model"),
        )
    return max(scored, key=lambda row: (row["val_score_mean"], -row["val_loss_mean"]))
