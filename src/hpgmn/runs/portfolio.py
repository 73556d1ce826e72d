"""Settings without tuning: a few that have worked elsewhere, tried on the graph at hand.

All members (:mod:`hpgmn.runs.members`) are trained, and the best on validation
nodes is taken. One member is taken for all splits: where splits overlap, validation nodes of one
that are test nodes of another have had a say in the choice, as in any search over such splits.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.metrics import metric_words, require_metric
from hpgmn.base.settings import (
    make_settings,
    per_replica_names,
    plain,
    settings_dict,
    settings_names,
)
from hpgmn.graph import Graph
from hpgmn.models import find_model
from hpgmn.runs.members import Member, members_for
from hpgmn.runs.search import run_trials
from hpgmn.training.checks import check_split, class_number, positive_class, seen_labels
from hpgmn.training.replicas import Progress

logger = logging.getLogger(__name__)

BUDGET_SECONDS = 900.0
"""After this long no further member is trained; those that are left are named."""

MOST_SPLITS = 5
"""Members are tried on no more splits than this."""

HOPELESS, FIRST_EPOCHS = 0.2, 100
"""A member trained alone is given up where, after so many epochs of a stage that answers, its best
validation score is so far below that of the best member so far."""

ENOUGH_NODES = 1000
"""Splits with this many validation nodes together are enough."""


@dataclass(frozen=True)
class Choice:
    """What a portfolio came to.

    Attributes:
        name: the chosen member.
        model: its model.
        settings: its settings over the model's defaults, ready for ``HPGMNClassifier``.
        content: everything as JSON holds it: see :meth:`as_dict`.
    """

    name: str
    model: str
    settings: dict[str, Any]
    content: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON holds it.

        ``chosen``, ``metric``, ``positive``, ``splits``, ``seeds``, ``seconds``, ``note`` and
        ``members``. A member has ``name``, ``model``, ``settings``, ``val_score`` of each run with
        ``val_score_mean``, ``val_loss_mean``, ``seconds``, and ``failure``: why it was left out.
        """
        return self.content

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Choice:
        """The choice that :meth:`as_dict` has written."""
        try:
            [member] = [row for row in content["members"] if row["name"] == content["chosen"]]
            return cls(member["name"], member["model"], dict(member["settings"]), content)
        except (KeyError, TypeError, ValueError) as error:
            raise HPGMNError(
                f"The choice of settings in the run folder is damaged ({error!r}). Start anew with "
                "--overwrite."
            ) from None

    def sentence(self) -> str:
        """What was chosen, and by how much."""
        scored = [row for row in self.content["members"] if row["failure"] is None]
        others = [row["val_score_mean"] for row in scored if row["name"] != self.name]
        [best] = [row["val_score_mean"] for row in scored if row["name"] == self.name]
        count = len(self.content["splits"])
        metric = metric_words(self.content["metric"], self.content.get("positive"))
        words = (
            f"Chosen on the validation nodes of {count} split{'s' * (count > 1)}: "
            f"'{self.name}' ({self.model}), {metric} {100 * best:.1f}"
        )
        return f"{words}; the next has {100 * max(others):.1f}." if others else f"{words}."


