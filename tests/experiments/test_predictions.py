"""The rows of predictions.parquet, value by value."""

from __future__ import annotations

import numpy as np

from hpgmn.experiments.predictions import NodeTable
from hpgmn.models.stage import Replica


def test_every_node_has_its_row() -> None:
    about = NodeTable(
        np.array([4, 5]),
        np.array(["d", "e"]),
        np.array(["train", "unlabelled"], dtype=object),
        np.array([1, -1]),
        ("no", "yes"),
    )
    chances = np.array([[0.25, 0.75], [0.5, 0.5]])
    table = about.with_predictions(Replica(2, 1, None), np.array([1, 0]), chances)
    shared = {"split": 2, "seed": 1}
    assert table.to_pylist() == [
        shared
        | {"node": 4, "node_id": "d", "role": "train", "label": "yes", "prediction": "yes"}
        | {"probability_no": 0.25, "probability_yes": 0.75},
        shared
        | {"node": 5, "node_id": "e", "role": "unlabelled", "label": None, "prediction": "no"}
        | {"probability_no": 0.5, "probability_yes": 0.5},
    ]
