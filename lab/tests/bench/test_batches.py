"""Batches of rows against all at once: equal except for the batch and its learning rate."""

from typing import Any

import pytest

from hpgmn.base.errors import SettingError
from hpgmn.graph.files import write_graph
from hpgmn.models import settings_for
from hpgmn_lab.bench import batches

SHORT = {"epochs": 3, "estimator_epochs": 2, "hidden_dim": 4}


def test_both_variants_are_trained_on_the_same_splits(call, small_graph, tmp_path, monkeypatch):
    path = tmp_path / "own.npz"
    write_graph(small_graph, path)
    monkeypatch.setattr(batches, "settings_for", lambda name: SHORT)
    options: dict[str, Any] = {"graphs": str(path), "batch_size": 2, "lr_factors": "1,0.5"}
    record = batches.measure(call, seeds=2, set_=["dropout=0.1"], **options)
    content = record["graphs"]["own"]
    full, batched = (content["runs"][name] for name in (batches.BASE, batches.BATCHED))
    changed = {key for key, value in full["settings"].items() if batched["settings"][key] != value}
    assert {"batch_size", "dropout"} <= changed <= {"batch_size", "dropout", "lr"}
    assert (full["settings"]["batch_size"], batched["settings"]["batch_size"]) == (0, 2)
    assert len(full["tried_val_score"]) == 1
    assert len(batched["tried_val_score"]) == 2
    assert len(full["test_score"]) == len(batched["test_score"]) == 4
    assert content["splits"] == [0, 1]
    assert content["protocol"] is None


def test_learning_rates_are_fractions_of_the_shipped_one():
    variants = batches.variants_of("squirrel", 256, [1.0, 0.25], {"epochs": 5})
    [full], batched = variants[batches.BASE], variants[batches.BATCHED]
    assert (full["lr"], full["epochs"]) == (0.02, 250)
    assert [candidate["lr"] for candidate in batched] == [0.02, 0.005]
    assert {candidate["epochs"] for candidate in batched} == {5}
    assert {candidate["batch_size"] for candidate in batched} == {256}


def test_neither_variant_has_means_over_neighbours():
    shipped = settings_for("squirrel")["statistics"]
    assert "neighbor_class_means" in shipped
    variants = batches.variants_of("squirrel", 256, [1.0], {})
    for [settings] in variants.values():
        assert settings["statistics"] == [name for name in shipped if "neighbor" not in name]


def test_citation_graphs_have_the_ten_splits_of_their_protocol():
    assert batches.protocol_of("pubmed") == "geom-gcn"
    assert batches.protocol_of("squirrel") is None


def test_tables_of_a_record(batches_record):
    table, bars = batches.tables(batches_record)
    assert table.columns[1] == "rows (batches of 64)"
    assert table.rows[0] == ["squirrel", "all at once", "0.02", "71.0 ± 1.4", "", "9"]
    assert table.rows[1][:4] == ["squirrel", "in batches", "0.01", "70.0 ± 4.2"]
    assert table.rows[3][4] == "-1.00 (-1.00 to -1.00)"
    assert [row[-1] for row in bars.rows] == [
        "reached: the interval contains 0",
        "short by 0.50 points",
    ]


@pytest.mark.parametrize("factors", ["1,0", ""])
def test_learning_rate_factors_are_positive(call, factors):
    with pytest.raises(SettingError, match="--lr-factors takes numbers"):
        batches.measure(call, lr_factors=factors)
