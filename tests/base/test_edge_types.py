"""Tests of edge types: merging of rare ones, matching by name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.edge_types import MAX_TYPES, OTHER, match_types, merge_rare_types
from hpgmn.base.errors import GraphError


@given(st.lists(st.integers(0, 14), max_size=60), st.integers(15, 20))
def test_the_most_frequent_types_keep_their_names(types, count):
    names = [f"t{number}" for number in range(count)]
    merged, kept = merge_rare_types(np.asarray(types, np.int64), names)
    assert len(kept) == MAX_TYPES
    assert kept[-1] == OTHER
    assert list(kept[:-1]) == sorted(kept[:-1], key=names.index)
    for number, type_number in zip(merged.tolist(), types, strict=True):
        assert kept[number] in (names[type_number], OTHER)
    frequency = {name: types.count(number) for number, name in enumerate(names)}
    rarest = min(frequency[name] for name in kept[:-1])
    assert all(frequency[name] <= rarest for name in names if name not in kept)


def test_eight_types_are_not_merged():
    types, names = merge_rare_types(np.arange(8), list("abcdefgh"))
    assert types.tolist() == list(range(8))
    assert names == tuple("abcdefgh")


def test_a_type_named_other_takes_the_rare_ones():
    types, names = merge_rare_types(np.array([0, 0, 0, *range(9)]), [OTHER, *"abcdefgh"])
    assert names == (*"abcdefg", OTHER)
    assert types.tolist() == [7, 7, 7, 7, 0, 1, 2, 3, 4, 5, 6, 7]


def test_unknown_types_are_other_or_refused():
    assert match_types(["b", "new"], ["a", "b", OTHER], "It") == [1, 2]
    with pytest.raises(GraphError, match=r"edges of type 'new'.* trained on 'a', 'b'"):
        match_types(["b", "new"], ["a", "b"], "It")
