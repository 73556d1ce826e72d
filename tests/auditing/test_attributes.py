"""Columns without information and columns that give the label away, planted and found."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.auditing import attributes
from hpgmn.auditing.attributes import attribute_columns, gain, sample_labelled_nodes, votes
from hpgmn.graph import Graph

Make = Callable[..., Graph]


def with_column(graph, values, place=2):
    x = graph.x.copy()
    x[:, place] = values
    return x


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_noise_gives_nothing_away(sound, form):
    graph = sound()
    found = attribute_columns(sound(x=form(graph.x)), graph.split(0))
    assert found.giveaways == ()
    assert (found.judged_nodes, found.is_sampled) == (201, False)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_a_copy_of_the_label_is_found(sound, form):
    graph = sound()
    codes = np.array([0.5, 7.0, 0.0])[graph.y]  # other numbers, one of them zero
    found = attribute_columns(sound(x=form(with_column(graph, codes))), graph.split(0)).giveaways
    assert [(one.column, one.name, one.is_copy, one.of_class) for one in found] == [
        (2, "2", True, None)
    ]
    assert found[0].accuracy == 1.0
    truth = graph.y[graph.split(0).val]
    most = Counter(graph.y[graph.split(0).train].tolist()).most_common(1)[0][0]
    assert found[0].chance == pytest.approx((truth == most).mean())


def test_a_noisy_copy_is_found_and_is_no_copy(sound):
    graph = sound(feature_names=[f"column {number}" for number in range(6)])
    noisy = graph.y + np.random.default_rng(1).normal(size=300) * 0.2
    found = attribute_columns(
        sound(x=with_column(graph, noisy), feature_names=graph.feature_names), graph.split(0)
    )
    (one,) = found.giveaways
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
    monkeypatch.setattr(attributes, "MOST_VALUES", 6 * 90)
    monkeypatch.setattr(attributes, "FEWEST_NODES", 30)
    graph = sound()
    train, val = sample_labelled_nodes(graph, graph.split(0))
    assert train.size + val.size == 89  # shares are rounded down
    assert graph.split(0).train[train].all()
    assert graph.split(0).val[val].all()
    found = attribute_columns(sound(x=with_column(graph, graph.y)), graph.split(0))
    assert (found.judged_nodes, found.is_sampled) == (89, True)
    assert found.giveaways[0].column == 2


@given(
    train=st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 2)), min_size=1, max_size=12),
    asked=st.lists(st.integers(-2, 2), min_size=1, max_size=6),
)
def test_votes_match_a_loop(train, asked):
    """A value that no train node has goes with the next smaller one, or gets the default."""
    values, labels = (np.array(part) for part in zip(*train, strict=True))
    found = votes(values, labels, np.array(asked), default=7)
    for value, guess in zip(asked, found, strict=True):
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
    found = attribute_columns(Graph(form(x), [[0], [1]]), None)
    assert (found.count, found.zero, found.constant, found.without) == (5, (0, 3), (1, 4), 0)
    x[:, 1] = x[:, 4] = 0
    found = attribute_columns(Graph(form(x), [[0], [1]]), None)
    assert (found.zero, found.constant, found.without) == ((0, 1, 3, 4), (), 1)


def test_gain_is_the_share_of_errors_avoided():
    assert gain(0.9, 0.5) == pytest.approx(0.8)
    assert gain(0.4, 0.5) == pytest.approx(-0.2)
    assert gain(1.0, 1.0) == 0
