"""Trials: spaces, plans, complete records, and no look at test labels."""

import json
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from hpgmn.base.settings import make_settings, per_replica_names, settings_dict
from hpgmn.base.version import __version__
from hpgmn.graph import Graph
from hpgmn.graph.datasets import DATASETS
from hpgmn.models import MODELS, find_model
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.models.stage import Replica
from hpgmn.runs import trials as module
from hpgmn.runs.trials import (
    best_record,
    kind_of,
    literature,
    paper_space,
    planned_trials,
    run_trials,
    sample_trials,
    space_for,
)
from hpgmn.training.replicas import fit_replicas

KINDS = {"texas": "webkb", "squirrel": "wikipedia", "crocodile": "crocodile", "cora": "citation"}
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


def masks_of(graph, splits=slice(None)):
    return {
        f"{part}_mask": getattr(graph.splits, part)[:, splits] for part in ("train", "val", "test")
    }


def without_time(records):
    return [{key: record[key] for key in record if key != "seconds"} for record in records]


# Spaces and the literature.


def test_datasets_have_a_kind():
    assert {graph: kind_of(graph) for graph in KINDS} == KINDS
    assert kind_of("cornell") == "webkb"
    assert kind_of("actor") == kind_of("unknown") == "other"


@pytest.mark.parametrize("graph", [*KINDS, "actor"])
def test_every_value_of_every_space_is_a_valid_setting(graph):
    for model in MODELS:
        cls = MODELS[model].settings
        space = space_for(model, graph)
        common = {"lr", "weight_decay", "epochs", "patience", "hidden_dim"}
        assert common & {info.name for info in fields(cls)} <= set(space)
        for name, values in space.items():
            chosen = [getattr(make_settings(cls, {name: value}), name) for value in values]
            assert chosen == values, (model, name)  # nothing is rounded or reordered
            assert len(set(chosen)) == len(chosen), (model, name)
        for trial in sample_trials(model, space, structures=2, each=2, seed=0):
            settings_dict(make_settings(cls, trial))


def test_the_values_of_a_model_override_the_shared_ones():
    assert space_for("gcn", "cora")["self_loop"] == [1.0]
    assert space_for("gcn", "texas")["self_loop"] == [1.0, 0.0]
    assert "neighbors" not in space_for("mlp", "texas")
    assert space_for("dirgcn", "squirrel")["layers"] == [3, 4, 5]


def test_no_space_is_for_an_unknown_model_or_kind():
    content = module._content("spaces.yaml")
    assert set(content["baselines"]) | set(content["hpgmn"]) <= set(MODELS)
    for kinds in (*content["baselines"].values(), *content["hpgmn"].values()):
        assert set(kinds) <= {"any", *KINDS.values(), "other"}


def test_a_model_has_one_space_for_each_kind_of_graph():
    assert space_for("hpgmn", "texas") == space_for("hpgmn", "cornell")
    assert space_for("hpgmn", "squirrel-filtered") == space_for("hpgmn", "squirrel")
    assert space_for("hpgmn", "actor") == space_for("hpgmn", "unknown")
    assert space_for("hpgmn", "actor")["neighbors"] == ["undirected", "out"]
    assert space_for("hpgmn-appnp", "actor") == space_for("hpgmn-appnp", "cora")


def test_the_space_of_the_paper_is_the_printed_one():
    space = paper_space()
    assert space["num_patterns"] == [20, 50, 100, 200, 300, 500]
    assert space["hidden_dim"] == [100, 200, 300, 500]
    weights = [10.0**exponent for exponent in range(-4, 3)]
    assert space["kpattern_weight"] == space["entropy_weight"] == weights


@pytest.mark.parametrize("graph", ["texas", "squirrel", "actor", "my-graph"])
@pytest.mark.parametrize("model", [name for name in MODELS if name != "mlp"])
def test_every_model_that_reads_edges_tries_directions(model, graph):
    if model in ("hpgmn-gcn", "hpgmn-appnp"):
        pytest.skip("searched on citation graphs alone")
    if model == "dirgcn":
        assert set(space_for(model, graph)["out_share"]) == {0.0, 0.5, 1.0}
    else:
        assert set(space_for(model, graph)["neighbors"]) >= {"out", "undirected"}


@pytest.mark.parametrize("graph", ["texas", "squirrel", "actor"])
def test_models_of_a_comparison_have_the_same_choice_of_neighbours(graph):
    ours, theirs = space_for("hpgmn", graph), space_for("gcn", graph)
    assert set(ours["neighbors"]) == set(theirs["neighbors"]) == {"undirected", "out"}
    assert min(ours["attributes_dropout"]) == min(theirs["attributes_dropout"]) == 0.0


def test_every_entry_of_the_literature_can_be_trained():
    for model, entries in module._content("literature.yaml").items():
        for entry in entries:
            assert all(graph == "default" or graph in DATASETS for graph in entry["graphs"])
            assert make_settings(find_model(model).settings, entry["settings"]).epochs <= 2000


def test_a_filtered_graph_uses_the_literature_of_the_unfiltered_one():
    assert literature("dirgcn", "chameleon-filtered") == literature("dirgcn", "chameleon") != {}
    assert literature("fsgnn", "cornell") == literature("fsgnn", "cornell-geomgcn") != {}
    assert literature("gcn", "texas") == literature("dirgcn", "texas") == {}
    assert literature("h2gcn", "texas") == literature("h2gcn", "unknown") != {}
    literature("dirgcn", "squirrel")["layers"] = 99  # a copy
    assert literature("dirgcn", "squirrel")["layers"] == 4


