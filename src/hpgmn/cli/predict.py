"""``hpgmn predict``: classes and probabilities as a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.files import atomic_write
from hpgmn.cli.console import err, say
from hpgmn.cli.tables import (
    DropUnknownEdges,
    IdColumn,
    LabelColumn,
    SourceColumn,
    TargetColumn,
    WeightColumn,
    column_options,
)

if TYPE_CHECKING:
    from hpgmn.graph import Array, Graph
    from hpgmn.runs.spec import RunSpec
    from hpgmn.training.saved import SavedModel


OWN = typer.Option("--model", help="Your own model, package.module:Class, if the run has one.")


def opened(
    run: Path,
    source: str | None,
    own: str | None,
    *,
    add: bool = False,
    columns: Mapping[str, Any] | None = None,
) -> tuple[SavedModel, RunSpec, Graph]:
    """The model, the specification and the graph of a run folder (or another graph).

    Args:
        run: the run folder.
        source: another graph; None for the trained one.
        own: the name of the user's own model.
        add: whether ``source`` holds only what is new, to be added to the trained graph.
        columns: what the user says of the columns of ``source``.
    """
    from hpgmn.graph.datasets import load
    from hpgmn.runs.compare import COMPARISON_FILE
    from hpgmn.runs.folder import CONFIG_FILE, kept_words, read_spec
    from hpgmn.training.saved import MODEL_FILE, SavedModel

    if (run / COMPARISON_FILE).is_file():
        folders = sorted(str(path.parent) for path in run.glob(f"[!.]*/{CONFIG_FILE}"))
        raise HPGMNError(
            f"{run} holds the runs of several models. Name one of them: {', '.join(folders)}."
        )
    for name in (CONFIG_FILE, MODEL_FILE):
        if not (run / name).is_file():
            words = (
                f"{run} is not a finished run folder: {name} is missing. Give the folder that "
                "`hpgmn train` wrote; an interrupted run goes on with --resume."
            )
            raise HPGMNError(f"{words} {kept_words(run)}".rstrip())
    spec = read_spec(run)
    model = SavedModel.read(run / MODEL_FILE, own)
    if spec.model != model.entry.name:
        raise HPGMNError(
            f"{run} holds the {CONFIG_FILE} of {spec.model} beside the {MODEL_FILE} of "
            f"{model.entry.name}. Restore the files of one run."
        )
    model.require_stages()
    trained = model.about["fingerprint"]
    fitted = model.about.get("preparation")  # older files: none
    prepared: dict[str, Any] = {"preparation": fitted, "prepare": fitted is not None}
    if source is not None and not add:
        graph = load(source, **prepared, **columns or {}, earlier_ids=model.node_ids, log=say)
        if graph.fingerprint == trained and spec.protocol is not None:
            graph = load(source, spec.protocol)
        return model, spec, graph
    whole = "give all nodes and edges, old and new, without --add"
    try:
        graph = load(spec.graph, spec.protocol, **prepared)
    except HPGMNError as error:
        remedy = whole if add else "name the graph after the run folder"
        raise HPGMNError(f"{error} Or {remedy}.") from None
    if graph.fingerprint != trained:
        remedy = f"Restore it, or {whole}" if add else "To use it, name it after the run folder"
        raise HPGMNError(f"{spec.graph} is no longer the graph the model was trained on. {remedy}.")
    if source is not None:
        graph = load(source, **columns or {}, onto=graph, log=say)
    return model, spec, graph


def seeds_of(model: SavedModel, spec: RunSpec, split: int | None) -> tuple[int, list[int]]:
    """The number of a split (the first without one), and the places of its replicas."""
    number = spec.splits[0] if split is None else split
    places = [place for place, one in enumerate(model.replicas) if one.split == number]
    if not places:
        known = ", ".join(str(one) for one in spec.splits)
        raise HPGMNError(f"The run has no split {number}. Choose from: {known}.")
    return number, places


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    graph: Annotated[str | None, typer.Argument(help="Another graph [the trained one].")] = None,
    split: Annotated[int | None, typer.Option(help="Which split's models [the first].")] = None,
    own: Annotated[str | None, OWN] = None,
    out_file: Annotated[Path, typer.Option("--out", help="FILE.csv or FILE.parquet.")] = Path(
        "predictions.csv"
    ),
    min_confidence: Annotated[
        float,
        typer.Option(
            help="Below this confidence the prediction stays empty: don't know. Thresholds for a "
            "wanted accuracy: metrics.json, calibration; they promise a little much, because the "
            "same validation nodes chose the epoch."
        ),
    ] = 0.0,
    add: Annotated[
        bool,
        typer.Option(
            "--add",
            help="GRAPH holds only what is new, as tables; it is added to the trained graph, whose "
            "nodes its edges may name.",
        ),
    ] = False,
    only_new: Annotated[
        bool | None,
        typer.Option(
            "--only-new/--all-nodes",
            help="Write the nodes alone that the model was not trained on [with --add].",
        ),
    ] = None,
    id_: IdColumn = None,
    label: LabelColumn = None,
    source: SourceColumn = None,
    target: TargetColumn = None,
    weight: WeightColumn = None,
    drop_unknown_edges: DropUnknownEdges = False,
) -> None:
    """Class and calibrated probabilities per node: averaged over seeds, never over splits.

    Tables are read as those of the training were, so options for columns are needed only where
    names differ from then.
    """
    if out_file.suffix not in (".csv", ".parquet"):
        raise SettingError(f"--out must end in .csv or .parquet (got '{out_file}').")
    if not 0 <= min_confidence <= 1:
        raise SettingError(f"--min-confidence must be 0 to 1 (got {min_confidence:g}).")
    is_new = add if only_new is None else only_new
    columns = column_options(
        *(id_, label, None, source, target, weight, None), drop_unknown_edges=drop_unknown_edges
    )
    if graph is None and (add or only_new or columns):
        raise SettingError(
            "--add, --only-new and options for columns are about another graph than the "
            "trained one. Name it after the run folder."
        )
    opened_run = opened(run, graph, own, add=add, columns=columns)
    _predict(opened_run, split, is_new, min_confidence, out_file)


def _predict(
    opened_run: tuple[SavedModel, RunSpec, Graph],
    split: int | None,
    only_new: bool,
    min_confidence: float,
    out_file: Path,
) -> None:
    """Compute and write the predictions of one split's models."""
    import numpy as np
    import pyarrow as pa

    from hpgmn.graph.conversion import original_ids

    model, spec, loaded = opened_run
    number, places = seeds_of(model, spec, split)
    nodes, which = _wanted(model, loaded, only_new)
    chances = model.choose(places).mean_probabilities(loaded, nodes=nodes).numpy()
    names = np.asarray(model.class_names, dtype=object)
    ids = loaded.node_ids if loaded.node_ids is not None else np.arange(loaded.num_nodes)
    ids = original_ids(ids if nodes is None else ids[nodes], loaded.preparation)
    best, confidence = chances.argmax(axis=1), chances.max(axis=1)
    unsure = confidence < min_confidence
    written: dict[str, Any] = {
        "node_id": ids,
        "prediction": pa.array(names[best], pa.string(), mask=unsure),
        "confidence": confidence,
    }
    written |= {f"probability_{name}": chances[:, c] for c, name in enumerate(names)}
    _write_table(pa.table(written), out_file)
    silent = f", {unsure.sum()} below {min_confidence:g} left empty" if min_confidence else ""
    err.print(
        f"{len(ids)} {which}, split {number}, {len(places)} seed(s){silent}: {out_file}",
        highlight=False,
        soft_wrap=True,
    )


def _wanted(model: SavedModel, graph: Graph, only_new: bool) -> tuple[Array | None, str]:
    """Positions of the nodes to predict, None for all, and what they are in words."""
    import numpy as np

    known = model.known_positions(graph)
    if known is None:
        new = np.empty(0, np.int64)
        which = "nodes"
    else:
        new = np.flatnonzero(known < 0)
        which = f"nodes ({len(new)} of them new to the model)"
    if not only_new:
        return None, which
    if model.node_ids is None or graph.node_ids is None:
        raise HPGMNError(
            "Which nodes are new is told by node_ids, and one of the graphs has none. Leave out "
            "--only-new."
        )
    if not len(new):
        raise HPGMNError(
            f"The model was trained on every node of '{graph.name}', so no new one is left to "
            "write. Leave out --only-new."
        )
    return new, f"new nodes of {graph.num_nodes}"


def _write_table(table: Any, path: Path) -> None:
    """A table as CSV or Parquet; nothing half-written stays behind."""
    import pyarrow.csv
    import pyarrow.parquet

    with atomic_write(path) as draft:
        if path.suffix == ".csv":
            pyarrow.csv.write_csv(table, draft)
        else:
            pyarrow.parquet.write_table(table, draft, write_page_checksum=True)
