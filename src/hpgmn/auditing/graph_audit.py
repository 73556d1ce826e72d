"""The audit of a graph: measures, and the findings that follow from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpgmn.auditing.attributes import AttributeColumns, attribute_columns
from hpgmn.auditing.findings import TWIN_SHARE, Finding, Measures, findings
from hpgmn.auditing.measures import (
    ClassBalance,
    KnownData,
    MissingClass,
    Structure,
    Twins,
    class_balance,
    known_data,
    like_train_nodes,
    missing_classes,
    structure,
    twins,
)
from hpgmn.base.errors import GraphError
from hpgmn.graph import Graph, Split
from hpgmn.graph.graph import random_splits
from hpgmn.graph.homophily import Homophily, homophily

if TYPE_CHECKING:
    from hpgmn.auditing.usefulness import Usefulness
    from hpgmn.training.replicas import Progress


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes:
        graph: the graph's name.
        split: the number of the audited split; None without splits.
        has_own_splits: whether the graph has its own splits; else they were drawn at random.
        findings: the most severe first.
        structure: degrees, components, self-loops, repeats.
        missing_classes: classes that a part of some split lacks.
        columns: attribute columns without information, and those that determine the label.
        twins: duplicate nodes in train and test.
        known_data: the known dataset with the same data, if any.
        usefulness: whether the graph helps; None if nothing was trained.
    """

    graph: str
    split: int | None
    has_own_splits: bool
    findings: tuple[Finding, ...]
    structure: Structure
    classes: ClassBalance
    missing_classes: tuple[MissingClass, ...]
    homophily: Homophily
    columns: AttributeColumns
    twins: tuple[Twins, ...]
    known_data: KnownData | None
    usefulness: Usefulness | None

    def as_dict(self) -> dict[str, Any]:
        """Return every value, for JSON: NaN becomes None, remedies become text."""
        content: dict[str, Any] = _plain(dataclasses.asdict(self))
        for row, finding in zip(content["findings"], self.findings, strict=True):
            del row["remedy"]
            row["advice"] = finding.advice
        return content


def audit(
    graph: Graph,
    split: int = 0,
    *,
    training: bool = True,
    device: str = "cpu",
    report: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Audit:
    """Look for defects of a graph, and measure whether its edges help.

    Test labels are counted (classes, homophily), but never predicted or scored.

    Args:
        graph: the graph; without splits ten random ones (60/20/20) are drawn.
        training: whether to train small models to measure if the graph helps.
        report: called after each of their epochs.
        should_stop: polled after each epoch; True raises KeyboardInterrupt.

    >>> result = audit(Graph([[1.0], [2.0], [3.0]], [[0, 0], [1, 1]], [0, 1, -1]), training=False)
    >>> result.structure.repeated_edges, result.classes.unlabelled
    (1, 1)
    """
    whole, chosen = _with_split(graph, split)
    measures = Measures(
        structure=structure(whole),
        classes=class_balance(whole),
        missing_classes=missing_classes(whole),
        homophily=homophily(whole),
        columns=attribute_columns(whole, chosen),
        twins=twins(whole, chosen),
        known_data=known_data(whole),
    )
    useful, reason = None, ""
    if training:
        has_twins = any((twins.test_share or 0.0) >= TWIN_SHARE for twins in measures.twins)
        useful, reason = _usefulness(whole, chosen, has_twins, device, report, should_stop)
    return Audit(
        graph=graph.name,
        split=None if chosen is None else split,
        has_own_splits=graph.splits is not None and not graph.splits.is_random,
        findings=findings(measures, useful, reason),
        **{field.name: getattr(measures, field.name) for field in dataclasses.fields(measures)},
        usefulness=useful,
    )


def _with_split(graph: Graph, number: int) -> tuple[Graph, Split | None]:
    """Return the graph with splits, random ones if it has none, and the numbered split."""
    if graph.splits is None:
        try:
            divided = graph.with_splits(random_splits(graph, stratified=True))
        except GraphError:  # too few labels
            return graph, None
        return divided, divided.split(number)
    return graph, graph.split(number)


def _usefulness(
    graph: Graph,
    split: Split | None,
    has_twins: bool,
    device: str,
    report: Callable[[Progress], None] | None,
    should_stop: Callable[[], bool],
) -> tuple[Usefulness | None, str]:
    """Measure whether the graph helps, or return why it cannot be measured."""
    from hpgmn.auditing.usefulness import cannot_train, usefulness  # imports torch

    reason = cannot_train(graph, split)
    if reason is not None or split is None:
        return None, reason or ""
    result = usefulness(
        graph,
        split,
        twins=like_train_nodes(graph, split) if has_twins else None,
        device=device,
        report=report,
        should_stop=should_stop,
    )
    return result, ""


def _plain(value: Any) -> Any:
    """Convert tuples to lists and NaN to None, recursively."""
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return value
