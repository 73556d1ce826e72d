"""Made-up records, as the tests of the results page need them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def _write_run(
    results: Path,
    graph: str,
    model: str,
    scores: Sequence[float],
    *,
    splits: int = 10,
    folder: str | None = None,
    settings: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """A run folder's metrics, made up around its test scores (percent)."""
    from hpgmn.config import make_settings, settings_dict
    from hpgmn.models import find_model
    from hpgmn.shipped import settings_for

    chosen = settings_for(graph, model) | (settings or {})
    values = settings_dict(make_settings(find_model(model).settings, chosen))
    fractions = [score / 100 for score in scores]
    seeds = len(scores) // splits
    about = {"graph": graph, "model": model, "metric": "accuracy", "seeds": seeds}
    metrics = about | {
        "splits": list(range(splits)),
        "test_score": fractions,
        "test_score_mean": float(np.mean(fractions)),
        "test_score_std": float(np.std(fractions, ddof=1)),
        "val_score": [fraction + 0.02 for fraction in fractions],
        "label_estimator": {"test_accuracy_mean": 0.4321} if model == "hpgmn" else None,
        "seconds": 12.3,
        "nodes": {"train": [48] * splits, "val": [32] * splits, "test": [20] * splits},
        "version": "9.8.7",
        "config": about | {"splits": list(range(splits)), "protocol": None, "settings": values},
        "hardware": {
            "processor": "A Processor",
            "threads": 2,
            "device": "cpu",
            "torch": "2.0.1",
            "python": "3.12.3",
        },
        "created": "2030-01-02T03:04:05+00:00",
    }
    path = results / "runs" / (folder or f"{graph}-{model}")
    path.mkdir(parents=True)
    (path / "metrics.json").write_text(json.dumps(metrics | changes))
    return path


def _write_trials(results: Path, name: str, trials: Sequence[dict[str, Any]]) -> None:
    (results / "search").mkdir(exist_ok=True)
    lines = [json.dumps(trial) for trial in trials]
    (results / "search" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def write_run() -> Callable[..., Path]:
    """Writes a run's metrics around its test scores (percent)."""
    return _write_run


@pytest.fixture
def write_trials() -> Callable[..., None]:
    """Writes the trials of a search."""
    return _write_trials


def _cells(text: str, *start: str) -> list[str]:
    """The cells of the first table line that starts with the given ones."""
    found = [line for line in text.splitlines() if line.startswith(f"| {' | '.join(start)} |")]
    assert found, start
    return [cell.strip() for cell in found[0].strip("|").split("|")]


@pytest.fixture
def cells() -> Callable[..., list[str]]:
    """Finds a line of a Markdown table by its first cells."""
    return _cells
