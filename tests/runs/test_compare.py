"""Several runs on one graph: the reference, the differences, what the file holds."""

import json
from pathlib import Path
from typing import Any

import pytest

import hpgmn
from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.evaluation.scores import paired_difference
from hpgmn.models import MODELS
from hpgmn.runs.compare import (
    comparison,
    difference,
    is_ours,
    model_names,
    reference_of,
    settings_by_model,
)
from hpgmn.runs.folder import InterruptedRunError
from hpgmn.runs.train import Job


def run_of(model, test, **changes):
    seeds = changes.pop("seeds", 1)
    splits = list(range(len(test) // seeds))
    return {
        "model": model,
        "graph": "toy",
        "metric": "accuracy",
        "splits": splits,
        "seeds": seeds,
        "test_score": test,
        "test_score_mean": sum(test) / len(test),
        "test_score_std": 0.01,
        "val_score": [value + 0.1 for value in test],
        "seconds": 2.0,
        "peak_memory_mb": 300.0,
        "nodes": {"train": [48] * len(splits), "val": [32] * 3, "test": [20] * len(splits)},
    } | changes


OURS = run_of("hpgmn", [0.80, 0.85, 0.90])
OTHER = run_of("gcn", [0.70, 0.70, 0.85])


def test_hpgmn_is_the_reference_wherever_it_stands():
    assert reference_of([OTHER, OURS]) == "hpgmn"
    higher = run_of("hpgmn-appnp", [0.1, 0.1, 0.1], val_score=[0.99] * 3)
    assert reference_of([OTHER, OURS, higher]) == "hpgmn-appnp"  # the best by validation
    assert reference_of([OTHER, run_of("mlp", [0.5])]) == "gcn"


def test_the_difference_is_paired_over_splits():
    expected = paired_difference(
        [0.7, 0.7, 0.85], [0.8, 0.85, 0.9], splits=3, test_per_train=20 / 48
    )
    found = difference(OTHER, OURS)
    assert found is not None
    assert found.mean == pytest.approx(-0.1)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_older_runs_without_numbers_of_nodes_take_those_of_the_other():
    old = {key: value for key, value in OURS.items() if key != "nodes"}
    assert difference(OTHER, old) == difference(OTHER, OURS)
    assert difference(old, OTHER) == difference(OURS, OTHER)


def test_runs_that_both_lack_numbers_of_nodes_are_refused():
    old, other = ({key: run[key] for key in run if key != "nodes"} for run in (OURS, OTHER))
    with pytest.raises(HPGMNError, match=r"gcn and hpgmn on toy .* Train one of them again"):
        difference(other, old)


def test_every_row_but_the_reference_has_a_difference():
    content = comparison([OTHER, OURS])
    assert (content["reference"], content["graph"]) == ("hpgmn", "toy")
    assert content["splits"] == [0, 1, 2]
    gcn, ours = content["rows"]
    assert gcn["difference"]["mean"] == pytest.approx(-0.1)
    assert gcn["difference"]["over"] == "splits"
    assert ours["difference"] is None
    assert gcn["val_score_mean"] == pytest.approx(0.85)


def test_runs_without_test_nodes_have_no_difference():
    blind = run_of("mlp", [0.5]) | {"test_score": [], "test_score_mean": None}
    assert difference(blind, OURS) is None
    assert comparison([blind, OURS])["rows"][0]["difference"] is None


@pytest.mark.parametrize("change", [{"splits": [0, 1, 5]}, {"metric": "roc_auc"}])
def test_runs_of_other_splits_are_not_compared(change):
    with pytest.raises(ValueError, match="other splits or metrics"):
        difference(OTHER | change, OURS)


@pytest.mark.parametrize(
    ("model", "answer"), [("hpgmn", True), ("hpgmn-appnp", True), ("gcn-jk", False), ("mlp", False)]
)
def test_forms_of_hpgmn_are_ours(model, answer):
    assert is_ours(model) == answer


# Training several models.

SHORT = {"epochs": 2, "hidden_dim": 4}


def compare(graph, models, out, **options):
    values: dict[str, Any] = {"settings": SHORT, "device": "cpu", "report": False, "splits": 0}
    return hpgmn.compare(graph, models, out=out, **(values | options))


def test_names_come_with_commas_repeated_or_all():
    assert model_names("gcn") == ["gcn"]
    assert model_names(["gcn, mlp", "hpgmn", "mlp"]) == ["gcn", "mlp", "hpgmn"]
    assert model_names(["all"]) == list(MODELS)
    assert model_names(["mine:Net,all"]) == [*MODELS, "mine:Net"]
    with pytest.raises(SettingError, match="needs a name"):
        model_names([" , "])


def test_a_setting_goes_to_the_models_that_have_it():
    given = {"lr": 0.1, "num_patterns": 5, "layers": 3}
    assert settings_by_model(["hpgmn", "mlp"], given) == {
        "hpgmn": {"lr": 0.1, "num_patterns": 5},
        "mlp": {"lr": 0.1, "layers": 3},
    }
    given = {"lr": 0.1, "gcn.lr": 0.2, "mlp.layers": 3}
    assert settings_by_model(["gcn", "mlp"], given) == {
        "gcn": {"lr": 0.2},
        "mlp": {"lr": 0.1, "layers": 3},
    }


@pytest.mark.parametrize(
    ("name", "nearest"), [("layer", "layers"), ("gcm.lr", "gcn"), ("mlp.self_loop", None)]
)
def test_a_setting_that_no_model_has_is_refused(name, nearest):
    with pytest.raises(SettingError, match="Unknown") as refused:
        settings_by_model(["gcn", "mlp"], {name: 1})
    assert refused.value.remedy is not None
    if nearest is not None:
        assert refused.value.remedy.value == nearest


def test_models_are_trained_and_compared(small_graph, tmp_path):
    found = compare(small_graph, "mlp,gcn", tmp_path / "both", splits=(0, 1))
    stored = json.loads((tmp_path / "both" / "comparison.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(found.content)) == stored
    assert [row["model"] for row in stored["rows"]] == ["mlp", "gcn"]
    assert found.failures == {}
    alone = hpgmn.train(
        small_graph, model="gcn", settings=SHORT, splits=(0, 1), out=tmp_path / "one", report=False
    )
    together = hpgmn.open_run(tmp_path / "both" / "gcn")
    assert together.metrics["test_score"] == alone.metrics["test_score"]
    assert together.predict().probabilities.shape == (18, 3)  # the graph is stored with the runs
    with pytest.raises(HPGMNError, match="several models"):
        hpgmn.open_run(tmp_path / "both")


def test_a_folder_is_reused_on_request_only(small_graph, tmp_path):
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "mine.txt").write_text("keep")
    with pytest.raises(HPGMNError, match="exists") as refused:
        compare(small_graph, "mlp,gcn", tmp_path / "both")
    assert refused.value.remedy is not None
    compare(small_graph, "mlp,gcn", tmp_path / "both", overwrite=True)
    again = compare(small_graph, "gcn,appnp", tmp_path / "both", resume=True)
    assert [row["model"] for row in again.content["rows"]] == ["gcn", "appnp", "mlp"]
    assert (tmp_path / "both" / "mine.txt").read_text() == "keep"


def test_the_folder_of_one_run_does_not_become_that_of_several(small_graph, tmp_path):
    hpgmn.train(
        small_graph, model="mlp", settings=SHORT, splits=0, out=tmp_path / "one", report=False
    )
    for flags in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(HPGMNError, match="folder of one run"):
            compare(small_graph, "mlp,gcn", tmp_path / "one", **flags)


def test_a_model_that_fails_does_not_stop_the_others(small_graph, tmp_path, monkeypatch):
    run = Job.run

    def failing(job, *arguments, **options):
        if job.spec.model == "mlp":
            raise HPGMNError("It broke.")
        return run(job, *arguments, **options)

    monkeypatch.setattr(Job, "run", failing)
    found = compare(small_graph, "mlp,gcn", tmp_path / "both")
    assert found.failures == {"mlp": "It broke."}
    assert [row["model"] for row in found.content["rows"]] == ["gcn"]
    with pytest.raises(HPGMNError, match="1 of 1 models failed"):
        compare(small_graph, "mlp", tmp_path / "none")


def test_a_damaged_run_is_left_out_of_the_table(small_graph, tmp_path, caplog):
    (tmp_path / "both" / "mlp").mkdir(parents=True)
    (tmp_path / "both" / "mlp" / "metrics.json").write_text("{}")
    found = compare(small_graph, "gcn", tmp_path / "both", overwrite=True)
    assert [row["model"] for row in found.content["rows"]] == ["gcn"]
    assert "Skipping mlp in the table" in caplog.text


def test_a_value_that_one_model_does_not_take_names_that_model(small_graph, tmp_path):
    with pytest.raises(SettingError, match=r"^hpgmn: "):
        compare(small_graph, "cpgnn,hpgmn", tmp_path / "x", settings={"normalization": "none"})
    assert not (tmp_path / "x").exists()


def test_an_interrupted_comparison_is_resumed(small_graph, tmp_path):
    whole = compare(small_graph, "mlp,gcn", tmp_path / "whole")
    polls = iter([False] * 3 + [True] * 9)
    with pytest.raises(InterruptedRunError) as stopped:
        compare(small_graph, "mlp,gcn", tmp_path / "both", should_stop=lambda: next(polls))
    assert stopped.value.folder == tmp_path / "both"  # not that of the model in training
    again = compare(small_graph, "mlp,gcn", tmp_path / "both", resume=True)
    scores = [[row["test_score_mean"] for row in one.content["rows"]] for one in (whole, again)]
    assert scores[0] == scores[1]


def test_a_cluster_trains_what_is_not_finished(small_graph, tmp_path, here_engine):
    folder = tmp_path / "out"
    broken = here_engine(lost=(str(folder / "gcn"),))
    found = compare(small_graph, "mlp,gcn", folder, engine=broken)
    assert found.failures == {"gcn": "Gone."}
    engine = here_engine()
    found = compare(small_graph, "mlp,gcn", folder, engine=engine, resume=True)
    assert [Path(task.name).name for task in engine.begun] == ["gcn"]
    assert found.failures == {}
