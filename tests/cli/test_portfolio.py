"""``hpgmn train`` on a graph nobody has seen: what is tried, told, written and not done twice."""

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpgmn.base.errors import SettingError
from hpgmn.runs import portfolio
from hpgmn.runs.portfolio import Member
from hpgmn.runs.train import uses_portfolio

SHORT: dict[str, Any] = {
    "hidden_dim": 6,
    "num_patterns": 5,
    "estimator_hidden": 6,
    "epochs": 6,
    "patience": 0,
    "estimator_epochs": 4,
    "estimator_patience": 0,
}
GCN: dict[str, Any] = {
    "epochs": 6,
    "pretraining_epochs": 6,
    "hidden_dim": 6,
    "query_dim": 6,
    "num_patterns": 5,
}
MEMBERS = (
    Member("one way", "hpgmn", SHORT | {"neighbors": "out"}),
    Member("other way", "hpgmn", SHORT | {"neighbors": "in", "lr": 0.05}),
    Member("mistaken", "hpgmn", {"lr": "fast"}),
    Member("alike", "hpgmn-gcn", GCN),
)
RUN = ("--device", "cpu", "--out", "run")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """A portfolio of four, one of which cannot be trained."""
    monkeypatch.setattr(portfolio, "portfolio_members", lambda is_large=False: MEMBERS)


@pytest.fixture
def choices(monkeypatch):
    """The names of what was chosen, one for each time that members were trained."""
    made: list[str] = []
    before = portfolio.choose

    def counted(*arguments, **options):
        choice = before(*arguments, **options)
        made.append(choice.name)
        return choice

    monkeypatch.setattr(portfolio, "choose", counted)
    return made


def read(path):
    load = json.loads if path.endswith(".json") else yaml.safe_load
    content: dict[str, Any] = load(Path(path).read_text(encoding="utf-8"))
    return content


# When.


@pytest.mark.parametrize(
    ("source", "asked", "said", "expected"),
    [
        ("my-folder", None, {"--config": None}, True),
        ("./texas.npz", None, {}, True),
        ("minesweeper", None, {}, True),
        ("texas", None, {}, False),
        ("texas", True, {}, True),
        ("my-folder", False, {}, False),
        ("my-folder", None, {"--config": "paper"}, False),
        ("my-folder", None, {"--model": ["mlp"], "--config": None}, False),
        ("my-folder", False, {"--model": ["mlp"]}, False),
    ],
)
def test_settings_are_chosen_where_nothing_is_known_and_nothing_was_said(
    source, asked, said, expected
):
    assert uses_portfolio(source, asked, said, None) is expected


@pytest.mark.slow
def test_named_settings_switch_the_portfolio_off(hpgmn, graph_file):
    assert not uses_portfolio("my-folder", None, {}, {"lr": 1})
    assert uses_portfolio("my-folder", True, {}, {"lr": 1})
    line = "The portfolio is not tried"
    words = [word for key, value in SHORT.items() for word in ("--set", f"{key}={value}")]
    for number, (option, told) in enumerate(
        (([], True), (["--no-portfolio"], False), (["--model", "hpgmn"], False))
    ):
        answer = hpgmn("train", graph_file, *words, *option, "--out", f"run{number}")
        assert answer.code == 0, answer.err
        assert (line in answer.err) == told


def test_the_portfolio_is_tried_with_named_settings(hpgmn, graph_file):
    options = ("--portfolio", "--set", "class_weights=balanced", "--set", "estimator_dropout=0.5")
    answer = hpgmn("train", graph_file, *options, *RUN)
    assert answer.code == 0, answer.err
    metrics = read("run/metrics.json")
    rows = {row["name"]: row["settings"] for row in metrics["portfolio"]["members"]}
    for name in ("one way", "other way"):
        assert rows[name]["class_weights"] == "balanced"
        assert rows[name]["estimator_dropout"] == 0.5  # a number, as in a member
    assert rows["alike"]["class_weights"] == "balanced"
    assert "estimator_dropout" not in rows["alike"]
    assert metrics["config"]["settings"]["class_weights"] == "balanced"
    refused = hpgmn("train", graph_file, "--portfolio", "--set", "lrr=1", "--out", "other")
    assert refused.code == 2
    assert "Unknown setting 'lrr'" in refused.err


# What is told and written.


