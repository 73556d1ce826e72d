"""What a search has found: the best trial, what mattered, and how to train with it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from hpgmn.base.settings import make_settings, parse_assignments, settings_dict
from hpgmn.models import find_model
from hpgmn.models.shipped import read_config, settings_for
from hpgmn.runs.study import IDENTITY
from hpgmn.runs.tune_summary import (
    best_trial,
    files_of,
    finished_trials,
    first_error,
    importance,
    summary,
    train_command,
    trial_counts,
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
def study() -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    made = optuna.create_study(direction="maximize")
    made.set_user_attr(IDENTITY, SEARCHED)
    return made


def settings_of(**changes: Any) -> dict[str, Any]:
    return settings_dict(make_settings(find_model("mlp").settings, changes))


def add(
    study: Any,
    score: float | None,
    *,
    state: str = "COMPLETE",
    loss: float = 1.0,
    scores: tuple[float, ...] | None = None,
    **attributes: Any,
) -> None:
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


def test_the_best_has_the_highest_score_then_the_lowest_loss(study: Any) -> None:
    assert best_trial(study) is None
    for score, loss in ((0.7, 0.1), (0.8, 0.5), (0.8, 0.4), (0.6, 0.1)):
        add(study, score, loss=loss)
    best = best_trial(study)
    assert best is not None
    assert best.number == 2


def test_a_pruned_trial_is_never_the_best(study: Any) -> None:
    add(study, 0.99, state="PRUNED")
    assert best_trial(study) is None
    add(study, 0.3)
    best = best_trial(study)
    assert best is not None
    assert best.number == 1
    assert [one.number for one in finished_trials(study)] == [1]


def test_trials_are_counted_by_how_they_ended(study: Any) -> None:
    for score, state in ((0.5, "COMPLETE"), (0.5, "COMPLETE"), (0.1, "PRUNED"), (None, "FAIL")):
        add(study, score, state=state)
    assert first_error(study) is None
    add(study, None, state="FAIL", error="Too large.")
    add(study, None, state="FAIL", error="Too small.")
    add(study, None, state="RUNNING")
    counts = {"finished": 2, "pruned": 1, "refused": 2, "failed": 1, "running": 1}
    assert trial_counts(study) == counts
    assert first_error(study) == "Too large."


def test_what_decides_the_score_is_important(study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where scikit-learn, a tool of development, is not installed."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    for place in range(24):
        add(study, 0.9 if place % 2 else 0.5 + place / 1000)
    found = importance(finished_trials(study), ["lr", "dropout"])
    assert sum(found.values()) == pytest.approx(1.0)
    assert list(found) == ["lr", "dropout"]
    assert found["lr"] > 0.8


def test_importance_is_silent_about_too_little(study: Any) -> None:
    for place in range(9):
        add(study, place / 10)
    assert importance(finished_trials(study), ["lr", "dropout"]) == {}
    add(study, 0.95)
    assert importance(finished_trials(study), ["lr", "dropout"]) != {}
    assert importance(finished_trials(study), ["lr", "dropout", "other"]) == {}


def test_equal_scores_say_nothing_about_importance(study: Any) -> None:
    for _ in range(12):
        add(study, 0.5)
    assert importance(finished_trials(study), ["lr", "dropout"]) == {}


@pytest.mark.parametrize(
    ("model", "source"), [("hpgmn", "texas"), ("hpgmn", "my graph.npz"), ("mlp", "texas")]
)
def test_the_command_gives_back_the_settings(model: str, source: str) -> None:
    cls = find_model(model).settings
    changes: dict[str, Any] = {"lr": 0.123, "epochs": 7}
    if model == "hpgmn":
        changes |= {"gate": False, "memory_dim": None, "statistics": ["attributes", "diffusion"]}
    settings = settings_dict(make_settings(cls, changes))
    identity = {"model": model, "metric": "accuracy", "protocol": None}
    words = shlex.split(train_command(source, identity, settings))
    assert words[:5] == ["hpgmn", "train", source, "--model", model]
    pairs = words[6::2]
    assert words[5::2] == ["--set"] * len(pairs)
    shipped = settings_for("texas" if source == "texas" else None, model)
    read = settings_dict(make_settings(cls, shipped | parse_assignments(pairs)))
    assert read == settings
    before = settings_dict(make_settings(cls, shipped))
    assert len(pairs) == sum(before[name] != settings[name] for name in settings)


def test_the_command_names_metric_and_protocol_where_they_are_not_usual() -> None:
    identity = {"model": "mlp", "metric": "roc_auc", "protocol": "dense"}
    words = train_command("mine.npz", identity, settings_of())
    assert words.startswith("hpgmn train mine.npz --model mlp --metric roc_auc --protocol dense")


def test_the_command_and_the_config_name_the_class_looked_for(tmp_path: Path) -> None:
    identity = {"model": "mlp", "metric": "average_precision", "protocol": None, "positive": "bad"}
    words = train_command("mine.npz", identity, settings_of())
    assert "--metric average_precision --positive bad" in words
    write_best(tmp_path / "a.yaml", identity, settings_of())
    assert read_config(str(tmp_path / "a.yaml"))["positive"] == "bad"


def test_files_lie_beside_the_study() -> None:
    names = {key: str(path) for key, path in files_of(Path("a/texas.v2.db")).items()}
    assert names == {
        "config": "a/texas.v2-best.yaml",
        "png": "a/texas.v2-sensitivity.png",
        "svg": "a/texas.v2-sensitivity.svg",
    }
    assert files_of(Path("texas"))["config"] == Path("texas-best.yaml")


@pytest.mark.parametrize("protocol", [None, "dense"])
def test_the_best_settings_are_a_config(tmp_path: Path, protocol: str | None) -> None:
    identity = {"model": "mlp", "metric": "accuracy", "protocol": protocol}
    write_best(tmp_path / "a.yaml", identity, settings_of(lr=0.5))
    read = read_config(str(tmp_path / "a.yaml"))
    settings = read.pop("settings")
    assert settings_dict(make_settings(find_model("mlp").settings, settings)) == settings_of(lr=0.5)
    assert read == {name: value for name, value in identity.items() if value is not None}


def test_the_summary_says_it_all(study: Any) -> None:
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
