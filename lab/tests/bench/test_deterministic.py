"""The price of the same bits: both sides in turns, seconds, whether bits repeat."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn_lab.bench import deterministic


def test_one_side_trains_every_model_and_a_cpu_repeats_its_bits() -> None:
    found = [deterministic.one_side(["mlp", "gcn"], 120, 2, "cpu", asked) for asked in (0, 1)]
    for name in ("mlp", "gcn"):
        one, other = (side["models"][name] for side in found)
        assert one["seconds"] > 0
        assert one["bits"] == other["bits"]
    assert found[0]["models"]["mlp"]["bits"] != found[0]["models"]["gcn"]["bits"]
    other = deterministic.one_side(["mlp"], 120, 3, "cpu", False)
    assert other["models"]["mlp"]["bits"] != found[0]["models"]["mlp"]["bits"]
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_switch_is_on_for_one_side_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    seen = []
    fitted = SimpleNamespace(logits=torch.zeros(1), done={})

    def fit(*_: Any, **__: Any) -> Any:
        seen.append(torch.are_deterministic_algorithms_enabled())
        return fitted

    monkeypatch.setattr(deterministic, "fit_replicas", fit)
    for asked in (False, True):
        deterministic.one_side(["mlp"], 120, 2, "cuda", asked)
    assert seen == [False, False, True, True]


@pytest.mark.parametrize("changed", ["logits", "weight"])
def test_any_changed_bit_shows(changed: str) -> None:
    def fitted(by: float) -> Any:
        own = {"logits": torch.ones(2, 3), "weight": torch.ones(2, 2)}
        own[changed][1, 1] += by
        return SimpleNamespace(logits=own["logits"], done={"main": {"weight": own["weight"]}})

    assert deterministic.bits(fitted(0)) == deterministic.bits(fitted(0))
    assert deterministic.bits(fitted(0)) != deterministic.bits(fitted(2**-23))


def test_both_sides_are_measured_in_turns(
    said: list[str],
    in_this_process: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = in_this_process(deterministic)
    order: list[bool] = []

    def one_side(**asked: Any) -> Any:
        order.append(asked["is_asked"])
        assert (asked["models"], asked["nodes"], asked["epochs"]) == (["mlp"], 200, 7)
        own = {"mlp": {"seconds": 3.0 if asked["is_asked"] else 2.0, "bits": "b"}}
        return {"models": own, "cores_taken_by_others": 0.5}

    monkeypatch.setattr(deterministic, "one_side", one_side)
    record = deterministic.measure(
        command="c", models=["mlp"], nodes=200, epochs=7, repeats=3, say=said.append
    )
    assert order == [False, True, True, False, False, True]
    assert tasks == ["deterministic"] * 6
    assert deterministic.ratios(record) == {"mlp": 1.5}
    assert deterministic.disturbance(record) == 0.5
    assert said[:2] == [
        "repeat 1 of 3: without --deterministic",
        "repeat 1 of 3: with --deterministic",
    ]


def test_a_record_is_a_table_and_a_sentence(deterministic_record: dict[str, Any]) -> None:
    [table] = deterministic.tables(deterministic_record)
    assert table.title == "2,000 nodes, 10 splits, 200 epochs, 2 repeats:"
    assert table.rows == [
        ["mlp", "1.00", "1.00", "1.00 ×", "yes", "yes"],
        ["gcn", "2.00", "4.00", "2.00 ×", "no", "yes"],
    ]
    assert deterministic.cost(deterministic_record) == (
        "On a processor a training with the switch takes 1.50 times as long (the median of 2 "
        "models; from 1.00 for mlp to 2.00 for gcn). Bits repeat for 2 of the 2 with it, for 1 "
        "without."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": ["gnc"]}, "Unknown model 'gnc'"),
        ({"models": []}, "--models needs a name"),
        ({"repeats": 1}, "--repeats must be at least 2, to compare bits"),
        ({"nodes": 99}, r"--nodes must be at least 100 \(got 99\)"),
        ({"epochs": 0}, "--epochs must be at least 1"),
    ],
)
def test_mistakes_are_refused_before_any_work(
    said: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(HPGMNError, match=message):
        deterministic.measure(command="c", say=said.append, **options)
    assert said == []
