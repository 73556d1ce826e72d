"""Records are read and checked; their numbers as text."""

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.evaluation.scores import Difference
from hpgmn_lab.records import (
    difference_text,
    read_named,
    read_runs,
    score_text,
    sort_graphs,
    write_named,
)


def test_a_record_has_the_numbers_of_its_file(write_run, tmp_path):
    path = write_run(tmp_path, "texas", "mlp", [80.0, 90.0] * 10, splits=10)
    [record] = read_runs(path)
    assert (record.name, record.graph, record.model) == ("texas-mlp", "texas", "mlp")
    assert score_text(record) == "85.0 ± 5.1"
    assert record.validation == pytest.approx(87.0)
    assert record.against(85.0).count == 10  # over splits
    assert record.against(85.0).interval == (85.0, 85.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_score_mean": 0.9}, "test_score_mean does not match"),
        ({"test_score_std": 0.0}, "test_score_std does not match"),
        ({"val_score": [0.5]}, "1 of 10 values of val_score"),
        ({"seeds": 2}, "10 of 20 values of test_score"),
        ({"model": "mine:Net"}, "unknown model 'mine:Net'"),
        ({"crc32": 1}, "is damaged: "),
        ({"format": 99}, "newer hpgmn"),
    ],
)
def test_record_that_contradicts_itself_fails(write_run, tmp_path, changes, message):
    path = write_run(tmp_path, "chameleon", "hpgmn", [80.0, 81.0] * 5, **changes)
    with pytest.raises(HPGMNError, match=message):
        read_runs(path)


def test_a_record_without_its_keys_is_named(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text('{"name": "texas-hpgmn", "record": {"graph": "texas"}}')
    with pytest.raises(HPGMNError, match=r"texas-hpgmn\) lacks model, metric"):
        read_runs(path)


@pytest.mark.parametrize("line", ["{", "[]", '{"name": "b"}', '{"name": "a", "record": {}}'])
def test_a_damaged_or_repeated_line_is_named(tmp_path, line):
    path = tmp_path / "records.jsonl"
    path.write_text('{"name": "a", "record": {}}\n' + line)
    with pytest.raises(HPGMNError, match=r"records\.jsonl line 2"):
        read_named(path)


def test_records_are_written_in_order_and_read_back(tmp_path):
    path, records = tmp_path / "new" / "records.jsonl", {"b": {"value": 1}, "a": {"value": "ä"}}
    assert read_named(path) == {}
    write_named(path, records)
    assert list(read_named(path).items()) == list(records.items())


def test_numbers_as_text():
    assert sort_graphs(["nowhere", "squirrel", "texas"]) == ["texas", "squirrel", "nowhere"]
    assert difference_text(None) == "–"
    assert difference_text(Difference(-0.0312, None, None, 1, "splits")) == "-3.1"
    assert difference_text(Difference(0.01, -0.02, 0.04, 9, "splits")) == "+1.0 (-2.0 to +4.0)"
