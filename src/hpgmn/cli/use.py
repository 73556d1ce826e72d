"""Commands that use a trained model or a graph: predict, evaluate, statistics."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from hpgmn.base.errors import HPGMNError, SettingError, unknown_name
from hpgmn.base.files import atomic_write
from hpgmn.cli.console import err, out, say
from hpgmn.cli.tables import (
    DropUnknownEdges,
    IdColumn,
    LabelColumn,
    SourceColumn,
    TargetColumn,
    WeightColumn,
    named_columns,
)

if TYPE_CHECKING:
    from hpgmn.graph import Array, Graph
    from hpgmn.runs.run import RunSpec
    from hpgmn.tables import Columns
    from hpgmn.training.saved import SavedModel


OWN = typer.Option("--model", help="Your own model, package.module:Class, if the run has one.")


def opened(
    run: Path,
    source: str | None,
    own: str | None,
    *,
    add: bool = False,
    columns: Columns | None = None,
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
    from hpgmn.runs.replaced import kept_words
    from hpgmn.runs.run import CONFIG_FILE, read_spec
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
        graph = load(source, **prepared, columns=columns, known=model.node_ids, tell=say)
        if graph.fingerprint == trained and spec.protocol is not None:
            graph = load(source, spec.protocol)
        return model, spec, graph
    complete = "give all nodes and edges, old and new, without --add"
    try:
        graph = load(spec.graph, spec.protocol, **prepared)
    except HPGMNError as error:
        remedy = complete if add else "name the graph after the run folder"
        raise HPGMNError(f"{error} Or {remedy}.") from None
    if graph.fingerprint != trained:
        remedy = f"Restore it, or {complete}" if add else "To use it, name it after the run folder"
        raise HPGMNError(f"{spec.graph} is no longer the graph the model was trained on. {remedy}.")
    if source is not None:
        graph = load(source, columns=columns, onto=graph, tell=say)
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
    columns = named_columns(id_, label, None, source, target, weight, None)
    columns = dataclasses.replace(columns, drop_unknown_edges=drop_unknown_edges)
    if graph is None and (add or only_new or columns.as_dict()):
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

    from hpgmn.tables.preparation import original_ids

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


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    graph: Annotated[str | None, typer.Argument(help="Another graph [the trained one].")] = None,
    own: Annotated[str | None, OWN] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Scores on labelled nodes, by class: the test nodes, or those of another graph.

    Of another graph, nodes that the run was trained or validated on (by their ids) are left out.
    """
    from hpgmn.base.metrics import METRICS, metric_words
    from hpgmn.evaluation.scores import Score, class_report, scores
    from hpgmn.training.checks import class_number, positive_class

    model, spec, loaded = opened(run, graph, own)
    if (loaded.y < 0).all():
        raise HPGMNError(
            f"Graph '{loaded.name}' has no labels to score against. Give labels, or use "
            "`hpgmn predict`."
        )
    if loaded.class_names[: len(model.class_names)] != model.class_names[: loaded.num_classes]:
        raise HPGMNError(
            f"The classes of '{loaded.name}' are not those of the model: "
            f"{', '.join(model.class_names)}. Give them in the same order."
        )
    same = loaded.fingerprint == model.about["fingerprint"]
    masks = _test_masks(model, loaded) if same else _new_masks(model, loaded, run)
    logits = model.logits(loaded)
    metrics = list(dict.fromkeys([spec.metric, *METRICS]))  # the run's own first
    asked = spec.positive or positive_class(
        "average_precision", model.train_labels, model.class_names
    )
    number = class_number(asked, model.class_names)
    every = {name: Score.of(scores(logits, loaded.y, masks, name, number)) for name in metrics}
    score = every[spec.metric]
    guesses = logits.argmax(dim=-1).numpy()
    rows = class_report(guesses, loaded.y, masks, model.class_names)
    left_out = [int((loaded.y >= 0).sum() - mask.sum()) for mask in masks]
    nodes = "test nodes" if same else "all labelled nodes"
    if not same and any(left_out):
        low, high = min(left_out), max(left_out)
        count = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        nodes += f" but {count} that the run was trained or validated on"
    result = {
        "graph": loaded.name,
        "model": spec.model,
        "nodes": nodes,
        "runs": len(masks),
        **({} if same else {"left_out": left_out}),
        "metric": spec.metric,
        "positive": asked,
        "score_mean": score.mean,
        "score_std": score.std,
        "score": list(score.values),
        "metrics": {name: {"mean": own.mean, "std": own.std} for name, own in every.items()},
        "classes": rows,
    }
    if json_:
        print(json.dumps(result, indent=1))
        return
    summed = f"nodes, summed over {len(masks)} runs" if len(masks) > 1 else "nodes"
    table = Table("class", "precision", "recall", "F1", summed)
    for row in rows:
        shares = [_percent(row[key]) for key in ("precision", "recall", "f1")]
        table.add_row(str(row["class"]), *shares, str(row["support"]))
    out.print(
        f"{loaded.name}, {nodes}, {len(masks)} run(s): {metric_words(spec.metric, asked)} "
        f"{100 * score.mean:.1f} ± {100 * score.std:.1f}",
        highlight=False,
        soft_wrap=True,
    )
    overview = Table("metric", "score")
    for name, own_score in every.items():
        shown = f"{100 * own_score.mean:.1f} ± {100 * own_score.std:.1f}"
        overview.add_row(metric_words(name, asked), shown)
    out.print(overview)
    out.print(table)


