"""The command ``tune`` as a user types it: search, go on, look, train with what was found."""

import json
import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import hpgmn as package
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.graph import Graph
from hpgmn.graph.files import write_graph
from hpgmn.models import find_model
from hpgmn.runs import tune as tuning_tasks
from hpgmn.runs import tuning
from hpgmn.runs.search import planned_trials
from hpgmn.runs.tune import make_tune_spec

Command = Callable[..., Any]
Contents = Callable[[Path], dict[str, bytes | None]]

SMALL = ("--set", "epochs=3", "--set", "hidden_dim=4", "--device", "cpu")
MLP = ("--model", "mlp", *SMALL)


@pytest.fixture
def tune(hpgmn, graph_file):
    """Runs ``hpgmn tune small.npz …`` with the study a.db."""

    def run(*arguments):
        return hpgmn("tune", graph_file, "--study", "a.db", *arguments)

    return run


def states(path):
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT state FROM trials ORDER BY number").fetchall()
    return [row[0] for row in rows]


def test_a_search_looks_for_the_rarer_class(tmp_path, small_graph):
    splits = small_graph.splits
    assert splits is not None
    masks = {f"{part}_mask": getattr(splits, part) for part in ("train", "val", "test")}
    y, names = np.where(small_graph.y == 2, 0, 1), ["fraud", "honest"]
    graph = Graph(small_graph.x, small_graph.edge_index, y, class_names=names, **masks)
    write_graph(graph, tmp_path / "two.npz")
    for metric, expected in (("average_precision", "fraud"), ("accuracy", None)):
        asked = {"model": "mlp", "metric": metric}
        spec, loaded, _ = make_tune_spec(
            str(tmp_path / "two.npz"), str(tmp_path / "two.npz"), asked, "cpu", None
        )
        assert spec.positive == spec.identity(loaded).get("positive") == expected


def test_a_search_prints_and_writes_what_it_found(tune, hpgmn, tmp_path):
    answer = tune("--trials", 12, *MLP)
    assert answer.code == 0, answer.err
    assert "Trials: 12 finished." in answer.out
    assert "importance % (12 trials)" in answer.out
    best = json.loads(tune("--trials", 12, *MLP, "--json").out)["best"]
    values = best["val_score"]
    assert len(values) == 2
    mean = sum(values) / 2
    std = (sum((value - mean) ** 2 for value in values)) ** 0.5
    line = f"Best: trial {best['trial']}, validation accuracy {100 * mean:.1f} ± {100 * std:.1f} %"
    assert f"{line} (2 runs)." in answer.out
    names = {"a.db", "a-best.yaml", "a-sensitivity.png", "a-sensitivity.svg"}
    assert {path.name for path in tmp_path.iterdir()} == names | {"small.npz"}
    for name in names - {"a.db"}:
        assert name in answer.err
    command = next(line for line in answer.out.splitlines() if line.startswith("  hpgmn train"))
    assert command.strip() == best["command"]
    kept = yaml.safe_load((tmp_path / "a-best.yaml").read_text())
    assert kept == {"model": "mlp", "metric": "accuracy", "settings": best["settings"]}
    words = shlex.split(command)[1:]
    assert hpgmn(*words, "--device", "cpu", "--out", "one").code == 0
    assert (
        hpgmn("train", words[1], "--config", "a-best.yaml", "--device", "cpu", "--out", "two").code
        == 0
    )
    for name in ("one", "two"):
        metrics = json.loads((tmp_path / name / "metrics.json").read_text())
        assert metrics["val_score"] == values
        assert metrics["config"]["settings"] == best["settings"]


def test_the_same_command_goes_on_until_there_are_as_many_trials(tune, tmp_path):
    assert tune("--trials", 2, *MLP).code == 0
    assert tune("--trials", 5, *MLP).code == 0
    assert states(tmp_path / "a.db") == ["COMPLETE"] * 5
    answer = tune("--trials", 3, *MLP)
    assert "Trials: 5 finished." in answer.out
    assert states(tmp_path / "a.db") == ["COMPLETE"] * 5


