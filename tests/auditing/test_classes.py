"""Class sizes, and classes that a part of a split lacks."""

from __future__ import annotations

import numpy as np
import pytest

from hpgmn.auditing.classes import MissingClass, class_balance, missing_classes
from hpgmn.graph import Graph


def graph_with(y: list[int], roles: list[str], names: list[str]) -> Graph:
    """A word per split for each node: t(rain), v(al), e (test) or - (none)."""
    masks = {
        f"{part}_mask": np.array([[letter == key for letter in word] for word in roles])
        for part, key in (("train", "t"), ("val", "v"), ("test", "e"))
    }
    return Graph(np.ones((len(y), 1)), [[0], [1]], y, class_names=names, **masks)


def test_classes_are_counted_with_those_nobody_has() -> None:
    graph = Graph(np.ones((6, 1)), [[0], [1]], [2, 0, 2, -1, 2, -1], class_names=["a", "b", "c"])
    found = class_balance(graph)
    assert found.counts == {"a": 1, "b": 0, "c": 3}
    assert found.unlabelled == 2
    assert found.largest_share == pytest.approx(0.75)


def test_without_labels_there_is_no_largest_class() -> None:
    found = class_balance(Graph(np.ones((3, 1)), [[0], [1]]))
    assert (found.unlabelled, found.largest_share) == (3, 0.0)


def test_a_class_that_a_part_lacks_is_named_with_its_splits() -> None:
    graph = graph_with(
        [0, 0, 0, 1, 1, 1, -1],
        ["tt", "vt", "ev", "tv", "te", "vv", "--"],
        ["few", "many", "nobody"],
    )
    assert missing_classes(graph) == (
        MissingClass("many", "train", (1,)),
        MissingClass("few", "test", (1,)),
        MissingClass("many", "test", (0,)),
    )


def test_a_part_without_nodes_lacks_no_class() -> None:
    assert missing_classes(graph_with([0, 1, 0, 1], ["t", "t", "v", "v"], ["a", "b"])) == ()


def test_without_splits_nothing_is_missing() -> None:
    assert missing_classes(Graph(np.ones((2, 1)), [[0], [1]], [0, 1])) == ()
