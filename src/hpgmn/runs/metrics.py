"""What ``metrics.json`` of a run says, wherever its training happened."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import (
    RUN_FORMAT,
    check_format,
    verify_run_checksum,
    with_checksum,
    write_text,
)
from hpgmn.base.machine import hardware, peak_memory_mb
from hpgmn.base.parsing import read_json
from hpgmn.base.version import __version__
from hpgmn.graph import Array
from hpgmn.runs.spec import RunSpec
from hpgmn.training.checks import class_number


@dataclass(frozen=True)
class Result:
    """What a training came to, of R replicas: split by split, with the seeds inside.

    Attributes:
        logits: (R, M, C) of all nodes, or of those that are scored.
        y: (M,) their true labels.
        val: R masks of the validation nodes.
        test: R masks of the test nodes.
        temperatures: R.
        mean_temperatures: R, of the average over the seeds of each replica's split.
        val_score: (R,) of the best epoch.
        best_epoch: (R,) of the last stage.
        history: for each stage and each recorded number (epochs, R).
        seconds: of statistics and of training.
        guesses: (R, M, C) of the label estimator, where they are known.
    """

    logits: Tensor
    y: Array
    val: Sequence[Array]
    test: Sequence[Array]
    temperatures: Sequence[float]
    mean_temperatures: Sequence[float]
    val_score: Tensor
    best_epoch: Tensor
    history: Mapping[str, Mapping[str, Tensor]]
    seconds: Mapping[str, float]
    guesses: Tensor | None = None


def write_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Write ``metrics.json``, with a checksum of itself."""
    write_text(path, json.dumps(with_checksum(metrics), indent=1) + "\n")


def read_metrics(path: Path) -> dict[str, Any]:
    """Read ``metrics.json``, the one reader of it; a damaged file is refused."""
    remedy = Remedy("Restore it") | Remedy("Train that run again", option="overwrite", value=True)
    try:
        found = read_json(path)
        if isinstance(found, dict):
            check_format(path, found.get("format"), RUN_FORMAT)
        return verify_run_checksum(found)
    except OSError as error:
        raise HPGMNError(f"Cannot read {path} ({error.strerror or error}).", remedy) from None
    except ValueError as error:
        raise HPGMNError(f"{path} is damaged: {error}.", remedy) from None


def run_metrics(
    spec: RunSpec, result: Result, graph: str, summary: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of ``metrics.json``; the only place that reads test labels.

    Args:
        spec: what was trained.
        result: what it came to.
        graph: the graph's name.
        summary: its sizes and ``class_names``.
    """
    from hpgmn.evaluation.scores import Score, calibration_report, scores

    tested = all(mask.any() for mask in result.test)
    sought = class_number(spec.positive, summary["class_names"])
    score, accuracy, estimator = None, None, None
    if tested:
        own = (result.y, result.test)
        score = Score.of(scores(result.logits, *own, spec.metric, sought))
        accuracy = Score.of(scores(result.logits, *own, "accuracy"))
        if result.guesses is not None:
            guessed = Score.of(scores(result.guesses, *own, "accuracy"))
            estimator = {"test_accuracy_mean": guessed.mean, "test_accuracy_std": guessed.std}
    calibration = calibration_report(
        *(result.logits, result.temperatures, result.y, result.val, result.test),
        seeds=spec.seeds,
        mean_temperatures=result.mean_temperatures,
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
        "val_score": result.val_score.tolist(),
        "test_accuracy_mean": accuracy.mean if accuracy else None,
        "test_accuracy_std": accuracy.std if accuracy else None,
        "label_estimator": estimator,
        "calibration": calibration
        | {"mean_temperature": list(result.mean_temperatures[:: spec.seeds])},
        **(_ensemble(spec, result, sought) if tested else {}),
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


def _ensemble(spec: RunSpec, result: Result, sought: int) -> dict[str, Any]:
    """The score of seeds averaged, where there are several."""
    from hpgmn.evaluation.scores import Score, ensemble_scores, ensemble_size

    if spec.seeds == 1:
        return {}
    size = ensemble_size(len(spec.splits), spec.seeds)
    own = Score.of(
        ensemble_scores(
            *(result.logits, result.y, result.test, spec.metric, sought),
            seeds=spec.seeds,
            size=size,
        )
    )
    about = {"seeds": size, "test_score": list(own.values)}
    return {"ensemble": about | {"test_score_mean": own.mean, "test_score_std": own.std}}
