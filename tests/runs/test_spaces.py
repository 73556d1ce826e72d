"""Search spaces: known models and graphs, allowed values; settings from the literature."""

import pytest

from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.graph.datasets import DATASETS
from hpgmn.models import MODELS, find_model
from hpgmn.runs import spaces
from hpgmn.runs.search import sample_trials
from hpgmn.runs.spaces import kind_of, literature, paper_space, space_for

KINDS = {"texas": "webkb", "squirrel": "wikipedia", "crocodile": "crocodile", "cora": "citation"}


def test_datasets_have_a_kind():
    assert {graph: kind_of(graph) for graph in KINDS} == KINDS
    assert kind_of("cornell") == "webkb"
    assert kind_of("actor") == kind_of("unknown") == "other"


@pytest.mark.parametrize("graph", [*KINDS, "actor"])
def test_every_value_of_every_space_is_a_valid_setting(graph):
    for model in MODELS:
        cls = MODELS[model].settings
        space = space_for(model, graph)
        assert {"lr", "weight_decay", "epochs", "patience", "hidden_dim"} <= set(space)
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
    assert space_for("dirgcn", "squirrel")["out_share"] == [1.0]


def test_no_space_is_for_an_unknown_model_or_kind():
    content = spaces._content("spaces.yaml")
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


@pytest.mark.parametrize("graph", ["texas", "squirrel", "actor"])
def test_models_of_a_comparison_have_the_same_choice_of_neighbours(graph):
    ours, theirs = space_for("hpgmn", graph), space_for("gcn", graph)
    assert set(ours["neighbors"]) == set(theirs["neighbors"]) == {"undirected", "out"}
    assert min(ours["attributes_dropout"]) == min(theirs["attributes_dropout"]) == 0.0


def test_every_entry_of_the_literature_can_be_trained():
    for model, entries in spaces._content("literature.yaml").items():
        for entry in entries:
            assert all(graph == "default" or graph in DATASETS for graph in entry["graphs"])
            assert make_settings(find_model(model).settings, entry["settings"]).epochs <= 2000


def test_a_filtered_graph_uses_the_literature_of_the_whole_one():
    assert literature("dirgcn", "chameleon-filtered") == literature("dirgcn", "chameleon") != {}
    assert literature("fsgnn", "cornell") == literature("fsgnn", "cornell-geomgcn") != {}


def test_without_an_entry_the_literature_gives_nothing():
    assert literature("gcn", "texas") == literature("dirgcn", "texas") == {}
    assert literature("h2gcn", "texas") == literature("h2gcn", "unknown") != {}


def test_the_answer_of_the_literature_may_be_changed():
    literature("dirgcn", "squirrel")["layers"] = 99
    assert literature("dirgcn", "squirrel")["layers"] == 4
