"""New nodes for a trained model, whatever their tables hold: finite chances, or a sentence."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import strategies as st

if TYPE_CHECKING:
    from hpgmn.estimators.classifier import HPGMNClassifier
    from hpgmn.graph import Graph

pytestmark = pytest.mark.soak

Pair = tuple["HPGMNClassifier", "Graph"]
CELLS: list[Any] = [
    *(None, 0, 1, -5.5, 1e9, 1e30, 3e38, 1e300, float("nan"), float("inf"), "Rome", "", "x", True),
    *("\u202e", "a\nb", b"x", [1], {"a": 1}, 2**80, "1", "2020-01-01", "\ud800", "w" * 4000),
]
IDS: list[Any] = ["m0", "m1", "n1", "m0 ", "", None, 7, 1.5, "m\x00", "../n1", "\u200b", "é", "N1"]


@pytest.fixture(scope="module")
def trained():
    """A classifier on a graph of tables, with numbers, words and missing values."""
    from hpgmn.estimators.classifier import HPGMNClassifier
    from hpgmn.graph import from_tables
    from hpgmn.graph.graph import random_splits

    random = np.random.default_rng(2)
    label = np.arange(40) % 2
    nodes = {
        "id": [f"n{place}" for place in range(40)],
        "label": [("good", "bad")[one] for one in label],
        "age": [None if place == 3 else 20 + place + 9 * label[place] for place in range(40)],
        "town": [("Rome", "Oslo", None)[place % 3] for place in range(40)],
    }
    ends = random.integers(0, 40, (2, 90))
    edges = {
        name: [f"n{one}" for one in own]
        for name, own in zip(("source", "target"), ends, strict=True)
    }
    graph = from_tables(nodes, edges)
    graph = graph.with_splits(random_splits(graph))
    small = {"hidden_dim": 4, "num_patterns": 3, "estimator_hidden": 4, "estimator_epochs": 3}
    return HPGMNClassifier(epochs=3, **small).fit(graph), graph


@st.composite
def news(draw):
    """Tables of new nodes and of edges that may lead to known ones."""
    count = draw(st.integers(1, 4))
    ids: list[Any] = [f"m{place}" for place in range(count)]
    nodes: dict[str, Any] = {
        "id": ids,
        "age": [30.0 + place for place in range(count)],
        "town": ["Rome"] * count,
    }
    size = draw(st.integers(0, 5))
    ends = st.sampled_from([*ids, "n0", "n39"])
    edges: dict[str, Any] = {
        name: [draw(ends) for _ in range(size)] for name in ("source", "target")
    }
    for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
        name = draw(
            st.sampled_from(["id", "age", "age", "town", "label", "source", "more", "gone"])
        )
        if name == "gone":
            nodes.pop(draw(st.sampled_from(sorted(nodes))), None)
        elif name == "source" and size:
            edges["source"][0] = draw(st.sampled_from(IDS))
        elif name != "source":
            pool = IDS if name == "id" else CELLS
            before = nodes.get(name, [None] * count)
            place = draw(st.integers(0, count - 1))
            nodes[name] = [*before[:place], draw(st.sampled_from(pool)), *before[place + 1 :]]
    return {"nodes": nodes, "edges": edges}


def test_any_new_nodes(fuzz, trained):
    from hpgmn.graph import from_tables

    model, graph = trained
    before = model.predict_proba(graph)

    def check(case):
        larger = from_tables(**case, onto=graph)
        count = len(next(iter(case["nodes"].values())))
        assert larger.num_nodes == 40 + count
        assert (
            larger.edge_index[:, : graph.edge_index.shape[1]].tolist() == graph.edge_index.tolist()
        )
        own = [not name.startswith("edges (") for name in graph.feature_names]
        assert np.array_equal(larger.x[:40, own], graph.x[:, own])
        chances = model.predict_proba(larger)
        assert np.isfinite(chances).all()
        assert np.allclose(chances.sum(axis=1), 1, atol=1e-4)
        if not case["edges"]["source"]:  # nobody's neighbours have changed
            assert np.allclose(chances[:40], before, atol=1e-4)

    fuzz("predict with new nodes", news(), check, short=40, long=1000)
