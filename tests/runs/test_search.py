"""The random search: seeded, complete in its records, blind to test labels."""

import json
from typing import Any

import numpy as np
import pytest

from hpgmn.base.settings import make_settings, per_replica_names, settings_dict
from hpgmn.base.version import __version__
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.models.stage import Replica
from hpgmn.runs.search import append_record, best_trials, planned_trials, run_trials, sample_trials
from hpgmn.runs.spaces import literature, space_for
from hpgmn.training.replicas import fit_replicas

SPACE: dict[str, list[Any]] = {
    "hidden_dim": [4, 6],
    "num_patterns": [3, 5],
    "epochs": [4],
    "estimator_epochs": [3],
    "estimator_hidden": [4],
    "statistics": [("attributes", "class_counts"), ("attributes", "diffusion")],
    "neighbors": ["undirected"],
    "lr": [0.003, 0.01, 0.03],
    "dropout": [0.0, 0.2, 0.5],
}
KEYS = {
    *("graph", "model", "trial", "settings", "splits", "seeds", "metric", "val_score_mean"),
    *("val_score", "val_loss", "best_epoch", "seconds", "version", "device"),
}


def trials_of(each=3, seed=0):
    return sample_trials("hpgmn", SPACE, 1, each, seed)


def shuffled(graph):
    """The same graph with other labels on nodes that are test nodes of both splits."""
    splits = graph.splits
    assert splits is not None
    y, hidden = graph.y.copy(), splits.test.all(axis=1)
    assert hidden.any()
    y[hidden] = (y[hidden] + 1) % 3
    masks = {f"{part}_mask": getattr(splits, part) for part in ("train", "val", "test")}
    return Graph(graph.x, graph.edge_index, y, name=graph.name, **masks)


def without_time(records):
    return [{key: value for key, value in one.items() if key != "seconds"} for one in records]


# Sampling.


def test_the_seed_decides_what_is_tried():
    one = sample_trials("hpgmn", SPACE, 4, 5, seed=1)
    assert one == sample_trials("hpgmn", SPACE, 4, 5, seed=1)
    assert one != sample_trials("hpgmn", SPACE, 4, 5, seed=2)


def test_trials_take_every_setting_from_the_space():
    trials = sample_trials("hpgmn", SPACE, 6, 5, seed=0)
    assert len(trials) == 30
    for trial in trials:
        assert trial.keys() == SPACE.keys()
        assert all(value in SPACE[name] for name, value in trial.items())
    for name, values in SPACE.items():
        assert {str(trial[name]) for trial in trials} == {str(value) for value in values}


def test_variants_share_the_shapes_of_their_structure():
    free = per_replica_names(HPGMNSettings)
    trials = sample_trials("hpgmn", SPACE, 4, 5, seed=0)
    for first in range(0, 20, 5):
        shapes = {
            str([value for name, value in trial.items() if name not in free])
            for trial in trials[first : first + 5]
        }
        assert len(shapes) == 1
    assert len({str(trial) for trial in trials}) > 4


# The plan of a comparison.


def test_a_plan_starts_with_the_literature_and_goes_on_at_random():
    planned = planned_trials("fsgnn", "chameleon", 8)
    assert len(planned) == 8
    assert planned[0] == literature("fsgnn", "chameleon")
    space = space_for("fsgnn", "chameleon")
    for trial in planned[1:]:
        assert trial.keys() == space.keys()
        assert all(value in space[name] for name, value in trial.items())
    assert planned_trials("fsgnn", "chameleon", 5) == planned[:5]
    free = per_replica_names(MODELS["fsgnn"].settings)
    shapes = [str([v for name, v in trial.items() if name not in free]) for trial in planned[1:]]
    assert shapes[0] == shapes[1] == shapes[2]
    assert shapes[3] == shapes[4] == shapes[5]


def test_a_plan_can_draw_from_another_space():
    planned = planned_trials("hpgmn", "texas", 4, SPACE)
    assert planned[0] == {}
    assert all(trial.keys() == SPACE.keys() for trial in planned[1:])
    with pytest.raises(ValueError, match="at least one trial"):
        planned_trials("hpgmn", "texas", 0)


# Running.


def test_records_are_complete(small_graph):
    told: list[dict[str, Any]] = []
    trials = trials_of()
    records = run_trials(small_graph, "hpgmn", trials, splits=[1, 0], seeds=2, record=told.append)
    assert told == records
    assert len(records) == 3
    for trial, found in zip(trials, records, strict=True):
        assert set(found) == KEYS
        assert found["trial"] == trial
        assert found["settings"] == settings_dict(make_settings(HPGMNSettings, trial))
        assert (found["graph"], found["model"]) == ("small", "hpgmn")
        assert (found["splits"], found["seeds"], found["metric"]) == ([1, 0], 2, "accuracy")
        assert (found["version"], found["device"]) == (__version__, "cpu")
        for key in ("val_score", "val_loss", "best_epoch"):
            assert len(found[key]) == 4
        assert found["val_score_mean"] == pytest.approx(np.mean(found["val_score"]))
        assert all(1 <= epoch <= 4 for epoch in found["best_epoch"])
        assert found["seconds"] > 0
        json.dumps(found)