def test_a_run_says_and_keeps_what_was_chosen(hpgmn, graph_file):
    answer = hpgmn("train", graph_file, *RUN)
    assert answer.code == 0
    metrics, config = read("run/metrics.json"), read("run/config.yaml")
    kept = read("run/portfolio.json")
    assert metrics["portfolio"] == kept
    rows = {row["name"]: row for row in kept["members"]}
    assert list(rows) == [member.name for member in MEMBERS]
    scores = {name: row["val_score_mean"] for name, row in rows.items()}
    best = max(score for score in scores.values() if score is not None)
    chosen = rows[kept["chosen"]]
    assert chosen["val_score_mean"] == best
    assert kept["splits"] == [0, 1]
    assert config["model"] == metrics["model"] == chosen["model"]
    assert config["settings"] == config["settings"] | chosen["settings"]
    extra = {name: config.pop(name) for name in ("format", "made_with")}
    assert extra["format"] == metrics["format"]
    assert metrics["config"] == config
    # The table, the one left out, and the sentence.
    assert "Portfolio: accuracy %" in answer.out
    for name in ("one way", "other way", "alike"):
        assert f"{100 * scores[name]:.1f}" in next(
            line for line in answer.out.splitlines() if line.startswith(name)
        )
    assert not any(line.startswith("mistaken") for line in answer.out.splitlines())
    told = " ".join(answer.err.split())
    assert "Trying 4 settings on the validation nodes of 2 splits" in told
    assert told.count("Skipping 'mistaken': Setting 'lr' takes a number") == 1
    assert f"Chosen on the validation nodes of 2 splits: '{kept['chosen']}'" in told
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert "Choice of settings" in page
    assert "other way" in page


def test_asked_splits_metric_and_seeds_are_kept(hpgmn, graph_file):
    words = ("--splits", "1", "--seeds", "2", "--metric", "macro_f1")
    assert hpgmn("train", graph_file, *words, *RUN).code == 0
    metrics = read("run/metrics.json")
    assert metrics["portfolio"]["splits"] == [1]
    assert metrics["portfolio"]["metric"] == metrics["metric"] == "macro_f1"
    assert metrics["splits"] == [1]
    assert metrics["seeds"] == 2


def test_a_large_graph_is_announced(hpgmn, graph_file, monkeypatch):
    monkeypatch.setattr(portfolio, "LARGE_NODES", 5)
    monkeypatch.setattr(
        portfolio, "portfolio_members", lambda is_large=False: MEMBERS[:1] if is_large else MEMBERS
    )
    answer = hpgmn("train", graph_file, *RUN)
    assert answer.code == 0
    assert "more than 5 nodes" in " ".join(answer.err.split())
    assert "more than 5 nodes" in read("run/metrics.json")["portfolio"]["note"]


def test_the_default_can_be_trained(hpgmn, graph_file, choices, monkeypatch):
    def stop(job, *_, **__):  # training the default takes long
        raise SettingError(f"{job.spec.model} {job.spec.settings['neighbors']} {job.choice}")

    monkeypatch.setattr("hpgmn.runs.train.Job.run", stop)
    answer = hpgmn("train", graph_file, "--no-portfolio", *RUN)
    assert answer.code == 2
    assert "hpgmn both None" in answer.err
    assert choices == []


def test_without_an_out_the_folder_is_named_after_the_chosen_model(hpgmn, graph_file, monkeypatch):
    monkeypatch.setattr(portfolio, "portfolio_members", lambda is_large=False: MEMBERS[3:])
    assert hpgmn("train", graph_file, "--device", "cpu").code == 0
    [folder] = Path("runs").iterdir()
    assert folder.name.startswith("small-hpgmn-gcn-")


def test_the_log_has_what_was_tried(hpgmn, graph_file):
    assert hpgmn("train", graph_file, *RUN).code == 0
    log = Path("run/log.txt").read_text(encoding="utf-8")
    kept = read("run/portfolio.json")
    for row in kept["members"]:
        if row["failure"] is None:
            score = f"{100 * row['val_score_mean']:.1f}"
            assert f"Portfolio: '{row['name']}' ({row['model']}), accuracy {score}," in log
    assert "Skipping 'mistaken'" in log
    assert "Trying 4 settings on the validation nodes" in log
    assert f"Chosen on the validation nodes of 2 splits: '{kept['chosen']}'" in log


# Refused before anything is trained.


def test_an_existing_folder_is_refused_before_the_choice(hpgmn, graph_file, choices):
    Path("run").mkdir()
    Path("run/mine.txt").write_text("mine")
    for option, words in (([], "exists"), (["--overwrite"], "is not a run folder")):
        answer = hpgmn("train", graph_file, *RUN, *option)
        assert answer.code == 2
        assert words in answer.err
    assert choices == []
    assert [path.name for path in Path("run").iterdir()] == ["mine.txt"]


