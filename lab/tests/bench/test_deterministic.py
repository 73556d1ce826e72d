"""The cost of bit-identical results: seconds of both sides, and whether results repeat."""

from types import SimpleNamespace

import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn_lab.bench import deterministic


def test_every_model_is_trained_and_a_cpu_repeats_its_results():
    sides = [deterministic.train_models(["mlp", "gcn"], 120, 2, "cpu", on) for on in (False, True)]
    for name in ("mlp", "gcn"):
        first, second = (side["models"][name] for side in sides)
        assert first["seconds"] > 0
        assert first["bits"] == second["bits"]
    assert sides[0]["models"]["mlp"]["bits"] != sides[0]["models"]["gcn"]["bits"]
    other = deterministic.train_models(["mlp"], 120, 3, "cpu", False)
    assert other["models"]["mlp"]["bits"] != sides[0]["models"]["mlp"]["bits"]
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_option_is_on_for_one_side_only(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    seen = []
    fitted = SimpleNamespace(logits=torch.zeros(1), done={})

    def fit(*_, **__):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return fitted

    monkeypatch.setattr(deterministic, "fit_replicas", fit)
    for on in (False, True):
        deterministic.train_models(["mlp"], 120, 2, "cuda", on)
    assert seen == [False, False, True, True]


@pytest.mark.parametrize("changed", ["logits", "weight"])
def test_any_changed_bit_changes_the_digest(changed):
    def fitted(by):
        tensors = {"logits": torch.ones(2, 3), "weight": torch.ones(2, 2)}
        tensors[changed][1, 1] += by
        stages = {"main": {"weight": tensors["weight"]}}
        return SimpleNamespace(logits=tensors["logits"], done=stages)

    assert deterministic.digest(fitted(0)) == deterministic.digest(fitted(0))
    assert deterministic.digest(fitted(0)) != deterministic.digest(fitted(2**-23))


def test_both_sides_alternate(call, here, monkeypatch):
    order = []

    def train_models(models, nodes, epochs, device, is_deterministic):
        order.append(is_deterministic)
        assert (models, nodes, epochs) == (["mlp"], 200, 7)
        result = {"mlp": {"seconds": 3.0 if is_deterministic else 2.0, "bits": "b"}}
        return {"models": result, "cores_taken_by_others": 0.5}

    monkeypatch.setattr(deterministic, "train_models", train_models)
    record = deterministic.measure(call, models="mlp", nodes=200, epochs=7, repeats=3)
    assert order == [False, True, True, False, False, True]
    assert here == ["deterministic"] * 6
    assert deterministic.ratios(record) == {"mlp": 1.5}


def test_table_and_summary_of_a_record(deterministic_record):
    [table] = deterministic.tables(deterministic_record)
    assert table.title == "2,000 nodes, 10 splits, 200 epochs, 2 repeats:"
    assert table.rows == [
        ["mlp", "1.00", "1.00", "1.00 ×", "yes", "yes"],
        ["gcn", "2.00", "4.00", "2.00 ×", "no", "yes"],
    ]
    assert deterministic.summary(deterministic_record) == {
        "machine": "a processor",
        "median": 1.5,
        "models": 2,
        "least": (1.0, "mlp"),
        "most": (2.0, "gcn"),
        "same": [2, 1],
    }


@pytest.mark.parametrize("models", ["gnc", ""])
def test_models_must_exist(call, models):
    with pytest.raises(HPGMNError, match=r"gnc|--models"):
        deterministic.measure(call, models=models)
