"""Cells and their records."""

import dataclasses
import json

from hpgmn_lab.reproduction.cells import (
    Cell,
    CellRecord,
    Records,
    collect_cells,
    identity,
    main,
    read_cell,
    record_path,
    restore_cells,
    write_cell,
)

CELL = Cell("texas", "hpgmn", "without-entropy", {"entropy_weight": 0.0, "statistics": ("a", "b")})


def test_a_cell_is_known_by_graph_model_and_variant():
    assert CELL.name == "texas-hpgmn-without-entropy"
    assert CELL.as_dict()["settings"] == {"entropy_weight": 0.0, "statistics": ["a", "b"]}
    assert json.loads(json.dumps(CELL.as_dict())) == CELL.as_dict()


def test_every_part_of_a_cell_counts():
    other = [
        dataclasses.replace(CELL, trials=3),
        dataclasses.replace(CELL, splits=(0, 1)),
        dataclasses.replace(CELL, seeds=2),
        dataclasses.replace(CELL, settings={"entropy_weight": 0.1}),
    ]
    assert len({identity(cell.as_dict()) for cell in (CELL, *other)}) == 5


def test_a_record_comes_back_as_it_was(tmp_path):
    record = CellRecord(CELL.as_dict(), "abc", None, {"test_score": [0.5]})
    write_cell(tmp_path / "cells", record)
    assert read_cell(tmp_path / "cells", CELL.name) == record
    assert record.name == CELL.name


def test_a_missing_or_damaged_record_is_none(tmp_path):
    assert read_cell(tmp_path, CELL.name) is None
    for text in ("", "{", "[]", "{}", '{"cell": 1}'):
        record_path(tmp_path, CELL.name).write_text(text, encoding="utf-8")
        assert read_cell(tmp_path, CELL.name) is None


def test_records_are_read_from_a_folder_or_a_file(tmp_path):
    folder, path = tmp_path / "cells", tmp_path / "all.jsonl"
    record = CellRecord(CELL.as_dict(), "abc", None, {"test_score": [0.1, 1 / 3]})
    write_cell(folder, record)
    (folder / "damaged.json").write_text("{")
    assert collect_cells(folder, path) == 1
    for source in (folder, path):
        records = Records.read(source)
        assert records.cell(CELL.name) == record
        assert records.cell("damaged") is None
    assert Records.read(tmp_path / "none.jsonl").contents == {}


def test_collected_records_replace_those_of_the_same_name(tmp_path):
    folder, path = tmp_path / "cells", tmp_path / "all.jsonl"
    for variant, score in (("b", 0.1), ("a", 0.2), ("b", 0.3)):
        cell = dataclasses.replace(CELL, variant=variant)
        write_cell(folder, CellRecord(cell.as_dict(), "abc", None, {"test_score": [score]}))
        collect_cells(folder, path)
        record_path(folder, cell.name).unlink()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["name"], line["record"]["metrics"]["test_score"]) for line in lines] == [
        ("texas-hpgmn-a", [0.2]),
        ("texas-hpgmn-b", [0.3]),
    ]


def test_restored_files_are_those_collected(tmp_path):
    folder, path = tmp_path / "cells", tmp_path / "all.jsonl"
    write_cell(folder, CellRecord(CELL.as_dict(), "abc", None, {"test_score": [0.1]}))
    main(["collect", str(folder), str(path)])
    main(["restore", str(path), str(tmp_path / "new")])
    [own] = (tmp_path / "new").iterdir()
    assert own.read_bytes() == record_path(folder, CELL.name).read_bytes()
    assert restore_cells(tmp_path / "none.jsonl", tmp_path / "empty") == 0
