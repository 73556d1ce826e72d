"""``hpgmn train`` on a graph without shipped settings: the portfolio, its limits and its files."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hpgmn.runs import portfolio
from hpgmn.runs.portfolio import Member

SHORT: dict[str, Any] = {
    "hidden_dim": 6,
    "num_patterns": 5,
    "estimator_hidden": 6,
    "epochs": 6,
    "patience": 0,
    "estimator_epochs": 4,
    "estimator_patience": 0,
}
MEMBERS = (
    Member("one-way", "hpgmn", SHORT | {"neighbors": "out"}),
    Member("mistaken", "hpgmn", {"lr": "fast"}),
    Member("plain", "mlp", {"epochs": 6, "hidden_dim": 6, "lr": 0.05}),
    Member("other-way", "hpgmn", SHORT | {"neighbors": "in", "lr": 0.05}),
)
NAMES = [member.name for member in MEMBERS]
RUN = ("--device", "cpu", "--out", "run")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """A portfolio of four, one of which cannot be trained."""
    monkeypatch.setattr(portfolio, "portfolio_members", lambda name="members": MEMBERS)


def read(path):
    load = json.loads if path.endswith(".json") else yaml.safe_load
    content: dict[str, Any] = load(Path(path).read_text(encoding="utf-8"))
    return content


def predictions(folder):
    import pyarrow.parquet as pq

    return pq.read_table(f"{folder}/predictions.parquet").to_pydict()


# The ensemble.


def test_an_unknown_graph_gets_an_ensemble_that_predicts_and_is_scored(hpgmn, graph_file):
    answer = hpgmn("train", graph_file, *RUN)
    assert answer.code == 0, answer.err
    metrics, config = read("run/metrics.json"), read("run/config.yaml")
    assert metrics["model"] == config["model"] == "ensemble"
    assert config["selection"] == {"portfolio": "ensemble", "time_limit": 300.0}
    rows = {row["name"]: row for row in metrics["portfolio"]["members"]}
    assert list(rows) == NAMES
    assert "lr" in rows["mistaken"]["failure"]
    assert {row["name"] for row in metrics["members"]} == {*NAMES} - {"mistaken"}
    table, told = answer.out.splitlines(), " ".join(answer.err.split())
    for name in ("one-way", "plain", "other-way"):
        line = next(line for line in table if line.startswith(name))
        assert f"{100 * rows[name]['val_score_mean']:.1f}" in line
    assert "within 300 seconds" in told
    assert told.count("Skipping 'mistaken'") == 1
    assert "Metric: accuracy" in told
    assert hpgmn("predict", "run", "--out", "nodes.csv").code == 0
    assert hpgmn("evaluate", "run").code == 0
    log = Path("run/log.txt").read_text(encoding="utf-8")
    assert "Portfolio: 'one-way' (hpgmn)" in log
    assert "Skipping 'mistaken'" in log
    assert not Path("run/state").exists()
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert all(row["name"] in page for row in metrics["members"] if row["weight"])


def test_a_run_trained_again_from_its_config_is_the_same(hpgmn, graph_file):
    options = ("--members", "plain,one-way", "--seeds", "2", "--first-seed", "3")
    assert hpgmn("train", graph_file, *options, *RUN).code == 0
    answer = hpgmn("train", "--config", "run/config.yaml", "--out", "again")
    assert answer.code == 0, answer.err
    first, again = read("run/metrics.json"), read("again/metrics.json")
    assert first["config"] == again["config"]
    assert predictions("run") == predictions("again")


@pytest.mark.slow
def test_settings_apply_to_every_member_and_switch_the_default_off(hpgmn, graph_file, tiny):
    options = ("--ensemble", "--set", "class_weights=balanced", "--set", "estimator_dropout=0.5")
    assert hpgmn("train", graph_file, *options, *RUN).code == 0
    rows = read("run/metrics.json")["portfolio"]["members"]
    assert all(row["settings"]["class_weights"] == "balanced" for row in rows)
    assert rows[0]["settings"]["estimator_dropout"] == 0.5
    answer = hpgmn("train", graph_file, *tiny(), "--out", "other")
    assert "The portfolio is not trained" in answer.err
    assert read("other/metrics.json")["model"] == "hpgmn"


def test_a_single_model_is_the_best_member(hpgmn, graph_file):
    answer = hpgmn("train", graph_file, "--single", *RUN)
    assert answer.code == 0, answer.err
    metrics, config = read("run/metrics.json"), read("run/config.yaml")
    rows = {row["name"]: row for row in metrics["portfolio"]["members"]}
    chosen = rows[metrics["portfolio"]["chosen"]]
    scored = [row for row in rows.values() if row["failure"] is None]
    assert chosen["val_score_mean"] == max(row["val_score_mean"] for row in scored)
    assert config["model"] == metrics["model"] == chosen["model"]
    assert config["settings"] == config["settings"] | chosen["settings"]
    assert f"'{chosen['name']}'" in answer.err
    assert not Path("run/members").exists()
    assert "Choice of settings" in Path("run/report.html").read_text(encoding="utf-8")
    assert hpgmn("predict", "run", "--out", "nodes.csv").code == 0
    # Trained again it is an ordinary run of the chosen settings.
    assert hpgmn("train", "--config", "run/config.yaml", "--out", "again").code == 0
    assert read("again/metrics.json")["test_score"] == metrics["test_score"]


@pytest.mark.slow
def test_refit_is_said_and_keeps_weights_and_validation_scores(hpgmn, graph_file):
    assert hpgmn("train", graph_file, *RUN).code == 0
    answer = hpgmn("train", graph_file, "--refit", "--out", "refit")
    assert answer.code == 0, answer.err
    before, after = read("run/metrics.json"), read("refit/metrics.json")
    assert after["refit"]
    assert "(refit)" in answer.out
    assert after["val_score"] == before["val_score"]
    weights = [read(f"{run}/ensemble.json") for run in ("run", "refit")]
    for key in ("calibration", "splits"):
        assert weights[0][key] == weights[1][key]
    for one, other in zip(weights[0]["members"], weights[1]["members"], strict=True):
        assert one["weights"] == other["weights"]
        assert one["checksum"] != other["checksum"]
    assert hpgmn("evaluate", "refit").code == 0


def test_a_large_graph_is_announced(hpgmn, graph_file, monkeypatch):
    monkeypatch.setattr(portfolio, "LARGE_NODES", 5)
    monkeypatch.setattr(
        portfolio,
        "portfolio_members",
        lambda name="members": MEMBERS[:1] if name == "large" else MEMBERS,
    )
    answer = hpgmn("train", graph_file, *RUN)
    assert answer.code == 0
    assert "more than 5 nodes" in " ".join(answer.err.split())
    assert "more than 5 nodes" in read("run/metrics.json")["portfolio"]["note"]


# Limits.


def test_a_short_limit_keeps_the_first_member_and_lists_the_others(hpgmn, graph_file):
    answer = hpgmn("train", graph_file, "--time-limit", "0.001", *RUN)
    assert answer.code == 0, answer.err
    metrics = read("run/metrics.json")
    assert [row["name"] for row in metrics["members"]] == ["one-way"]
    rows = {row["name"]: row["failure"] for row in metrics["portfolio"]["members"]}
    assert rows["plain"] == rows["other-way"] == "time limit reached"
    assert "Not tried (time limit reached): mistaken, plain, other-way." in answer.err
    assert "interrupted" not in metrics
    assert hpgmn("predict", "run", "--out", "nodes.csv").code == 0


def interrupt(monkeypatch, polls):
    """Ctrl-C after so many looks."""

    @contextmanager
    def stop_on_signal():
        left = iter(range(polls))
        yield lambda: next(left, None) is None

    monkeypatch.setattr("hpgmn.cli.console.stop_on_signal", stop_on_signal)


def test_an_interruption_saves_what_is_trained(hpgmn, graph_file, monkeypatch):
    interrupt(monkeypatch, 16)
    answer = hpgmn("train", graph_file, *RUN)
    assert answer.code == 130
    metrics = read("run/metrics.json")
    assert metrics["interrupted"]
    assert {row["name"] for row in metrics["members"]} == {"one-way", "plain"}
    assert "Not tried (interrupted): other-way." in answer.err
    assert Path("run/report.html").exists()
    assert hpgmn("predict", "run", "--out", "nodes.csv").code == 0


COMMAND = """
import sys
from hpgmn.runs import portfolio
from hpgmn.runs.portfolio import Member
sys.path.insert(0, {folder!r})
short = {{"epochs": {epochs}, "hidden_dim": 6, "patience": 0}}
members = tuple(Member(f"m{{n}}", "mlp", short | {{"lr": 0.01 * n}}) for n in (1, 2, 3))
portfolio.portfolio_members = lambda name="members": members
import hpgmn.training.replicas as replicas
replicas.SAVE_SECONDS = 0.05
from hpgmn.cli import main
sys.exit(main(sys.argv[1:]))
"""


def started(graph_file, epochs, *options):
    code = COMMAND.format(folder=str(Path.cwd()), epochs=epochs)
    words = ("train", str(graph_file), "--splits", "0", "--out", "run", *options)
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )


def wait_for(path, process):
    end = time.monotonic() + 60
    while not path.exists() and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_the_same_end(graph_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--deterministic", "--time-limit", "60")
    killed = started(graph_file, 150, *options)
    wait_for(Path("run/state/m2"), killed)
    killed.kill()
    killed.communicate()
    assert not Path("run/metrics.json").exists()
    resumed = started(graph_file, 150, "--resume", *options)
    errors = resumed.communicate(timeout=120)[1].decode()
    assert resumed.returncode == 0, errors
    found = predictions("run")
    Path("run").rename("first")
    whole = started(graph_file, 150, *options)
    whole.communicate(timeout=120)
    assert whole.returncode == 0
    assert predictions("run") == found
    rows = [read(f"{run}/metrics.json")["portfolio"]["members"] for run in ("first", "run")]
    for one, other in zip(*rows, strict=True):
        assert one | {"seconds": 0} == other | {"seconds": 0}


@pytest.mark.slow
def test_ctrl_c_saves_the_ensemble_of_a_process(graph_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    process = started(graph_file, 10**6)
    wait_for(Path("run/state/m1/state-000.safetensors"), process)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=120)[1].decode()
    assert process.returncode == 130, errors
    metrics = read("run/metrics.json")
    assert metrics["interrupted"]
    assert [row["name"] for row in metrics["members"]] == ["m1"]
    assert np.isfinite(metrics["test_score"]).all()


# Refused before anything is trained, in one line.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--time-limit", "0"), "time limit"),
        (("--time-limit", "-3"), "time limit"),
        (("--single", "--ensemble"), "exclude each other"),
        (("--ensemble", "--no-portfolio"), "--no-portfolio"),
        (("--ensemble", "--model", "gcn"), "itself"),
        (("--members", "plain,none"), "Unknown member 'none'"),
        (("--ensemble", "--set", "lrr=1"), "Unknown setting 'lrr'"),
        (("--model", "gcn", "--time-limit", "5"), "time limit"),
        (("--model", "gcn,mlp", "--single"), "Several models"),
        (("--splits", "9"), "Unknown split 9"),
        (("--metric", "precision@3"), "precision@3"),
    ],
)
def test_bad_options_are_refused_in_one_line(hpgmn, graph_file, options, words):
    answer = hpgmn("train", graph_file, *options, *RUN)
    assert answer.code == 2
    line = [line for line in answer.err.splitlines() if not line.startswith("Metric:")]
    assert len(line) == 1
    assert words in line[0]
    assert not Path("run/config.yaml").exists()


def test_an_existing_folder_is_refused_before_the_training(hpgmn, graph_file):
    Path("run").mkdir()
    Path("run/mine.txt").write_text("mine")
    for option, words in (([], "exists"), (["--overwrite"], "is not a run folder")):
        answer = hpgmn("train", graph_file, *RUN, *option)
        assert answer.code == 2
        assert words in answer.err
    assert [path.name for path in Path("run").iterdir()] == ["mine.txt"]


def test_a_run_of_one_model_is_not_resumed_as_an_ensemble(hpgmn, graph_file, tiny, stop_after):
    stop_after(3)
    assert hpgmn("train", graph_file, *tiny(), *RUN).code == 130
    answer = hpgmn("train", graph_file, *RUN, "--resume")
    assert answer.code == 2
    assert "started with other options" in answer.err


def test_an_ensemble_replaces_and_is_replaced(hpgmn, graph_file, tiny):
    assert hpgmn("train", graph_file, *RUN).code == 0
    assert hpgmn("train", graph_file, *tiny(), *RUN, "--overwrite").code == 0
    assert "portfolio" not in read("run/metrics.json")
    assert not Path("run/members").exists()
    assert not Path("run/ensemble.json").exists()