def _test_masks(model: SavedModel, graph: Graph) -> list[Array]:
    """The test nodes of each replica on the graph that it was trained on."""
    import numpy as np

    masks = [graph.split(one.split).test for one in model.replicas]
    if not all(mask.any() for mask in masks):
        raise HPGMNError(
            f"'{graph.name}' has splits without test nodes, so nothing can be scored. Name "
            "another labelled graph after the run folder."
        )
    if (np.stack(masks) & (model.train_labels >= 0)).any():
        raise HPGMNError(
            f"The splits of '{graph.name}' changed: nodes the model was trained on are test "
            "nodes now. Restore the splits, or train again."
        )
    return masks


def _new_masks(model: SavedModel, graph: Graph, run: Path) -> list[Array]:
    """The labelled nodes of another graph that each replica was not trained or validated on."""
    import numpy as np

    from hpgmn.runs.predictions import used_ids
    from hpgmn.runs.run import PREDICTIONS_FILE

    known = graph.y >= 0
    if graph.node_ids is None or model.node_ids is None:
        return [known for _ in model.replicas]
    path = run / PREDICTIONS_FILE
    used = used_ids(path) if path.is_file() else {}
    masks = []
    for replica, labels in zip(model.replicas, model.train_labels, strict=True):
        trained = model.node_ids[labels >= 0].tolist()
        masks.append(known & ~np.isin(graph.node_ids, [*trained, *used.get(replica.split, ())]))
    if not all(mask.any() for mask in masks):
        raise HPGMNError(
            f"The run was trained or validated on every labelled node of '{graph.name}', so "
            f"nothing is left to score. Give other labelled nodes, or use `hpgmn evaluate {run}`."
        )
    return masks


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def statistics(
    graph: Annotated[str, typer.Argument(help="A dataset's name, or a graph file or folder.")],
    out_file: Annotated[Path, typer.Option("--out", help="FILE.npz.")],
    labels: Annotated[
        str, typer.Option(help="true: the given labels; estimated: pseudo labels of split 0.")
    ] = "true",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
) -> None:
    """The local statistics of every node as arrays: class_counts, class_means, diffusion.

    With --set neighbors=both there are two of each, such as class_counts_out, class_counts_in.
    """
    import numpy as np
    import torch

    from hpgmn.base.settings import make_settings, parse_assignments
    from hpgmn.classifier import estimate_labels
    from hpgmn.graph.datasets import DATASETS, load
    from hpgmn.models.hpgmn import HPGMNSettings
    from hpgmn.models.shipped import read_config, settings_for
    from hpgmn.statistics import LocalStatistics, StatisticsSettings, statistic_names

    if labels not in ("true", "estimated"):
        raise SettingError(unknown_name("value for --labels:", labels, ("true", "estimated")))
    if out_file.suffix != ".npz":
        raise SettingError(f"--out must end in .npz (got '{out_file}').")
    if not out_file.parent.is_dir():
        raise HPGMNError(
            f"The folder {out_file.parent} does not exist. Make it, or choose another --out."
        )
    loaded = load(graph)
    paper = read_config("paper")["settings"]
    plain_keys = {info.name for info in dataclasses.fields(StatisticsSettings)}
    # The paper's definitions, unscaled; only the label estimator is the dataset's own.
    own = settings_for(graph if graph in DATASETS else None)
    values = {key: value for key, value in own.items() if key.startswith("estimator_")}
    values |= {key: value for key, value in paper.items() if key in plain_keys}
    values["statistics"] = ["class_counts", "class_means", "diffusion"]
    if values.get("neighbors", HPGMNSettings().neighbors) == "both":
        values["neighbors"] = "undirected"  # one array of each unless the user asks for two
    settings = make_settings(HPGMNSettings, values | parse_assignments(set_ or []))
    if settings.refinement:
        raise SettingError(
            "Statistics here rest on given labels or on the label estimator's guesses, not on a "
            "first training's. Leave refinement out."
        )
    known, shares = loaded.y, None
    if labels == "estimated":
        known, shares, _ = estimate_labels(loaded, settings)
    builder = LocalStatistics(loaded)
    classes = max(loaded.num_classes, 1)
    built = builder.build(
        known[None], classes, [settings], None if shares is None else shares[None]
    )
    every = torch.arange(loaded.num_nodes)
    size = sum(built[name].width for name in statistic_names(settings)) * loaded.num_nodes * 4
    if size > 8 * 2**30:
        raise HPGMNError(
            f"These arrays would take {size / 2**30:.0f} GiB. Ask for fewer with "
            "--set statistics=class_counts, or use hpgmn.LocalStatistics, which never builds them."
        )
    arrays: dict[str, Any] = {
        name: built[name].rows(every).numpy() for name in statistic_names(settings)
    }
    arrays["labels"] = known
    with atomic_write(out_file) as draft:
        np.savez_compressed(draft, **arrays)
    sizes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    err.print(f"{out_file}: {sizes}", highlight=False, soft_wrap=True)
