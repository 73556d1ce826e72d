import numpy as np
import pytest

from hpgmn.base.errors import GraphError, SettingError
from hpgmn.graph import Graph

EDGES = {"source": ["a", "b"], "target": ["b", "c"]}


def graph(label, **options):
    nodes = {"id": ["a", "b", "c", "d"][: len(label)], "age": [1, 2, 3, 4][: len(label)]}
    return Graph.from_tables(nodes | {"label": label}, EDGES, **options)


def test_numbers_with_fractions_are_targets_and_missing_ones_unknown():
    made = graph([0.5, None, 3.0, 2.0])
    assert made.is_regression
    assert made.num_classes == 0
    assert made.class_names == ()
    assert np.array_equal(made.y, [0.5, np.nan, 3, 2], equal_nan=True)
    assert graph(["0.5", "", "1e3", "-2"]).y[2] == 1000


def test_integers_are_classes_unless_the_task_is_regression():
    assert not graph([1, 2, 1, 2]).is_regression
    assert not graph([1.0, 2.0, 1.0, 2.0]).is_regression
    assert not graph([0.5, 1.5, 0.5, 1.5], task="classification").is_regression
    assert graph([1, 2, 1, 7], task="regression").y.tolist() == [1, 2, 1, 7]


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (["1.5", "high", "2", "3"], "holds 'high', which is no number"),
        ([1.5, float("inf"), 2.0, 3.0], "which is not finite"),
        ([2, 2, 2, 2], "single value, 2, so there is nothing to predict"),
    ],
)
def test_what_is_no_target_is_refused(label, message):
    with pytest.raises(GraphError, match=message):
        graph(label, task="regression")


def test_an_unknown_task_is_refused():
    with pytest.raises(SettingError, match="Unknown task 'ranking'"):
        graph([1, 2, 1, 2], task="ranking")


def test_later_tables_keep_the_task_of_the_training():
    trained = graph([0.5, 1.5, 3.0, 2.0])
    later = Graph.from_tables(
        {"id": ["a", "b"], "age": [1, 2], "label": [1, None]},
        {"source": ["a"], "target": ["b"]},
        like=trained,
    )
    assert later.y[0] == 1.0
    assert later.is_regression
    added = Graph.from_tables(
        {"id": ["e"], "age": [5], "label": [7]}, {"source": ["e"], "target": ["a"]}, onto=trained
    )
    assert added.y[-1] == 7.0
    assert added.is_regression
