"""Score a run: from its stored predictions, or on the labelled nodes of another graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpgmn.base.calibration import decision_logits
from hpgmn.base.errors import HPGMNError
from hpgmn.base.metrics import METRICS, REGRESSION_METRICS, require_metric
from hpgmn.base.tasks import is_known
from hpgmn.evaluation.scores import Score, class_report, interval_coverage, scores
from hpgmn.graph import Array, Graph
from hpgmn.runs.folder import PREDICTIONS_FILE
from hpgmn.runs.outputs import read_test_probabilities, read_used_ids
from hpgmn.training.ensemble import Predictor


def metric_names(
    metrics: str | Sequence[str] | None, default: str, num_classes: int, graph: str
) -> list[str]:
    """Return the requested metrics, which may be separated by commas, or refuse an unknown one.

    Args:
        metrics: None for ``default`` and all others but precision@K.
    """
    usual = METRICS if num_classes else REGRESSION_METRICS
    given = metrics.split(",") if isinstance(metrics, str) else metrics or [default, *usual]
    names = list(dict.fromkeys(name.strip() for name in given))
    for name in names:
        require_metric(name, num_classes, f"'{graph}'")
    return names


def score_predictions(
    logits: Tensor,
    y: Array,
    masks: Sequence[Array],
    names: Sequence[str],
    class_names: Sequence[str],
    positive: int,
) -> dict[str, Any]:
    """Return scores of masked nodes by metric, the first one in detail, and by class if it has any.

    Args:
        logits: (R, N, C) decision logits.
        positive: the positive class of two.
    """
    scored = {name: Score.of(scores(logits, y, masks, name, positive)) for name in names}
    score = scored[names[0]]
    classes: dict[str, Any] = {}
    if class_names:
        predicted = logits.argmax(dim=-1).numpy()
        classes["classes"] = class_report(predicted, y, masks, class_names)
    return {
        "runs": len(masks),
        "metric": names[0],
        "positive": class_names[positive] if len(class_names) == 2 else None,
        "score_mean": score.mean,
        "score_std": score.std,
        "score": list(score.values),
        "metrics": {name: {"mean": value.mean, "std": value.std} for name, value in scored.items()},
        **classes,
    }


def score_intervals(
    values: Tensor, y: Array, masks: Sequence[Array], metrics: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the share of masked nodes inside the intervals of a regression, mean over splits.

    Args:
        values: (R, N, 1) predicted targets, the seeds of a split one after the other.
        metrics: the content of ``metrics.json``.
    """
    intervals, seeds = metrics["intervals"], len(values) // len(metrics["splits"])
    held = interval_coverage(values, y, masks, intervals["half_width"], seeds=seeds)
    return [
        {"nominal": nominal, "coverage": share}
        for nominal, share in zip(intervals["nominal"], np.mean(held, axis=0).tolist(), strict=True)
    ]


def stored_predictions(model: Predictor, path: Path) -> tuple[Tensor, Array, list[Array]]:
    """Read decision logits (R, N, C), labels (N,) and R masks of the stored test nodes."""
    chances, y, masks = read_test_probabilities(
        *(path, model.replicas, model.class_names), int(model.metadata["num_nodes"])
    )
    _require_test_nodes(masks, model.metadata["graph"])
    if not model.class_names:
        return chances, y, masks
    logs = chances.clamp(min=torch.finfo(chances.dtype).tiny).log()
    return logs + torch.from_numpy(model.calibration[:, 2:]).to(logs.dtype), y, masks


def _require_test_nodes(masks: Sequence[Array], graph: str) -> None:
    if not all(mask.any() for mask in masks):
        raise HPGMNError(
            f"'{graph}' has splits without test nodes: nothing can be scored.",
            "Name another labelled graph",
        )


def predict_labelled(
    model: Predictor, graph: Graph, device: str, folder: Path, new: Array | None = None
) -> tuple[Tensor, list[Array], dict[str, Any]]:
    """Return decision logits (R, N, C), R masks of the nodes to score, and what they are.

    Args:
        folder: of the run, whose predictions tell which nodes it has seen.
        new: positions of new nodes, if only these are scored.
    """
    known = is_known(graph.y)
    if not known.any():
        raise HPGMNError(
            f"Graph '{graph.name}' has no labels to score against.",
            "Give labels, or predict instead",
        )
    names = model.class_names
    if graph.is_regression == bool(names) or (
        graph.class_names[: len(names)] != names[: graph.num_classes]
    ):
        raise HPGMNError(
            f"The labels of '{graph.name}' are not those of the model: "
            f"{', '.join(names) or 'it predicts numbers'}.",
            "Give them in the same order",
        )
    is_trained = graph.fingerprint == model.metadata["fingerprint"]
    if new is not None:
        masks = _new_masks(model, graph, new)
    elif is_trained:
        masks = _test_masks(model, graph)
    else:
        masks = _unseen_masks(model, graph, folder / PREDICTIONS_FILE)
    left_out = [int(known.sum() - mask.sum()) for mask in masks]
    nodes = "test nodes" if is_trained else _scored_nodes(left_out)
    about: dict[str, Any] = {"graph": graph.name, "nodes": nodes if new is None else "new nodes"}
    if not is_trained:
        about["left_out"] = left_out
    logits = decision_logits(model.logits(graph, device), model.calibration)
    return logits, masks, about


def _test_masks(model: Predictor, graph: Graph) -> list[Array]:
    """Return the test nodes of each replica on the trained graph."""
    masks = [graph.split(replica.split).test for replica in model.replicas]
    _require_test_nodes(masks, graph.name)
    if (np.stack(masks) & is_known(model.train_labels)).any():
        raise HPGMNError(
            f"The splits of '{graph.name}' changed: train nodes of the model are test nodes now.",
            "Restore the splits, or train again",
        )
    return masks


def _new_masks(model: Predictor, graph: Graph, new: Array) -> list[Array]:
    """Return the labelled nodes that the trained graph does not have, for each replica."""
    mask = np.zeros(graph.num_nodes, bool)
    mask[new[is_known(graph.y[new])]] = True
    if not mask.any():
        raise HPGMNError(
            f"None of the {len(new):,} new nodes of '{graph.name}' has a label.",
            "Give labels, or predict instead",
        )
    return [mask for _ in model.replicas]


def _unseen_masks(model: Predictor, graph: Graph, path: Path) -> list[Array]:
    """Return the labelled nodes of another graph that a replica has not seen."""
    known = is_known(graph.y)
    if graph.node_ids is None or model.node_ids is None:
        return [known for _ in model.replicas]
    used = read_used_ids(path) if path.is_file() else {}
    masks = []
    for replica, labels in zip(model.replicas, model.train_labels, strict=True):
        trained = model.node_ids[is_known(labels)].tolist()
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
