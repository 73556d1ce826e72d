"""An audit: every measure of a graph, and the findings that follow from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpgmn.auditing.attributes import Columns, columns
from hpgmn.auditing.classes import ClassBalance, MissingClass, class_balance, missing_classes
from hpgmn.auditing.findings import TWIN_SHARE, Finding, Measures, findings
from hpgmn.auditing.structure import Structure, structure
from hpgmn.auditing.twins import KnownData, Twins, known_data, like_train_nodes, twins
from hpgmn.base.errors import GraphError
from hpgmn.graph import Graph, Split
from hpgmn.graph.homophily import Homophily, homophily
from hpgmn.graph.splits import random_splits

if TYPE_CHECKING:
    from hpgmn.auditing.usefulness import Usefulness
    from hpgmn.training.replicas import Progress


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        graph: the graph's name.
        split: the number of the split that was looked at; None where there is none.
        has_own_splits: whether the graph brought its splits; else they were drawn at random.
        findings: what to know, the worst first.
        structure: degrees, components, self-loops, repeats.
        classes: how many nodes have which label.
        missing_classes: classes that a part of some split lacks.
        homophily: how alike neighbours are.
        columns: attribute columns without information, and those that give the label away.
        twins: duplicate nodes across train and test.
        known_data: the known dataset whose data the graph has, if any.
        usefulness: whether the graph helps; None where nothing was trained.
    """

    graph: str
    split: int | None
    has_own_splits: bool
    findings: tuple[Finding, ...]
    structure: Structure
    classes: ClassBalance
    missing_classes: tuple[MissingClass, ...]
    homophily: Homophily
    columns: Columns
    twins: tuple[Twins, ...]
    known_data: KnownData | None
    usefulness: Usefulness | None

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON knows it: NaN becomes None."""
        found: dict[str, Any] = _plain(dataclasses.asdict(self))
        return found


def audit(
    graph: Graph,
    split: int = 0,
    *,
    training: bool = True,
    device: str = "cpu",
    report: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Audit:
    """Look for what is wrong with a graph, and measure whether its edges help.

    Test labels are counted (classes, homophily), and nothing is predicted or judged with them.

    Args:
        graph: the graph; without splits ten random ones 60/20/20 are made.
        split: which split to look at.
        training: whether to train small models that tell if the graph helps.
        device: where these are trained.
        report: called after each of their epochs.
        should_stop: asked after each; True raises KeyboardInterrupt.

    >>> found = audit(Graph([[1.0], [2.0], [3.0]], [[0, 0], [1, 1]], [0, 1, -1]), training=False)
    >>> found.structure.repeated_edges, found.classes.unlabelled
    (1, 1)
    """
    whole, chosen = _with_split(graph, split)
    measures = Measures(
        structure=structure(whole),
        classes=class_balance(whole),
        missing_classes=missing_classes(whole),
        homophily=homophily(whole),
        columns=columns(whole, chosen),
        twins=twins(whole, chosen),
        known_data=known_data(whole),
    )
    useful, reason = None, "it was not asked for"
    if training:
        has_twins = any((one.test_share or 0.0) >= TWIN_SHARE for one in measures.twins)
        useful, reason = _usefulness(whole, chosen, has_twins, device, report, should_stop)
    return Audit(
        graph=graph.name,
        split=None if chosen is None else split,
        has_own_splits=graph.splits is not None and not graph.splits.is_random,
        findings=findings(measures, useful, "" if useful or not training else reason),
        **{field.name: getattr(measures, field.name) for field in dataclasses.fields(measures)},
        usefulness=useful,
    )


def _with_split(graph: Graph, number: int) -> tuple[Graph, Split | None]:
    """The graph with splits, random ones if need be, and the split of that number."""
    if graph.splits is None:
        try:
            made = graph.with_splits(random_splits(graph, stratified=True))
        except GraphError:  # too few labels
            return graph, None
        return made, made.split(number)
    return graph, graph.split(number)


def _usefulness(
    graph: Graph,
    split: Split | None,
    has_twins: bool,
    device: str,
    report: Callable[[Progress], None] | None,
    should_stop: Callable[[], bool],
) -> tuple[Usefulness | None, str]:
    """Whether the graph helps, or why that cannot be said."""
    from hpgmn.auditing.usefulness import cannot_train, usefulness  # torch is slow to import

    reason = cannot_train(graph, split)
    if reason is not None or split is None:
        return None, reason or ""
    found = usefulness(
        graph,
        split,
        twins=like_train_nodes(graph, split) if has_twins else None,
        device=device,
        report=report,
        should_stop=should_stop,
    )
    return found, ""


def _plain(value: Any) -> Any:
    """Lists for tuples and None for NaN, all the way down."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return value
