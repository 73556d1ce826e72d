"""Measures of edges, classes and duplicates against plain loops, and data of other datasets."""

import statistics
from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.auditing import measures as module
from hpgmn.auditing.measures import (
    Degrees,
    KnownData,
    MissingClass,
    Twins,
    attribute_columns,
    class_balance,
    known_data,
    like_train_nodes,
    missing_classes,
    sample_labelled_nodes,
    structure,
    twins,
    votes,
)
from hpgmn.graph import Graph, Split
from hpgmn.graph.datasets import DATASETS, Dataset, load
from hpgmn.graph.files import write_graph

NODES = 6
Edges = list[tuple[int, int]]


def degrees_by_loop(neighbors):
    sizes = sorted(len(one) for one in neighbors)
    return Degrees(sizes[0], float(statistics.median(sizes)), sizes[-1], sizes.count(0))


def parts_by_loop(edges):
    """Sizes of the connected parts: every edge merges the parts of its ends."""
    part = list(range(NODES))
    for a, b in edges:
        old, new = part[a], part[b]
        part = [new if one == old else one for one in part]
    return [part.count(one) for one in set(part)]


@given(
    edges=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=14),
    directed=st.booleans(),
    weighted=st.booleans(),
)
def test_measures_match_loops(edges, directed, weighted):
    ends = np.array(edges, np.int64).reshape(-1, 2).T
    weight = np.linspace(1, 2, len(edges)) if weighted else None
    result = structure(Graph(np.ones((NODES, 1)), ends, edge_weight=weight, directed=directed))
    arrows = {(a, b) for a, b in edges if a != b}
    if not directed:
        arrows |= {(b, a) for a, b in arrows}
    out = [{b for a, b in arrows if a == node} for node in range(NODES)]
    into = [{a for a, b in arrows if b == node} for node in range(NODES)]
    assert result.nodes == NODES
    assert result.directed is directed
    assert result.listed_edges == len(edges)
    assert result.edges == (len(arrows) if directed else len(arrows) // 2)
    assert result.self_loops == sum(a == b for a, b in edges)
    assert result.repeated_edges == len(edges) - len(set(edges))
    returned = sum((b, a) in arrows for a, b in arrows)
    assert result.both_ways == pytest.approx(returned / len(arrows) if arrows else 1.0)
    assert result.is_one_way is (returned < len(arrows))
    assert result.out_degrees == degrees_by_loop(out)
    assert result.in_degrees == degrees_by_loop(into)
    assert result.degrees == degrees_by_loop([a | b for a, b in zip(out, into, strict=True)])
    sizes = parts_by_loop(edges)
    assert (result.components, result.largest_component) == (len(sizes), max(sizes))


def graph_with(y, roles, names):
    """A word per split for each node: t(rain), v(al), e (test) or - (none)."""
    masks = {
        f"{part}_mask": np.array([[letter == key for letter in word] for word in roles])
        for part, key in (("train", "t"), ("val", "v"), ("test", "e"))
    }
    return Graph(np.ones((len(y), 1)), [[0], [1]], y, class_names=names, **masks)


def test_empty_classes_are_counted():
    graph = Graph(np.ones((6, 1)), [[0], [1]], [2, 0, 2, -1, 2, -1], class_names=["a", "b", "c"])
    result = class_balance(graph)
    assert result.counts == {"a": 1, "b": 0, "c": 3}
    assert result.unlabelled == 2
    assert result.largest_share == pytest.approx(0.75)


def test_without_labels_there_is_no_largest_class():
    result = class_balance(Graph(np.ones((3, 1)), [[0], [1]]))
    assert (result.unlabelled, result.largest_share) == (3, 0.0)


def test_a_class_that_a_part_lacks_is_named_with_its_splits():
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


def test_a_part_without_nodes_lacks_no_class():
    assert missing_classes(graph_with([0, 1, 0, 1], ["t", "t", "v", "v"], ["a", "b"])) == ()


def test_without_splits_nothing_is_missing():
    assert missing_classes(Graph(np.ones((2, 1)), [[0], [1]], [0, 1])) == ()


def twins_by_loop(alike, keys, y, split):
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
def test_twins_by_neighbours_match_a_loop(rows, y, roles):
    edges = np.array([(a, b) for a, row in enumerate(rows) for b in row], int).reshape(-1, 2).T
    masks = [np.array([role == key for role in roles] + [False] * 5) for key in "tve"]
    graph = Graph(np.arange(14.0)[:, None], edges, [*y, -1, -1, -1, -1, -1])
    split = Split(*masks)
    keys = [row if len(row) > 2 else None for row in rows] + [None] * 5
    result = {one.alike: one for one in twins(graph, split)}
    if edges.size:
        expected = twins_by_loop("out-neighbors", keys, graph.y.tolist(), split)
        assert vars(result["out-neighbors"]) == pytest.approx(vars(expected))
    else:  # no direction to tell apart
        assert "out-neighbors" not in result


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_twins_by_attributes_match_a_loop(form):
    x = np.array([[1, 0], [1, 0], [0, 0], [0, 0], [0, 2], [1, -0.0], [3, 1], [0, 2]])
    y = [0, 0, 1, 1, 1, 2, 2, 2]
    masks = [np.array([role == key for role in "tvtetetv"]) for key in "tve"]
    result = {one.alike: one for one in twins(Graph(form(x), [[0], [1]], y), Split(*masks))}
    keys = [tuple(row) if row.any() else None for row in x]
    assert vars(result["attributes"]) == pytest.approx(
        vars(twins_by_loop("attributes", keys, y, Split(*masks)))
    )


def test_attributes_that_tell_few_nodes_apart_are_left_out(sound):
    graph = sound(x=np.arange(300)[:, None] % 2 + 1.0)
    assert "attributes" not in [one.alike for one in twins(graph, graph.split(0))]


def test_without_a_split_twins_are_only_counted():
    graph = Graph([[1.0], [1.0], [2.0], [3.0]], [[0], [1]], [0, 1, 0, 1])
    assert twins(graph, None)[-1] == Twins("attributes", 2, None, None)


def test_edges_both_ways_have_one_kind_of_neighbours(sound):
    assert [one.alike for one in twins(sound(directed=False), None)] == ["neighbors", "attributes"]


def test_test_labels_are_not_read(sound):
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
def shelf(tmp_path, monkeypatch, sound):
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


def test_the_data_of_another_dataset_is_named(shelf, sound):
    mine = sound(name="mine", edge_index=[[5], [6]])
    assert known_data(mine) == KnownData("first", ("attributes", "labels"))
    assert known_data(sound(name="mine")) == KnownData("first", ("attributes", "labels", "edges"))
    sparse = sound(name="mine", x=sp.csr_array(mine.x), y=(mine.y + 1) % 3, edge_index=[[5], [6]])
    assert known_data(sparse) == KnownData("first", ("attributes",))


def test_a_sound_dataset_is_not_the_copy(shelf):
    assert known_data(load("first")) is None
    assert known_data(load("second")) == KnownData("first", ("attributes", "labels"))


def test_other_data_and_other_sizes_do_not_match(shelf, sound):
    mine = sound(name="mine")
    assert known_data(sound(name="mine", x=mine.x + 1, y=(mine.y + 1) % 3)) is None
    assert known_data(sound(name="mine", x=mine.x[:, :3], y=(mine.y + 1) % 3)) is None
    assert known_data(Graph(mine.x[:9], [[0], [1]], mine.y[:9])) is None
    write_graph(Graph(mine.x[:9], [[0], [1]], mine.y[:9]), shelf / "other.npz")
    (shelf / "other.npz").rename(shelf / "first.npz")  # not of the size it should have
    assert known_data(sound(name="second", y=mine.y, edge_index=[[7], [8]])) is None


def test_a_damaged_file_is_passed_over(shelf, sound, caplog):
    (shelf / "first.npz").write_bytes(b"damaged")
    assert known_data(sound(name="mine")) == KnownData("second", ("attributes", "labels"))
    assert "'first'" in caplog.text


def test_nothing_is_compared_with_what_is_not_here(shelf, sound):
    for path in shelf.glob("*.npz"):
        path.unlink()
    assert known_data(sound(name="mine")) is None


# Attribute columns.


def with_column(graph, values, place=2):
    x = graph.x.copy()
    x[:, place] = values
    return x


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_noise_gives_nothing_away(sound, form):
    graph = sound()
    result = attribute_columns(sound(x=form(graph.x)), graph.split(0))
    assert result.giveaways == ()
    assert (result.judged_nodes, result.is_sampled) == (201, False)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_a_copy_of_the_label_is_found(sound, form):
    graph = sound()
    codes = np.array([0.5, 7.0, 0.0])[graph.y]  # other numbers, one of them zero
    result = attribute_columns(sound(x=form(with_column(graph, codes))), graph.split(0)).giveaways
    assert [(one.column, one.name, one.is_copy, one.of_class) for one in result] == [
        (2, "2", True, None)
    ]
    assert result[0].accuracy == 1.0
    truth = graph.y[graph.split(0).val]
    most = Counter(graph.y[graph.split(0).train].tolist()).most_common(1)[0][0]
    assert result[0].chance == pytest.approx((truth == most).mean())


def test_a_noisy_copy_is_found_and_is_no_copy(sound):
    graph = sound(feature_names=[f"column {number}" for number in range(6)])
    noisy = graph.y + np.random.default_rng(1).normal(size=300) * 0.2
    result = attribute_columns(
        sound(x=with_column(graph, noisy), feature_names=graph.feature_names), graph.split(0)
    )
    (one,) = result.giveaways
    assert (one.name, one.is_copy, one.of_class) == ("column 2", False, None)
    assert 0.9 < one.accuracy < 1


def test_the_mark_of_one_class_is_found(sound):
    graph = sound(class_names=["a", "b", "c"])
    marked = sound(x=with_column(graph, graph.y == 1), class_names=["a", "b", "c"])
    (one,) = attribute_columns(marked, graph.split(0)).giveaways
    assert (one.column, one.of_class, one.f1, one.is_copy) == (2, "b", 1.0, True)


def test_a_mark_with_exceptions_is_no_copy(sound):
    graph = sound()
    mark = (graph.y == 1).astype(float)
    mark[np.flatnonzero(graph.split(0).train & (graph.y == 1))[0]] = 0
    (one,) = attribute_columns(sound(x=with_column(graph, mark)), graph.split(0)).giveaways
    assert (one.of_class, one.is_copy) == ("1", False)


def test_a_rare_class_is_not_judged_alone(sound):
    graph = sound()
    y = np.where(np.isin(np.arange(300), [1, 4, 10, 13]), 1, graph.y // 2 * 2)
    x = with_column(graph, y == 1)
    assert attribute_columns(sound(x=x, y=y), graph.split(0)).giveaways == ()


def test_test_labels_change_nothing(sound):
    graph = sound()
    x = with_column(graph, graph.y)
    other = np.where(graph.split(0).test, (graph.y + 1) % 3, graph.y)
    split = graph.split(0)
    assert attribute_columns(sound(x=x), split) == attribute_columns(sound(x=x, y=other), split)


def test_no_split_and_one_class_give_nothing_away(sound):
    graph = sound()
    assert attribute_columns(sound(x=with_column(graph, graph.y)), None).giveaways == ()
    alone = sound(y=np.zeros(300, int))
    assert attribute_columns(alone, alone.split(0)).giveaways == ()


def test_large_tables_are_judged_on_some_nodes(sound, monkeypatch):
    monkeypatch.setattr(module, "MOST_VALUES", 6 * 90)
    monkeypatch.setattr(module, "FEWEST_NODES", 30)
    graph = sound()
    train, val = sample_labelled_nodes(graph, graph.split(0))
    assert train.size + val.size == 89  # shares are rounded down
    assert graph.split(0).train[train].all()
    assert graph.split(0).val[val].all()
    result = attribute_columns(sound(x=with_column(graph, graph.y)), graph.split(0))
    assert (result.judged_nodes, result.is_sampled) == (89, True)
    assert result.giveaways[0].column == 2


@given(
    train=st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 2)), min_size=1, max_size=12),
    values_to_guess=st.lists(st.integers(-2, 2), min_size=1, max_size=6),
)
def test_votes_match_a_loop(train, values_to_guess):
    """A value that no train node has goes with the next smaller one, or gets the default."""
    values, labels = (np.array(part) for part in zip(*train, strict=True))
    result = votes(values, labels, np.array(values_to_guess), default=7)
    for value, guess in zip(values_to_guess, result, strict=True):
        smaller = [one for one in values if one <= value]
        if not smaller:
            assert guess == 7
            continue
        counts = Counter(label for one, label in train if one == max(smaller))
        assert counts[int(guess)] == max(counts.values())


def test_many_values_are_cut_at_quantiles():
    values = np.arange(6400.0)
    labels = (values // 100).astype(int) % 2  # each part of 100 values has one label
    assert (votes(values, labels, values, default=0) == labels).all()


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_columns_and_rows_without_information(form):
    x = np.array([[0, 2, 1, 0, -1], [0, 2, 0, 0, -1], [0, 2, 1, 0, -1]], float)
    result = attribute_columns(Graph(form(x), [[0], [1]]), None)
    assert (result.count, result.zero, result.constant, result.without) == (5, (0, 3), (1, 4), 0)
    x[:, 1] = x[:, 4] = 0
    result = attribute_columns(Graph(form(x), [[0], [1]]), None)
    assert (result.zero, result.constant, result.without) == ((0, 1, 3, 4), (), 1)
