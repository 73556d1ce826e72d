"""``hpgmn.train``: what is trained, where it is written, and how it is resumed."""

import json
from itertools import count
from typing import Any

import numpy as np
import pytest

import hpgmn
from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.graph.files import write_graph
from hpgmn.runs import portfolio
from hpgmn.runs.folder import InterruptedRunError
from hpgmn.runs.portfolio import Member
from hpgmn.runs.spec import check_run
from hpgmn.runs.train import default_folder, folder_name, read_options

SHORT = {"epochs": 3, "estimator_epochs": 3, "hidden_dim": 4, "num_patterns": 3}


def train(graph, out, **options):
    values: dict[str, Any] = {"splits": 0, "settings": SHORT, "device": "cpu", "report": False}
    return hpgmn.train(graph, out=out, **(values | options))


@pytest.fixture
def graph_file(small_graph, tmp_path):
    path = tmp_path / "small.npz"
    write_graph(small_graph, path)
    return path


def stop_at(epoch):
    polls = count(1)
    return lambda: next(polls) == epoch


def test_a_graph_in_memory_is_stored_with_its_run(small_graph, tmp_path):
    run = train(small_graph, tmp_path / "run")
    assert run.metrics["val_score"]
    (tmp_path / "run").rename(tmp_path / "moved")
    opened = hpgmn.open_run(tmp_path / "moved")
    close = {"atol": 1e-6}
    np.testing.assert_allclose(opened.predict().probabilities, run.predict().probabilities, **close)
    assert opened.metrics == json.loads(json.dumps(run.metrics))


def test_a_graph_file_and_the_same_graph_in_memory_give_the_same_scores(
    small_graph, graph_file, tmp_path
):
    by_name = train(str(graph_file), tmp_path / "file")
    in_memory = train(small_graph, tmp_path / "memory")
    assert by_name.metrics["test_score"] == in_memory.metrics["test_score"]
    assert by_name.metrics["config"]["graph"] == str(graph_file)


def test_a_run_is_checked_once(small_graph, tmp_path, monkeypatch):
    checks: list[Any] = []

    def counted(*arguments):
        checks.append(arguments)
        return check_run(*arguments)

    monkeypatch.setattr("hpgmn.runs.train.check_run", counted)
    monkeypatch.setattr("hpgmn.runs.fit.check_run", counted)
    run = train(small_graph, tmp_path / "run")
    assert len(checks) == 1
    assert run.metrics["warnings"] == list(dict.fromkeys(run.metrics["warnings"])) != []


def test_an_interrupted_run_is_resumed(small_graph, tmp_path):
    whole = train(small_graph, tmp_path / "whole")
    with pytest.raises(InterruptedRunError) as stopped:
        train(small_graph, tmp_path / "run", should_stop=stop_at(2))
    assert stopped.value.folder == tmp_path / "run"
    with pytest.raises(HPGMNError, match="exists") as refused:
        train(small_graph, tmp_path / "run")
    assert refused.value.remedy is not None
    assert refused.value.remedy.option == "resume"
    run = train(small_graph, tmp_path / "run", resume=True)
    assert run.metrics["test_score"] == whole.metrics["test_score"]
    np.testing.assert_array_equal(run.predict().probabilities, whole.predict().probabilities)


def test_a_finished_run_is_replaced_on_request_only(small_graph, tmp_path):
    train(small_graph, tmp_path / "run")
    with pytest.raises(HPGMNError, match="exists"):
        train(small_graph, tmp_path / "run")
    again = train(small_graph, tmp_path / "run", overwrite=True, seeds=2)
    assert again.metrics["seeds"] == 2
    assert not (tmp_path / "run" / ".replaced").exists()


@pytest.mark.parametrize(
    ("options", "option"),
    [({"resume": True, "out": None}, "out"), ({"resume": True, "overwrite": True}, "resume")],
)
def test_resume_needs_a_folder_and_nothing_to_replace(small_graph, tmp_path, options, option):
    with pytest.raises(SettingError) as refused:
        hpgmn.train(small_graph, **({"out": tmp_path / "run"} | options))
    assert refused.value.remedy is not None
    assert refused.value.remedy.option == option


def test_without_a_graph_there_is_nothing_to_train():
    with pytest.raises(SettingError, match="No graph"):
        hpgmn.train()


def test_a_run_is_trained_again_by_its_config(small_graph, tmp_path):
    first = train(small_graph, tmp_path / "run")
    again = hpgmn.train(
        config=tmp_path / "run" / "config.yaml", out=tmp_path / "again", report=False
    )
    assert again.metrics["test_score"] == first.metrics["test_score"]


def test_progress_and_remarks_reach_the_callbacks(graph_file, tmp_path):
    epochs: list[tuple[str, str]] = []
    train(graph_file, tmp_path / "run", progress=lambda task, now: epochs.append((task, now.stage)))
    assert ("small hpgmn", "estimator") in epochs
    assert ("small hpgmn", "main") in epochs


