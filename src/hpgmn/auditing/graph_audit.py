"""The audit of a graph: measures, and the findings that follow from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpgmn.auditing.measures import (
    AttributeColumns,
    ClassBalance,
    Giveaway,
    KnownData,
    MissingClass,
    Structure,
    Twins,
    attribute_columns,
    class_balance,
    gain,
    known_data,
    like_train_nodes,
    missing_classes,
    structure,
    twins,
)
from hpgmn.base.errors import GraphError, Remedy, count_noun
from hpgmn.base.html import table_html
from hpgmn.graph import Graph, Split, random_splits
from hpgmn.graph.homophily import Homophily, homophily
from hpgmn.training.checks import SKEWED, metric_for_skewed

if TYPE_CHECKING:
    from hpgmn.auditing.usefulness import Usefulness
    from hpgmn.training.replicas import Progress

SEVERITIES = ("defect", "warning", "info")
"""A defect makes scores wrong; a warning may; an info explains."""

TWIN_SHARE = 0.1
"""Smallest share of test nodes with a duplicate in train that is a finding."""
FULL_AGREEMENT, SOME_AGREEMENT = 0.8, 0.3
"""How far beyond the largest class twins agree: test labels are known, or partly known."""
ISOLATED_SHARE = 0.2
LARGEST_COMPONENT = 0.9
SMALLEST_CLASS = 5
HOMOPHILOUS, UNINFORMATIVE = 0.5, 0.05
CLEARLY_BETTER = 0.02
"""A statistic alone must beat all together by this much to be named."""
MOST_NAMED = 3
"""Columns or classes that a message names."""

_PARTS = {"train": "train", "val": "validation", "test": "test"}
ALIKE = {
    "out-neighbors": "the same out-neighbours",
    "in-neighbors": "the same in-neighbours",
    "neighbors": "the same neighbours",
    "attributes": "the same attributes",
}
"""What twins share."""
MEASURES = {
    "node": ("node", "mean share of neighbours with a node's class"),
    "edge": ("edge", "share of edges within a class"),
    "class_insensitive": ("class-insensitive", "corrected for class sizes; 0 by chance, 1 at most"),
    "adjusted": ("adjusted", "corrected for class degrees; 0 by chance, 1 at most"),
    "label_informativeness": (
        "label informativeness",
        "information of a neighbour's class, from 0 to 1",
    ),
}
"""The measures of homophily, each with its name and meaning."""


@dataclass(frozen=True)
class Finding:
    """Something to know about a graph.

    Attributes:
        severity: "defect", "warning" or "info".
        topic: a short name, the same for every graph.
        message: what was found, one sentence.
        remedy: what to do.
    """

    severity: str
    topic: str
    message: str
    remedy: Remedy

    @property
    def advice(self) -> str:
        """The remedy as a sentence."""
        return str(self.remedy)


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes:
        graph: its name.
        split: the number of the audited split; None without splits.
        has_own_splits: whether the graph has its own splits; else they were drawn at random.
        findings: the most severe first.
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
    usefulness: Usefulness | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return every value, for JSON: NaN becomes None, remedies become text."""
        content: dict[str, Any] = _plain(dataclasses.asdict(self))
        for row, finding in zip(content["findings"], self.findings, strict=True):
            del row["remedy"]
            row["advice"] = finding.advice
        return content

    def _repr_html_(self) -> str:
        rows = [(one.severity, one.message, one.advice) for one in self.findings]
        findings = table_html(f"Audit of '{self.graph}'", rows, ("", "finding", "what to do"))
        return findings + (self.usefulness._repr_html_() if self.usefulness else "")


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

    Test labels are counted (classes, homophily), but never predicted or scored. Targets are audited
    as five classes of equal size.

    Args:
        graph: the graph; without splits ten random ones (60/20/20) are drawn.
        training: whether to train small models to measure if the graph helps.
        report: called after each of their epochs.
        should_stop: polled after each epoch; True raises KeyboardInterrupt.

    >>> result = audit(Graph([[1.0], [2.0], [3.0]], [[0, 0], [1, 1]], [0, 1, -1]), training=False)
    >>> result.structure.repeated_edges, result.classes.unlabelled
    (1, 1)
    """
    if graph.is_regression:
        from hpgmn.graph.conversion import targets_to_classes

        graph = targets_to_classes(graph, 5)
    whole, chosen = _with_split(graph, split)
    result = Audit(
        graph=graph.name,
        split=None if chosen is None else split,
        has_own_splits=graph.splits is not None and not graph.splits.is_random,
        findings=(),
        structure=structure(whole),
        classes=class_balance(whole),
        missing_classes=missing_classes(whole),
        homophily=homophily(whole),
        columns=attribute_columns(whole, chosen),
        twins=twins(whole, chosen),
        known_data=known_data(whole),
    )
    reason = ""
    if training:
        from hpgmn.auditing.usefulness import cannot_train, usefulness  # imports torch

        reason = cannot_train(whole, chosen) or ""
        if chosen is not None and not reason:
            has_twins = any((kind.test_share or 0.0) >= TWIN_SHARE for kind in result.twins)
            useful = usefulness(
                whole,
                chosen,
                twins=like_train_nodes(whole, chosen) if has_twins else None,
                device=device,
                report=report,
                should_stop=should_stop,
            )
            result = dataclasses.replace(result, usefulness=useful)
    return dataclasses.replace(result, findings=findings(result, reason))


def _with_split(graph: Graph, number: int) -> tuple[Graph, Split | None]:
    """Return the graph with splits, random ones if it has none, and the numbered split."""
    if graph.splits is None:
        try:
            divided = graph.with_splits(random_splits(graph, stratified=True))
        except GraphError:  # too few labels
            return graph, None
        return divided, divided.split(number)
    return graph, graph.split(number)


def _plain(value: Any) -> Any:
    """Convert tuples to lists and NaN to None, recursively."""
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


# Findings


def findings(measured: Audit, untrained: str) -> tuple[Finding, ...]:
    """Return every finding, the most severe first.

    Args:
        measured: an audit without findings.
        untrained: why no model was trained; empty if none was requested.
    """
    duplicates = list(_twins(measured.twins))
    result = [
        *_known_data(measured.known_data),
        *duplicates,
        *_giveaways(measured.columns.giveaways),
        *_classes(measured.classes),
        *_missing_classes(measured.missing_classes, measured.classes),
        *_usefulness(measured.usefulness, untrained, has_twins=bool(duplicates)),
        *_homophily(measured.homophily),
        *_structure(measured.structure),
        *_columns(measured.columns, measured.structure.nodes),
    ]
    return tuple(sorted(result, key=lambda finding: SEVERITIES.index(finding.severity)))


def _known_data(known: KnownData | None) -> Iterator[Finding]:
    if known is None:
        return
    others = [part for part in ("attributes", "labels", "edges") if part not in known.same]
    if not others:
        remedy = Remedy("Look up its known defects", command="datasets")
        yield Finding("info", "known-data", f"This is the dataset '{known.name}'.", remedy)
        return
    yield Finding(
        "defect" if "attributes" in known.same else "warning",
        "known-data",
        f"Dataset '{known.name}' has the same {' and '.join(known.same)}, but other "
        f"{' and '.join(others)}.",
        Remedy("Find out which of the two is wrong, and discard scores on it"),
    )


def _twins(measured: tuple[Twins, ...]) -> Iterator[Finding]:
    """Report neighbours, of the kind most test nodes share, and attributes."""
    for is_attributes in (False, True):
        kind = [twins for twins in measured if (twins.alike == "attributes") == is_attributes]
        if not kind:
            continue
        worst = max(kind, key=lambda twins: twins.test_share or 0.0)
        if (worst.test_share or 0.0) < TWIN_SHARE:
            continue
        agreement = math.nan
        if worst.agreement is not None and worst.by_chance is not None:
            agreement = gain(worst.agreement, worst.by_chance)
        if agreement < SOME_AGREEMENT:  # no help in predicting: no leak
            continue
        agree = f" Label agreement on validation nodes: {worst.agreement or 0:.1%}."
        yield Finding(
            "defect" if agreement >= FULL_AGREEMENT else "warning",
            "twins",
            f"{worst.test_share:.1%} of the test nodes have {ALIKE[worst.alike]} as a train node."
            + agree * (worst.agreement is not None),
            Remedy("Remove duplicates, or keep each group in one part of the split"),
        )


def _giveaways(giveaways: tuple[Giveaway, ...]) -> Iterator[Finding]:
    remedy = Remedy("Drop each column whose value becomes known only together with the label")
    for is_whole in (True, False):
        rows = [row for row in giveaways if (row.of_class is None) == is_whole]
        if not rows:
            continue
        if is_whole:
            fact = (
                f"accuracy {rows[0].accuracy:.1%} on validation nodes (largest class: "
                f"{rows[0].chance:.1%})"
            )
        else:
            classes = list(dict.fromkeys(f"'{row.of_class}'" for row in rows))
            fact = (
                f"F1 up to {max(row.f1 for row in rows):.2f} on validation nodes for "
                f"{_list_names(classes, 'class', 'classes')}"
            )
        columns = _list_names([row.name for row in rows], "Attribute column")
        severity = "defect" if any(row.is_copy for row in rows) else "warning"
        yield Finding(severity, "giveaway", f"{columns} alone: {fact}.", remedy)


def _classes(classes: ClassBalance) -> Iterator[Finding]:
    present = {name: count for name, count in classes.counts.items() if count}
    if len(present) < 2:
        fault = "All labelled nodes have one class." if present else "No node has a label."
        yield Finding("defect", "classes", fault, Remedy("Add labels of two classes or more"))
        return
    if classes.largest_share > SKEWED:
        name = max(present, key=lambda key: present[key])
        metric = metric_for_skewed(len(present))
        yield Finding(
            "warning",
            "class-balance",
            f"Class '{name}' makes up {classes.largest_share:.1%} of the labelled nodes, the "
            "accuracy of a constant prediction.",
            Remedy("Use a metric for skewed classes", option="metric", value=metric),
        )
    small = [f"'{name}'" for name, count in present.items() if count < SMALLEST_CLASS]
    if small:
        yield Finding(
            "warning",
            "class-balance",
            f"Fewer than {SMALLEST_CLASS} labelled nodes: "
            f"{_list_names(small, 'class', 'classes')}.",
            Remedy("Label more nodes, or merge small classes"),
        )
    if classes.unlabelled:
        total = classes.unlabelled + sum(present.values())
        yield Finding(
            "info",
            "unlabelled",
            f"Nodes without a label: {_share(classes.unlabelled, total)}.",
            Remedy("Nothing to do: they are predicted, but neither trained on nor scored"),
        )


def _missing_classes(missing: tuple[MissingClass, ...], classes: ClassBalance) -> Iterator[Finding]:
    for part, part_name in _PARTS.items():
        # Classes of one or two nodes cannot be in all parts; their size is a finding already.
        lacking = [
            row
            for row in missing
            if row.part == part and (part == "train" or classes.counts[row.name] >= len(_PARTS))
        ]
        if not lacking:
            continue
        splits = sorted({number for row in lacking for number in row.splits})
        names = list(dict.fromkeys(f"'{row.name}'" for row in lacking))
        yield Finding(
            "warning" if part == "train" else "info",
            "missing-class",
            f"No {part_name} node of {_list_names(names, 'class', 'classes')} in "
            f"{_list_names([str(number) for number in splits], 'split', most=len(splits))}.",
            Remedy("Stratify the splits, or merge small classes"),
        )


def _usefulness(useful: Usefulness | None, untrained: str, *, has_twins: bool) -> Iterator[Finding]:
    if useful is None:
        if untrained:
            yield Finding(
                "info",
                "graph-helps",
                f"Whether the graph helps was not measured: {untrained}.",
                Remedy("Label more nodes, or define train and validation nodes"),
            )
        return
    low, high = useful.difference.low, useful.difference.high
    assert low is not None
    assert high is not None
    severity, message = "info", useful.verdict
    remedy = Remedy("Search settings", command="tune") | "Label more nodes to narrow the interval"
    if low > 0:
        remedy = Remedy("Train on it", command="train")
        message += _without_twins(useful) if has_twins else ""
    if high < 0:
        severity = "warning"
        remedy = Remedy(
            "Compare with a model without edges", command="train", option="model", value="hpgmn,mlp"
        )
    *others, together = useful.contributions
    best = max(others[1:], key=lambda row: row.score, default=together)  # no label estimator
    if best.score > together.score + CLEARLY_BETTER:
        message += f" '{best.name}' alone: {100 * best.score:.1f}, all: {100 * together.score:.1f}."
        remedy |= Remedy("Use one statistic", setting="statistics", value=best.name)
    yield Finding(severity, "graph-helps", message, remedy)


def _without_twins(useful: Usefulness) -> str:
    """Describe what remains of a difference on nodes without a twin in train."""
    rest = useful.without_twins
    if rest is None or rest.low is None or rest.high is None:
        return " Nearly all of these nodes have a duplicate in train."
    return (
        f" On the {rest.count:,} nodes without a duplicate in train: {100 * rest.mean:+.1f} points "
        f"(95 % interval {100 * rest.low:+.1f} to {100 * rest.high:+.1f})."
    )


def _homophily(homophily: Homophily) -> Iterator[Finding]:
    if math.isnan(homophily.label_informativeness) or math.isnan(homophily.adjusted):
        return
    values = (
        f"adjusted homophily {homophily.adjusted:.2f}, label informativeness "
        f"{homophily.label_informativeness:.2f}"
    )
    if homophily.adjusted >= HOMOPHILOUS:
        message = f"Homophilous: neighbours mostly share their class ({values})."
        remedy = Remedy(
            "Compare models that average neighbours", option="model", value="hpgmn-appnp,gcn"
        )
    elif homophily.label_informativeness < UNINFORMATIVE:
        message = f"Neighbours' classes are uninformative ({values})."
        remedy = Remedy("Rely on the identity and attributes of neighbours")
    else:
        message = f"Heterophilous: neighbours' classes differ, but are informative ({values})."
        remedy = Remedy("Use hpgmn; models that average neighbours lose this information")
    yield Finding("info", "homophily", message, remedy)


def _structure(structure: Structure) -> Iterator[Finding]:
    if not structure.edges:
        remedy = Remedy("Add edges") | Remedy("Train without", option="model", value="mlp")
        yield Finding("defect", "edges", "The graph has no edges.", remedy)
        return
    isolated = structure.degrees.without
    if isolated:
        yield Finding(
            "warning" if isolated / structure.nodes >= ISOLATED_SHARE else "info",
            "isolated-nodes",
            f"Nodes without edges: {_share(isolated, structure.nodes)}.",
            Remedy("Check whether edges were lost; only attributes describe these nodes"),
        )
    if structure.largest_component < LARGEST_COMPONENT * (structure.nodes - isolated):
        yield Finding(
            "info",
            "components",
            f"The graph has {structure.components:,} components; the largest holds "
            f"{structure.largest_component / structure.nodes:.1%} of the nodes.",
            Remedy("Check that each component has train nodes"),
        )
    listed = {"self-loop": structure.self_loops, "repeated edge": structure.repeated_edges}
    counts = " and ".join(count_noun(count, noun) for noun, count in listed.items() if count)
    if counts:
        yield Finding(
            "info",
            "edges",
            f"The edge list contains {counts}.",
            Remedy("Nothing to do: self-loops are dropped, repeats merged by adding weights"),
        )
    if structure.directed and not structure.is_one_way:
        yield Finding(
            "info",
            "directions",
            "Every edge is listed in both directions.",
            Remedy("Ignore directions", setting="neighbors", value="undirected"),
        )


def _columns(columns: AttributeColumns, num_nodes: int) -> Iterator[Finding]:
    constant = len(columns.zero) + len(columns.constant)
    if constant:
        yield Finding(
            "warning" if constant == columns.count else "info",
            "columns",
            f"{constant:,} of {columns.count:,} attribute columns are constant "
            f"({len(columns.zero):,} zero).",
            Remedy("Drop them: they hold no information"),
        )
    if columns.without:
        yield Finding(
            "info",
            "empty-attributes",
            f"Nodes whose attributes are all zero: {_share(columns.without, num_nodes)}.",
            Remedy("Check whether values were lost; only neighbours describe these nodes"),
        )


def _share(count: int, total: int) -> str:
    return f"{count:,} ({count / total:.1%})"


def _list_names(names: list[str], noun: str, plural: str = "", most: int = MOST_NAMED) -> str:
    """List the first few names after their noun.

    >>> _list_names(["a"], "column"), _list_names(["a", "b", "c", "d", "e"], "class", "classes")
    ('column a', 'classes a, b, c and 2 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    word = noun if len(names) == 1 else plural or f"{noun}s"
    return f"{word} {', '.join(names[:most])}{more}"
