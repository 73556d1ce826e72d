"""From measures to findings: what to know about a graph, how bad it is, and what to do next."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpgmn.auditing.attributes import Columns, Giveaway, gain
from hpgmn.auditing.classes import ClassBalance, MissingClass
from hpgmn.auditing.structure import Structure
from hpgmn.auditing.twins import KnownData, Twins
from hpgmn.graph.homophily import Homophily
from hpgmn.training.checks import SKEWED, metric_for_skewed

if TYPE_CHECKING:
    from hpgmn.auditing.usefulness import Usefulness

SEVERITIES = ("defect", "warning", "info")
"""A defect makes scores wrong; a warning may; an info explains."""

TWIN_SHARE = 0.1
"""Share of test nodes with a twin in train from which it is a finding."""
PLAIN_AGREEMENT, SOME_AGREEMENT = 0.8, 0.3
"""How far beyond the largest class twins agree: test labels are known, or half known."""
ISOLATED_SHARE = 0.2
LARGEST_COMPONENT = 0.9
LARGEST_CLASS = SKEWED
SMALLEST_CLASS = 5
HOMOPHILOUS, UNINFORMATIVE = 0.5, 0.05
CLEARLY_BETTER = 0.02
"""By so much a statistic alone must beat all together to be named."""
NAMED = 3
"""How many columns or classes a sentence names."""

_PARTS = {"train": "train", "val": "validation", "test": "test"}
ALIKE = {
    "out-neighbors": "the same out-neighbours",
    "in-neighbors": "the same in-neighbours",
    "neighbors": "the same neighbours",
    "attributes": "the same attributes",
}
"""What twins share, in words."""
MEASURES = {
    "node": ("node", "mean share of neighbours with a node's class"),
    "edge": ("edge", "share of edges inside a class"),
    "class_insensitive": ("class-insensitive", "beyond class sizes; 0 by chance, 1 at most"),
    "adjusted": ("adjusted", "beyond class degrees; 0 by chance, 1 at most"),
    "label_informativeness": (
        "label informativeness",
        "what a neighbour's class tells, from 0 to 1",
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
        advice: what to do next, one sentence.
    """

    severity: str
    topic: str
    message: str
    advice: str


@dataclass(frozen=True)
class Measures:
    """All that findings follow from, but for what was trained; see :class:`Audit`."""

    structure: Structure
    classes: ClassBalance
    missing_classes: tuple[MissingClass, ...]
    homophily: Homophily
    columns: Columns
    twins: tuple[Twins, ...]
    known_data: KnownData | None


def findings(measures: Measures, useful: Usefulness | None, untrained: str) -> tuple[Finding, ...]:
    """Every finding, the worst first.

    Args:
        measures: what was measured.
        useful: what was trained, if anything.
        untrained: why nothing was; empty if nothing was asked for.
    """
    duplicates = list(_twins(measures.twins))
    found = [
        *_known_data(measures.known_data),
        *duplicates,
        *_giveaways(measures.columns.giveaways),
        *_classes(measures.classes),
        *_missing_classes(measures.missing_classes, measures.classes),
        *_usefulness(useful, untrained, has_twins=bool(duplicates)),
        *_homophily(measures.homophily),
        *_structure(measures.structure),
        *_columns(measures.columns, measures.structure.nodes),
    ]
    found = [dataclasses.replace(one, message=_sentence(one.message)) for one in found]
    return tuple(sorted(found, key=lambda one: SEVERITIES.index(one.severity)))


def _known_data(known: KnownData | None) -> Iterator[Finding]:
    if known is None:
        return
    topic, what = "known-data", " and ".join(known.same)
    if "edges" in known.same and len(known.same) == 3:
        message = f"This is the dataset '{known.name}': {', '.join(known.same)} are equal."
        yield Finding("info", topic, message, "`hpgmn datasets` tells what is known of it.")
        return
    others = [part for part in ("attributes", "labels", "edges") if part not in known.same]
    yield Finding(
        "defect" if "attributes" in known.same else "warning",
        topic,
        f"The {what} are those of the dataset '{known.name}', with other {' and '.join(others)}.",
        "One of the two is wrong: find out which, and take no score on the other seriously.",
    )


def _twins(found: tuple[Twins, ...]) -> Iterator[Finding]:
    """One finding about neighbours, the kind most test nodes have, and one about attributes."""
    kinds = (
        [one for one in found if one.alike != "attributes"],
        [one for one in found if one.alike == "attributes"],
    )
    for kind in kinds:
        if not kind:
            continue
        worst = max(kind, key=lambda one: one.test_share or 0.0)
        if (worst.test_share or 0.0) < TWIN_SHARE:
            continue
        agrees = math.nan
        if worst.agreement is not None and worst.by_chance is not None:
            agrees = gain(worst.agreement, worst.by_chance)
        if agrees < SOME_AGREEMENT:  # alike, but no help in guessing: no leak
            continue
        says = (
            ""
            if worst.agreement is None
            else (
                f"; such validation nodes have their twin's label in {worst.agreement:.1%} of cases"
            )
        )
        yield Finding(
            "defect" if agrees >= PLAIN_AGREEMENT else "warning",
            "twins",
            f"{worst.test_share:.1%} of the test nodes have exactly {ALIKE[worst.alike]} as a "
            f"train node{says}.",
            "Test scores reward remembering: remove such duplicates, or keep each group of them "
            "in one part of the split.",
        )


