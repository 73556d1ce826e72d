"""A run with a rare class."""

import numpy as np
import pytest

import hpgmn
from hpgmn.graph import Graph

RARE = {
    "epochs": 15,
    "estimator_epochs": 10,
    "hidden_dim": 8,
    "num_patterns": 3,
    "statistics": ("attributes", "class_counts"),
    "class_weights": "balanced",
}


@pytest.fixture(scope="session")
def rare_graph():
    """400 nodes, of which 12 % are mules whose first attribute is high; 100 are unlabelled."""
    random = np.random.default_rng(0)
    y = (random.random(400) < 0.12).astype(np.int64)
    x = random.normal(size=(400, 4)).astype(np.float32)
    x[:, 0] += 2 * y
    edges = random.integers(400, size=(2, 1200))
    y[300:] = -1
    part = np.full(400, "none", dtype=object)
    part[:300] = random.choice(["train", "val", "test"], 300, p=[0.4, 0.3, 0.3])
    masks = {f"{name}_mask": part == name for name in ("train", "val", "test")}
    return Graph(
        *(x, edges, y),
        **masks,
        node_ids=[f"a{number}" for number in range(400)],
        class_names=["paid", "mule"],
        name="bank",
    )


@pytest.fixture(scope="session")
def rare_run(rare_graph, tmp_path_factory):
    """Two seeds on one split; read it only."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    return hpgmn.train(
        rare_graph,
        model="hpgmn",
        settings=RARE,
        seeds=2,
        threshold="recall=0.9",
        out=folder,
        report=False,
    )
