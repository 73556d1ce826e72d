"""Batches of rows against all at once: equal but for the batch and its learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpgmn.base.errors import SettingError
from hpgmn.graph import Graph
from hpgmn.graph.files import write_graph
from hpgmn.models.shipped import settings_for
from hpgmn_lab.bench import batches

FEW = {"epochs": 3, "estimator_epochs": 2}


@pytest.fixture
def source(small_graph: Graph, tmp_path: Path) -> str:
    write_graph(small_graph, tmp_path / "own.npz")
    return str(tmp_path / "own.npz")


def measure(out: Path, said: list[str], source: str, **more: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        "command": "c",
        "graphs": [source],
        "batch_size": 2,
        "factors": [1.0, 0.5],
        "changes": FEW,
    }
    return batches.measure(out, say=said.append, **options | more)


def test_both_sides_are_trained_on_the_same_splits(
    out: Path, said: list[str], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "settings_for", lambda name: FEW | {"hidden_dim": 4})
    record = measure(out, said, source, seeds=2, changes={"dropout": "0.1"})
    own = record["graphs"]["own"]
    full, batched = (own["runs"][side] for side in batches.SIDES)
    changed = {key for key, value in full["settings"].items() if batched["settings"][key] != value}
    assert {"batch_size", "dropout"} <= changed <= {"batch_size", "dropout", "lr"}
    assert batched["settings"]["batch_size"] == 2
    assert full["settings"]["batch_size"] == 0
    assert len(full["tried_val_score"]) == 1
    assert len(batched["tried_val_score"]) == 2
    assert len(full["test_score"]) == len(batched["test_score"]) == 4
    assert own["splits"] == [0, 1]
    assert own["protocol"] is None
    table, bars = batches.tables(record)
    assert [row[1] for row in table.rows] == ["all at once", "in batches of 2"]
    assert len(bars.rows) == 1


def test_learning_rates_are_shares_of_the_shipped_one() -> None:
    full, batched = batches.candidates_of("squirrel", 256, [1.0, 0.25], {"epochs": 5})
    assert full["lr"] == 0.02
    assert full["epochs"] == 250
    assert [one["lr"] for one in batched] == [0.02, 0.005]
    assert {one["epochs"] for one in batched} == {5}
    assert {one["batch_size"] for one in batched} == {256}


def test_neither_side_has_means_over_neighbours() -> None:
    assert "neighbor_class_means" in settings_for("squirrel")["statistics"]
    full, (batched,) = batches.candidates_of("squirrel", 256, [1.0], {})
    assert full["statistics"] == batched["statistics"]
    kept = [one for one in settings_for("squirrel")["statistics"] if "neighbor" not in one]
    assert list(full["statistics"]) == kept


def test_citation_graphs_have_the_ten_splits_of_their_protocol() -> None:
    assert batches.protocol_of("pubmed") == "geom-gcn"
    assert batches.protocol_of("squirrel") is None


def test_bars_and_tables_of_a_record(batches_record: dict[str, Any]) -> None:
    assert [bar.words for bar in batches.bars(batches_record)] == [
        "reached: the interval holds 0",
        "short by 0.50 points",
    ]
    table, _ = batches.tables(batches_record)
    assert table.rows[0] == ["squirrel", "all at once", "0.02", "71.0 ± 1.4", "", "9"]
    assert table.rows[1][:4] == ["squirrel", "in batches of 64", "0.01", "70.0 ± 4.2"]
    assert table.rows[3][4] == "-1.00 (-1.00 to -1.00)"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"seeds": 0}, r"--seeds must be at least 1 \(got 0\)"),
        ({"batch_size": 0}, r"--batch-size must be at least 1 \(got 0\)"),
        ({"factors": [1.0, 0.0]}, r"--lr-factors takes numbers above 0 \(got '1,0'\)"),
        ({"factors": []}, "--lr-factors takes numbers above 0"),
        ({"changes": {"lr": "fast"}}, "Setting 'lr' takes a number"),
    ],
)
def test_mistakes_are_refused_before_any_work(
    out: Path, said: list[str], source: str, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        measure(out, said, source, **more)
    assert said == []