def test_json_is_all_that_is_printed(tune):
    found = json.loads(tune("--trials", 3, *MLP, "--json", "--seeds", 2).out)
    assert found["study"] == "a.db"
    assert (found["graph"], found["model"], found["sampler"]) == ("small", "mlp", "tpe")
    assert found["splits"] == [0, 1]
    assert found["fixed"] == {"epochs": 3, "hidden_dim": 4}
    counts = {"finished": 3, "pruned": 0, "refused": 0, "failed": 0, "running": 0}
    assert found["trials"] == counts
    assert len(found["best"]["val_score"]) == 4
    assert found["importance"] == {}
    assert found["files"] == {
        "config": "a-best.yaml",
        "png": "a-sensitivity.png",
        "svg": "a-sensitivity.svg",
    }


def test_a_study_can_be_looked_at_without_its_options(tune, hpgmn, tmp_path, contents):
    answer = tune("--trials", 3, *MLP, "--splits", "1", "--set", "attributes_scaling=unit")
    assert "too few finished trials" in answer.err
    before = (tmp_path / "a.db").read_bytes()
    again = tune("--trials", 0)
    assert again.code == 0
    assert again.out == answer.out
    assert (tmp_path / "a.db").read_bytes() == before
    refused = tune("--trials", 0, "--splits", "0")
    assert refused.code == 2
    assert "splits (1, now 0)" in refused.err


def test_the_random_search_is_planned_and_prunes_nothing(tune, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "SPARED_EPOCHS", 0)
    monkeypatch.setattr(tuning, "SPARED_TRIALS", 1)
    monkeypatch.setattr(tuning, "JUDGED_EPOCHS", 1)
    assert tune("--trials", 8, "--sampler", "random", *MLP).code == 0
    assert states(tmp_path / "a.db") == ["COMPLETE"] * 8
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        rows = database.execute(
            "SELECT value_json FROM trial_user_attributes WHERE key = 'settings' ORDER BY trial_id"
        ).fetchall()
    cls = find_model("mlp").settings
    fixed = {"epochs": 3, "hidden_dim": 4}
    assert [json.loads(row[0]) for row in rows] == [
        settings_dict(make_settings(cls, trial | fixed))
        for trial in planned_trials("mlp", "small", 8)
    ]


def test_hopeless_trials_are_counted_apart(tune, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "SPARED_EPOCHS", 0)
    monkeypatch.setattr(tuning, "SPARED_TRIALS", 1)
    monkeypatch.setattr(tuning, "JUDGED_EPOCHS", 1)
    answer = tune("--trials", 10, *MLP)
    pruned = states(tmp_path / "a.db").count("PRUNED")
    assert pruned
    assert f"Trials: {10 - pruned} finished, {pruned} pruned." in answer.out
    best = json.loads(tune("--trials", 0, "--json").out)["best"]
    assert states(tmp_path / "a.db")[best["trial"]] == "COMPLETE"


def test_the_space_of_the_paper_is_searched(tune):
    small = ("--set", "estimator_epochs=2", "--set", "estimator_hidden=4", "--set", "epochs=2")
    options = ("--space", "paper", "--splits", "0", "--device", "cpu", "--json")
    found = json.loads(tune("--trials", 2, *small, *options).out)
    assert found["best"]["settings"]["kpattern_reduction"] == "sum"
    assert found["best"]["settings"]["gate"] is False
    assert found["space"] == "paper"


def test_a_graph_with_many_splits_is_searched_on_the_first_three(hpgmn, tmp_path):
    graph = package.trading_network(num_nodes=100, seed=3).graph
    package.write_graph(graph, tmp_path / "trading.npz")
    answer = hpgmn("tune", "trading.npz", "--study", "new/b.db", "--trials", 1, *MLP, "--json")
    assert json.loads(answer.out)["splits"] == [0, 1, 2]
    assert (tmp_path / "new" / "b-best.yaml").exists()