def test_the_scores_are_those_of_training_alone(small_graph):
    trials = trials_of()
    records = run_trials(small_graph, "hpgmn", trials, splits=[1, 0], seeds=2)
    for trial, found in zip(trials, records, strict=True):
        runs = [(split, seed) for split in (1, 0) for seed in range(2)]
        for place, (split, seed) in enumerate(runs):
            replica = Replica(split, seed, make_settings(HPGMNSettings, trial))
            masks = [(small_graph.split(split).train, small_graph.split(split).val)]
            alone = fit_replicas(small_graph, MODELS["hpgmn"], [replica], masks)
            assert found["val_score"][place] == float(alone.val_score[0])
            assert found["val_loss"][place] == pytest.approx(float(alone.val_loss[0]), abs=1e-3)


def test_structures_are_searched_side_by_side(small_graph):
    """Trials of different shapes in one call give what each gives alone."""
    trials = sample_trials("hpgmn", SPACE, 3, 1, seed=4)
    assert len({(trial["hidden_dim"], trial["statistics"]) for trial in trials}) > 1
    together = run_trials(small_graph, "hpgmn", trials, splits=[0, 1])
    for trial, found in zip(trials, together, strict=True):
        (alone,) = run_trials(small_graph, "hpgmn", [trial], splits=[0, 1])
        assert found["trial"] == trial
        assert found["val_score"] == alone["val_score"]
        assert found["val_loss"] == pytest.approx(alone["val_loss"], abs=1e-3)


def test_the_search_never_looks_at_test_labels(small_graph):
    trials = trials_of()
    before = run_trials(small_graph, "hpgmn", trials, splits=[0, 1])
    after = run_trials(shuffled(small_graph), "hpgmn", trials, splits=[0, 1])
    assert without_time(before) == without_time(after)
    assert not any("test" in key for found in before for key in found)


def test_the_search_of_one_split_never_looks_at_its_test_labels(small_graph):
    """All test labels of the split, not only those that no other split trains on."""
    splits = small_graph.splits
    assert splits is not None
    y, test = small_graph.y.copy(), splits.test[:, 0]
    y[test] = (y[test] + 1) % 3
    masks = {f"{p}_mask": getattr(splits, p)[:, :1] for p in ("train", "val", "test")}
    other = Graph(small_graph.x, small_graph.edge_index, y, name="small", **masks)
    before = run_trials(small_graph, "hpgmn", trials_of(), splits=[0])
    after = run_trials(other, "hpgmn", trials_of(), splits=[0])
    assert without_time(before) == without_time(after)


def test_another_metric_is_used_where_asked(small_graph):
    splits = small_graph.splits
    assert splits is not None
    masks = {f"{part}_mask": getattr(splits, part) for part in ("train", "val", "test")}
    graph = Graph(small_graph.x, small_graph.edge_index, small_graph.y % 2, **masks)
    (found,) = run_trials(graph, "hpgmn", trials_of(1), splits=[0], metric="roc_auc")
    assert found["metric"] == "roc_auc"


# Records and the choice among them.


def test_records_are_appended_line_by_line(tmp_path):
    path = tmp_path / "new" / "records.jsonl"
    append_record(path, {"a": 1})
    append_record(path, {"a": 2})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"a": 1}, {"a": 2}]


def record_of(name, score, *losses):
    return {"name": name, "val_score_mean": score, "val_loss": list(losses)}


def test_the_best_have_the_highest_score_then_the_lowest_loss():
    records = [
        record_of("low", 0.7, 0.1),
        record_of("tied, worse loss", 0.8, 0.5, 0.7),
        record_of("tied, better loss", 0.8, 0.5, 0.3),
        record_of("high", 0.9, 2.0),
    ]
    names = [one["name"] for one in best_trials(records, 3)]
    assert names == ["high", "tied, better loss", "tied, worse loss"]
    assert [one["name"] for one in best_trials(records)] == ["high"]


def test_trials_tell_their_progress_and_stop_when_asked(small_graph):
    told: list[int] = []
    options: dict[str, Any] = {"splits": [0], "report": lambda now: told.append(now.epoch)}
    run_trials(small_graph, "mlp", [{"epochs": 3, "patience": 0}], **options)
    assert told == [1, 2, 3]
    with pytest.raises(KeyboardInterrupt):
        run_trials(
            small_graph,
            "mlp",
            [{"epochs": 9, "patience": 0}],
            should_stop=lambda: len(told) >= 5,
            **options,
        )
    assert told == [1, 2, 3, 1, 2]


def test_trials_take_their_share_of_the_memory(small_graph, monkeypatch):
    shares = []

    def at_once(*given):
        shares.append(given[4])
        return 1

    monkeypatch.setattr("hpgmn.training.replicas.replicas_at_once", at_once)
    run_trials(small_graph, "mlp", [{"epochs": 1}], splits=[0, 1], memory_share=0.25)
    assert shares == [0.25]
