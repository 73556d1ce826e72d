"""The command that tells what is wrong with a graph, and whether its edges help: audit."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from hpgmn.cli.console import out, say, step_progress, stop_on_signal, training_progress
from hpgmn.cli.tables import (
    GRAPH_HELP,
    Categories,
    Directed,
    DroppedColumns,
    DropUnknownEdges,
    IdColumn,
    LabelColumn,
    SourceColumn,
    SplitBy,
    SplitColumn,
    TargetColumn,
    WeightColumn,
    column_options,
)

if TYPE_CHECKING:
    from hpgmn.auditing import Audit
    from hpgmn.auditing.structure import Degrees
    from hpgmn.auditing.usefulness import Usefulness
    from hpgmn.training.replicas import Progress

_STYLES = {"defect": "bold red", "warning": "yellow", "info": "dim"}
_WIDTH = 80
_MOST_CLASSES = 12
_TRAINED_ON = {
    "label estimator": "attributes, label estimator",
    "attributes": "attributes, hpgmn",
    "class_counts": "class counts of neighbours",
    "class_means": "class means of neighbours",
    "adjacency": "who the neighbours are",
    "all together": "all together, hpgmn",
}
_TWINS = {
    "out-neighbors": "same out-neighbours",
    "in-neighbors": "same in-neighbours",
    "neighbors": "same neighbours",
    "attributes": "same attributes",
}


def audit(
    graph: Annotated[str, typer.Argument(help=GRAPH_HELP)],
    json_: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
    split: Annotated[int, typer.Option(help="The split to look at.")] = 0,
    protocol: Annotated[str | None, typer.Option(help="A published protocol's splits.")] = None,
    no_training: Annotated[
        bool,
        typer.Option("--no-training", help="Train no small models to see whether the graph helps."),
    ] = False,
    id_: IdColumn = None,
    label: LabelColumn = None,
    split_column: SplitColumn = None,
    source: SourceColumn = None,
    target: TargetColumn = None,
    weight: WeightColumn = None,
    drop: DroppedColumns = None,
    category: Categories = None,
    split_by: SplitBy = None,
    drop_unknown_edges: DropUnknownEdges = False,
    directed: Directed = None,
) -> None:
    """What is wrong with a graph, how alike neighbours are, and whether the graph helps.

    Looks for duplicates across train and test, attributes that give the label away, missing
    classes, and data of another dataset. Test labels are counted, never used for judging.
    """
    from hpgmn.auditing import audit as look
    from hpgmn.graph.datasets import load

    columns = column_options(
        *(id_, label, split_column, source, target, weight, drop),
        *(category, split_by, drop_unknown_edges, directed),
    )
    with step_progress() as step:
        loaded = load(graph, protocol, **columns, log=say, progress=step)
    if loaded.splits is not None:
        loaded.split(split)  # refuse a wrong number before work starts
    with training_progress() as progress, stop_on_signal() as should_stop:

        def report(now: Progress) -> None:
            progress(f"{loaded.name} audit", now)

        found = look(
            loaded, split, training=not no_training, report=report, should_stop=should_stop
        )
    if json_:
        print(json.dumps(found.as_dict(), indent=1, allow_nan=False))
        return
    _print(found)


def _print(found: Audit) -> None:
    """The page: findings first, then the numbers behind them."""
    where = "no split" if found.split is None else f"split {found.split}"
    edges = found.structure
    kind = "directed" if edges.directed else "undirected"
    _line(
        f"{found.graph}: {edges.nodes:,} nodes, {edges.edges:,} {kind} edges, "
        f"{found.columns.count:,} attributes, {len(found.classes.counts):,} classes",
        style="bold",
    )
    counts = [
        (severity, sum(one.severity == severity for one in found.findings)) for severity in _STYLES
    ]
    words = [
        f"{count} {word}{'s' if count != 1 and word != 'info' else ''}" for word, count in counts
    ]
    _heading(f"Findings ({where}): {', '.join(words)}")
    rows = Table.grid(padding=(0, 1))
    for one in found.findings:
        text = Text(f"{one.message} ").append(f"→ {one.advice}", style="dim")
        rows.add_row(Text(one.severity, style=_STYLES[one.severity]), text)
    out.print(rows, width=_WIDTH)
    if found.usefulness is not None:
        _print_usefulness(found.usefulness)
    _print_homophily(found)
    _print_twins(found)
    _print_columns(found)
    _print_classes(found)
    _print_structure(found)


def _print_usefulness(found: Usefulness) -> None:
    _heading("Does the graph help? (validation nodes)")
    metric = "ROC-AUC %" if found.metric == "roc_auc" else "accuracy %"
    table = _table("trained on", metric, "against attributes alone", right=(1,))
    for one in found.contributions:
        apart = "(attributes alone)" if one.difference is None else _difference(one.difference)
        table.add_row(_TRAINED_ON[one.name], f"{100 * one.score:.1f}", apart)
    out.print(table, width=_WIDTH)
    drawn = " drawn from more" if found.is_sampled else ""
    plural = "s" if found.seeds > 1 else ""
    _line(
        f"{found.train_nodes:,} train and {found.val_nodes:,} validation nodes{drawn}, mean of "
        f"{found.seeds} seed{plural}, small fixed settings, {found.seconds:.0f} s. Brackets: 95 % "
        "interval over nodes. All scores are a little high: the same nodes choose the epoch.",
        style="dim",
    )


def _difference(found: Any) -> str:
    ends = f"[{100 * found.low:+.1f}, {100 * found.high:+.1f}]"
    noise = " noise" if found.low <= 0 <= found.high else ""
    return f"{100 * found.mean:+.1f} {ends}{noise}"


def _print_homophily(found: Audit) -> None:
    from hpgmn.auditing.findings import MEASURES

    _heading("How alike neighbours are")
    table = _table("measure", "value", "meaning", right=(1,))
    for name, (words, meaning) in MEASURES.items():
        table.add_row(words, _number(getattr(found.homophily, name)), meaning)
    out.print(table, width=_WIDTH)


def _print_twins(found: Audit) -> None:
    _heading("Duplicate nodes")
    columns = ("alike", "nodes", "test nodes like a train node", "label agrees")
    table = _table(*columns, right=(1, 2, 3))
    for one in found.twins:
        table.add_row(
            _TWINS[one.alike], f"{one.nodes:,}", _percent(one.test_share), _percent(one.agreement)
        )
    out.print(table, width=_WIDTH)
    _line(
        "Same neighbours: three or more, and no others. Label agrees: of validation nodes with the "
        "train nodes they are like.",
        style="dim",
    )


def _print_columns(found: Audit) -> None:
    _heading("Attribute columns")
    own = found.columns
    table = _table("all", "zero", "constant", "give the label away", right=range(4))
    counts = (own.count, len(own.zero), len(own.constant), len(own.giveaways))
    table.add_row(*(f"{count:,}" for count in counts))
    out.print(table)
    drawn = " drawn from more" if own.is_sampled else ""
    _line(
        f"Each column alone, by {own.judged_nodes:,} train and validation nodes{drawn}; columns "
        "that tell the label only together are not found.",
        style="dim",
    )


def _print_classes(found: Audit) -> None:
    _heading("Classes")
    counts = sorted(found.classes.counts.items(), key=lambda one: -one[1])
    total = max(1, sum(found.classes.counts.values()))
    table = _table("class", "labelled nodes", "share", right=(1, 2))
    for name, count in counts[:_MOST_CLASSES]:
        table.add_row(Text(name), f"{count:,}", _percent(count / total))
    if len(counts) > _MOST_CLASSES:
        rest = sum(count for _, count in counts[_MOST_CLASSES:])
        others = f"{len(counts) - _MOST_CLASSES:,} others"
        table.add_row(others, f"{rest:,}", _percent(rest / total))
    if found.classes.unlabelled:
        table.add_row("without a label", f"{found.classes.unlabelled:,}", "")
    out.print(table)


def _print_structure(found: Audit) -> None:
    _heading("Edges")
    edges = found.structure
    table = _table(
        "neighbours of a node", "least", "median", "most", "nodes without", right=range(1, 5)
    )
    kinds = {"all": edges.degrees}
    if edges.is_one_way:
        kinds = {"out": edges.out_degrees, "in": edges.in_degrees} | kinds
    for name, degrees in kinds.items():
        table.add_row(name, *_degrees(degrees))
    out.print(table)
    parts = f"{edges.components:,} connected part{'s' if edges.components > 1 else ''}"
    _line(
        f"{edges.listed_edges:,} edges listed: {edges.self_loops:,} self-loops, "
        f"{edges.repeated_edges:,} repeats; {edges.both_ways:.0%} run both ways; {parts}, the "
        f"largest of {edges.largest_component:,} nodes.",
        style="dim",
    )


def _degrees(found: Degrees) -> tuple[str, ...]:
    return f"{found.least:,}", f"{found.median:,.10g}", f"{found.most:,}", f"{found.without:,}"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _table(*columns: str, right: Any = ()) -> Table:
    made = [
        Column(name, justify="right" if place in right else "left")
        for place, name in enumerate(columns)
    ]
    return Table(*made, box=None, padding=(0, 2, 0, 0), header_style="dim")


def _heading(text: str) -> None:
    out.print()
    _line(text, style="bold")


def _line(text: str, style: str) -> None:
    out.print(Text(text, style=style), width=_WIDTH)
