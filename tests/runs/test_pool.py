"""Pools of members: rungs, limits, interruptions, and what is kept."""

import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.graph import Graph
from hpgmn.models import find_model
from hpgmn.models.stage import make_task
from hpgmn.runs import pool
from hpgmn.runs.fit import Training, fit_run
from hpgmn.runs.folder import prepare_folder
from hpgmn.runs.pool import fit_spec, train_pool
from hpgmn.runs.portfolio import Member
from hpgmn.runs.spec import RunSpec, read_spec
from hpgmn.training.trainer import train

SHORT: dict[str, Any] = {"epochs": 12, "hidden_dim": 6, "patience": 0, "lr": 0.05}
OWN: dict[str, Any] = {"epochs": 6, "hidden_dim": 6, "num_patterns": 5, "estimator_epochs": 4}
MEMBERS = (
    Member("mlp", "mlp", SHORT),
    Member("slow", "mlp", SHORT | {"lr": 1e-6}),
    Member("gcn", "gcn", SHORT | {"neighbors": "out"}),
    Member("own", "hpgmn", OWN),
)
SPEC = RunSpec("small", "ensemble", {}, (1, 0), seeds=2)


@pytest.fixture
def start(small_graph, tmp_path):
    """Begins a training in a folder of its own."""

    def started(name="run", *, resume=False, spec=SPEC, **callbacks):
        prepare_folder(tmp_path / name, spec, resume=resume, overwrite=False)
        return Training.start(spec, small_graph, tmp_path / name, **callbacks)

    return started


def alone(member, graph, folder, **changes):
    """The run of one member by itself."""
    kind = find_model(member.model).settings
    values = settings_dict(make_settings(kind, member.settings))
    spec = replace(SPEC, model=member.model, settings=values, **changes)
    prepare_folder(folder, spec, resume=False, overwrite=False)
    return fit_run(spec, graph, folder)


def without_seconds(rows):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_each_member_is_trained_as_it_would_be_alone(start, small_graph, tmp_path):
    trained = train_pool(start(), MEMBERS).trained
    assert [one.name for one in trained] == [member.name for member in MEMBERS]
    for one, member in zip(trained, MEMBERS, strict=True):
        expected = alone(member, small_graph, tmp_path / member.name)
        assert one.fitted.logits.equal(expected.fitted.logits)
        assert one.fitted.val_score.tolist() == expected.metrics["val_score"]
        assert one.model.calibration.tolist() == expected.model.calibration.tolist()


def test_the_best_has_the_highest_score_ties_by_loss(start):
    result = train_pool(start(), MEMBERS)
    scores = {
        one.name: (np.mean(one.fitted.val_score.tolist()), -np.mean(one.fitted.val_loss.tolist()))
        for one in result.trained
    }
    assert result.best().name == max(scores, key=lambda name: scores[name])
    rows = {row["name"]: row["val_score_mean"] for row in result.rows}
    assert rows == pytest.approx({name: score for name, (score, _) in scores.items()})


def test_a_member_far_behind_at_a_rung_is_stopped(start, monkeypatch):
    """No training can catch up with a best score that is out of reach."""
    monkeypatch.setattr(pool, "RUNGS", {3: 1.0, 5: -1.0})
    epochs: list[tuple[str, int]] = []
    training = start(report=lambda now: epochs.append((now.member, now.epoch)))
    result = train_pool(training, MEMBERS[:3])
    assert [row["failure"] is None for row in result.rows] == [True, False, False]
    assert "after 5 epochs" in result.rows[1]["failure"]
    assert max(epoch for name, epoch in epochs if name == "mlp") == 12
    assert max(epoch for name, epoch in epochs if name == "slow") == 4  # it stops at the fifth
    assert result.rows[1]["rungs"].keys() == {"3", "5"}
    assert [one.name for one in result.trained] == ["mlp"]


def test_a_member_is_compared_while_its_encoder_is_trained(start, monkeypatch):
    monkeypatch.setattr(pool, "RUNGS", {3: -1.0})
    alike = Member("alike", "hpgmn-gcn", {"epochs": 6, "pretraining_epochs": 6, "hidden_dim": 6})
    result = train_pool(start(), [MEMBERS[0], alike], time_limit=1000.0)
    assert "after 3 epochs" in result.rows[1]["failure"]
    assert result.rows[1]["epochs"] == 2  # the third is the last


