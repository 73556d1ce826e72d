"""Every statistic has a description, of one edge type too."""

from hpgmn.explain.descriptions import DIRECTIONS, describe_statistic
from hpgmn.graph import NEIGHBORS
from hpgmn.statistics import STATISTICS


def test_every_statistic_and_direction_is_described():
    assert len({describe_statistic(name) for name in STATISTICS}) == len(STATISTICS)
    assert describe_statistic("class_means (a (b))").endswith("class by class (a (b))")
    assert set(DIRECTIONS) == set(NEIGHBORS) - {"both"}
