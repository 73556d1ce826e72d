"""One run: its specification, and what may influence it."""

import hashlib
import json
import math
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from hpgmn.base.calibration import fit_temperature
from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import read_tensors, with_checksum, write_tensors
from hpgmn.base.settings import read_yaml, settings_dict
from hpgmn.graph import Graph
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.runs import fit as module
from hpgmn.runs.fit import fit_run, make_monitor
from hpgmn.runs.folder import prepare_folder, write_config
from hpgmn.runs.outputs import read_metrics
from hpgmn.runs.spec import RunSpec
from hpgmn.training.replicas import Progress
from hpgmn.training.saved import SavedModel
from hpgmn.training.state import read_spent

TINY = HPGMNSettings(
    hidden_dim=4,
    num_patterns=3,
    estimator_hidden=4,
    estimator_epochs=3,
    epochs=4,
    patience=0,
    neighbors="undirected",
    statistics=("attributes", "class_counts", "class_means", "diffusion"),
)
SPEC = RunSpec("small", "hpgmn", settings_dict(TINY), splits=(0, 1), seeds=2)


def with_labels(graph, y):
    assert graph.splits is not None
    masks = {f"{part}_mask": getattr(graph.splits, part) for part in ("train", "val", "test")}
    return Graph(graph.x, graph.edge_index, y, name=graph.name, **masks)


def stop_at(epoch):
    """Stops a training after so many epochs."""
    asked = count(1)
    return lambda: next(asked) == epoch


def test_a_run_leaves_no_state_behind(small_graph, tmp_path):
    metrics = fit_run(SPEC, small_graph, tmp_path).metrics
    assert {path.name for path in tmp_path.iterdir()} == {
        *("config.yaml", "metrics.json", "history.jsonl", "predictions.parquet"),
        "model.safetensors",
    }
    assert read_metrics(tmp_path / "metrics.json") == metrics


