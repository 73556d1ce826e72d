"""Duplicates across a split against loops, and the data of other datasets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.auditing.twins import KnownData, Twins, known_data, like_train_nodes, twins
from hpgmn.graph import Graph, Split
from hpgmn.graph.datasets import DATASETS, Dataset, load
from hpgmn.graph.files import write_graph

Make = Callable[..., Graph]


def twins_by_loop(alike: str, keys: list[Any], y: list[int], split: Split) -> Twins:
    """Keys of None have no twin."""
    nodes = range(len(keys))
    count = sum(keys[a] is not None and keys.count(keys[a]) > 1 for a in nodes)
    teachers = [
        [b for b in nodes if keys[a] is not None and split.train[b] and keys[b] == keys[a]]
        for a in nodes
    ]
    tests = [bool(teachers[a]) for a in nodes if split.test[a]]
    known = [y[a] for a in nodes if split.train[a] and y[a] >= 0]
    agree = [
        sum(y[b] == y[a] for b in teachers[a]) / len(teachers[a])
        for a in nodes
        if split.val[a] and teachers[a]
    ]
    return Twins(
        alike,
        count,
        sum(tests) / len(tests) if tests else None,
        sum(agree) / len(agree) if agree else None,
        max(map(known.count, known)) / len(known) if known else None,
    )


@given(
    rows=st.lists(
        st.sampled_from([(), (10, 11), (10, 11, 12), (10, 11, 13)]), min_size=9, max_size=9
    ),
    y=st.lists(st.integers(0, 2), min_size=9, max_size=9),
    roles=st.lists(st.sampled_from("tve-"), min_size=9, max_size=9),
)
def test_twins_by_neighbours_match_a_loop(
    rows: list[tuple[int, ...]], y: list[int], roles: list[str]
) -> None:
    edges = np.array([(a, b) for a, row in enumerate(rows) for b in row], int).reshape(-1, 2).T
    masks = [np.array([role == key for role in roles] + [False] * 5) for key in "tve"]
    graph = Graph(np.arange(14.0)[:, None], edges, [*y, -1, -1, -1, -1, -1])
    split = Split(*masks)
    keys = [row if len(row) > 2 else None for row in rows] + [None] * 5
    found = {one.alike: one for one in twins(graph, split)}
    if edges.size:
        expected = twins_by_loop("out-neighbors", keys, graph.y.tolist(), split)
        assert vars(found["out-neighbors"]) == pytest.approx(vars(expected))
    else:  # no direction to tell apart
        assert "out-neighbors" not in found


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_twins_by_attributes_match_a_loop(form: Any) -> None:
    x = np.array([[1, 0], [1, 0], [0, 0], [0, 0], [0, 2], [1, -0.0], [3, 1], [0, 2]])
    y = [0, 0, 1, 1, 1, 2, 2, 2]
    masks = [np.array([role == key for role in "tvtetetv"]) for key in "tve"]
    found = {one.alike: one for one in twins(Graph(form(x), [[0], [1]], y), Split(*masks))}
    keys = [tuple(row) if row.any() else None for row in x]
    assert vars(found["attributes"]) == pytest.approx(
        vars(twins_by_loop("attributes", keys, y, Split(*masks)))
    )


def test_attributes_that_tell_few_nodes_apart_are_left_out(sound: Make) -> None:
    graph = sound(x=np.arange(300)[:, None] % 2 + 1.0)
    assert "attributes" not in [one.alike for one in twins(graph, graph.split(0))]


def test_without_a_split_twins_are_only_counted() -> None:
    graph = Graph([[1.0], [1.0], [2.0], [3.0]], [[0], [1]], [0, 1, 0, 1])
    assert twins(graph, None)[-1] == Twins("attributes", 2, None, None)


def test_edges_both_ways_have_one_kind_of_neighbours(sound: Make) -> None:
    assert [one.alike for one in twins(sound(directed=False), None)] == ["neighbors", "attributes"]


def test_test_labels_are_not_read(sound: Make) -> None:
    graph = sound()
    x = graph.x[np.arange(300) // 2 * 2]
    split = graph.split(0)
    like = like_train_nodes(sound(x=x), split)
    assert like.tolist() == [
        any(split.train[other] for other in (node // 2 * 2, node // 2 * 2 + 1))
        for node in range(300)
    ]
    other = np.where(split.test, (graph.y + 1) % 3, graph.y)
    first = twins(sound(x=x), split)
    assert first == twins(sound(x=x, y=other), split)
    assert first[-1].nodes == 300


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound: Make) -> Path:
    """A folder with two known datasets of 300 nodes: 'first' is sound, 'second' is not."""
    monkeypatch.setenv("HPGMN_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("first", "second"):
        known = Dataset(
            name, 300, 1200, 6, 3, None, "accuracy", "here", is_defective=name == "second"
        )
        monkeypatch.setitem(DATASETS, name, known)
    write_graph(sound(name="first"), tmp_path / "first.npz")
    write_graph(sound(name="second", edge_index=[[0, 1], [1, 2]]), tmp_path / "second.npz")
    return tmp_path


def test_the_data_of_another_dataset_is_named(shelf: Path, sound: Make) -> None:
    mine = sound(name="mine", edge_index=[[5], [6]])
    assert known_data(mine) == KnownData("first", ("attributes", "labels"))
    assert known_data(sound(name="mine")) == KnownData("first", ("attributes", "labels", "edges"))
    sparse = sound(name="mine", x=sp.csr_array(mine.x), y=(mine.y + 1) % 3, edge_index=[[5], [6]])
    assert known_data(sparse) == KnownData("first", ("attributes",))


def test_a_sound_dataset_is_not_the_copy(shelf: Path) -> None:
    assert known_data(load("first")) is None
    assert known_data(load("second")) == KnownData("first", ("attributes", "labels"))


def test_other_data_and_other_sizes_are_nobodys(shelf: Path, sound: Make) -> None:
    mine = sound(name="mine")
    assert known_data(sound(name="mine", x=mine.x + 1, y=(mine.y + 1) % 3)) is None
    assert known_data(sound(name="mine", x=mine.x[:, :3], y=(mine.y + 1) % 3)) is None
    assert known_data(Graph(mine.x[:9], [[0], [1]], mine.y[:9])) is None
    write_graph(Graph(mine.x[:9], [[0], [1]], mine.y[:9]), shelf / "other.npz")
    (shelf / "other.npz").rename(shelf / "first.npz")  # not of the size it should have
    assert known_data(sound(name="second", y=mine.y, edge_index=[[7], [8]])) is None


def test_a_damaged_file_is_passed_over(
    shelf: Path, sound: Make, caplog: pytest.LogCaptureFixture
) -> None:
    (shelf / "first.npz").write_bytes(b"damaged")
    assert known_data(sound(name="mine")) == KnownData("second", ("attributes", "labels"))
    assert "'first'" in caplog.text


def test_nothing_is_compared_with_what_is_not_here(shelf: Path, sound: Make) -> None:
    for path in shelf.glob("*.npz"):
        path.unlink()
    assert known_data(sound(name="mine")) is None