def test_a_config_of_another_model_is_refused():
    with pytest.raises(SettingError, match="The config is of hpgmn, not of gcn"):
        read_options("paper", model="gcn")


def test_a_config_never_imports_code(graph_file, tmp_path):
    (tmp_path / "config.yaml").write_text("model: trap:Net\nsettings: {}\n")
    with pytest.raises(SettingError) as refused:
        hpgmn.train(graph_file, config=tmp_path / "config.yaml")
    assert refused.value.remedy is not None
    assert refused.value.remedy.value == "trap:Net"


def test_default_folders_name_graph_and_model():
    assert default_folder("texas", "own.module:Net").name.startswith("texas-own.module-Net-")
    assert folder_name("a.b:Net") == "a.b-Net"


SMALL = (
    Member("plain", "mlp", {"epochs": 8, "hidden_dim": 4, "patience": 0}),
    Member("near", "gcn", {"epochs": 8, "hidden_dim": 4, "patience": 0}),
)


@pytest.fixture
def small_portfolio(monkeypatch):
    """A portfolio of two."""
    monkeypatch.setattr(portfolio, "portfolio_members", lambda name="members": SMALL)


def test_without_options_an_ensemble_is_trained(small_graph, tmp_path, small_portfolio):
    run = train(small_graph, tmp_path / "run", settings=None, report=True)
    assert run.spec.model == "ensemble"
    assert run.predict().probabilities.shape == (18, 3)
    opened = hpgmn.open_run(tmp_path / "run")
    np.testing.assert_array_equal(opened.predict().probabilities, run.predict().probabilities)
    best = train(small_graph, tmp_path / "single", settings=None, single=True)
    assert best.spec.model in ("mlp", "gcn")
    assert hpgmn.open_run(tmp_path / "single").spec == best.spec


def test_ctrl_c_in_python_keeps_what_is_trained(small_graph, tmp_path, small_portfolio):
    """Without a callback for signals KeyboardInterrupt arrives in the middle of the training."""
    polls = count()

    def interrupted(name, now):
        if next(polls) == 11:  # the fourth epoch of the second member
            raise KeyboardInterrupt

    run = train(small_graph, tmp_path / "run", settings=None, progress=interrupted)
    assert run.metrics["interrupted"]
    rows = {row["name"]: row for row in run.metrics["portfolio"]["members"]}
    assert rows["near"]["failure"] is None
    assert [member["name"] for member in run.metrics["members"]] != []


def test_an_ensemble_is_not_trained_on_a_cluster(
    small_graph, tmp_path, here_engine, small_portfolio
):
    options: dict[str, Any] = {"settings": None, "engine": here_engine()}
    with pytest.raises(SettingError, match="one machine"):
        train(small_graph, tmp_path / "run", **options)
    run = train(small_graph, tmp_path / "run", single=True, **options)
    assert run.metrics["portfolio"]["chosen"] in ("plain", "near")


def test_the_direction_of_a_baseline_is_selected_and_said(small_graph, tmp_path):
    splits = small_graph.splits
    masks = {f"{part}_mask": getattr(splits, part) for part in ("train", "val", "test")}
    edges = small_graph.edge_index[:, ::2]
    graph = hpgmn.Graph(small_graph.x, edges, small_graph.y, directed=True, **masks)
    lines: list[str] = []
    short = {"epochs": 3, "hidden_dim": 4}
    run = train(graph, tmp_path / "run", model="gcn", settings=short, notify=lines.append)
    scores = run.metrics["selected"]["neighbors"]
    assert run.spec.settings["neighbors"] in scores
    assert any("Edge direction of gcn" in line for line in lines)
    fixed = train(
        graph, tmp_path / "fixed", model="gcn", settings=short | {"neighbors": "in"}
    ).metrics
    assert "selected" not in fixed
    assert np.mean(fixed["val_score"]) == pytest.approx(scores["in"])


def test_an_engine_needs_no_device(small_graph, tmp_path, here_engine):
    run = hpgmn.train(
        small_graph,
        model="mlp",
        settings={"epochs": 2},
        splits=[0],
        engine=here_engine(),
        out=tmp_path / "run",
    )
    assert run.metrics["config"]["device"] == "cpu"


def test_a_graph_without_splits_gets_random_ones(small_graph, tmp_path):
    graph = hpgmn.Graph(small_graph.x, small_graph.edge_index, small_graph.y, name="mine")
    lines: list[str] = []
    run = hpgmn.train(
        graph,
        settings={"epochs": 1},
        model="mlp",
        splits=[0, 9],
        out=tmp_path / "run",
        notify=lines.append,
    )
    assert run.metrics["splits"] == [0, 9]
    assert any("10 random splits" in line for line in lines)
