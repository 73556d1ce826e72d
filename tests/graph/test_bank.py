"""The generated bank: its size, what shows mules and what does not, and that labels stay hidden."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from hpgmn import from_tables
from hpgmn.graph.bank import bank_transfers


@pytest.fixture(scope="module")
def bank():
    return bank_transfers(3)


@pytest.fixture(scope="module")
def is_mule():
    return np.asarray(bank_transfers(3, truth=True)[0]["fraud"]) == "yes"


def test_the_tables_have_the_size_and_rates_of_the_description(bank, is_mule):
    accounts, transfers = bank
    assert {len(column) for column in accounts.values()} == {5000}
    assert {len(column) for column in transfers.values()} == {25_000}
    assert is_mule.mean() == 0.03
    assert np.mean([word is None for word in accounts["fraud"]]) == pytest.approx(0.4, abs=0.03)
    pairs = set(zip(transfers["from"], transfers["to"], strict=True))
    assert len(pairs) < 24_500
    assert all(source != target for source, target in pairs)
    assert any(code.startswith("0") for code in accounts["postal_code"])


def test_labels_shown_are_true_and_the_truth_changes_nothing_else(bank, is_mule):
    accounts, transfers = bank
    with_truth, same_transfers = bank_transfers(3, truth=True)
    for word, mule in zip(accounts["fraud"], is_mule, strict=True):
        assert word in (None, "yes" if mule else "no")
    assert same_transfers == transfers
    columns = set(accounts) - {"fraud"}
    assert all(with_truth[name] == accounts[name] for name in columns)


def test_a_seed_gives_the_same_tables_and_another_seed_others(bank):
    assert bank_transfers(3) == bank
    assert bank_transfers(4)[1] != bank[1]


def test_no_transfer_is_older_than_its_accounts(bank):
    new_accounts, new_transfers = bank_transfers(3, tomorrow=True)
    ids = [*bank[0]["id"], *new_accounts["id"]]
    opened = dict(zip(ids, [*bank[0]["opened"], *new_accounts["opened"]], strict=True))
    for transfers in (bank[1], new_transfers):
        for source, target, time in zip(
            transfers["from"], transfers["to"], transfers["time"], strict=True
        ):
            assert time >= max(opened[source], opened[target], "2025")
            assert time < "2026"


def test_degrees_and_account_columns_hide_mules_and_transfers_show_them(bank, is_mule):
    accounts, transfers = bank
    row = {name: number for number, name in enumerate(accounts["id"])}
    target = np.asarray([row[name] for name in transfers["to"]])
    source = np.asarray([row[name] for name in transfers["from"]])
    counts = np.bincount(target, minlength=5000), np.bincount(source, minlength=5000)
    for column in (*counts, accounts["balance"], [age or 45 for age in accounts["age"]]):
        assert roc_auc_score(is_mule, column) == pytest.approx(0.5, abs=0.07)
    amounts = np.bincount(target, np.log(transfers["amount"]), 5000) / np.maximum(counts[0], 1)
    at_night = [int(time[11:13]) < 6 for time in transfers["time"]]
    nights = np.bincount(target, at_night, 5000) / np.maximum(counts[0], 1)
    assert 0.75 < roc_auc_score(is_mule, amounts) < 0.97
    assert 0.7 < roc_auc_score(is_mule, nights) < 0.97


def test_accounts_of_tomorrow_extend_the_graph_and_have_no_label(bank):
    new_accounts, new_transfers = bank_transfers(3, tomorrow=True)
    assert "fraud" not in new_accounts
    assert len(new_accounts["id"]) == 200
    assert min(new_accounts["opened"]) >= max(bank[0]["opened"])
    graph = from_tables(*bank, label="fraud")
    larger = from_tables(new_accounts, new_transfers, onto=graph)
    assert (graph.num_nodes, larger.num_nodes) == (5000, 5200)
    assert list(graph.class_names) == ["no", "yes"]
    new = set(new_accounts["id"])
    pairs = zip(new_transfers["from"], new_transfers["to"], strict=True)
    assert all(source in new or target in new for source, target in pairs)
    assert bank_transfers(3, tomorrow=True, truth=True)[0]["fraud"].count("yes") == 6
