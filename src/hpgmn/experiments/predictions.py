"""The rows of ``predictions.parquet``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from hpgmn.graph import Array
from hpgmn.models.stage import Replica


@dataclass(frozen=True)
class NodeTable:
    """What is known of some nodes before a model speaks.

    Attributes:
        nodes: (N,) their positions in the graph.
        ids: (N,) their names.
        roles: (N,) train, val, test or unlabelled.
        y: (N,) their classes, -1 where unknown.
        class_names: C of them.
    """

    nodes: Array
    ids: Array
    roles: Array
    y: Array
    class_names: Sequence[str]

    def with_predictions(self, replica: Replica, guess: Array, chances: Array) -> pa.Table:
        """The rows of one run.

        Args:
            replica: its split and seed.
            guess: (N,) predicted classes.
            chances: (N, C) probabilities.
        """
        names = np.asarray(self.class_names, dtype=object)
        labels = [str(names[label]) if label >= 0 else None for label in self.y.tolist()]
        columns = {
            "split": np.full(self.nodes.shape, replica.split, np.int32),
            "seed": np.full(self.nodes.shape, replica.seed, np.int32),
            "node": self.nodes,
            "node_id": pa.array(self.ids.tolist()),
            "role": pa.array(self.roles.tolist(), pa.string()),
            "label": pa.array(labels, pa.string()),
            "prediction": pa.array(names[guess].tolist(), pa.string()),
        }
        for number, name in enumerate(self.class_names):
            columns[f"probability_{name}"] = chances[:, number]
        return pa.table(columns)
