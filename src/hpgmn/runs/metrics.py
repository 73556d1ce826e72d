"""The content of ``metrics.json``, where test nodes are scored."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hpgmn.base.calibration import calibrated_probabilities, decision_logits, decision_threshold
from hpgmn.base.files import RUN_FORMAT
from hpgmn.base.machine import hardware, peak_memory_mb
from hpgmn.base.metrics import REGRESSION_METRICS, mean_logits, plain_score
from hpgmn.base.tasks import is_target
from hpgmn.base.version import __version__
from hpgmn.evaluation.prediction_sets import set_report
from hpgmn.evaluation.rankings import ranking_report, validation_noise
from hpgmn.evaluation.scores import (
    Score,
    calibration_report,
    class_report,
    ensemble_scores,
    ensemble_size,
    interval_report,
    scores,
)
from hpgmn.graph import Array, Graph
from hpgmn.runs.spec import RunSpec
from hpgmn.training.checks import class_number, positive_class

if TYPE_CHECKING:
    from hpgmn.shards import Shards


@dataclass(frozen=True)
class TrainingResult:
    """The trained replicas as they are scored: R of them, split by split with the seeds inside.

    Attributes:
        logits: (R, M, C) of all nodes, or of those that are scored.
        y: (M,) their true labels.
        val: R masks of the validation nodes.
        test: R masks of the test nodes.
        calibration: (R, 3, C).
        mean_calibration: (R, 3, C), of the average over the seeds of each replica's split.
        val_score: (R,) of the best epoch.
        best_epoch: (R,) of the last stage.
        history: for each stage and each recorded number (epochs, R).
        seconds: of statistics and of training.
        estimator_logits: (R, M, C) of the label estimator; None without one.
        reserved: R masks of the nodes reserved for conformal prediction, or empty.
    """

    logits: Tensor
    y: Array
    val: Sequence[Array]
    test: Sequence[Array]
    calibration: Array
    mean_calibration: Array
    val_score: Tensor
    best_epoch: Tensor
    history: Mapping[str, Mapping[str, Tensor]]
    seconds: Mapping[str, float]
    estimator_logits: Tensor | None = None
    reserved: Sequence[Array] = ()


def graph_summary(graph: Graph | Shards, homophily: float | None) -> dict[str, Any]:
    """Return the sizes of a graph, for ``metrics.json``."""
    return {
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_features": graph.num_features,
        "num_classes": graph.num_classes,
        "class_names": list(graph.class_names),
        **({} if graph.num_classes else {"is_regression": True}),
        "homophily": homophily,
    }


def run_metrics(
    spec: RunSpec, result: TrainingResult, graph: str, summary: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of ``metrics.json``, where test nodes are scored.

    Args:
        graph: its name.
        summary: its :func:`graph_summary`.
    """
    is_regression = is_target(result.y)
    positive = class_number(spec.positive, summary["class_names"])
    score, accuracy, ensemble = None, None, {}
    estimator: dict[str, float] = {}
    if all(mask.any() for mask in result.test):
        test = (result.y, result.test)
        decided = decision_logits(result.logits, result.calibration)
        score = Score.of(scores(decided, *test, spec.metric, positive))
        if not is_regression:
            accuracy = Score.of(scores(decided, *test, "accuracy"))
        if result.estimator_logits is not None:
            measured = {"test_score": spec.metric}
            measured |= {} if is_regression else {"test_accuracy": "accuracy"}
            for key, name in measured.items():
                estimated = Score.of(scores(result.estimator_logits, *test, name, positive))
                estimator |= {f"{key}_mean": estimated.mean, f"{key}_std": estimated.std}
        if spec.seeds > 1:
            size = ensemble_size(len(spec.splits), spec.seeds)
            mean = Score.of(
                ensemble_scores(
                    *(result.logits, *test, spec.metric, positive),
                    seeds=spec.seeds,
                    size=size,
                    calibration=result.mean_calibration,
                )
            )
            ensemble["ensemble"] = {
                "seeds": size,
                "test_score": list(mean.values),
                "test_score_mean": mean.mean,
                "test_score_std": mean.std,
            }
    about: dict[str, Any] = {}
    if is_regression:
        if score is not None:
            by_name = {
                name: Score.of(scores(result.logits, *test, name)) for name in REGRESSION_METRICS
            }
            about["test_metrics"] = {
                name: {"mean": value.mean, "std": value.std} for name, value in by_name.items()
            }
        about["intervals"] = interval_report(
            *(result.logits, result.y, result.reserved, result.test), seeds=spec.seeds
        )
    else:
        about["calibration"] = calibration_report(
            *(result.logits, result.calibration, result.y, result.val, result.test),
            seeds=spec.seeds,
            mean_calibration=result.mean_calibration,
            class_names=summary["class_names"],
        )
    return {
        "format": RUN_FORMAT,
        "model": spec.model,
        "graph": graph,
        "splits": list(spec.splits),
        "seeds": spec.seeds,
        "metric": spec.metric,
        "positive": spec.positive,
        "test_score_mean": score.mean if score else None,
        "test_score_std": score.std if score else None,
        "test_score": list(score.values) if score else [],
        "val_score": [plain_score(spec.metric, value) for value in result.val_score.tolist()],
        "test_accuracy_mean": accuracy.mean if accuracy else None,
        "test_accuracy_std": accuracy.std if accuracy else None,
        "label_estimator": estimator or None,
        **about,
        **decision_metrics(spec, result, summary["class_names"]),
        **ensemble,
        "seconds_statistics": result.seconds["statistics"],
        "seconds_training": result.seconds["training"],
        "epochs": result.best_epoch.tolist(),
        "epochs_trained": {
            stage: int(history["loss"].shape[0]) for stage, history in result.history.items()
        },
        "peak_memory_mb": peak_memory_mb(spec.device),
        "version": __version__,
        "config": spec.as_dict(),
        "hardware": hardware(spec.device),
        "graph_summary": dict(summary),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def decision_metrics(
    spec: RunSpec, result: TrainingResult, class_names: Sequence[str]
) -> dict[str, Any]:
    """Return prediction sets, how two classes are ranked and told apart, and validation noise."""
    logits, y, val, test = result.logits, result.y, result.val, result.test
    if not class_names or not logits.isfinite().all():
        return {}
    starts = range(0, len(logits), spec.seeds)
    means = torch.stack([mean_logits(logits[at : at + spec.seeds]) for at in starts])
    maps, tested = result.mean_calibration[:: spec.seeds], test[:: spec.seeds]
    has_test = all(mask.any() for mask in tested)
    metrics: dict[str, Any] = {}
    if result.reserved and has_test:
        chances = calibrated_probabilities(means, maps).numpy()
        metrics["prediction_sets"] = set_report(
            list(chances), y, result.reserved[:: spec.seeds], tested
        )
    if len(class_names) != 2:
        return metrics
    labels = np.stack([np.where(mask, y, -1) for mask in val])
    name = positive_class("average_precision", labels, class_names, spec.positive)
    positive = class_number(name, class_names)
    if has_test:
        ahead = (means[..., positive] - means[..., 1 - positive]).numpy()
        leads = [row[mask] for row, mask in zip(ahead, tested, strict=True)]
        if ranking := ranking_report(leads, [y[mask] == positive for mask in tested]):
            metrics["ranking"] = {"positive": name, **ranking}
    if spec.threshold is not None:
        predicted = decision_logits(means, maps).argmax(dim=-1).numpy()
        parts = {"test": tested} if has_test else {}
        if not spec.refit:  # otherwise these nodes were trained on
            parts["val"] = val[:: spec.seeds]
        metrics["threshold"] = {
            "rule": spec.threshold,
            "positive": name,
            "value": [decision_threshold(row, positive) for row in maps],
            **{
                part: class_report(predicted, y, masks, class_names)[positive]
                for part, masks in parts.items()
            },
        }
    if not spec.refit:
        scored, own = decision_logits(logits[:1], result.calibration[:1])[0], np.asarray(val[0])
        noise = validation_noise(scored[own], y[own], spec.metric, positive)
        metrics |= {"val_noise": noise} if noise else {}
    return metrics