# Sampling and planning.


def test_samples_depend_on_the_seed_and_take_every_setting_from_the_space():
    trials = sample_trials("hpgmn", SPACE, 6, 5, seed=0)
    assert trials == sample_trials("hpgmn", SPACE, 6, 5, seed=0)
    assert trials != sample_trials("hpgmn", SPACE, 6, 5, seed=1)
    assert len(trials) == 30
    assert all(trial.keys() == SPACE.keys() for trial in trials)
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


def test_a_plan_starts_with_the_literature_and_continues_at_random():
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


# Training.


def test_records_are_complete_and_scores_those_of_training_alone(small_graph):
    trials = trials_of()
    records = run_trials(small_graph, "hpgmn", trials, splits=[1, 0], seeds=2)
    assert len(records) == 3
    runs = [(split, seed) for split in (1, 0) for seed in range(2)]
    for trial, record in zip(trials, records, strict=True):
        assert set(record) == KEYS
        assert record["trial"] == trial
        assert record["settings"] == settings_dict(make_settings(HPGMNSettings, trial))
        assert (record["graph"], record["model"]) == ("small", "hpgmn")
        assert (record["splits"], record["seeds"], record["metric"]) == ([1, 0], 2, "accuracy")
        assert (record["version"], record["device"]) == (__version__, "cpu")
        assert record["val_score_mean"] == pytest.approx(np.mean(record["val_score"]))
        assert record["seconds"] > 0
        json.dumps(record)
        assert len(record["best_epoch"]) == len(record["val_score"]) == len(runs)
        for place, (split, seed) in enumerate(runs):
            replica = Replica(split, seed, make_settings(HPGMNSettings, trial))
            masks = [(small_graph.split(split).train, small_graph.split(split).val)]
            alone = fit_replicas(small_graph, MODELS["hpgmn"], [replica], masks)
            assert record["val_score"][place] == float(alone.val_score[0])
            assert record["val_loss"][place] == pytest.approx(float(alone.val_loss[0]), abs=1e-3)
            assert record["best_epoch"][place] == int(alone.best_epoch["main"][0])


def test_trials_of_different_shapes_are_trained_side_by_side(small_graph):
    trials = sample_trials("hpgmn", SPACE, 3, 1, seed=4)
    assert len({(trial["hidden_dim"], trial["statistics"]) for trial in trials}) > 1
    together = run_trials(small_graph, "hpgmn", trials, splits=[0, 1])
    for trial, record in zip(trials, together, strict=True):
        (alone,) = run_trials(small_graph, "hpgmn", [trial], splits=[0, 1])
        assert record["trial"] == trial
        assert record["val_score"] == alone["val_score"]
        assert record["val_loss"] == pytest.approx(alone["val_loss"], abs=1e-3)


def test_test_labels_change_nothing(small_graph):
    """Neither those that no split trains on, nor all of a graph with one split."""
    for splits in (slice(None), slice(1)):
        masks = masks_of(small_graph, splits)
        y, hidden = small_graph.y.copy(), masks["test_mask"].all(axis=1)
        assert hidden.any()
        y[hidden] = (y[hidden] + 1) % 3
        other = Graph(small_graph.x, small_graph.edge_index, y, name="small", **masks)
        numbers = range(masks["test_mask"].shape[1])
        before = run_trials(small_graph, "hpgmn", trials_of(), splits=numbers)
        after = run_trials(other, "hpgmn", trials_of(), splits=numbers)
        assert without_time(before) == without_time(after)
        assert not any("test" in key for record in before for key in record)


def test_the_metric_selects_and_is_recorded(small_graph):
    graph = Graph(small_graph.x, small_graph.edge_index, small_graph.y % 2, **masks_of(small_graph))
    (record,) = run_trials(graph, "hpgmn", trials_of(1), splits=[0], metric="roc_auc")
    assert record["metric"] == "roc_auc"


def test_trials_report_progress_and_stop_on_request(small_graph):
    epochs: list[int] = []
    options: dict[str, Any] = {"splits": [0], "report": lambda now: epochs.append(now.epoch)}
    run_trials(small_graph, "mlp", [{"epochs": 3, "patience": 0}], **options)
    assert epochs == [1, 2, 3]
    settings = [{"epochs": 9, "patience": 0}]
    with pytest.raises(KeyboardInterrupt):
        run_trials(small_graph, "mlp", settings, should_stop=lambda: len(epochs) >= 5, **options)
    assert epochs == [1, 2, 3, 1, 2]


def test_trials_use_their_share_of_the_memory(small_graph, monkeypatch):
    shares = []

    def at_once(*given):
        shares.append(given[4])
        return 1

    monkeypatch.setattr("hpgmn.training.replicas.replicas_at_once", at_once)
    run_trials(small_graph, "mlp", [{"epochs": 1}], splits=[0, 1], memory_share=0.25)
    assert shares == [0.25]


def test_the_best_has_the_highest_score_then_the_lowest_loss():
    records = [
        {"name": name, "val_score_mean": score, "val_loss": losses}
        for name, score, losses in (
            ("low", 0.7, [0.1]),
            ("tied, worse loss", 0.8, [0.5, 0.7]),
            ("tied, better loss", 0.8, [0.5, 0.3]),
        )
    ]
    assert best_record(records)["name"] == "tied, better loss"
    assert best_record(records[:2])["name"] == "tied, worse loss"
