"""``hpgmn tune``: options, what is printed, exit codes."""

import json
import shlex
from contextlib import contextmanager

import pytest
import yaml

from hpgmn.base.errors import mean_and_deviation

MLP = ("--model", "mlp", "--set", "epochs=3", "--set", "hidden_dim=4", "--device", "cpu")


@pytest.fixture
def tune(hpgmn, graph_file):
    """Runs ``hpgmn tune small.npz …`` with the study a.db."""

    def run(*arguments):
        return hpgmn("tune", graph_file, "--study", "a.db", *arguments)

    return run


def test_a_search_prints_and_writes_its_result(tune, hpgmn, tmp_path):
    answer = tune("--trials", 12, *MLP)
    assert answer.code == 0, answer.err
    assert "Trials: 12 finished." in answer.out
    assert "importance % (12 trials)" in answer.out
    content = json.loads(tune("--trials", 12, *MLP, "--json").out)
    assert (content["study"], content["graph"], content["sampler"]) == ("a.db", "small", "tpe")
    assert content["files"] == {
        "config": "a-best.yaml",
        "png": "a-sensitivity.png",
        "svg": "a-sensitivity.svg",
    }
    best = content["best"]
    first, second = best["val_score"]
    mean, std = (first + second) / 2, abs(first - second) / 2**0.5
    line = f"Best: trial {best['trial']}, validation accuracy {mean_and_deviation(mean, std)} %"
    assert f"{line} (2 runs)." in answer.out
    assert all(name in answer.err for name in content["files"].values())
    assert f"  {best['command']}\n" in answer.out
    config = yaml.safe_load((tmp_path / "a-best.yaml").read_text())
    assert config == {"model": "mlp", "metric": "accuracy", "settings": best["settings"]}
    words = shlex.split(best["command"])[1:]
    for out, options in (("one", words), ("two", [*words[:2], "--config", "a-best.yaml"])):
        assert hpgmn(*options, "--device", "cpu", "--out", out).code == 0
        metrics = json.loads((tmp_path / out / "metrics.json").read_text())
        assert metrics["val_score"] == best["val_score"]
        assert metrics["config"]["settings"] == best["settings"]


def test_a_study_can_be_shown_without_its_options(tune, tmp_path):
    answer = tune("--trials", 3, *MLP, "--splits", "1", "--set", "attributes_scaling=unit")
    assert "too few finished trials" in answer.err
    before = (tmp_path / "a.db").read_bytes()
    again = tune("--trials", 0)
    assert (again.code, again.out) == (0, answer.out)
    assert (tmp_path / "a.db").read_bytes() == before
    refused = tune("--trials", 0, "--splits", "0")
    assert refused.code == 2
    assert "splits (1, now 0)" in refused.err


def test_pruned_trials_are_counted_apart(tune, monkeypatch):
    monkeypatch.setattr("hpgmn.runs.search.PRUNING_EPOCHS", 0)
    monkeypatch.setattr("hpgmn.runs.search.PRUNING_TRIALS", 1)
    monkeypatch.setattr("hpgmn.runs.tune.PRUNING_INTERVAL", 1)
    content = json.loads(tune("--trials", 10, *MLP, "--json").out)
    finished, pruned = (content["trials"][state] for state in ("finished", "pruned"))
    assert finished + pruned == 10
    assert pruned
    assert f"Trials: {finished} finished, {pruned} pruned." in tune("--trials", 0).out


def test_the_timeout_ends_a_search_between_trials(tune):
    answer = tune("--trials", 9, *MLP, "--timeout", 1e-9)
    assert answer.code == 0
    assert "0 of 9 trials are done." in answer.err
    assert "Trials: 0 finished." in answer.out
    assert "Trials: 2 finished." in tune("--trials", 2, *MLP, "--timeout", 600).out


def test_ctrl_c_keeps_finished_trials(tune, monkeypatch):
    left = 10  # one poll before each trial, one after each of its three epochs

    @contextmanager
    def stop_on_signal():
        def poll():
            nonlocal left
            left -= 1
            return left <= 0

        yield poll

    monkeypatch.setattr("hpgmn.cli.console.stop_on_signal", stop_on_signal)
    answer = tune("--trials", 5, *MLP)
    assert answer.code == 130
    assert "Repeat the command to continue." in answer.err
    left = 10**6
    answer = tune("--trials", 5, *MLP)
    assert "Trials: 5 finished, 1 cut off (run again)." in answer.out


@pytest.mark.parametrize("timeout", [600, 1e-9])
def test_dead_workers_are_reported(tune, monkeypatch, timeout):
    monkeypatch.setattr("hpgmn.runs.tune.run_search", lambda *_: 1)
    answer = tune("--trials", 2, *MLP, "--workers", 2, "--timeout", timeout)
    if timeout == 600:
        assert answer.code == 2
        assert "Only 0 of 2 trials are done, because workers died." in answer.err
        assert "Time limit" not in answer.err
    else:
        assert answer.code == 0
        assert "1 worker died. Use fewer --workers" in answer.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trials", 2, "--workers", 0], "--workers must be at least 1"),
        (["--trials", 0], "There is no study a.db to show. Run trials (--trials)."),
        (["--trials", 2, "--model", "hpgm"], "Unknown model 'hpgm'. Did you mean 'hpgmn'?"),
        (["--trials", 2, "--space", "papr"], "Unknown space 'papr'. Did you mean 'paper'?"),
        (["--trials", 2, "--sampler", "rando"], "Unknown sampler 'rando'."),
        (["--trials", 2, "--seeds", 0], "(--seeds 1)"),
        (["--trials", 2, "--metric", "f1"], "Unknown metric 'f1'"),
        (["--trials", 2, "--protocol", "x"], "Unknown protocol 'x'"),
        (["--trials", 2, "--device", "gpu"], "Unknown device 'gpu'"),
        (["--trials", 2, "--set", "lr"], "Give a name and a value (--set lr=0.01)"),
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


def test_files_that_cannot_be_written_are_reported(tune, hpgmn, graph_file, tmp_path):
    answer = hpgmn("tune", graph_file, "--study", graph_file / "a.db", "--trials", 2, *MLP)
    assert answer.code == 2
    message = f"Error: Cannot write {graph_file} (File exists). Choose a writable path.\n"
    assert answer.err.endswith(message)
    (tmp_path / "a-best.yaml").mkdir()
    answer = tune("--trials", 1, *MLP)
    assert answer.code == 2
    assert answer.err.endswith(
        "Cannot write a-best.yaml (Is a directory). Choose a writable path.\n"
    )
    (tmp_path / "a-best.yaml").rmdir()
    assert "Trials: 1 finished." in tune("--trials", 0).out