def test_time_ends_a_search_between_trials(tune):
    answer = tune("--trials", 9, *MLP, "--timeout", 1e-9)
    assert answer.code == 0
    assert "0 of 9 trials are done." in answer.err
    assert "Trials: 0 finished." in answer.out
    answer = tune("--trials", 2, *MLP, "--timeout", 600)
    assert "Trials: 2 finished." in answer.out


def test_ctrl_c_keeps_what_is_done(tune, tmp_path, monkeypatch):
    left = 10  # one question before each trial, one after each of its three epochs

    @contextmanager
    def stop_on_signal():
        def asked():
            nonlocal left
            left -= 1
            return left <= 0

        yield asked

    monkeypatch.setattr("hpgmn.cli.console.stop_on_signal", stop_on_signal)
    answer = tune("--trials", 5, *MLP)
    assert answer.code == 130
    assert "Repeat the command to continue." in answer.err
    assert states(tmp_path / "a.db") == ["COMPLETE"] * 2 + ["FAIL"]
    left = 10**6
    answer = tune("--trials", 5, *MLP)
    assert "Trials: 5 finished, 1 cut off (run again)." in answer.out


def test_settings_that_exclude_each_other_are_refused(tune):
    options = ("--set", "batch_size=2", "--set", "consistency_weight=1", "--device", "cpu")
    answer = tune("--trials", 2, *options)
    assert answer.code == 2
    assert "batch_size=0" in answer.err


def test_a_search_in_which_nothing_can_be_trained_says_why(tune, monkeypatch):
    def train(*_):
        raise package.HPGMNError("Out of memory.")

    monkeypatch.setattr(tuning_tasks, "train_trial", train)
    answer = tune("--trials", 2, *MLP)
    assert answer.code == 2
    assert "No trial could be trained. The first error: Out of memory." in answer.err


@pytest.mark.parametrize("options", [(), ("--timeout", 600)])
def test_dead_workers_are_told(tune, options, monkeypatch):
    monkeypatch.setattr("hpgmn.runs.tune.tune_on", dying_workers)
    answer = tune("--trials", 2, *MLP, "--workers", 2, *options)
    assert answer.code == 2
    assert "Warning: A worker died." in answer.err
    assert "Only 0 of 2 trials are done" in answer.err
    assert "Time limit" not in answer.err


def test_dead_workers_are_told_when_the_time_is_over_too(tune, monkeypatch):
    monkeypatch.setattr("hpgmn.runs.tune.tune_on", dying_workers)
    answer = tune("--trials", 2, *MLP, "--workers", 2, "--timeout", 1e-9)
    assert answer.code == 0
    assert "0 of 2 trials are done." in answer.err
    assert "Workers that died: 1. Use fewer --workers" in answer.err


def dying_workers(*_, on_lost, **__):
    on_lost("A worker died.")


def test_a_space_without_numbers_has_no_picture(tune, tmp_path):
    numbers = ("lr", "weight_decay", "dropout", "attributes_dropout", "layers")
    fixed = [word for name in numbers for word in ("--set", f"{name}=1e-0")]
    fixed = [word.replace("dropout=1e-0", "dropout=0.5") for word in fixed]
    found = json.loads(tune("--trials", 2, *MLP, *fixed, "--json").out)
    assert found["files"] == {"config": "a-best.yaml"}
    answer = tune("--trials", 0)
    assert "Pictures" not in answer.err
    assert not (tmp_path / "a-sensitivity.png").exists()


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trials", -1], "0 or more (got -1)"),
        (["--trials", 2, "--workers", 0], "--workers must be at least 1"),
        (["--trials", 2, "--timeout", 0], "above 0 seconds"),
        (["--trials", 0], "There is no study a.db to show."),
        (["--trials", 2, "--model", "hpgm"], "Unknown model 'hpgm'. Did you mean 'hpgmn'?"),
        (["--trials", 2, "--space", "papr"], "Unknown space 'papr'. Did you mean 'paper'?"),
        (["--trials", 2, "--sampler", "rando"], "Unknown sampler 'rando'."),
        (["--trials", 2, "--space", "paper", "--model", "gcn"], "The space of the paper"),
        (["--trials", 2, "--splits", "7"], "Unknown split 7"),
        (["--trials", 2, "--seeds", 0], "(--seeds)"),
        (["--trials", 2, "--metric", "f1"], "Unknown metric 'f1'"),
        (["--trials", 2, "--protocol", "x"], "Unknown protocol 'x'"),
        (["--trials", 2, "--device", "gpu"], "Unknown device 'gpu'"),
        (["--trials", 2, "--set", "lrr=1"], "Unknown setting 'lrr'. Did you mean 'lr'?"),
        (["--trials", 2, "--set", "lr"], "--set takes key=value"),
        ([], "Missing option '--trials'"),
    ],
)
def test_mistakes_are_refused_and_leave_nothing(tune, tmp_path, contents, arguments, message):
    before = contents(tmp_path)
    answer = tune(*arguments)
    assert answer.code == 2, answer
    assert answer.out == ""
    (line,) = answer.err.splitlines()
    assert message in line
    assert contents(tmp_path) == before


