"""The picture of a search: which panels it has, and what is drawn in them."""

from typing import Any

from hpgmn.runs import sensitivity
from hpgmn.runs.sensitivity import best_by_value, draw_sensitivity, panels, points

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
TRIALS: list[dict[str, Any]] = [
    {"settings": {"lr": 0.1, "weight_decay": 0.0, "hidden_dim": 4}, "score": 0.5},
    {"settings": {"lr": 0.1, "weight_decay": 0.1, "hidden_dim": 8}, "score": 0.75},
    {"settings": {"lr": 1.0, "weight_decay": 0.0, "hidden_dim": 4}, "score": 0.25},
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


def test_each_trial_is_a_dot_and_the_line_runs_through_the_best():
    dots = points(TRIALS, "lr")
    assert dots == [(0.1, 50.0), (0.1, 75.0), (1.0, 25.0)]
    assert best_by_value(dots) == [(0.1, 75.0), (1.0, 25.0)]


def test_the_panels_are_drawn(tmp_path, monkeypatch):
    seen: dict[str, Any] = {}
    real = sensitivity._panel

    def panel(axes, dots, name):
        real(axes, dots, name)
        seen[name] = axes

    monkeypatch.setattr(sensitivity, "_panel", panel)
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
    for text in ("three trials", *names, "trial", "best"):
        assert f">{text}</text>" in drawn


def test_the_same_trials_give_the_same_picture(tmp_path):
    for name in ("a.png", "b.png"):
        draw_sensitivity(TRIALS, ["lr"], "title", "accuracy", tmp_path / name)
    for ending in ("png", "svg"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()
