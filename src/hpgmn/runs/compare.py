"""Several models on one graph: each against one of them, run by run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpgmn.base.errors import HPGMNError
from hpgmn.evaluation.scores import Difference, paired_difference

COMPARISON_FILE = "comparison.json"
Metrics = Mapping[str, Any]
"""The content of a run's ``metrics.json``."""


def is_ours(model: str) -> bool:
    """Whether a model is a form of HP-GMN: hpgmn, hpgmn-gcn, hpgmn-appnp."""
    return model.split("-")[0] == "hpgmn"


def reference_of(runs: Sequence[Metrics]) -> str:
    """The run the others are set against: HP-GMN, else the first.

    Of several forms of HP-GMN it is the best by validation score.
    """
    ours = [run for run in runs if is_ours(run["model"])]
    best = max(ours, key=lambda run: float(np.mean(run["val_score"])), default=runs[0])
    return str(best["model"])


def difference(run: Metrics, reference: Metrics) -> Difference | None:
    """A run's score minus the reference's; None without test scores.

    Both must be of the same splits of one graph; the numbers of train and test nodes come from
    whichever of the two has them.
    """
    if not run["test_score"] or not reference["test_score"]:
        return None
    if run["splits"] != reference["splits"] or run["metric"] != reference["metric"]:
        raise ValueError(f"{run['model']} and {reference['model']} have other splits or metrics.")
    nodes = run.get("nodes") or reference.get("nodes")
    if nodes is None:
        raise HPGMNError(
            f"The runs of {run['model']} and {reference['model']} on {run['graph']} do not say how "
            "many nodes they had. Train one of them again."
        )
    return paired_difference(
        run["test_score"],
        reference["test_score"],
        splits=len(run["splits"]),
        test_per_train=float(np.mean(np.divide(nodes["test"], nodes["train"]))),
    )


def comparison(runs: Sequence[Metrics]) -> dict[str, Any]:
    """The content of ``comparison.json``: one row per run, with its difference to the reference.

    Scores and differences are fractions.
    """
    name = reference_of(runs)
    reference = next(run for run in runs if run["model"] == name)
    rows = []
    for run in runs:
        found = None if run is reference else difference(run, reference)
        rows.append(
            {
                "model": run["model"],
                "test_score_mean": run["test_score_mean"],
                "test_score_std": run["test_score_std"],
                "val_score_mean": float(np.mean(run["val_score"])),
                "difference": None if found is None else dataclasses.asdict(found),
                "seconds": run["seconds"],
                "peak_memory_mb": run["peak_memory_mb"],
            }
        )
    first = runs[0]
    return {
        "graph": first["graph"],
        "metric": first["metric"],
        "positive": first.get("positive"),
        "splits": first["splits"],
        "seeds": first["seeds"],
        "reference": name,
        "rows": rows,
    }
