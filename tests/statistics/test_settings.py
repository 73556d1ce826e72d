"""What statistics are called: directions, means over neighbours, and the mode each is read in."""

import pytest

from hpgmn.statistics import STATISTICS, averaged_statistic, base_name
from hpgmn.statistics.settings import mode_of


def test_four_statistics_have_a_mean_over_neighbours():
    inner = [averaged_statistic(name) for name in STATISTICS]
    assert inner[:5] == [None] * 5
    assert inner[5:9] == ["attributes", "class_counts", "class_means", "adjacency"]
    assert inner[9:] == [None] * 2


@pytest.mark.parametrize("direction", ["out", "in"])
def test_a_direction_is_not_part_of_the_statistic(direction):
    for name in STATISTICS[1:]:
        assert base_name(f"{name}_{direction}") == name
        assert mode_of(f"{name}_{direction}", "both") == direction
        assert mode_of(name, "undirected") == "undirected"


def test_attributes_have_no_neighbours_but_their_mean_has():
    assert mode_of("attributes", "both") == mode_of("attributes", "in") == "out"
    assert mode_of("neighbor_attributes", "in") == "in"
