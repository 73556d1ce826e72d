"""What a run was made from and with; tests/reliability/test_run_again.py trains again by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpgmn.graph import Graph
from hpgmn.runs.provenance import changes, graph_content, made_with


def changed(graph: Graph, **changes: Any) -> Graph:
    """The same graph but for what is named."""
    assert graph.splits is not None
    masks = {f"{part}_mask": getattr(graph.splits, part) for part in ("train", "val", "test")}
    given = {"x": graph.x, "edge_index": graph.edge_index, "y": graph.y, **masks}
    return Graph(**(given | changes))


def test_what_bits_depend_on_is_told(small_graph: Graph) -> None:
    now = made_with(small_graph, [0], "cpu")
    before = now | {"torch": "1.0", "threads": 9}
    config = {"graph": "g.npz", "version": "0.0.1", "made_with": before}
    (told,) = changes(config, now)
    assert "hpgmn 0.0.1 (now " in told
    assert f"torch 1.0 (now {now['torch']})" in told
    assert f"threads 9 (now {now['threads']})" in told
    assert "numpy" not in told
    assert changes({"graph": "g.npz"}, now) == []


def test_another_graph_is_told(small_graph: Graph) -> None:
    now = made_with(small_graph, [0], "cpu")
    config = {"graph": "g.npz", "made_with": now | {"graph_content": "other"}}
    (told,) = changes(config, now)
    assert told.startswith("The graph g.npz is not what it was when")


def test_the_same_content_is_the_same(small_graph: Graph) -> None:
    assert graph_content(small_graph, [0]) == graph_content(changed(small_graph), [0])


@pytest.mark.parametrize("part", ["x", "edge_index", "y", "test_mask"])
def test_the_content_of_a_graph_is_all_that_a_run_reads(small_graph: Graph, part: str) -> None:
    whole = graph_content(small_graph, [0])
    assert small_graph.splits is not None
    if part == "test_mask":
        value: Any = np.array(small_graph.splits.test)
        value[np.flatnonzero(value[:, 0])[0], 0] = False
    else:
        value = np.array(getattr(small_graph, part))
        value.reshape(-1)[-1] = (value.reshape(-1)[-1] + 1) % 3
    assert graph_content(changed(small_graph, **{part: value}), [0]) != whole
    assert graph_content(small_graph, [1]) != whole
