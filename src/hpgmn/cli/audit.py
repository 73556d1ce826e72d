"""``hpgmn audit``: defects of a graph, its homophily, and whether its edges help."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from hpgmn.base.errors import MISSING, count_noun
from hpgmn.cli.console import (
    out,
    print_table,
    say,
    step_progress,
    stop_on_signal,
    training_progress,
)
from hpgmn.cli.options import GRAPH_HELP, Json, Protocol, column_options

if TYPE_CHECKING:
    from hpgmn.auditing import Audit
    from hpgmn.auditing.usefulness import Usefulness
    from hpgmn.evaluation.scores import Difference
    from hpgmn.training.replicas import Progress

_STYLES = {"defect": "bold red", "warning": "yellow", "info": "dim"}
_WIDTH = 80
_MOST_CLASSES = 12
_TRAINED_ON = {
    "label estimator": "attributes, label estimator",
    "attributes": "attributes, hpgmn",
    "class_counts": "class counts of neighbours",
    "class_means": "class means of neighbours",
    "adjacency": "identity of neighbours",
    "all together": "all together, hpgmn",
}


@column_options()
def audit(
    graph: Annotated[str, typer.Argument(help=GRAPH_HELP)],
    *,
    json_: Json = False,
    split: Annotated[int, typer.Option(help="The split to audit.")] = 0,
    protocol: Protocol = None,
    no_training: Annotated[
        bool, typer.Option("--no-training", help="Do not measure whether the graph helps.")
    ] = False,
    columns: dict[str, Any],
) -> None:
    """Find defects of a graph, measure its homophily, and whether its edges help.

    Reports duplicates in train and test, attributes that determine the label, missing classes, and
    data of another dataset. Test labels are counted, never scored.
    """
    from hpgmn.auditing import audit as run_audit
    from hpgmn.graph.datasets import load

    with step_progress() as step:
        loaded = load(graph, protocol, **columns, log=say, progress=step)
    if loaded.splits is not None:
        loaded.split(split)  # refuse a wrong number before work starts
    with training_progress() as progress, stop_on_signal() as should_stop:

        def report(now: Progress) -> None:
            progress(f"{loaded.name} audit", now)

        result = run_audit(
            loaded, split, training=not no_training, report=report, should_stop=should_stop
        )
    if json_:
        print(json.dumps(result.as_dict(), indent=1, allow_nan=False))
        return
    _print(result)


def _print(result: Audit) -> None:
    """Print the findings first, then the numbers behind them."""
    edges = result.structure
    _line(
        f"{result.graph}: {edges.nodes:,} nodes, {edges.edges:,} "
        f"{'directed' if edges.directed else 'undirected'} edges, {result.columns.count:,} "
        f"attributes, {len(result.classes.counts):,} classes",
        style="bold",
    )
    where = "no split" if result.split is None else f"split {result.split}"
    severities = [finding.severity for finding in result.findings]
    defects, warnings, infos = (severities.count(severity) for severity in _STYLES)
    counts = f"{count_noun(defects, 'defect')}, {count_noun(warnings, 'warning')}, {infos} info"
    _line(f"\nFindings ({where}): {counts}", style="bold")
    rows = Table.grid(padding=(0, 1))
    for finding in result.findings:
        remedy = finding.remedy.render(cli=True)
        text = Text(f"{finding.message} ").append(f"→ {remedy}", style="dim")
        rows.add_row(Text(finding.severity, style=_STYLES[finding.severity]), text)
    out.print(rows, width=_WIDTH)
    if result.usefulness is not None:
        _print_usefulness(result.usefulness)
    _print_homophily_and_twins(result)
    _print_columns_and_classes(result)
    _print_structure(result)


def _print_usefulness(result: Usefulness) -> None:
    metric = "ROC-AUC %" if result.metric == "roc_auc" else "accuracy %"
    rows = [
        (
            _TRAINED_ON[part.name],
            f"{100 * part.score:.1f}",
            "(baseline)" if part.difference is None else _difference(part.difference),
        )
        for part in result.contributions
    ]
    head = ("trained on", metric, "vs. baseline")
    _print_table("Does the graph help? (validation nodes)", head, rows)
    sample = " (a sample)" if result.is_sampled else ""
    _line(
        f"{result.train_nodes:,} train and {result.val_nodes:,} validation nodes{sample}, mean of "
        f"{count_noun(result.seeds, 'seed')}, small fixed settings, {result.seconds:.0f} s. "
        "Brackets: 95 % interval over nodes. Scores are slightly optimistic: the same nodes select "
        "the epoch.",
        style="dim",
    )


def _difference(difference: Difference) -> str:
    assert difference.low is not None
    assert difference.high is not None
    interval = f"[{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"
    note = " not significant" if difference.low <= 0 <= difference.high else ""
    return f"{100 * difference.mean:+.1f} {interval}{note}"


def _print_homophily_and_twins(result: Audit) -> None:
    from hpgmn.auditing.graph_audit import ALIKE, MEASURES

    rows = []
    for key, (name, meaning) in MEASURES.items():
        value = getattr(result.homophily, key)
        rows.append((name, MISSING if value != value else f"{value:.3f}", meaning))
    _print_table("Homophily", ("measure", "value", "meaning"), rows)
    _print_table(
        "Duplicate nodes",
        ("criterion", "nodes", "test nodes equal to a train node", "label agreement"),
        [
            (ALIKE[row.alike], f"{row.nodes:,}", _percent(row.test_share), _percent(row.agreement))
            for row in result.twins
        ],
    )
    _line(
        "Same neighbours: nodes with three or more neighbours, all of them shared. Label "
        "agreement: of validation nodes with the train nodes they duplicate.",
        style="dim",
    )


def _print_columns_and_classes(result: Audit) -> None:
    columns = result.columns
    counts = (columns.count, len(columns.zero), len(columns.constant), len(columns.giveaways))
    head = ("all", "zero", "constant", "determine the label")
    _print_table("Attribute columns", head, [[f"{count:,}" for count in counts]])
    sample = " (a sample)" if columns.is_sampled else ""
    _line(
        f"Each column alone, on {columns.judged_nodes:,} train and validation nodes{sample}; "
        "combinations of columns are not tested.",
        style="dim",
    )
    classes = sorted(result.classes.counts.items(), key=lambda pair: -pair[1])
    total = max(1, sum(result.classes.counts.values()))
    shown = classes[:_MOST_CLASSES]
    if len(classes) > _MOST_CLASSES:
        others = f"{len(classes) - _MOST_CLASSES:,} others"
        shown.append((others, sum(count for _, count in classes[_MOST_CLASSES:])))
    rows = [(name, f"{count:,}", _percent(count / total)) for name, count in shown]
    if result.classes.unlabelled:
        rows.append(("without a label", f"{result.classes.unlabelled:,}", ""))
    _print_table("Classes", ("class", "labelled nodes", "share"), rows)


def _print_structure(result: Audit) -> None:
    edges = result.structure
    degrees = {"all": edges.degrees}
    if edges.is_one_way:
        degrees = {"out": edges.out_degrees, "in": edges.in_degrees} | degrees
    rows = [
        (
            name,
            f"{degree.least:,}",
            f"{degree.median:,.10g}",
            f"{degree.most:,}",
            f"{degree.without:,}",
        )
        for name, degree in degrees.items()
    ]
    head = ("neighbours of a node", "minimum", "median", "maximum", "nodes without")
    _print_table("Edges", head, rows)
    _line(
        f"{edges.listed_edges:,} edges listed: {edges.self_loops:,} self-loops, "
        f"{edges.repeated_edges:,} repeats; {edges.both_ways:.0%} in both directions; "
        f"{count_noun(edges.components, 'component')}, the largest with "
        f"{edges.largest_component:,} nodes.",
        style="dim",
    )


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{share:.1%}"


def _print_table(heading: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    _line(f"\n{heading}", style="bold")
    print_table(columns, rows, width=_WIDTH)


def _line(text: str, style: str) -> None:
    out.print(Text(text, style=style), width=_WIDTH)
