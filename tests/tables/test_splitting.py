"""Splits by groups and by time, against what the masks must satisfy and counts by hand."""

import numpy as np
import pyarrow as pa
import pytest

from hpgmn.base.errors import GraphError
from hpgmn.tables.sources import MemoryTable
from hpgmn.tables.splitting import group_splits, split_by, time_split


def memory_table(**columns):
    return MemoryTable(pa.table(columns), "nodes")


def test_groups_never_straddle_and_every_part_has_some():
    random = np.random.default_rng(0)
    groups = [f"g{number}" for number in random.integers(0, 12, 200)]
    y = random.integers(-1, 3, 200)
    masks = group_splits(y, groups)
    every = sum(mask.astype(int) for mask in masks.values())
    np.testing.assert_array_equal(every, np.repeat((y >= 0)[:, None].astype(int), 10, axis=1))
    for split in range(10):
        found = {
            part: {groups[node] for node in np.flatnonzero(mask[:, split])}
            for part, mask in masks.items()
        }
        assert all(found.values())
        assert sum(map(len, found.values())) == len(set().union(*found.values()))
        share = masks["train"][:, split].sum() / (y >= 0).sum()
        assert 0.45 < share < 0.75
    assert len({masks["test"][:, split].tobytes() for split in range(10)}) > 5


def test_a_large_group_leaves_something_for_each_part():
    masks = group_splits(np.zeros(100, int), ["big"] * 98 + ["one", "two"])
    for mask in masks.values():
        assert mask.any(axis=0).all()


def test_nodes_without_a_group_are_in_no_part_and_counted():
    groups = ["a", None, "b", "c", "", None]
    y = np.array([0, 1, 0, 1, 0, -1])
    lines = []
    masks = split_by(memory_table(team=groups), "group", "team", y, lines.append)
    used = np.any(list(masks.values()), axis=0)
    assert used.all(axis=1).tolist() == used.any(axis=1).tolist() == [1, 0, 1, 1, 0, 0]
    assert lines[0].endswith(
        "is in one part; labelled nodes in no part, because they have no group: 2."
    )


def test_the_oldest_train_and_the_newest_test():
    times = np.array([5, 1, 2, 3, 4, 10, 9, 8, 7, 6, 0, np.nan])
    y = np.array([0] * 10 + [-1, 1])
    masks = time_split(y, times)
    assert sorted(times[masks["train"][:, 0]]) == [1, 2, 3, 4, 5, 6]
    assert sorted(times[masks["val"][:, 0]]) == [7, 8]
    assert sorted(times[masks["test"][:, 0]]) == [9, 10]


def test_nodes_of_one_time_are_in_one_part():
    times = np.array([1, 1, 1, 1, 1, 1, 1, 2, 2, 3], float)
    masks = time_split(np.zeros(10, int), times)
    assert {part: set(times[mask[:, 0]]) for part, mask in masks.items()} == {
        "train": {1},
        "val": {2},
        "test": {3},
    }


def test_dates_and_numbers_are_times():
    dates = pa.array([f"20{year}-01-01" for year in range(15, 20)]).cast(pa.date32())
    lines = []
    for column in (dates, pa.array([1, 2, 3, 4, 5])):
        masks = split_by(memory_table(when=column), "time", "when", np.zeros(5, int), lines.append)
        assert masks["train"].ravel().tolist() == [True, True, True, False, False]
        assert masks["val"].ravel().tolist() == [False, False, False, True, False]
        assert masks["test"].ravel().tolist() == [False, False, False, False, True]
    assert lines[0] == "nodes: one split by 'when', oldest 60 % train, newest 20 % test."


def test_labelled_nodes_without_a_time_are_counted():
    lines = []
    table = memory_table(when=[1, 2, 3, 4, 5, None, None])
    masks = split_by(table, "time", "when", np.array([0, 0, 0, 0, 0, 0, -1]), lines.append)
    assert not any(mask[5:].any() for mask in masks.values())
    assert lines[0].endswith("20 % test; labelled nodes in no part, because they have no time: 1.")


def test_groups_may_be_numbers():
    lines = []
    masks = split_by(
        memory_table(team=[1, 1, 2, 3]), "group", "team", np.zeros(4, int), lines.append
    )
    np.testing.assert_array_equal(masks["val"][0], masks["val"][1])
    assert lines == [
        "nodes: 10 splits of about 60/20/20, seeds 0 to 9; each group of 'team' is in one part."
    ]


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("group", ["a", "b", "b"], "has 2 groups with labels, and a split needs 3"),
        ("group", ["a", "a", None], "has 1 group with labels, and a split needs 3"),
        ("group", [None, None, None], "has 0 groups with labels, and a split needs 3"),
        ("time", [1, None, None], "has a time for 1 labelled node, and a split needs more"),
        ("time", [1, 2, None], "has a time for 2 labelled nodes, and a split needs more"),
        ("time", [1, 2, 2], "has too few different times: val would be empty"),
        (
            "time",
            [None, "x", "y"],
            r"holds neither numbers nor dates such as 2024-03-01 \('x' in row 2\)",
        ),
        (
            "time",
            ["13.02.2024", "01.03.2024", "02.03.2024"],
            r"holds neither numbers nor dates such as 2024-03-01 \('13.02.2024' in row 1\); write "
            "them as 2024-02-13",
        ),
    ],
)
def test_a_column_that_cannot_split_is_refused(kind, values, message):
    lines = []
    with pytest.raises(GraphError, match=f"^nodes: column 'by' {message}") as caught:
        split_by(memory_table(by=values), kind, "by", np.zeros(3, int), lines.append)
    assert caught.value.remedy.option == "split_by"
    assert lines == []  # no splits are logged that cannot be made
