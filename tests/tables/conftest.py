"""Small tables as files of every kind."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Columns = Mapping[str, Sequence[Any]]
WriteTables = Callable[..., Path]


def write_table(path, columns):
    """A table as CSV (None is left empty) or Parquet, as its ending says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table(dict(columns)), path)
        return path
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


NODES: Columns = {
    "id": ["a", "b", "c", "d"],
    "age": [1.5, 2.0, -3.25, 4.0],
    "rich": [1, 0, 0, 1],
    "label": ["red", None, "blue", "red"],
    "split": ["train", None, "val", "test"],
}
EDGES: Columns = {"source": ["a", "b", "b", "c"], "target": ["b", "c", "c", "c"]}


@pytest.fixture(scope="session", name="write_table")
def _write_table():
    return write_table


@pytest.fixture
def write_tables(tmp_path):
    """Writes the tables above with some columns changed (None leaves one out) into a folder."""

    def write(ending="csv", nodes=None, edges=None, folder="tables"):
        for name, columns, changes in (("nodes", NODES, nodes), ("edges", EDGES, edges)):
            chosen = {**columns, **(changes or {})}
            kept = {column: values for column, values in chosen.items() if values is not None}
            write_table(tmp_path / folder / f"{name}.{ending}", kept)
        return tmp_path / folder

    return write
