import numpy as np

from hpgmn.graph import Split
from hpgmn.graph.calibration import reserve_calibration


def split(size=40):
    val = np.arange(size) % 2 == 0
    return Split(~val, val, np.zeros(size, bool))


def test_half_of_the_validation_nodes_are_reserved_by_their_names_alone():
    before = split()
    after = reserve_calibration(before, 0, None)
    assert after.calibration is not None
    assert after.calibration.sum() == 10
    assert np.array_equal(after.val ^ after.calibration, before.val)
    assert np.array_equal(after.train, before.train)
    ids = np.arange(40).astype(str)
    assert np.array_equal(reserve_calibration(before, 0, ids).calibration, after.calibration)
    order = np.random.default_rng(0).permutation(40)
    moved = Split(before.train[order], before.val[order], before.test)
    reserved = reserve_calibration(moved, 0, ids[order]).calibration
    assert np.array_equal(reserved, after.calibration[order])


def test_splits_reserve_different_nodes():
    first, second = (reserve_calibration(split(), number, None).calibration for number in (0, 1))
    assert 0 < (first & second).sum() < 10
