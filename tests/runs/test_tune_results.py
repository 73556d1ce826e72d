"""What a search has found: the summary, the command, the config, importance and pictures."""

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from hpgmn.base.settings import make_settings, parse_assignments, settings_dict
from hpgmn.models import find_model, read_config, settings_for
from hpgmn.runs import study as study_file
from hpgmn.runs import tune_results as module
from hpgmn.runs.study import finished_trials
from hpgmn.runs.tune_results import (
    draw,
    draw_sensitivity,
    importance,
    panels,
    result_files,
    summary,
    train_command,
    write_best,
)

SEARCHED: dict[str, Any] = {
    "graph": "mine",
    "model": "mlp",
    "metric": "accuracy",
    "protocol": None,
    "values": {"lr": [0.1, 0.2], "dropout": [0.0, 0.5]},
    "content": "abc",
}


@pytest.fixture
def study():
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    made = optuna.create_study(direction="maximize")
    made.set_user_attr(study_file.IDENTITY, SEARCHED)
    return made


def settings_of(**changes):
    return settings_dict(make_settings(find_model("mlp").settings, changes))


def add(study, score, *, state="COMPLETE", loss=1.0, scores=None, **attributes):
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import TrialState, create_trial

    place = len(study.trials)
    params = {"lr": (0.1, 0.2)[place % 2], "dropout": (0.0, 0.5)[place // 2 % 2]}
    choices = {name: CategoricalDistribution(SEARCHED["values"][name]) for name in params}
    values = list(scores or (score,))
    own = {"record": {"val_score": values, "val_loss": [loss]}, "settings": settings_of(**params)}
    study.add_trial(
        create_trial(
            state=TrialState[state],
            value=score,
            params=params,
            distributions=choices,
            user_attrs={"place": place} | own | attributes,
        )
    )


def test_what_decides_the_score_is_important(study, monkeypatch):
    """Also without scikit-learn."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    for place in range(24):
        add(study, 0.9 if place % 2 else 0.5 + place / 1000)
    found = importance(finished_trials(study), ["lr", "dropout"])
    assert sum(found.values()) == pytest.approx(1.0)
    assert list(found) == ["lr", "dropout"]
    assert found["lr"] > 0.8


def test_importance_needs_enough_trials_with_different_scores(study):
    for place in range(9):
        add(study, place / 10)
    assert importance(finished_trials(study), ["lr", "dropout"]) == {}
    add(study, 0.95)
    assert importance(finished_trials(study), ["lr", "dropout"]) != {}
    assert importance(finished_trials(study), ["lr", "dropout", "other"]) == {}


def test_equal_scores_have_no_importance(study):
    for _ in range(12):
        add(study, 0.5)
    assert importance(finished_trials(study), ["lr", "dropout"]) == {}


@pytest.mark.parametrize(
    ("model", "source"), [("hpgmn", "texas"), ("hpgmn", "my graph.npz"), ("mlp", "texas")]
)
def test_the_command_gives_back_the_settings(model, source):
    cls = find_model(model).settings
    changes: dict[str, Any] = {"lr": 0.123, "epochs": 7}
    if model == "hpgmn":
        changes |= {"gate": False, "memory_dim": None, "statistics": ["attributes", "diffusion"]}
    settings = settings_dict(make_settings(cls, changes))
    identity = {"model": model, "metric": "accuracy", "protocol": None}
    words = shlex.split(train_command(source, identity, settings))
    assert words[:7] == ["hpgmn", "train", source, "--model", model, "--metric", "accuracy"]
    pairs = words[8::2]
    assert words[7::2] == ["--set"] * len(pairs)
    shipped = settings_for("texas" if source == "texas" else None, model)
    read = settings_dict(make_settings(cls, shipped | parse_assignments(pairs)))
    assert read == settings
    before = settings_dict(make_settings(cls, shipped))
    named = [name for name in settings if before[name] != settings[name] or name == "neighbors"]
    assert [pair.partition("=")[0] for pair in pairs] == named  # no direction is selected again


def test_the_command_names_metric_and_protocol():
    identity = {"model": "mlp", "metric": "roc_auc", "protocol": "dense"}
    words = train_command("mine.npz", identity, settings_of())
    assert words.startswith("hpgmn train mine.npz --model mlp --metric roc_auc --protocol dense")


def test_the_command_and_the_config_name_the_class_looked_for(tmp_path):
    identity = {"model": "mlp", "metric": "average_precision", "protocol": None, "positive": "bad"}
    words = train_command("mine.npz", identity, settings_of())
    assert "--metric average_precision --positive bad" in words
    write_best(tmp_path / "a.yaml", identity, settings_of())
    assert read_config(str(tmp_path / "a.yaml"))["positive"] == "bad"


def test_files_lie_beside_the_study():
    names = {key: str(path) for key, path in result_files(Path("a/texas.v2.db")).items()}
    assert names == {
        "config": "a/texas.v2-best.yaml",
        "png": "a/texas.v2-sensitivity.png",
        "svg": "a/texas.v2-sensitivity.svg",
    }
    assert result_files(Path("texas"))["config"] == Path("texas-best.yaml")


@pytest.mark.parametrize("protocol", [None, "dense"])
def test_the_best_settings_are_a_config(tmp_path, protocol):
    identity = {"model": "mlp", "metric": "accuracy", "protocol": protocol}
    write_best(tmp_path / "a.yaml", identity, settings_of(lr=0.5))
    read = read_config(str(tmp_path / "a.yaml"))
    settings = read.pop("settings")
    assert settings_dict(make_settings(find_model("mlp").settings, settings)) == settings_of(lr=0.5)
    assert read == {name: value for name, value in identity.items() if value is not None}


def test_the_summary_says_it_all(study):
    found = summary(study, "mine.npz")
    assert found["best"] is None
    assert found["importance"] == {}
    for place in range(10):
        add(study, 0.5 + place / 100, scores=(0.4 + place / 100, 0.6 + place / 100))
    found = summary(study, "mine.npz")
    assert found["graph"] == "mine"
    assert "content" not in found
    assert "values" not in found
    assert found["trials"]["finished"] == 10
    best = found["best"]
    assert best["trial"] == 9
    assert best["val_score_mean"] == pytest.approx(0.59)
    assert best["val_score_std"] == pytest.approx(0.2 / 2**0.5)
    assert best["settings"] == settings_of(lr=0.2, dropout=0.0)
    assert "--set lr=0.2" in best["command"]
    assert found["importance"].keys() == {"lr", "dropout"}


# Pictures.


VALUES: dict[str, list[Any]] = {
    "hidden_dim": [4, 8],
    "gate": [True, False],
    "statistics": ["attributes", "attributes,diffusion"],
    "entropy_weight": [0.1, 1.0],
    "lr": [0.1, 0.2],
    "dropout": [0.0, 0.5],
    "weight_decay": [0.0, 0.1],
    "num_patterns": [5, 9],
}
TRIALS: list[tuple[dict[str, Any], float]] = [
    ({"lr": 0.1, "weight_decay": 0.0, "hidden_dim": 4}, 0.5),
    ({"lr": 0.1, "weight_decay": 0.1, "hidden_dim": 8}, 0.75),
    ({"lr": 1.0, "weight_decay": 0.0, "hidden_dim": 4}, 0.25),
]


def test_a_model_with_a_memory_shows_what_the_paper_shows():
    shares = {"lr": 0.9, "num_patterns": 0.1}
    assert panels(VALUES, shares, has_memory=True) == [
        "num_patterns",
        "hidden_dim",
        "entropy_weight",
    ]


def test_other_models_show_the_four_numbers_that_mattered_most():
    shares = {"gate": 0.5, "lr": 0.2, "dropout": 0.1, "weight_decay": 0.3, "num_patterns": 0.05}
    names = panels(VALUES, shares, has_memory=False)
    assert names == ["weight_decay", "lr", "dropout", "num_patterns"]
    unknown = panels(VALUES, {}, has_memory=False)
    assert unknown == ["hidden_dim", "entropy_weight", "lr", "dropout"]
    assert panels({"gate": [True, False]}, {}, has_memory=False) == []


def test_the_panels_are_drawn(tmp_path, monkeypatch):
    seen: dict[str, Any] = {}
    real = module._draw_panel

    def panel(axes, dots, name):
        real(axes, dots, name)
        seen[name] = axes

    monkeypatch.setattr(module, "_draw_panel", panel)
    names = ["lr", "weight_decay", "hidden_dim"]
    draw_sensitivity(TRIALS, names, "three trials", "roc_auc", tmp_path / "a.png")
    assert list(seen) == names
    assert [axes.get_xscale() for axes in seen.values()] == ["log", "symlog", "linear"]
    dots, line = seen["lr"].get_lines()
    assert dots.get_xydata().tolist() == [[0.1, 50.0], [0.1, 75.0], [1.0, 25.0]]
    assert line.get_xydata().tolist() == [[0.1, 75.0], [1.0, 25.0]]
    assert seen["hidden_dim"].get_xticks().tolist() == [4.0, 8.0]
    assert seen["lr"].get_ylabel() == "validation roc auc, %"
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "a.svg").read_text()
    assert ">$" not in drawn  # powers of ten are typeset
    for text in ("three trials", *names, "trial", "best"):
        assert f">{text}</text>" in drawn


def test_the_same_trials_give_the_same_picture(tmp_path):
    for name in ("a.png", "b.png"):
        draw_sensitivity(TRIALS, ["lr"], "title", "accuracy", tmp_path / name)
    for ending in ("png", "svg"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_a_space_without_numbers_has_no_picture(study, tmp_path):
    study.set_user_attr(study_file.IDENTITY, SEARCHED | {"values": {"gate": [True, False]}})
    add(study, 0.5)
    assert not draw(study, summary(study, "mine.npz"), tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []
