import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hpgmn.base.tasks import bin_edges, hide_labels, is_known, target_bins, target_scale

TARGETS = arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e6, 1e6))


def test_unknown_labels_depend_on_the_type():
    mask = np.array([True, False])
    classes, targets = (hide_labels(np.array([3, 4], kind), mask) for kind in (int, float))
    assert is_known(classes).tolist() == is_known(targets).tolist() == [True, False]
    assert classes.dtype.kind == "i"
    assert hide_labels(np.zeros(2, np.float32), mask).dtype == np.float32


@given(TARGETS, TARGETS, st.integers(2, 9))
def test_bins_are_the_quantiles_of_the_known_train_targets(train, values, bins):
    hidden = np.append(train, np.nan)[None]
    edges = [np.quantile(train, k / bins) for k in range(1, bins)]
    expected = [sum(value >= edge for edge in edges) for value in values]
    assert target_bins(values[None], hidden, bins)[0].tolist() == expected


def test_bins_of_distinct_targets_have_equally_many_nodes():
    train = np.random.default_rng(0).permutation(40.0 + np.arange(80))
    assert np.bincount(target_bins(train[None], train[None], 8)[0]).tolist() == [10] * 8
    assert bin_edges(np.array([np.nan]), 3).tolist() == [0, 0]


def test_the_scale_is_of_the_known_targets_and_never_zero():
    train = np.array([[1.0, 3.0, np.nan], [5.0, 5.0, np.nan], [np.nan] * 3])
    mean, std = target_scale(train)
    assert mean[:, 0].tolist() == [2, 5, 0]
    assert std[:, 0].tolist() == [1, 1, 1]
