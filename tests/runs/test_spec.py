"""The specification of a run, and what it was made with."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from hpgmn import __version__
from hpgmn.base.errors import GraphError, HPGMNError, SettingError
from hpgmn.base.settings import settings_dict
from hpgmn.graph import Graph
from hpgmn.models import MODELS, find_model
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.runs.spec import (
    RunSpec,
    changes,
    check_run,
    choose_metric,
    graph_content,
    make_spec,
    resolve_device,
    run_environment,
)

TINY = HPGMNSettings(
    hidden_dim=4,
    num_patterns=3,
    estimator_hidden=4,
    estimator_epochs=3,
    epochs=4,
    patience=0,
    neighbors="undirected",
    statistics=("attributes", "class_counts", "class_means", "diffusion"),
)
SPEC = RunSpec("small", "hpgmn", settings_dict(TINY), splits=(0, 1), seeds=2)


# The specification.


@pytest.mark.parametrize("model", [*MODELS, "own_model:TwoHop"])
def test_edge_direction_is_left_open_for_every_model_that_reads_one_at_a_time(
    model, small_graph, ring, monkeypatch
):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    options = {"model": model, "device": "cpu", "splits": "0"}
    directed = ring(12, splits=1)
    spec = make_spec(directed, "ring", options)
    names = {info.name: info.metadata["choices"] for info in fields(find_model(model).settings)}
    expected = [] if model.startswith("hpgmn") else list(names.get("neighbors", ()))
    assert spec.selection.get("neighbors", []) == expected
    assert "undirected" in expected or not expected
    both = ring(12, splits=1, both_ways=True)
    assert make_spec(both, "ring", options).selection == {}
    if expected:
        assert make_spec(directed, "ring", options, {"neighbors": "in"}).selection == {}
        config = options | {"settings": {"neighbors": "in"}}
        assert make_spec(directed, "ring", config).selection == {}


def test_shipped_settings_close_the_edge_direction(ring):
    options = {"model": "gcn", "device": "cpu", "splits": "0"}
    assert make_spec(ring(12, splits=1), "squirrel", options).selection == {}


def rates(**counts):
    """Labels with so many nodes of each class, and the names of the classes."""
    numbers = [number for number, count in enumerate(counts.values()) for _ in range(count)]
    return np.array(numbers), list(counts)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"a": 50, "b": 50}, "accuracy"),
        ({"a": 90, "b": 10}, "accuracy"),
        ({"a": 9, "b": 91}, "average_precision"),
        ({"a": 91, "b": 9}, "average_precision"),
        ({"a": 48, "b": 45, "c": 7}, "accuracy"),
        ({"a": 48, "b": 46, "c": 6}, "balanced_accuracy"),
        ({"a": 50, "b": 50, "c": 0}, "accuracy"),
    ],
)
def test_the_metric_fits_the_classes_of_the_train_nodes(counts, expected, ring):
    labels, names = rates(**counts)
    train = np.arange(200) < 100
    y = np.concatenate([labels, np.zeros(100, int)])
    masks = {"train_mask": train, "val_mask": ~train, "test_mask": np.zeros(200, bool)}
    graph = Graph(np.ones((200, 1)), np.zeros((2, 0), int), y, class_names=names, **masks)
    options: dict[str, Any] = {}
    [line] = choose_metric(graph, "mine", options)
    assert options == {"metric": expected}
    rarest = min((name for name in counts if counts[name]), key=lambda name: counts[name])
    assert expected in line
    assert (f"'{rarest}'" in line) == (expected != "accuracy")
    for known, source in (({"metric": "macro_f1"}, "mine"), ({}, "texas")):
        found = dict(known)
        assert choose_metric(graph, source, found) == []
        assert found == known


def test_a_specification_survives_its_config_file():
    spec = replace(SPEC, protocol="geom-gcn", metric="roc_auc", device="cuda")
    text = yaml.safe_dump(spec.as_dict(), sort_keys=False)
    assert RunSpec.from_dict(yaml.safe_load(text)) == spec
    assert yaml.safe_load(text)["version"] == __version__


@pytest.mark.parametrize("missing", ["graph", "model", "settings", "splits", "seeds", "metric"])
def test_an_incomplete_config_is_told(missing):
    content = SPEC.as_dict()
    del content[missing]
    with pytest.raises(SettingError, match=rf"incomplete or damaged \(KeyError\('{missing}'"):
        RunSpec.from_dict(content)


@pytest.mark.parametrize("changes", [{"splits": 3}, {"splits": ["a"]}, {"settings": 4}], ids=str)
def test_a_damaged_config_is_told(changes):
    with pytest.raises(SettingError, match="overwrite=True"):
        RunSpec.from_dict(SPEC.as_dict() | changes)


def test_devices_are_resolved(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == "cpu"
    with pytest.raises(HPGMNError, match=r"No CUDA device is available"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == resolve_device("cuda") == "cuda"


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"model": "hpgm"}, HPGMNError, "Did you mean 'hpgmn'"),
        ({"settings": {"lr": -1}}, SettingError, "'lr' must be at least 0"),
        ({"metric": "auc"}, SettingError, "Unknown metric 'auc'"),
        ({"metric": "precision@5"}, SettingError, "needs two classes .'small' has 3"),
        ({"seeds": 0}, SettingError, "Seeds must be 1 to 10,000 .got 0"),
        ({"splits": (0, 5)}, GraphError, "splits 0 to 1"),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused_first(small_graph, changes, error, told):
    with pytest.raises(error, match=told):
        check_run(replace(SPEC, **changes), small_graph)


def test_a_check_gives_splits_and_warnings(small_graph):
    chosen, warnings = check_run(replace(SPEC, splits=(1,)), small_graph)
    (split,) = chosen
    np.testing.assert_array_equal(split.train, small_graph.split(1).train)
    assert warnings == [
        "1 of 18 nodes have no edges (self-loops do not count).",
        "Classes '0', '1', '2' have fewer than 3 train nodes in the split: too few to learn "
        "from. Label more nodes, or merge classes.",
    ]


# The run.


# What a run was made with; tests/reliability/test_run_again.py trains again by it.


def changed(graph, **changes):
    """The same graph but for what is named."""
    assert graph.splits is not None
    masks = {f"{part}_mask": getattr(graph.splits, part) for part in ("train", "val", "test")}
    given = {"x": graph.x, "edge_index": graph.edge_index, "y": graph.y, **masks}
    return Graph(**(given | changes))


def test_what_bits_depend_on_is_told(small_graph):
    now = run_environment(small_graph, [0], "cpu")
    before = now | {"torch": "1.0", "threads": 9}
    config = {"graph": "g.npz", "version": "0.0.1", "made_with": before}
    (told,) = changes(config, now)
    assert "hpgmn 0.0.1 (now " in told
    assert f"torch 1.0 (now {now['torch']})" in told
    assert f"threads 9 (now {now['threads']})" in told
    assert "numpy" not in told
    assert changes({"graph": "g.npz"}, now) == []


def test_another_graph_is_told(small_graph):
    now = run_environment(small_graph, [0], "cpu")
    config = {"graph": "g.npz", "made_with": now | {"graph_content": "other"}}
    (told,) = changes(config, now)
    assert told.startswith("The graph g.npz has changed since")


def test_the_same_content_is_the_same(small_graph):
    assert graph_content(small_graph, [0]) == graph_content(changed(small_graph), [0])


@pytest.mark.parametrize("part", ["x", "edge_index", "y", "test_mask"])
def test_the_content_of_a_graph_is_all_that_a_run_reads(small_graph, part):
    whole = graph_content(small_graph, [0])
    assert small_graph.splits is not None
    if part == "test_mask":
        value: Any = np.array(small_graph.splits.test)
        value[np.flatnonzero(value[:, 0])[0], 0] = False
    else:
        value = np.array(getattr(small_graph, part))
        value.reshape(-1)[-1] = (value.reshape(-1)[-1] + 1) % 3
    assert graph_content(changed(small_graph, **{part: value}), [0]) != whole
    assert graph_content(small_graph, [1]) != whole
