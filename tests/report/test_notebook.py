"""Runs and comparisons in a notebook: scores as in their files, pictures, names as text."""

import re
from html import unescape

import numpy as np
import pytest

import hpgmn
from hpgmn.graph import Graph
from hpgmn.report.notebook import comparison_html

SHORT = {"epochs": 4, "estimator_epochs": 3, "hidden_dim": 4, "num_patterns": 3}
EVIL = "<script>alert(1)</script>"


def facts(html):
    rows = re.findall('<th scope="row">(.*?)</th><td>(.*?)</td>', html)
    return {unescape(name): unescape(value) for name, value in rows}


def test_a_run_shows_scores_and_pictures(small_graph, tmp_path):
    run = hpgmn.train(
        small_graph, model="hpgmn", settings=SHORT, out=tmp_path / "run", report=False
    )
    html = run._repr_html_()
    found = facts(html)
    assert (found["Model"], found["Graph"]) == ("hpgmn", "small")
    assert found["Test accuracy"].startswith(f"{100 * run.metrics['test_score_mean']:.2f} ±")
    assert len(re.findall("<svg .*?</svg>", html, re.S)) == 3  # losses, scores, confusion
    ids = re.findall(' id="(.*?)"', html)
    assert len(ids) == len(set(ids))
    other = hpgmn.train(
        small_graph, model="mlp", settings={"epochs": 3}, out=tmp_path / "other", report=False
    )
    assert not set(ids) & set(re.findall(' id="(.*?)"', other._repr_html_()))


def test_names_of_a_run_are_text(small_graph, tmp_path):
    masks = {f"{part}_mask": getattr(small_graph.splits, part) for part in ("train", "val", "test")}
    graph = Graph(
        *(small_graph.x, small_graph.edge_index, small_graph.y),
        **masks,
        class_names=[EVIL, "b", "c"],
        name=EVIL,
    )
    folder = tmp_path / "run"
    html = hpgmn.train(
        graph, model="mlp", settings={"epochs": 3}, out=folder, report=False
    )._repr_html_()
    assert EVIL not in html
    assert facts(html)["Graph"] == EVIL


def test_a_regression_has_curves_and_no_confusion(small_graph, tmp_path):
    masks = {f"{part}_mask": getattr(small_graph.splits, part) for part in ("train", "val", "test")}
    target = small_graph.x[:, 0] + np.arange(18) / 10
    graph = Graph(small_graph.x, small_graph.edge_index, target, **masks, name="numbers")
    run = hpgmn.train(
        graph, model="mlp", settings={"epochs": 3}, out=tmp_path / "run", report=False
    )
    html = run._repr_html_()
    assert len(re.findall("<svg ", html)) == 2
    assert f"Test {'R²' if run.spec.metric == 'r2' else run.spec.metric}" in facts(html)


@pytest.fixture
def content():
    rows = [
        {"model": "hpgmn", "test_score_mean": 0.9, "test_score_std": 0.01, "difference": None},
        {
            "model": EVIL,
            "test_score_mean": 0.45,
            "test_score_std": 0.02,
            "difference": {"mean": -0.45, "low": -0.5, "high": -0.4},
        },
    ]
    shared = {"seconds": 1.5}
    return {
        "metric": "accuracy",
        "graph": "g",
        "reference": "hpgmn",
        "rows": [row | shared for row in rows],
    }


def test_a_comparison_shows_every_model_and_failure(content):
    html = comparison_html(content, {"gat": EVIL})
    assert EVIL not in html
    assert "90.0 ± 1.0" in html
    assert "-45.0 (-50.0 to -40.0)" in html
    assert "failed: &lt;script&gt;" in html
    widths = [int(width) for width in re.findall(r"width:(\d+)px", html)]
    assert widths[0] == 2 * widths[1]


def test_a_comparison_object_is_displayed(small_graph, tmp_path):
    comparison = hpgmn.compare(
        *(small_graph, ["mlp", "gcn"]), settings={"epochs": 3}, out=tmp_path, report=False
    )
    html = comparison._repr_html_()
    for row in comparison.content["rows"]:
        assert f'<th scope="row">{row["model"]}</th>' in html
        assert f"<td>{row['test_score_mean']:.3f}</td>" in html
