"""Right tables, in whatever form they come, are never refused and mean what their rows say."""

import statistics
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

pytestmark = pytest.mark.soak

Table = dict[str, list[Any]]
FORMS = ["mapping", "pandas", "arrow", "csv", "csv", "csv", "tsv", "parquet"]


@st.composite
def right_tables(draw):
    """Columns of nodes and edges with nothing odd about them, and a form to give them in."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(4, 14))
    order = random.permutation(count).tolist()
    ids = [f"n{place}" for place in order] if draw(st.booleans()) else order
    label = random.choice(["x", "y", "z", None], count).tolist()
    label[:2] = ["y", "x"]  # two classes at least
    nodes: Table = {"id": ids, "label": label}
    ages = random.choice(90, count, replace=False)
    if draw(st.booleans()):
        nodes["age"] = (ages + 10).tolist()
    if draw(st.booleans()):
        known = random.random(count) < 0.7
        known[:2] = True
        nodes["height"] = [float(a) / 4 if k else None for a, k in zip(ages, known, strict=True)]
    if draw(st.booleans()):
        nodes["town"] = random.choice(["Rome", "Oslo", "Bath", None], count).tolist()
    if draw(st.booleans()):
        parts = random.choice(["train", "val", "test", None], count).tolist()
        nodes["split"] = [p if one else None for p, one in zip(parts, label, strict=True)]
        nodes["split"][:2] = ["train", "val"]
    names = draw(st.permutations(sorted(nodes)))
    size = draw(st.integers(1, 15))
    edges: Table = {
        end: [ids[place] for place in random.integers(0, count, size)]
        for end in ("source", "target")
    }
    if draw(st.booleans()):
        edges["weight"] = random.choice([0.5, 1.0, 2.0, 3.25], size).tolist()
    return {
        "nodes": {name: nodes[name] for name in names},
        "edges": edges,
        "form": draw(st.sampled_from(FORMS)),
        "separator": draw(st.sampled_from([",", ";"])),
        "end": draw(st.sampled_from(["\n", "\r\n"])),
        "quote": draw(st.sampled_from(["", '"'])),
        "encoding": draw(st.sampled_from(["utf-8", "utf-8-sig"])),
    }


def written(table, case):
    """A table as text; what is missing is an empty cell."""
    quote = case["quote"]
    separator = "\t" if case["form"] == "tsv" else case["separator"]
    rows = [list(table), *zip(*table.values(), strict=True)]
    lines = [
        separator.join("" if cell is None else f"{quote}{cell}{quote}" for cell in row)
        for row in rows
    ]
    text: str = case["end"].join([*lines, ""])
    return text.encode(case["encoding"])


def read(case, folder):
    """The graph in two tables of some form."""
    from hpgmn.graph import from_tables
    from hpgmn.graph.datasets import load

    form, tables = case["form"], [case["nodes"], case["edges"]]
    made: dict[str, Any] = {"mapping": dict, "pandas": pd.DataFrame, "arrow": pa.table}
    if form in made:
        return from_tables(*(made[form](table) for table in tables))
    for path in folder.iterdir():
        path.unlink()
    for name, table in zip(("nodes", "edges"), tables, strict=True):
        path = folder / f"{name}.{form}"
        if form == "parquet":
            pq.write_table(pa.table(table), path)
        else:
            path.write_bytes(written(table, case))
    return load(folder)


def numbers(name, values):
    """A column of numbers as attributes: standardised, the median where one is missing."""
    present = [value for value in values if value is not None]
    mean, deviation = statistics.fmean(present), statistics.pstdev(present)
    middle = statistics.median(present)
    filled = [middle if value is None else value for value in values]
    found: Table = {name: [(value - mean) / deviation for value in filled]}
    if len(present) < len(values):
        found[f"{name} is missing"] = [float(value is None) for value in values]
    return found


def words(name, values):
    """A column of words as attributes: one for each word, and one for none."""
    known = {value for value in values if value is not None}
    if len(set(values)) == 1 or not known:
        return {}
    found = {f"{name}={word}": [float(one == word) for one in values] for word in known}
    if None in values:
        found[f"{name} is missing"] = [float(one is None) for one in values]
    return found


def check_rows(graph, nodes, edges):
    """A graph holds what the rows say."""
    assert graph.node_ids is not None
    assert graph.node_ids.tolist() == [str(one) for one in nodes["id"]]
    told = [None if one < 0 else graph.class_names[one] for one in graph.y.tolist()]
    assert told == nodes["label"]
    assert set(graph.class_names) == set(nodes["label"]) - {None}
    place = {one: number for number, one in enumerate(nodes["id"])}
    for row, end in zip(graph.edge_index.tolist(), ("source", "target"), strict=True):
        assert row == [place[one] for one in edges[end]]
    found = None if graph.edge_weight is None else graph.edge_weight.tolist()
    assert found == edges.get("weight")
    assert graph.directed
    wanted: Table = {}
    for name in ("age", "height"):
        wanted |= numbers(name, nodes[name]) if name in nodes else {}
    wanted |= words("town", nodes["town"]) if "town" in nodes else {}
    if wanted:  # otherwise nodes have their degree
        assert graph.feature_names is not None
        own = [name for name in graph.feature_names.tolist() if not name.endswith(")")]
        assert set(own) == set(wanted)  # before the aggregates of edges
        for column, name in enumerate(own):
            np.testing.assert_allclose(graph.x[:, column], wanted[name], rtol=1e-5, atol=1e-6)
    if "split" not in nodes:
        assert graph.splits is None or graph.splits.is_random
        return
    assert graph.splits is not None
    for part in ("train", "val", "test"):
        mask = getattr(graph.splits, part)[:, 0].tolist()
        assert mask == [word == part for word in nodes["split"]]


def test_right_tables_are_read_as_they_are(fuzz, tmp_path):
    def check(case):
        check_rows(read(case, tmp_path), case["nodes"], case["edges"])

    fuzz("right tables", right_tables(), check, short=40, long=1000, accepted=1, refused=False)