def _giveaways(found: tuple[Giveaway, ...]) -> Iterator[Finding]:
    whole = [one for one in found if one.of_class is None]
    if whole:
        best = whole[0]
        verb = "tell" if len(whole) > 1 else "tells"
        yield Finding(
            "defect" if any(one.is_copy for one in whole) else "warning",
            "giveaway",
            f"{_named([one.name for one in whole], 'attribute column')} alone {verb} the label: "
            f"{best.accuracy:.1%} of the validation nodes, where the largest class makes up "
            f"{best.chance:.1%}.",
            "Drop what is not known before the label is; keep it if it is.",
        )
    single = [one for one in found if one.of_class is not None]
    if single:
        classes = list(dict.fromkeys(str(one.of_class) for one in single))
        verb = "tell" if len(single) > 1 else "tells"
        yield Finding(
            "defect" if any(one.is_copy for one in single) else "warning",
            "giveaway",
            f"{_named([one.name for one in single], 'attribute column')} {verb} who is of "
            f"{_named(classes, 'class', quoted=True)} (F1 up to "
            f"{max(one.f1 for one in single):.2f} on validation nodes).",
            "Drop what is not known before the label is; keep it if it is.",
        )


def _classes(classes: ClassBalance) -> Iterator[Finding]:
    present = {name: count for name, count in classes.counts.items() if count}
    if len(present) < 2:
        what = "All labelled nodes have one class" if present else "No node has a label"
        yield Finding(
            "defect",
            "classes",
            f"{what}.",
            "Give labels of two classes or more: nothing can be learned.",
        )
        return
    if classes.largest_share > LARGEST_CLASS:
        name = max(present, key=lambda one: present[one])
        yield Finding(
            "warning",
            "class-balance",
            f"Class '{name}' makes up {classes.largest_share:.1%} of the labelled nodes: always "
            "saying it scores as much.",
            f"Do not judge by accuracy: use --metric {metric_for_skewed(len(present))}, and read "
            "the scores by class.",
        )
    small = [f"{name}" for name, count in present.items() if count < SMALLEST_CLASS]
    if small:
        yield Finding(
            "warning",
            "class-balance",
            f"{_named(small, 'class', quoted=True)} {'have' if len(small) > 1 else 'has'} fewer "
            f"than {SMALLEST_CLASS} labelled nodes.",
            "Label more nodes, or merge small classes: hardly anything is learned of so few.",
        )
    if classes.unlabelled:
        nodes = classes.unlabelled + sum(present.values())
        yield Finding(
            "info",
            "unlabelled",
            f"{_nodes(classes.unlabelled, nodes)} no label.",
            "Nothing to do: they are predicted, and neither trained on nor scored.",
        )


def _missing_classes(missing: tuple[MissingClass, ...], classes: ClassBalance) -> Iterator[Finding]:
    for part, word in _PARTS.items():
        # A class of one or two nodes cannot be in all parts: that it is small was said.
        lacking = [
            one
            for one in missing
            if one.part == part and (part == "train" or classes.counts[one.name] >= len(_PARTS))
        ]
        if not lacking:
            continue
        splits = sorted({number for one in lacking for number in one.splits})
        numbers = ", ".join(str(number) for number in splits)
        advice = (
            "Nothing is learned there of such a class: stratify the splits, or merge small classes."
        )
        if part != "train":
            advice = (
                "Scores there say nothing about such a class: stratify, or merge small classes."
            )
        names = list(dict.fromkeys(one.name for one in lacking))
        yield Finding(
            "warning" if part == "train" else "info",
            "missing-class",
            f"{_named(names, 'class', quoted=True)} {'have' if len(names) > 1 else 'has'} no "
            f"{word} node in {'splits' if len(splits) > 1 else 'split'} {numbers}.",
            advice,
        )


def _usefulness(useful: Usefulness | None, untrained: str, *, has_twins: bool) -> Iterator[Finding]:
    if useful is None:
        if untrained:
            yield Finding(
                "info",
                "graph-helps",
                f"Whether the graph helps was not measured: {untrained}.",
                "Label more nodes, or give train and validation nodes.",
            )
        return
    low, high = useful.difference.low, useful.difference.high
    assert low is not None
    assert high is not None
    severity, advice = "info", "Try more: `hpgmn tune` searches settings; more labels narrow noise."
    if low > 0:
        advice = "Train on it with `hpgmn train`, which tells how far this goes."
        if has_twins:
            advice = "Duplicates add to it: " + _without_twins(useful)
    if high < 0:
        severity, advice = "warning", "Compare `hpgmn train --model hpgmn,mlp` before using edges."
    *others, together = useful.contributions
    best = max(others[1:], key=lambda one: one.score, default=together)  # no label estimator
    if best.score > together.score + CLEARLY_BETTER:
        advice += (
            f" One statistic does better alone ({100 * best.score:.1f} against "
            f"{100 * together.score:.1f}): try --set statistics={best.name}."
        )
    yield Finding(severity, "graph-helps", useful.verdict, advice)