def test_a_member_that_fails_is_skipped_and_named(start, caplog):
    wrong = Member("wrong", "hpgmn", {"batch_size": 4, "statistics": ("neighbor_attributes",)})
    result = train_pool(start(), [wrong, MEMBERS[0]])
    assert "atches cannot have" in result.rows[0]["failure"]
    assert result.best().name == "mlp"
    assert "'wrong'" in caplog.text
    for limit in (None, 9.0):
        with pytest.raises(HPGMNError, match="atches cannot have") as error:
            train_pool(start(f"other-{limit}"), [wrong], time_limit=limit)
        assert error.value.message.startswith("No member") == (limit is not None)


def slow_clock(monkeypatch):
    """A clock on which every look takes a second."""
    looks = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(looks)))


def test_at_the_time_limit_the_member_finishes_and_no_other_is_tried(start, monkeypatch):
    slow_clock(monkeypatch)
    lines: list[str] = []
    result = train_pool(start(notify=lines.append), MEMBERS, time_limit=1.0)
    assert [one.name for one in result.trained] == ["mlp"]
    assert {row["failure"] for row in result.rows[1:]} == {"time limit reached"}
    assert result.trained[0].fitted.history["main"]["loss"].shape[0] == 1
    assert any("slow, gcn, own" in line for line in lines)
    assert not result.is_interrupted


def test_within_the_time_limit_every_member_is_trained(start):
    result = train_pool(start(), MEMBERS, time_limit=1000.0)
    assert [row["failure"] for row in result.rows] == [None] * 4


def stop_after(epochs):
    left = iter(range(epochs))
    return lambda: next(left, None) is None


def test_an_interruption_finishes_the_member_in_training(start):
    result = train_pool(start(should_stop=stop_after(20)), MEMBERS, time_limit=1000.0)
    assert result.is_interrupted
    assert [one.name for one in result.trained] == ["mlp", "slow"]
    assert 1 <= result.trained[1].fitted.history["main"]["loss"].shape[0] < 12
    assert result.rows[2]["failure"] == "interrupted"


def test_without_a_time_limit_an_interruption_is_resumed_to_the_same_end(start):
    expected = train_pool(start("whole"), MEMBERS)
    with pytest.raises(KeyboardInterrupt):
        train_pool(start(should_stop=stop_after(20)), MEMBERS)
    seen: list[str] = []
    training = start(resume=True, report=lambda now: seen.append(now.member))
    resumed = train_pool(training, MEMBERS)
    assert "mlp" not in seen
    assert 0 < seen.count("slow") < 12
    assert without_seconds(resumed.rows) == without_seconds(expected.rows)
    for one, other in zip(resumed.trained, expected.trained, strict=True):
        assert one.fitted.logits.equal(other.fitted.logits)


def test_with_deterministic_algorithms_the_limit_counts_epochs(start, monkeypatch):
    """Also across an interruption, and with a member that was stopped."""
    monkeypatch.setattr(pool, "RUNGS", {5: 0.0})
    monkeypatch.setattr(pool, "EPOCHS_PER_SECOND", 1)
    spec = replace(SPEC, deterministic=True)
    members = (MEMBERS[3], *MEMBERS[:3])
    # 4 + 6 epochs, 12, and of the next what is left
    expected = train_pool(start("whole", spec=spec), members, time_limit=27)
    assert [row["epochs"] for row in expected.rows] == [4 + 6, 12, 4, 1]  # stopped, then over
    for one in expected.trained:
        [epochs] = [row["epochs"] for row in expected.rows if row["name"] == one.name]
        assert epochs == sum(len(history["loss"]) for history in one.fitted.history.values())

    class KilledError(BaseException):
        pass

    def killed(now):
        if now.member in ("mlp", "slow") and now.epoch == 7:
            raise KilledError

    monkeypatch.setattr("hpgmn.training.replicas.SAVE_SECONDS", -1.0)
    with pytest.raises(KilledError):
        train_pool(start(spec=spec, report=killed), members, time_limit=27)
    resumed = train_pool(start(spec=spec, resume=True), members, time_limit=27)
    assert without_seconds(resumed.rows) == without_seconds(expected.rows)


def test_a_member_finishes_after_its_share_of_the_limit(start, monkeypatch):
    monkeypatch.setattr(pool, "EPOCHS_PER_SECOND", 1)
    spec = replace(SPEC, deterministic=True)
    result = train_pool(start(spec=spec), MEMBERS[:2], time_limit=16)
    assert [row["epochs"] for row in result.rows] == [8, 8]


