"""Random splits: seeded, disjoint, of the right sizes, and refused where they cannot be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.errors import GraphError
from hpgmn.graph import Graph
from hpgmn.graph.splits import random_splits


def test_split_is_the_cut_permutation_of_the_labelled_nodes():
    y = np.array([0, 1, -1, 0, 1, 0, 1, 1, 0, 0, -1, 1])
    splits = random_splits(y, count=3)
    labelled = np.flatnonzero(y >= 0)
    for number, split in enumerate(splits):
        order = np.random.default_rng(number).permutation(labelled)
        assert np.flatnonzero(split.train).tolist() == sorted(order[:6])
        assert np.flatnonzero(split.val).tolist() == sorted(order[6:8])
        assert np.flatnonzero(split.test).tolist() == sorted(order[8:])


def test_a_split_depends_on_its_own_seed_alone():
    y = np.arange(40) % 3
    ten = random_splits(y, count=10, stratified=True)
    last = random_splits(y, count=1, stratified=True, first_seed=9)
    np.testing.assert_array_equal(ten[9].train, last[0].train)
    np.testing.assert_array_equal(ten[9].test, last[0].test)
    assert not np.array_equal(ten[0].train, ten[1].train)


def test_a_graph_may_be_given_for_its_labels():
    y = np.arange(20) % 2
    graph = Graph(np.ones((20, 1)), [], y)
    np.testing.assert_array_equal(random_splits(graph).val, random_splits(y).val)
    assert graph.with_splits(random_splits(graph)).split(9).train.sum() == 12


@given(st.lists(st.integers(-1, 3), min_size=30, max_size=60), st.booleans(), st.integers(0, 1000))
def test_every_labelled_node_is_in_one_part(labels, stratified, first_seed):
    y = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, *labels])
    splits = random_splits(y, count=2, stratified=stratified, first_seed=first_seed)
    parts = splits.train.astype(int) + splits.val + splits.test
    np.testing.assert_array_equal(parts, np.repeat((y >= 0).astype(int)[:, None], 2, axis=1))


@given(st.lists(st.integers(-1, 5), min_size=20, max_size=60))
def test_stratified_splits_have_the_fractions_in_every_class(labels):
    y = np.array([*[0] * 10, *labels])
    splits = random_splits(y, count=2, stratified=True)
    for label in np.unique(y[y >= 0]):
        size = (y == label).sum()
        train = splits.train[y == label].sum(axis=0)
        test = splits.test[y == label].sum(axis=0)
        assert (train >= 1).all()
        assert (np.abs(train - 0.6 * size) <= 0.5 + (size == 1)).all()
        assert (np.abs(test - 0.2 * size) <= 1).all()


def test_a_class_of_one_node_is_trained_on():
    y = np.array([0] * 10 + [1] * 10 + [2])
    assert random_splits(y, stratified=True).train[20].all()


def test_a_rest_stays_unused():
    splits = random_splits(np.zeros(100, int), count=1, fractions=(0.1, 0.2, 0.3))
    assert [mask.sum() for mask in (splits.train, splits.val, splits.test)] == [10, 20, 30]


def test_a_part_may_be_asked_to_be_empty():
    splits = random_splits(np.zeros(10, int), count=1, fractions=(0.8, 0, 0.2))
    assert [mask.sum() for mask in (splits.train, splits.val, splits.test)] == [8, 0, 2]


@pytest.mark.parametrize("labels", [[], [-1, -1, -1], [0, 1, -1, -1]])
@pytest.mark.parametrize("stratified", [False, True])
def test_too_few_labelled_nodes_are_refused(labels, stratified):
    count = sum(label >= 0 for label in labels)
    message = f"{count} labelled nodes are too few for a 0.6/0.2/0.2 split: .* Label more nodes"
    with pytest.raises(GraphError, match=message):
        random_splits(np.array(labels, int), stratified=stratified)


@pytest.mark.parametrize("fractions", [(0.5, 0.5), (0.6, 0.3, 0.2), (0, 0.5, 0.5), (0.9, -0.1, 0)])
def test_impossible_fractions_are_refused(fractions):
    with pytest.raises(ValueError, match="fractions must be three shares"):
        random_splits(np.zeros(10, int), fractions=fractions)


def test_no_split_is_refused():
    with pytest.raises(ValueError, match=r"count must be at least 1 \(got 0\)"):
        random_splits(np.zeros(10, int), count=0)
