"""Ensembles of regressions: ``regression.jsonl`` holds a run per graph and split.

Records are the results in ``metrics.json`` of ``hpgmn train GRAPH --splits NUMBER``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hpgmn_lab.records import device_text, sort_graphs, versions_text
from hpgmn_lab.rendering import frame

if TYPE_CHECKING:
    import pandas as pd


def regression_frame(records: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return a row per graph: scores, coverage of the intervals, weights and cost over splits."""
    rows = []
    for graph in sort_graphs({record["graph"] for record in records.values()}):
        runs = [record for record in records.values() if record["graph"] == graph]
        scores = [score for run in runs for score in run["test_score"]]
        singles = [max(member["val_score"] for member in run["members"]) for run in runs]
        coverage = 100 * np.mean([row for run in runs for row in run["intervals"]["coverage"]], 0)
        weights: dict[str, float] = {}
        for member in (member for run in runs for member in run["members"]):
            name = member["name"]
            weights[name] = weights.get(name, 0.0) + member["weight"] / len(runs)
        heaviest = sorted(weights.items(), key=lambda item: -item[1])[:3]
        rows.append(
            (
                graph,
                str(len(scores)),
                f"{np.mean(scores):.3f} ± {np.std(scores, ddof=1):.3f}",
                f"{np.mean([run['test_metrics']['rmse']['mean'] for run in runs]):.3f}",
                f"{np.mean([run['val_score'] for run in runs]):.3f} ({np.mean(singles):.3f})",
                ", ".join(f"{value:.1f} %" for value in coverage),
                ", ".join(f"{name} {weight:.2f}" for name, weight in heaviest),
                f"{np.mean([run['seconds'] for run in runs]):.0f}",
                f"{device_text(runs[0]['hardware'])}; {versions_text(runs[0])}",
            )
        )
    header = ["graph", "splits", "test R²", "test RMSE", "validation R² (best member)"]
    header += ["coverage (80 %, 95 %)", "largest weights", "seconds per split", "made with"]
    return frame(header, rows)
