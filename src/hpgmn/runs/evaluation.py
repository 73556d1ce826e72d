"""Score a run: from its stored predictions, or on the labelled nodes of another graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hpgmn.base.calibration import decision_logits
from hpgmn.base.errors import HPGMNError
from hpgmn.base.metrics import METRICS, require_metric
from hpgmn.evaluation.scores import Score, class_report, scores
from hpgmn.graph import Array, Graph
from hpgmn.runs.folder import PREDICTIONS_FILE
from hpgmn.runs.outputs import read_test_probabilities, read_used_ids

if TYPE_CHECKING:
    from hpgmn.runs.run import Run


def evaluate_run(
    run: Run,
    graph: Graph | None,
    metrics: str | Sequence[str] | None = None,
    *,
    only_new: bool = False,
) -> dict[str, Any]:
    """Return the scores of a run on a graph by metric and by class.

    Args:
        graph: None for the test nodes of the trained graph, as the training predicted them.
        metrics: names, in a list or with commas [that of the run and all others but precision@K].
        only_new: score the nodes that the trained graph does not have.
    """
    model = run.model
    if metrics is None:
        names = list(dict.fromkeys([run.spec.metric, *METRICS]))  # that of the run first
    else:
        given = metrics.split(",") if isinstance(metrics, str) else metrics
        names = list(dict.fromkeys(name.strip() for name in given))
    for name in names:
        require_metric(name, len(model.class_names), f"'{model.metadata['graph']}'")
    if graph is None and (run.folder / PREDICTIONS_FILE).is_file():
        logits, y, masks = _stored_predictions(run)
        about = {"graph": model.metadata["graph"], "nodes": "test nodes"}
    else:
        loaded = run.graph if graph is None else graph
        logits, masks, about = _predict_labelled(run, loaded, only_new)
        y = loaded.y
    has_positive = len(model.class_names) == 2
    number = run.positive if has_positive else 1
    scored = {name: Score.of(scores(logits, y, masks, name, number)) for name in names}
    score = scored[names[0]]
    return {
        "model": run.spec.model,
        **about,
        "runs": len(masks),
        "metric": names[0],
        "positive": model.class_names[number] if has_positive else None,
        "score_mean": score.mean,
        "score_std": score.std,
        "score": list(score.values),
        "metrics": {name: {"mean": value.mean, "std": value.std} for name, value in scored.items()},
        "classes": class_report(logits.argmax(dim=-1).numpy(), y, masks, model.class_names),
    }


def _stored_predictions(run: Run) -> tuple[Tensor, Array, list[Array]]:
    """Read decision logits (R, N, C), labels (N,) and R masks of the stored test nodes."""
    model = run.model
    chances, y, masks = read_test_probabilities(
        *(run.folder / PREDICTIONS_FILE, model.replicas, model.class_names),
        int(model.metadata["num_nodes"]),
    )
    _require_test_nodes(masks, model.metadata["graph"])
    logs = chances.clamp(min=torch.finfo(chances.dtype).tiny).log()
    return logs + torch.from_numpy(model.calibration[:, 2:]).to(logs.dtype), y, masks


def _require_test_nodes(masks: Sequence[Array], graph: str) -> None:
    if not all(mask.any() for mask in masks):
        raise HPGMNError(
            f"'{graph}' has splits without test nodes: nothing can be scored.",
            "Name another labelled graph",
        )


def _predict_labelled(
    run: Run, graph: Graph, only_new: bool
) -> tuple[Tensor, list[Array], dict[str, Any]]:
    """Return decision logits (R, N, C), R masks of the nodes to score, and what they are."""
    model = run.model
    if (graph.y < 0).all():
        raise HPGMNError(
            f"Graph '{graph.name}' has no labels to score against.",
            "Give labels, or predict instead",
        )
    if graph.class_names[: len(model.class_names)] != model.class_names[: graph.num_classes]:
        raise HPGMNError(
            f"The classes of '{graph.name}' are not those of the model: "
            f"{', '.join(model.class_names)}.",
            "Give them in the same order",
        )
    is_trained = graph.fingerprint == model.metadata["fingerprint"]
    if only_new:
        masks = _new_masks(run, graph)
    else:
        masks = _test_masks(run, graph) if is_trained else _unseen_masks(run, graph)
    left_out = [int((graph.y >= 0).sum() - mask.sum()) for mask in masks]
    nodes = "test nodes" if is_trained else _scored_nodes(left_out)
    about: dict[str, Any] = {"graph": graph.name, "nodes": "new nodes" if only_new else nodes}
    if not is_trained:
        about["left_out"] = left_out
    logits = decision_logits(model.logits(graph, run.device), model.calibration)
    return logits, masks, about


def _test_masks(run: Run, graph: Graph) -> list[Array]:
    """Return the test nodes of each replica on the trained graph."""
    masks = [graph.split(replica.split).test for replica in run.model.replicas]
    _require_test_nodes(masks, graph.name)
    if (np.stack(masks) & (run.model.train_labels >= 0)).any():
        raise HPGMNError(
            f"The splits of '{graph.name}' changed: train nodes of the model are test nodes now.",
            "Restore the splits, or train again",
        )
    return masks


def _new_masks(run: Run, graph: Graph) -> list[Array]:
    """Return the labelled nodes that the trained graph does not have, for each replica."""
    known = run.model.known_positions(graph)
    new = run.new_nodes(graph, None if known is None else np.flatnonzero(known < 0))
    mask = np.zeros(graph.num_nodes, bool)
    mask[new[graph.y[new] >= 0]] = True
    if not mask.any():
        raise HPGMNError(
            f"None of the {len(new):,} new nodes of '{graph.name}' has a label.",
            "Give labels, or predict instead",
        )
    return [mask for _ in run.model.replicas]


def _unseen_masks(run: Run, graph: Graph) -> list[Array]:
    """Return the labelled nodes of another graph that a replica has not seen."""
    known = graph.y >= 0
    if graph.node_ids is None or run.model.node_ids is None:
        return [known for _ in run.model.replicas]
    path = run.folder / PREDICTIONS_FILE
    used = read_used_ids(path) if path.is_file() else {}
    masks = []
    for replica, labels in zip(run.model.replicas, run.model.train_labels, strict=True):
        trained = run.model.node_ids[labels >= 0].tolist()
        ids = [*trained, *used.get(replica.split, ())]
        masks.append(known & ~np.isin(graph.node_ids, ids))
    if not all(mask.any() for mask in masks):
        raise HPGMNError(
            f"The run was trained or validated on every labelled node of '{graph.name}': "
            "nothing is left to score.",
            "Give other labelled nodes, or evaluate the trained graph",
        )
    return masks


def _scored_nodes(left_out: list[int]) -> str:
    """Describe the scored nodes of another graph."""
    if not any(left_out):
        return "all labelled nodes"
    low, high = min(left_out), max(left_out)
    count = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"all labelled nodes but {count} that the run was trained or validated on"