def test_an_unknown_graph_is_refused(hpgmn):
    answer = hpgmn("tune", "texs", "--study", "a.db", "--trials", 2)
    assert answer.code == 2
    assert "Unknown dataset 'texs'. Did you mean 'texas'?" in answer.err


def test_a_space_of_which_nothing_is_left_is_refused(tune):
    values = {"num_patterns": 5, "hidden_dim": 5, "kpattern_weight": 0, "entropy_weight": 0}
    fixed = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    answer = tune("--trials", 2, "--space", "paper", *fixed)
    assert answer.code == 2
    assert "Nothing is left to search" in answer.err


def test_a_file_that_is_no_study_is_refused(tune, tmp_path):
    (tmp_path / "a.db").write_text("notes\n")
    answer = tune("--trials", 2, *MLP)
    assert answer.code == 2
    assert "a.db is not a study of hpgmn; nothing was changed." in answer.err
    assert (tmp_path / "a.db").read_text() == "notes\n"


def test_a_folder_that_cannot_be_written_is_refused(hpgmn, graph_file):
    answer = hpgmn("tune", graph_file, "--study", graph_file / "a.db", "--trials", 2, *MLP)
    assert answer.code == 2
    assert answer.err == (
        f"Error: Cannot write {graph_file} (File exists). Choose a writable path.\n"
    )


def test_another_search_is_refused(tune):
    assert tune("--trials", 1, *MLP).code == 0
    for options, difference in (
        (("--model", "gcn", *SMALL), "model (mlp, now gcn)."),
        ((*MLP, "--splits", "1"), "splits (0,1, now 1)."),
        ((*MLP, "--sampler", "random"), "sampler (tpe, now random)."),
        ((*MLP, "--set", "lr=0.1"), "now epochs=3 hidden_dim=4 lr=0.1)."),
    ):
        answer = tune("--trials", 2, *options)
        assert answer.code == 2
        assert difference in answer.err


def test_files_that_cannot_be_written_are_told(tune, tmp_path):
    (tmp_path / "a-best.yaml").mkdir()
    answer = tune("--trials", 1, *MLP)
    assert answer.code == 2
    assert answer.err.endswith(
        "Error: Cannot write a-best.yaml (Is a directory). Choose a writable path.\n"
    )
    assert states(tmp_path / "a.db") == ["COMPLETE"]


def test_a_study_that_was_killed_before_its_first_trial(tune, tmp_path):
    from hpgmn.runs.study import open_study

    with open_study(tmp_path / "a.db"):
        pass
    answer = tune("--trials", 0)
    assert answer.code == 2
    assert "The study a.db holds no trial yet." in answer.err
    assert tune("--trials", 1, *MLP).code == 0


def test_code_is_imported_only_when_the_user_names_it(tune, tmp_path):
    from hpgmn.runs.study import claim, open_study

    path = tmp_path / "a.db"
    (tmp_path / "own_code.py").write_text("raise SystemExit('imported')\n")
    with open_study(path) as study:
        claim(study, path, {"model": "own_code:Model"})
    answer = tune("--trials", 0)
    assert answer.code == 2
    assert "code is imported only when you name it. Name it (--model own_code:Model)." in answer.err
