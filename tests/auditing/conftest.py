"""Graphs made to have one defect each."""

from typing import Any

import numpy as np
import pytest

from hpgmn.graph import Graph


@pytest.fixture
def sound():
    """Makes 300 nodes of three even classes with nothing wrong, or with some parts replaced.

    Attributes are noise; each node has four out-neighbours by chance; nodes are train, validation
    and test in turn, so that every part has 33 or more of each class.
    """

    def make(**changes):
        random = np.random.default_rng(0)
        nodes = 300
        role = np.arange(nodes) // 3 % 3
        parts: dict[str, Any] = {
            "x": random.normal(size=(nodes, 6)).astype(np.float32),
            "edge_index": np.stack(
                [np.repeat(np.arange(nodes), 4), random.integers(0, nodes, 4 * nodes)]
            ),
            "y": np.arange(nodes) % 3,
            "train_mask": role == 0,
            "val_mask": role == 1,
            "test_mask": role == 2,
        } | changes
        return Graph(**parts)

    return make