def test_the_same_specification_gives_the_same_result(small_graph, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = fit_run(SPEC, small_graph, tmp_path / "a").metrics
    other = fit_run(SPEC, small_graph, tmp_path / "b").metrics
    for name in ("model.safetensors", "predictions.parquet", "history.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert one["test_score"] == other["test_score"]


def test_test_labels_change_nothing_but_test_scores(small_graph, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    spec = replace(SPEC, splits=(0,))
    y, test = small_graph.y.copy(), small_graph.split(0).test
    y[test] = (y[test] + 1) % 3
    before = fit_run(spec, small_graph, tmp_path / "a").metrics
    after = fit_run(spec, with_labels(small_graph, y), tmp_path / "b").metrics
    assert before["val_score"] == after["val_score"]
    assert before["epochs"] == after["epochs"]
    chances = pq.read_table(tmp_path / "b" / "predictions.parquet").to_pylist()
    guesses = np.array([int(row["prediction"]) for row in chances]).reshape(2, 18)
    expected = (guesses[:, test] == y[test]).mean(axis=1)
    assert after["test_score"] == pytest.approx(expected, abs=1e-6)
    for name in ("model.safetensors", "history.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    columns = ["node", "role", "prediction", "probability_0", "probability_1", "probability_2"]
    tables = [
        pq.read_table(tmp_path / name / "predictions.parquet", columns=columns) for name in "ab"
    ]
    assert tables[0].equals(tables[1])


def test_replicas_come_split_by_split_with_seeds_inside(small_graph, tmp_path):
    fit_run(replace(SPEC, splits=(1, 0)), small_graph, tmp_path)
    table = pq.read_table(tmp_path / "predictions.parquet")
    pairs = list(zip(table["split"].to_pylist(), table["seed"].to_pylist(), strict=True))
    assert list(dict.fromkeys(pairs)) == [(1, 0), (1, 1), (0, 0), (0, 1)]


def test_the_area_is_reported_beside_the_accuracy(small_graph, tmp_path):
    graph = with_labels(small_graph, small_graph.y % 2)
    metrics = fit_run(replace(SPEC, metric="roc_auc"), graph, tmp_path).metrics
    assert metrics["metric"] == "roc_auc"
    assert metrics["test_score_mean"] != metrics["test_accuracy_mean"]
    table = pq.read_table(tmp_path / "predictions.parquet").to_pylist()
    tested = [row for row in table if row["role"] == "test" and row["split"] == row["seed"] == 0]
    pairs = [
        (a["probability_1"] > b["probability_1"]) + 0.5 * (a["probability_1"] == b["probability_1"])
        for a in tested
        for b in tested
        if (a["label"], b["label"]) == ("1", "0")
    ]
    assert pairs
    assert metrics["test_score"][0] == pytest.approx(np.mean(pairs), abs=1e-6)


def test_a_stopped_run_resumes_and_counts_its_time(small_graph, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fit_run(SPEC, small_graph, tmp_path, should_stop=stop_at(5))
    assert (tmp_path / "state" / "state-000.safetensors").exists()
    spent, epochs = read_spent(tmp_path / "state" / "state-000.safetensors")
    assert epochs == 5
    assert spent > 0
    reports: list[Any] = []
    metrics = fit_run(SPEC, small_graph, tmp_path, report=reports.append).metrics
    assert len(reports) == 3 + 4 - 5
    assert metrics["seconds"] >= spent
    (tmp_path / "other").mkdir()
    assert (
        fit_run(SPEC, small_graph, tmp_path / "other").metrics["test_score"]
        == metrics["test_score"]
    )


def test_resuming_with_other_versions_warns_and_keeps_the_record_of_the_start(
    small_graph, tmp_path, monkeypatch, caplog
):
    def config():
        return dict(read_yaml(tmp_path / "config.yaml"))

    monkeypatch.setattr(module, "run_environment", lambda *_: {"torch": "1.0"})
    with pytest.raises(KeyboardInterrupt):
        fit_run(SPEC, small_graph, tmp_path, should_stop=stop_at(5))
    with pytest.raises(KeyboardInterrupt):  # nothing has changed
        fit_run(SPEC, small_graph, tmp_path, should_stop=lambda: True)
    assert "torch" not in caplog.text
    monkeypatch.setattr(module, "run_environment", lambda *_: {"torch": "2.0"})
    metrics = fit_run(SPEC, small_graph, tmp_path).metrics
    assert config()["made_with"] == {"torch": "1.0"}
    (warning,) = [line for line in caplog.messages if "torch" in line]
    assert "was trained with torch 1.0 (now 2.0)" in warning
    assert warning in metrics["warnings"]


def test_a_run_that_never_started_records_the_present_versions(small_graph, tmp_path, monkeypatch):
    write_config(tmp_path, SPEC, {"torch": "1.0"})
    monkeypatch.setattr(module, "run_environment", lambda *_: {"torch": "2.0"})
    assert not any(
        "torch" in line for line in fit_run(SPEC, small_graph, tmp_path).metrics["warnings"]
    )
    assert read_yaml(tmp_path / "config.yaml")["made_with"] == {"torch": "2.0"}


@pytest.mark.parametrize("place", ["write_history", "write_predictions", "fitted_metrics"])
def test_a_crash_after_training_costs_no_training(small_graph, tmp_path, monkeypatch, place):
    class Crash(Exception):
        pass

    def crash(*_):
        raise Crash

    for name in ("whole", "crashed"):
        (tmp_path / name).mkdir()
    fit_run(SPEC, small_graph, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(module, place, crash)
        with pytest.raises(Crash):
            fit_run(SPEC, small_graph, tmp_path / "crashed")
    assert not (tmp_path / "crashed" / "metrics.json").exists()
    reports: list[Any] = []
    fit_run(SPEC, small_graph, tmp_path / "crashed", report=reports.append)
    assert reports == []
    for name in ("model.safetensors", "predictions.parquet", "history.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (
            tmp_path / "crashed" / name
        ).read_bytes()
    assert not (tmp_path / "crashed" / "state").exists()


def test_a_state_without_an_identity_is_not_resumed(small_graph, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fit_run(SPEC, small_graph, tmp_path, should_stop=lambda: True)
    path = tmp_path / "state" / "state-000.safetensors"
    write_tensors(path, read_tensors(path)[0], {})
    with pytest.raises(HPGMNError, match=r"state-000\.safetensors is damaged .*overwrite=True"):
        fit_run(SPEC, small_graph, tmp_path)


def test_the_state_of_another_run_is_refused(small_graph, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fit_run(SPEC, small_graph, tmp_path, should_stop=lambda: True)
    with pytest.raises(HPGMNError, match="was started with other settings"):
        fit_run(replace(SPEC, settings=SPEC.settings | {"lr": 0.5}), small_graph, tmp_path)


# Probabilities.


def chances_of(folder):
    """(R, N, C) the probabilities in predictions.parquet."""
    table = pq.read_table(folder / "predictions.parquet")
    columns = [table[f"probability_{number}"].to_numpy() for number in range(3)]
    return np.stack(columns, axis=-1).reshape(-1, 18, 3)


def test_probabilities_are_scaled_by_temperatures_of_the_validation_nodes(small_graph, tmp_path):
    for name in ("scaled", "plain"):
        (tmp_path / name).mkdir()
    scaled = fit_run(SPEC, small_graph, tmp_path / "scaled").metrics
    plain = fit_run(replace(SPEC, calibrate=False), small_graph, tmp_path / "plain").metrics
    assert plain["calibration"]["temperature"] == [1.0] * 4
    assert plain["calibration"]["mean_temperature"] == [1.0] * 2
    before, after = chances_of(tmp_path / "plain"), chances_of(tmp_path / "scaled")
    guesses = [
        pq.read_table(tmp_path / name / "predictions.parquet")["prediction"]
        for name in ("plain", "scaled")
    ]
    assert guesses[0].equals(guesses[1])
    found = scaled["calibration"]["temperature"]
    for row, temperature in enumerate(found):
        val = small_graph.split(row // 2).val
        logs = np.log(before[row].astype(np.float64))
        assert temperature == pytest.approx(
            fit_temperature(logs[val], small_graph.y[val]), rel=1e-3
        )
        powers = np.exp(logs / temperature)
        np.testing.assert_allclose(
            after[row], powers / powers.sum(axis=1, keepdims=True), atol=1e-5
        )
    for key in ("test_score", "val_score", "ensemble", "test_accuracy_mean"):
        assert scaled[key] == plain[key]
    one, other = scaled["calibration"], plain["calibration"]
    for key in ("ece", "nll", "brier", "ece_equal_mass"):
        assert one[f"{key}_before"] == other[f"{key}_before"] == other[f"{key}_after"]
    assert one["nll_after"] != one["nll_before"]
    saved = SavedModel.read(tmp_path / "scaled" / "model.safetensors")
    assert (1 / saved.calibration[:, 0, 0]).tolist() == found
    means = scaled["calibration"]["mean_temperature"]
    expected = [means[0], means[0], means[1], means[1]]
    assert (1 / saved.mean_calibration[:, 0, 0]).tolist() == expected


def test_the_errors_are_those_of_the_predictions_on_test_nodes(small_graph, tmp_path):
    """Errors are of each run; bins and coverage of the average over a split's two seeds."""
    found = fit_run(SPEC, small_graph, tmp_path).metrics["calibration"]
    chances, y = chances_of(tmp_path), small_graph.y
    losses, confidences, hits = [], [], []
    for row in range(4):
        test = small_graph.split(row // 2).test
        own = chances[row][test]
        losses.append(-np.log(own[np.arange(6), y[test]]).mean())
    assert found["nll_after"] == pytest.approx(losses, rel=1e-4)
    assert found["nll_after_mean"] == pytest.approx(np.mean(losses), rel=1e-4)
    saved = SavedModel.read(tmp_path / "model.safetensors")
    for split in range(2):
        test = small_graph.split(split).test
        own = saved.choose([2 * split, 2 * split + 1]).mean_probabilities(small_graph).numpy()[test]
        confidences += own.max(axis=1).tolist()
        hits += (own.argmax(axis=1) == y[test]).tolist()
    last = found["coverage"][-1]
    assert (last["coverage"], last["accuracy"]) == (1.0, pytest.approx(np.mean(hits)))
    assert last["threshold"] == pytest.approx(min(confidences), rel=1e-5)
    assert sum(own["count"] for own in found["reliability"]) == 12


def test_the_temperature_of_an_older_config_is_fitted():
    content = SPEC.as_dict()
    del content["calibrate"]
    assert RunSpec.from_dict(content) == SPEC
    assert not RunSpec.from_dict(content | {"calibrate": False}).calibrate


# Seeds averaged.


@pytest.mark.parametrize(("splits", "seeds", "size"), [((1, 0), 3, 3), ((1,), 7, 5), ((0,), 2, 2)])
def test_probabilities_averaged_over_seeds_are_scored_beside_the_runs(
    small_graph, tmp_path, splits, seeds, size
):
    spec = replace(SPEC, splits=splits, seeds=seeds, calibrate=False)
    prepare_folder(tmp_path / "run", spec, resume=False, overwrite=False)
    metrics = fit_run(spec, small_graph, tmp_path / "run").metrics
    rows = pq.read_table(tmp_path / "run" / "predictions.parquet").to_pylist()
    expected = []
    for split in splits:
        hits = []
        for node in {row["node"] for row in rows if (row["split"], row["role"]) == (split, "test")}:
            own = [row for row in rows if (row["split"], row["node"]) == (split, node)]
            sums = [
                sum(row[f"probability_{k}"] for row in own if row["seed"] < size) for k in "012"
            ]
            hits.append(int(np.argmax(sums)) == int(own[0]["label"]))
        expected.append(np.mean(hits))
    found = metrics["ensemble"]
    assert found["seeds"] == size
    assert found["test_score"] == pytest.approx(expected)
    assert found["test_score_mean"] == pytest.approx(np.mean(expected))
    deviation = np.std(expected, ddof=1) if len(expected) > 1 else 0.0
    assert found["test_score_std"] == pytest.approx(deviation)


@pytest.mark.parametrize("has_plan", [True, False])
def test_a_run_interrupted_under_an_earlier_version_is_resumed(small_graph, tmp_path, has_plan):
    """Versions before 0.2 hashed the version and a list of all labels into the identity."""
    folder, whole = tmp_path / "run", tmp_path / "whole"
    for path in (folder, whole):
        prepare_folder(path, SPEC, resume=False, overwrite=False)
    expected = fit_run(SPEC, small_graph, whole).metrics
    with pytest.raises(KeyboardInterrupt):
        fit_run(SPEC, small_graph, folder, should_stop=stop_at(5))
    content = [SPEC.as_dict() | {"version": "0.1.0"}, small_graph.fingerprint]
    text = json.dumps([*content, small_graph.y.tolist(), ""], sort_keys=True)
    identity = hashlib.sha256(text.encode()).hexdigest()
    state = folder / "state" / "state-000.safetensors"
    tensors, about = read_tensors(state)
    write_tensors(state, tensors, about | {"identity": identity})
    plan = folder / "state" / "plan.json"
    kept = {key: value for key, value in json.loads(plan.read_text()).items() if key != "crc32"}
    plan.write_text(json.dumps(with_checksum(kept | {"identity": identity})))
    if not has_plan:
        plan.unlink()
    config = read_yaml(folder / "config.yaml") | {"version": "0.1.0"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    seen: list[Any] = []
    metrics = fit_run(SPEC, small_graph, folder, report=seen.append).metrics
    assert len(seen) == 3 + 4 - 5
    assert metrics["test_score"] == expected["test_score"]


def test_a_newer_version_resumes(small_graph, tmp_path, monkeypatch):
    prepare_folder(tmp_path, SPEC, resume=False, overwrite=False)
    with pytest.raises(KeyboardInterrupt):
        fit_run(SPEC, small_graph, tmp_path, should_stop=stop_at(5))
    monkeypatch.setattr("hpgmn.runs.spec.__version__", "99.0")
    seen: list[Any] = []
    fit_run(SPEC, small_graph, tmp_path, report=seen.append)
    assert len(seen) == 3 + 4 - 5


def test_remarks_are_passed_on_and_logged(caplog):
    remarks: list[str] = []
    caplog.set_level("INFO", "hpgmn")
    make_monitor(None, None, None).note("a remark")
    make_monitor(None, remarks.append, None).note("another")
    assert remarks == ["another"]
    assert caplog.messages == ["a remark", "another"]


def test_steps_are_progress_without_scores_and_stop_on_request():
    seen: list[tuple[str, Progress]] = []
    monitor = make_monitor(lambda task, now: seen.append((task, now)), None, None)
    monitor.step("Report")
    monitor.step("Reading", 3, 10)
    assert [(task, now.stage, now.epoch, now.epochs) for task, now in seen] == [
        ("", "Report", 0, 0),
        ("", "Reading", 3, 10),
    ]
    assert all(math.isnan(now.val_score) for _, now in seen)
    with pytest.raises(KeyboardInterrupt):
        make_monitor(None, None, lambda: True).step("Report")