def splits_to_try(graph: Graph, splits: Sequence[int]) -> list[int]:
    """The first splits that have enough validation nodes together, five at most."""
    chosen: list[int] = []
    nodes = 0
    for number in splits[:MOST_SPLITS]:
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
    budget: float = BUDGET_SECONDS,
    report: Callable[[str, Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Choice:
    """Train the members of the portfolio and take the best on validation nodes.

    Members that cannot be trained (memory, refused settings) or for which no time is left are left
    out and say why. The highest mean validation score wins; ties go to the lower validation loss.

    Args:
        graph: the graph.
        splits: the stored splits to choose on, of which the first few are taken
            (:func:`splits_to_try`); None for all.
        seeds: how many seeds on each.
        device: "cpu" or "cuda".
        metric: what selects epochs and the member.
        positive: the class that average_precision or precision@K of two classes looks for; None
            for the rarest among train and validation nodes.
        settings: of every member whose model has them, over its own, such as
            ``{"class_weights": "balanced"}``.
        members: what to try; None for the usual ones (:func:`members_for`).
        budget: seconds after which no further member is trained; one is in any case.
        report: called after each epoch with the names of the members in training and their
            progress: ``lambda names, now: print(names, now.stage, now.epoch, "of", now.epochs)``.
        should_stop: asked after each epoch; True raises KeyboardInterrupt.

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
    numbers = splits_to_try(graph, _all_splits(graph) if splits is None else list(splits))
    for number in numbers:
        check_split(graph, graph.split(number), number)
    seen = seen_labels(graph, [graph.split(number) for number in numbers])
    sought = positive_class(metric, seen, graph.class_names, positive)
    clock = _Clock(started + budget, report)

    def train(some: Sequence[Member]) -> list[dict[str, Any]]:
        return run_trials(
            graph,
            some[0].model,
            [one.settings for one in some],
            splits=numbers,
            seeds=seeds,
            device=device,
            metric=metric,
            positive=class_number(sought, graph.class_names),
            report=clock.told(some),
            should_stop=should_stop,
        )

    rows: dict[str, dict[str, Any]] = {}
    for group in _groups(tried):
        rows.update(_trained(group, train, clock))
    best = _best(list(rows.values()), graph)
    content = {
        "chosen": best["name"],
        "metric": metric,
        "positive": sought,
        "splits": numbers,
        "seeds": seeds,
        "seconds": time.perf_counter() - started,
        "note": note,
        "members": [rows[one.name] for one in tried],
    }
    return Choice.from_dict(content)


def _with_settings(members: Sequence[Member], settings: Mapping[str, Any]) -> tuple[Member, ...]:
    """The members with settings over their own, where their models have them; one must."""
    kinds = {member.model: find_model(member.model).settings for member in members}
    known = {model: settings_names(kind) for model, kind in kinds.items()}
    every = sorted(set().union(*known.values()))
    for name in settings:
        if name not in every:
            raise SettingError.unknown("setting", name, every)
    found = []
    for member in members:
        own = {name: value for name, value in settings.items() if name in known[member.model]}
        typed = settings_dict(make_settings(kinds[member.model], own))
        values = {name: typed[name] for name in own}
        found.append(member._replace(settings=member.settings | values))
    return tuple(found)


def _all_splits(graph: Graph) -> list[int]:
    graph.split(0)  # says what to do where there are none
    return list(range(len(graph.splits or ())))


def _groups(members: Sequence[Member]) -> list[list[Member]]:
    """Members of equal shapes together, in the order of their first; refused ones alone."""
    groups: dict[str, list[Member]] = {}
    for member in members:
        kind = find_model(member.model).settings
        free = per_replica_names(kind)
        try:
            values = settings_dict(make_settings(kind, member.settings))
        except HPGMNError:
            groups[member.name] = [member]
            continue
        shape = {name: value for name, value in values.items() if name not in free}
        both = values.get("neighbors") == "both"
        groups.setdefault(repr((member.model, both, sorted(shape.items()))), []).append(member)
    return list(groups.values())


class _GivenUp(Exception):
    """No time is left, or a member is too far behind; the message says which."""


class _Clock:
    """Ends a training that has no time or hope left, and passes its progress on."""

    def __init__(self, end: float, report: Callable[[str, Progress], None] | None) -> None:
        self.end, self.report = end, report
        self.best: float | None = None  # the mean validation score of the best member so far

    def scored(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Remember how good the best member is."""
        scores = [float(record["val_score_mean"]) for record in records]
        known = [score for score in (*scores, self.best) if score is not None]
        self.best = max((score for score in known if not math.isnan(score)), default=None)

    def told(self, members: Sequence[Member]) -> Callable[[Progress], None]:
        """What is called after each epoch; the first members are trained to their end."""
        names = " and ".join(f"'{member.name}'" for member in members)
        highest: dict[str, float] = {}

        def tell(now: Progress) -> None:
            if self.best is not None and time.perf_counter() > self.end:
                raise _GivenUp("no time was left")
            if not math.isnan(now.val_score):
                highest[now.stage] = max(now.val_score, highest.get(now.stage, now.val_score))
            if len(members) == 1 and now.stage != "estimator" and now.epoch >= FIRST_EPOCHS:
                self._give_up_hopeless(highest.get(now.stage), now)
            if self.report is not None:
                self.report(names, now)

        return tell

    def _give_up_hopeless(self, highest: float | None, now: Progress) -> None:
        if self.best is not None and highest is not None and highest < self.best - HOPELESS:
            raise _GivenUp(
                f"after {now.epoch} epochs it has {100 * highest:.1f}, the best "
                f"{100 * self.best:.1f}"
            )


def _trained(
    group: Sequence[Member],
    train: Callable[[Sequence[Member]], list[dict[str, Any]]],
    clock: _Clock,
) -> dict[str, dict[str, Any]]:
    """The rows of members trained together; where that fails, one by one."""
    started = time.perf_counter()
    try:
        found = train(group)
    except _GivenUp as reason:
        failure = str(reason)
    except HPGMNError as error:
        if len(group) > 1:
            alone = [_trained([member], train, clock) for member in group]
            return {name: row for rows in alone for name, row in rows.items()}
        failure = str(error)
    else:
        clock.scored(found)
        return {
            member.name: _row(member, record) for member, record in zip(group, found, strict=True)
        }
    seconds = (time.perf_counter() - started) / len(group)
    for member in group:
        logger.warning("'%s' is left out of the portfolio: %s", member.name, failure)
    return {member.name: _row(member, None, failure, seconds) for member in group}


def _row(
    member: Member,
    record: Mapping[str, Any] | None,
    failure: str | None = None,
    seconds: float = 0.0,
) -> dict[str, Any]:
    losses = [] if record is None else record["val_loss"]
    return {
        "name": member.name,
        "model": member.model,
        "settings": {name: plain(value) for name, value in member.settings.items()},
        "val_score": [] if record is None else record["val_score"],
        "val_score_mean": None if record is None else record["val_score_mean"],
        "val_loss_mean": None if record is None else sum(losses) / len(losses),
        "seconds": seconds if record is None else record["seconds"],
        "failure": failure,
    }


def _best(rows: Sequence[Mapping[str, Any]], graph: Graph) -> Mapping[str, Any]:
    scored = [
        row for row in rows if row["failure"] is None and not math.isnan(row["val_score_mean"])
    ]
    if not scored:
        raise HPGMNError(
            f"No member of the portfolio can be trained on '{graph.name}'. Name a model with "
            f"--model, or take the default with --no-portfolio. {rows[0]['name']}: "
            f"{rows[0]['failure']}"
        )
    return max(scored, key=lambda row: (row["val_score_mean"], -row["val_loss_mean"]))
