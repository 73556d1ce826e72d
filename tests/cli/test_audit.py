"""``hpgmn audit``: findings first, numbers after, JSON alone, and errors in one sentence."""

import json
import os
import re
import signal

import numpy as np
import pytest

from hpgmn.auditing import audit
from hpgmn.graph import Graph
from hpgmn.graph.datasets import load
from hpgmn.graph.files import write_graph


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Short trainings on a terminal of 80 columns."""
    from hpgmn.auditing import usefulness

    short = {"hidden_dim": 4, "epochs": 2, "estimator_epochs": 2}
    monkeypatch.setattr(usefulness, "SETTINGS", usefulness.SETTINGS | short)
    monkeypatch.setenv("COLUMNS", "80")


def test_json_is_the_audit_and_nothing_else(hpgmn, graph_file):
    answer = hpgmn("audit", graph_file, "--json", "--no-training", "--split", 1)
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out) == audit(load(graph_file), 1, training=False).as_dict()


def test_json_of_a_trained_audit(hpgmn, graph_file):
    answer = hpgmn("audit", graph_file, "--json")
    assert answer.code == 0
    result, own = json.loads(answer.out), audit(load(graph_file)).as_dict()
    assert result["usefulness"].pop("seconds") > 0
    own["usefulness"].pop("seconds")
    assert result == own


def test_the_page_begins_with_the_findings_and_fits(hpgmn, graph_file):
    answer = hpgmn("audit", graph_file)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0] == "small: 18 nodes, 49 directed edges, 5 attributes, 3 classes"
    result = audit(load(graph_file))
    assert result.usefulness is not None
    counts = [
        sum(one.severity == severity for one in result.findings)
        for severity in ("defect", "warning")
    ]
    assert lines[2].startswith("Findings (split 0): ")
    assert [int(word.split()[0]) for word in lines[2].partition(": ")[2].split(",")][:2] == counts
    text = " ".join(answer.out.split())
    for one in result.findings:
        assert " ".join(f"{one.message} → {one.remedy.render(cli=True)}".split()) in text
    for one in result.usefulness.contributions:
        assert f" {100 * one.score:.1f} " in text
    assert f"adjusted {result.homophily.adjusted:.3f}" in text
    degrees = result.structure.out_degrees
    assert f" out {degrees.least} {degrees.median:g} {degrees.most} {degrees.without} " in text


def test_without_training_there_is_no_verdict(hpgmn, graph_file):
    answer = hpgmn("audit", graph_file, "--no-training")
    assert answer.code == 0
    assert "Does the graph help" not in answer.out
    assert "Homophily" in answer.out


def test_a_page_of_hardly_any_graph(hpgmn, tmp_path):
    """No split, one label, many class names, square brackets, no pair of labelled neighbours."""
    names = [f"[red]{number}" for number in range(15)]
    y = [-1, -1, 14]
    graph = Graph([[1.0], [2.0], [3.0]], [[0, 1], [1, 0]], y, class_names=names)
    write_graph(graph, tmp_path / "hardly.npz")
    answer = hpgmn("audit", tmp_path / "hardly.npz")
    assert answer.code == 0
    assert "Findings (no split): 1 defect, " in answer.out
    assert "[red]14" in answer.out
    assert "3 others" in answer.out
    assert "without a label" in answer.out
    assert re.search(r"^edge +–", answer.out, re.MULTILINE)
    assert answer.out.count("the same neighbours") == 1


def test_large_graphs_note_that_nodes_were_sampled(hpgmn, graph_file, monkeypatch):
    from hpgmn.auditing import usefulness

    monkeypatch.setattr(usefulness, "LARGE", 10)
    monkeypatch.setattr(usefulness, "MOST_NODES", {"train": 5, "val": 5})
    text = " ".join(hpgmn("audit", graph_file).out.split())
    assert "5 train and 5 validation nodes (a sample), mean of 1 seed," in text


def test_columns_are_counted_and_a_sample_is_noted(hpgmn, small_graph, tmp_path, monkeypatch):
    from hpgmn.auditing import measures

    x = np.column_stack([small_graph.x, np.zeros((18, 2)), np.ones(18)])
    graph = Graph(x, small_graph.edge_index, small_graph.y)
    write_graph(graph, tmp_path / "columns.npz")
    result = audit(load(tmp_path / "columns.npz"), training=False).columns
    text = " ".join(hpgmn("audit", tmp_path / "columns.npz", "--no-training").out.split())
    assert f"determine the label 8 2 1 {len(result.giveaways)} Each column alone, on 15 " in text
    monkeypatch.setattr(measures, "MOST_VALUES", 80)
    monkeypatch.setattr(measures, "FEWEST_NODES", 5)
    text = " ".join(hpgmn("audit", tmp_path / "columns.npz", "--no-training").out.split())
    assert "train and validation nodes (a sample);" in text


def test_two_skewed_classes_are_shown_as_roc_auc(hpgmn, tmp_path):
    random = np.random.default_rng(0)
    y = (np.arange(60) % 6 == 0).astype(int)
    graph = Graph(random.normal(size=(60, 2)), random.integers(0, 60, (2, 200)), y)
    write_graph(graph, tmp_path / "skewed.npz")
    assert "ROC-AUC %" in hpgmn("audit", tmp_path / "skewed.npz").out


def test_a_split_that_is_not_there_is_refused(hpgmn, graph_file):
    answer = hpgmn("audit", graph_file, "--split", 2)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "Error: Graph 'small' has splits 0 to 1 (got 2). Choose one.\n"


def test_an_unknown_protocol_is_refused(hpgmn, graph_file):
    answer = hpgmn("audit", graph_file, "--protocol", "papers")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("Error: Unknown protocol 'papers'.")


def test_a_protocol_brings_its_splits(hpgmn, data_dir):
    if not (data_dir / "cora.npz").exists():
        pytest.skip("cora.npz is not in the folder of graph files")
    answer = hpgmn(
        "audit", "cora", "--protocol", "geom-gcn", "--split", 9, "--no-training", "--json"
    )
    assert answer.code == 0
    assert json.loads(answer.out) == audit(load("cora", "geom-gcn"), 9, training=False).as_dict()


def test_ctrl_c_ends_it(hpgmn, graph_file, monkeypatch):
    from hpgmn.auditing import usefulness

    fit, started = usefulness.fit_replicas, []

    def interrupted(*arguments, **options):
        started.append(arguments)
        os.kill(os.getpid(), signal.SIGINT)
        return fit(*arguments, **options)

    monkeypatch.setattr(usefulness, "fit_replicas", interrupted)
    answer = hpgmn("audit", graph_file)
    assert (answer.code, answer.out, len(started)) == (130, "", 1)