def _without_twins(useful: Usefulness) -> str:
    """What is left of a difference on nodes that are not like a train node."""
    left = useful.without_twins
    if left is None or left.low is None or left.high is None:
        return "nearly all of these nodes are like a train node."
    return (
        f"on the {left.count:,} of these nodes that are not like a train node it is "
        f"{100 * left.mean:+.1f} points (95 % interval {100 * left.low:+.1f} to "
        f"{100 * left.high:+.1f})."
    )


def _homophily(found: Homophily) -> Iterator[Finding]:
    if math.isnan(found.label_informativeness) or math.isnan(found.adjusted):
        return
    measures = (
        f"adjusted homophily {found.adjusted:.2f}, label informativeness "
        f"{found.label_informativeness:.2f}"
    )
    if found.adjusted >= HOMOPHILOUS:
        message = f"Neighbours mostly have the same class ({measures})."
        advice = "Models that average neighbours fit: compare --model hpgmn-appnp,gcn."
    elif found.label_informativeness < UNINFORMATIVE:
        message = f"A neighbour's class says next to nothing about a node's own ({measures})."
        advice = "What may still help is who the neighbours are, or what attributes they have."
    else:
        message = f"Neighbours differ in class, in a way that tells something ({measures})."
        advice = "Models that average neighbours lose that; hpgmn is made for it."
    yield Finding("info", "homophily", message, advice)


def _structure(found: Structure) -> Iterator[Finding]:
    if not found.edges:
        yield Finding("defect", "edges", "There are no edges.", "Give edges, or train --model mlp.")
        return
    isolated = found.degrees.without
    if isolated:
        share = isolated / found.nodes
        yield Finding(
            "warning" if share >= ISOLATED_SHARE else "info",
            "isolated-nodes",
            f"{_nodes(isolated, found.nodes)} no edge.",
            "They are told by their attributes alone; look whether edges were lost on the way.",
        )
    if found.largest_component < LARGEST_COMPONENT * (found.nodes - isolated):
        yield Finding(
            "info",
            "components",
            f"The graph falls into {found.components:,} parts; the largest has "
            f"{found.largest_component / found.nodes:.1%} of the nodes.",
            "Nothing flows between parts: see that each has train nodes.",
        )
    listed = {"self-loop": found.self_loops, "repeated edge": found.repeated_edges}
    words = " and ".join(_count(count, what) for what, count in listed.items() if count)
    if words:
        yield Finding(
            "info",
            "edges",
            f"The listed edges include {words}.",
            "Nothing to do: self-loops are dropped, repeats merged (their weights added).",
        )
    if found.directed and not found.is_one_way:
        yield Finding(
            "info",
            "directions",
            "Every edge is listed in both directions.",
            "Set neighbors=undirected: the other modes are the same graph.",
        )


def _columns(found: Columns, nodes: int) -> Iterator[Finding]:
    useless = len(found.zero) + len(found.constant)
    if useless:
        yield Finding(
            "warning" if useless == found.count else "info",
            "columns",
            f"{useless:,} of {found.count:,} attribute columns {'have' if useless > 1 else 'has'} "
            f"the same value for every node ({len(found.zero):,} of them zero).",
            "They tell nothing and may be left out.",
        )
    if found.without:
        yield Finding(
            "info",
            "empty-attributes",
            f"{_nodes(found.without, nodes)} attributes that are all zero.",
            "They are told by their neighbours alone; look whether values were lost on the way.",
        )


def _count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> _count(1, "self-loop"), _count(2_000, "self-loop")
    ('1 self-loop', '2,000 self-loops')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _nodes(number: int, all_nodes: int) -> str:
    """So many nodes, their share, and the verb.

    >>> _nodes(1, 4), _nodes(2, 4)
    ('1 node (25.0%) has', '2 nodes (50.0%) have')
    """
    verb = "has" if number == 1 else "have"
    return f"{_count(number, 'node')} ({number / all_nodes:.1%}) {verb}"


def _named(names: list[str], noun: str, *, quoted: bool = False) -> str:
    """A noun with the first few names.

    >>> _named(["a"], "column"), _named(["a", "b", "c", "d", "e"], "class", quoted=True)
    ('column a', "classes 'a', 'b', 'c' and 2 more")
    """
    shown = [f"'{name}'" if quoted else name for name in names[:NAMED]]
    plural = noun + ("es" if noun.endswith("s") else "s")
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    word = noun if len(names) == 1 else plural
    return f"{word} {', '.join(shown)}{more}"


def _sentence(text: str) -> str:
    """The text with a capital letter."""
    return text[0].upper() + text[1:]