def test_bad_options_are_refused_before_the_choice(hpgmn, graph_file, choices):
    assert hpgmn("train", graph_file, "--splits", "9", *RUN).code == 2
    assert hpgmn("train", graph_file, "--metric", "precision@3", *RUN).code == 2
    assert choices == []
    assert not Path("run").exists()


# Once.


def interrupt(monkeypatch, epochs):
    @contextmanager
    def stop_on_signal():
        left = iter(range(epochs))
        yield lambda: next(left, None) is None

    monkeypatch.setattr("hpgmn.cli.console.stop_on_signal", stop_on_signal)


@pytest.mark.slow
def test_a_resumed_run_does_not_choose_again(hpgmn, graph_file, choices, monkeypatch, stop_after):
    assert hpgmn("train", graph_file, "--device", "cpu", "--out", "whole").code == 0
    stop_after(3)
    assert hpgmn("train", graph_file, *RUN).code == 130
    assert not Path("run/metrics.json").exists()
    assert Path("run/portfolio.json").exists()
    stop_after(None)
    # Another portfolio would choose another: what was kept counts.
    monkeypatch.setattr(
        portfolio,
        "portfolio_members",
        lambda is_large=False: (Member("new", "hpgmn", SHORT | {"lr": 1e-6}),),
    )
    answer = hpgmn("train", graph_file, *RUN, "--resume")
    assert answer.code == 0
    assert len(choices) == 2
    assert f"chosen before: '{choices[1]}'" in " ".join(answer.err.split())
    whole, resumed = read("whole/metrics.json"), read("run/metrics.json")
    assert resumed["portfolio"]["chosen"] == whole["portfolio"]["chosen"]
    assert resumed["test_score"] == whole["test_score"]
    assert resumed["val_score"] == whole["val_score"]


def test_a_choice_that_was_interrupted_leaves_nothing_and_begins_anew(
    hpgmn, graph_file, choices, monkeypatch
):
    with monkeypatch.context() as patch:
        interrupt(patch, 3)
        answer = hpgmn("train", graph_file, *RUN)
        assert answer.code == 130
    told = " ".join(answer.err.split())
    assert "No settings were chosen yet" in told
    assert told.endswith("Interrupted.")
    assert not Path("run").exists()
    assert hpgmn("train", graph_file, *RUN, "--resume").code == 0
    assert len(choices) == 1


def test_a_crash_between_choice_and_config_chooses_anew(hpgmn, graph_file, choices):
    Path("run").mkdir()
    Path("run/portfolio.json").write_text("{}")
    assert hpgmn("train", graph_file, *RUN).code == 0
    assert len(choices) == 1
    assert read("run/metrics.json")["portfolio"]["chosen"] == choices[0]


def test_a_lone_choice_is_not_taken_for_that_of_another_run(hpgmn, graph_file, tiny):
    Path("run").mkdir()
    Path("run/portfolio.json").write_text("{}")
    assert hpgmn("train", graph_file, *tiny(), *RUN).code == 0
    assert "portfolio" not in read("run/metrics.json")
    assert not Path("run/portfolio.json").exists()


@pytest.mark.slow
def test_overwriting_forgets_the_choice(hpgmn, graph_file, tiny):
    assert hpgmn("train", graph_file, *RUN).code == 0
    assert hpgmn("train", graph_file, *tiny(), *RUN, "--overwrite").code == 0
    assert "portfolio" not in read("run/metrics.json")
    assert not Path("run/portfolio.json").exists()


def test_a_run_with_settings_of_its_own_is_not_resumed_by_a_choice(
    hpgmn, graph_file, tiny, choices, stop_after
):
    stop_after(3)
    assert hpgmn("train", graph_file, *tiny(), *RUN).code == 130
    answer = hpgmn("train", graph_file, *RUN, "--resume")
    assert answer.code == 2
    assert "started with other options" in answer.err
    assert choices == []


@pytest.mark.parametrize("content", ["{", "{}"])
def test_a_damaged_choice_is_named(hpgmn, graph_file, stop_after, content):
    stop_after(3)
    assert hpgmn("train", graph_file, *RUN).code == 130
    Path("run/portfolio.json").write_text(content)
    answer = hpgmn("train", graph_file, *RUN, "--resume")
    assert answer.code == 2
    assert "damaged" in answer.err
    assert "--overwrite" in answer.err
