"""Rows become arrays with the columns of the training tables; ends are positions."""

import numpy as np
import pytest

import hpgmn
from hpgmn.base.errors import HPGMNError
from hpgmn.service.rows import RowReader

from .small_tables import columns, tables


@pytest.fixture
def reader():
    nodes, edges = tables(edge_columns=("amount", "way"))
    return RowReader(hpgmn.from_tables(columns(nodes), columns(edges), edge_type="way"))


def test_ends_are_positions_old_and_new(reader):
    nodes = [{"id": name, "size": 1.0, "kind": "red"} for name in ("p", "q")]
    ends = [("n5", "q"), ("p", "q"), ("n2", "n5")]
    edges = [{"source": a, "target": b, "amount": 3, "way": "b"} for a, b in ends]
    data = reader.read(nodes, edges, {f"n{number}": number for number in range(90)})
    assert data.node_ids.tolist() == ["p", "q"]
    assert data.edge_index.tolist() == [[5, 90, 2], [91, 91, 5]]
    assert data.edge_type.tolist() == [1, 1, 1]
    assert data.edge_values.tolist() == [[3, 1]] * 3


def test_columns_that_may_be_present(reader):
    row = {"id": "p", "size": 1.0, "kind": "red"}
    labels = [reader.read([row | {"label": word}], [], {}).y for word in ("yes", "no", None)]
    assert np.concatenate(labels).tolist() == [1, 0, -1]


@pytest.mark.parametrize(("name", "remedy"), [("sise", "size"), ("hue", "eave it out")])
def test_an_unknown_column_has_a_remedy(reader, name, remedy):
    with pytest.raises(HPGMNError) as error:
        reader.read([{"id": "p", "size": 1.0, "kind": "red", name: 1}], [], {})
    assert name in error.value.message
    assert remedy in str(error.value.remedy)
