"""``hpgmn evaluate``: scores on labelled nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from hpgmn.base.errors import HPGMNError
from hpgmn.cli.console import out
from hpgmn.cli.predict import OWN, opened

if TYPE_CHECKING:
    from hpgmn.graph import Array, Graph
    from hpgmn.training.saved import SavedModel


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

    from hpgmn.runs.folder import PREDICTIONS_FILE
    from hpgmn.runs.predictions import used_ids

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
