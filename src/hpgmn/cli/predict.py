"""``hpgmn predict``: classes and probabilities as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpgmn.base.errors import MISSING, SettingError, count_noun
from hpgmn.cli.console import print_table, say
from hpgmn.cli.options import (
    Add,
    ModelsSplit,
    OtherGraph,
    OwnModel,
    RunFolder,
    Threshold,
    column_options,
)

if TYPE_CHECKING:
    from hpgmn.runs.predictions import Predictions


@column_options(
    *("split", "drop", "categories", "edge_drop", "edge_categories", "edge_time", "as_of"),
    *("split_by", "directed", "task"),
)
def predict(
    run: RunFolder,
    graph: OtherGraph = None,
    *,
    split: ModelsSplit = None,
    own: OwnModel = None,
    out_file: Annotated[Path, typer.Option("--out", help="FILE.csv or FILE.parquet.")] = Path(
        "predictions.csv"
    ),
    min_confidence: Annotated[
        float,
        typer.Option(
            help="Below this confidence the prediction stays empty. Thresholds for a required "
            "accuracy: metrics.json, calibration; they are slightly optimistic, because the same "
            "validation nodes selected the epoch."
        ),
    ] = 0.0,
    threshold: Threshold = None,
    top: Annotated[
        int | None,
        typer.Option(
            help="Print and write only the nodes that are most likely of a class, best first, with "
            "the main reason: unlabelled nodes, all with --all-nodes."
        ),
    ] = None,
    of: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="The class of --top [the positive one of two]."),
    ] = None,
    coverage: Annotated[
        float | None,
        typer.Option(
            help="Add the smallest set of classes that holds the true one with this probability, "
            "such as 0.9; for runs of `hpgmn train --conformal`."
        ),
    ] = None,
    by_class: Annotated[
        bool, typer.Option("--by-class", help="Hold --coverage for the nodes of each class.")
    ] = False,
    add: Add = False,
    only_new: Annotated[
        bool | None,
        typer.Option(
            "--only-new/--all-nodes",
            help="Write only the nodes that the model was not trained on [with --add].",
        ),
    ] = None,
    columns: dict[str, Any],
) -> None:
    """Write class and calibrated probabilities per node: averaged over seeds, never over splits.

    Tables are read with the column names used in training; pass column options only if the names
    have changed.
    """
    if out_file.suffix not in (".csv", ".parquet"):
        raise SettingError(f"--out must end in .csv or .parquet (got '{out_file}').")
    if graph is None and (add or only_new or columns):
        raise SettingError(
            "--add, --only-new and options for columns are about another graph than the trained "
            "one.",
            "Name it after the run folder.",
        )
    from hpgmn.runs.run import open_run

    opened = open_run(run, own)
    loaded = opened.load_graph(graph, add=add, columns=columns, notify=say)
    is_new = add if only_new is None else only_new
    predictions = opened.predict(
        *(loaded, split),
        only_new=is_new,
        min_confidence=min_confidence,
        threshold=threshold,
        top=top,
        of=of,
        all_nodes=only_new is False,
        coverage=coverage,
        by_class=by_class,
    )
    predictions.write(out_file)
    if top is not None:
        _print_ranking(predictions)
    nodes = count_noun(len(predictions.node_ids), "new node" if is_new else "node")
    if is_new:
        nodes += f" of {loaded.num_nodes:,}"
    elif predictions.num_new is not None:
        nodes += f" ({predictions.num_new:,} of them new to the model)"
    empty = sum(label is None for label in predictions.labels)
    left_out = f", {empty:,} below {min_confidence:g} left empty" if min_confidence else ""
    seeds = count_noun(predictions.seeds, "member" if opened.spec.model == "ensemble" else "seed")
    if predictions.threshold is not None:
        name, value = predictions.threshold
        left_out += (
            f", {sum(predictions.labels == name):,} '{name}' (probability {value:.3g} or more)"
        )
    if predictions.sets is not None:
        left_out += f", {predictions.sets.sum(axis=1).mean():.2f} classes per set"
    say(f"{nodes}, split {predictions.split}, {seeds}{left_out}: {out_file}")


def _print_ranking(predictions: Predictions) -> None:
    """Print the ranked nodes with their probability and main reason, or predicted number."""
    if predictions.reasons is None:
        numbers = zip(predictions.node_ids, predictions.labels, strict=True)
        rows = [(str(k), str(node), f"{value:.5g}") for k, (node, value) in enumerate(numbers, 1)]
        print_table(("", "node", "prediction"), rows)
        return
    chances = predictions.probabilities[:, predictions.class_names.index(str(predictions.of))]
    ranked = zip(predictions.node_ids, chances, predictions.reasons, strict=True)
    print_table(
        ("", "node", f"probability of '{predictions.of}'", "main reason"),
        [
            (str(rank), str(node), f"{chance:.3f}", reason or MISSING)
            for rank, (node, chance, reason) in enumerate(ranked, start=1)
        ],
    )