def test_a_damaged_schedule_is_named(start, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train_pool(start(should_stop=stop_after(20)), MEMBERS)
    path = tmp_path / "run" / "state" / "schedule.json"
    path.write_text(path.read_text().replace("0.", "1.", 1))
    with pytest.raises(HPGMNError, match=r"schedule\.json is damaged"):
        train_pool(start(resume=True), MEMBERS)


def one_way(graph):
    """The same graph with some edges in one direction only."""
    splits = graph.splits
    masks = {f"{part}_mask": getattr(splits, part) for part in ("train", "val", "test")}
    kept = graph.edge_index[:, ::2]
    return Graph(graph.x, kept, graph.y, name=graph.name, directed=True, **masks)


def test_states_of_another_graph_are_refused_and_kept(start, small_graph, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train_pool(start(should_stop=stop_after(20)), MEMBERS)
    before = sorted((tmp_path / "run" / "state").rglob("*"))
    training = replace(start(resume=True), graph=one_way(small_graph))
    with pytest.raises(HPGMNError, match="started with other settings, graph"):
        train_pool(training, MEMBERS)
    assert sorted((tmp_path / "run" / "state").rglob("*")) == before


# Edge direction.


def test_the_direction_with_the_best_score_is_kept(small_graph, tmp_path):
    graph, folder = one_way(small_graph), tmp_path / "run"
    directions = ["out", "in", "undirected"]
    values = settings_dict(make_settings(find_model("gcn").settings, SHORT))
    spec = replace(SPEC, model="gcn", settings=values, selection={"neighbors": directions})
    prepare_folder(folder, spec, resume=False, overwrite=False)
    lines: list[str] = []
    run = fit_spec(spec, graph, folder, notify=lines.append)
    scores = {}
    for direction in directions:
        member = Member(direction, "gcn", SHORT | {"neighbors": direction})
        expected = alone(member, graph, tmp_path / direction).metrics
        scores[direction] = np.mean(expected["val_score"])
        if direction == run.spec.settings["neighbors"]:
            assert run.metrics["test_score"] == expected["test_score"]
    assert run.metrics["selected"] == {"neighbors": pytest.approx(scores)}
    assert scores[run.spec.settings["neighbors"]] == max(scores.values())
    assert read_spec(folder) == run.spec
    assert run.metrics["config"]["settings"] == run.spec.settings
    assert not (folder / "state").exists()
    [line] = lines
    assert all(direction in line for direction in directions)
    stored = json.loads((folder / "metrics.json").read_text())
    assert stored["selected"] == run.metrics["selected"]
    prepare_folder(folder, spec, resume=True, overwrite=False)  # the same run


# Refit.


def test_refit_trains_on_train_and_validation_nodes_for_the_selected_epochs(small_graph, tmp_path):
    member = MEMBERS[0]
    before = alone(member, small_graph, tmp_path / "before")
    after = alone(member, small_graph, tmp_path / "after", refit=True)
    for key in ("val_score", "epochs"):
        assert after.metrics[key] == before.metrics[key]
    assert after.model.calibration.tolist() == before.model.calibration.tolist()
    assert after.metrics["refit"]
    assert "refit" not in before.metrics
    # The same by hand: the last of as many epochs as were selected, on both kinds of nodes.
    for place, (split, epoch) in enumerate(
        zip(before.splits, before.metrics["epochs"], strict=True)
    ):
        used = split.train | split.val
        assert ((after.model.train_labels[place] >= 0) == used).all()
        replica = before.fitted.replicas[place]
        task = make_task(small_graph, [replica], [(used, split.val)], "cpu")
        settings = replace(replica.settings, epochs=epoch)
        runs = []

        def last(state, stage, runs=runs):
            runs.append({name: p.clone() for name, p in state.current.parameters.items()})

        shorter = replace(task, replicas=(replace(replica, settings=settings),))
        train(shorter, find_model("mlp"), watch=last)
        for name, value in runs[-1].items():
            torch.testing.assert_close(after.model.done["main"][name][place], value[0])


def test_the_first_seed_shifts_the_seeds(small_graph, tmp_path):
    member = MEMBERS[0]
    all_seeds = alone(member, small_graph, tmp_path / "all", seeds=3)
    last = alone(member, small_graph, tmp_path / "last", seeds=1, first_seed=2)
    assert [replica.seed for replica in last.fitted.replicas] == [2, 2]
    expected = all_seeds.fitted.logits[[2, 5]]
    assert np.allclose(last.fitted.logits, expected, atol=1e-5)
