"""The explanation of an ensemble: every member's vote, and one member in detail."""

import json

import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.explain.ensemble import explain_ensemble
from hpgmn.explain.explanation import columns_text
from hpgmn.explain.model import explain_model
from hpgmn.explain.node import explain_node
from hpgmn.training.ensemble import SavedEnsemble

WEIGHTS = {"memory": [0.25, 0, 0, 0], "a/b": [0.25, 0.5, 0, 0], "linkx": [0, 0, 0, 0]}


@pytest.fixture
def ensemble(small_members):
    return SavedEnsemble.of({name: pair[0] for name, pair in small_members.items()}, WEIGHTS, [1])


def test_a_node_is_explained_by_votes_and_one_member(ensemble, small_graph, small_members):
    for node in range(0, 18, 3):
        found = explain_ensemble(ensemble, small_graph, node)
        chances = ensemble.mean_probabilities(small_graph)[node]
        label = int(chances.argmax())
        assert found.prediction == str(label)
        assert found.probabilities == pytest.approx(dict(zip("012", chances.tolist(), strict=True)))
        assert [(vote.name, vote.model) for vote in found.members] == [
            ("a/b", "mlp"),
            ("memory", "hpgmn"),
        ]
        assert [vote.weight for vote in found.members] == [0.75, 0.25]
        model = small_members["memory"][0]
        own = (model.logits(small_graph)[0, node] * model.calibration[0, 0, 0]).softmax(dim=-1)
        agrees = int(own.argmax()) == label
        assert found.explained == ("memory" if agrees else "a/b")
        assert found.explanation == explain_node(
            ensemble.members[found.explained], small_graph, node
        )
        assert json.loads(json.dumps(found.as_dict()))["members"][1]["name"] == "memory"
        assert "weight 0.75" in str(found)
        assert "memory" in found._repr_html_()
        assert str(found.explanation) in str(found)


def test_the_whole_model_is_explained_by_hpgmn(ensemble, small_graph):
    found = explain_ensemble(ensemble, small_graph)
    assert found.explained == "memory"
    assert found.explanation == explain_model(ensemble.members["memory"], small_graph)
    assert found.prediction is None
    assert json.dumps(found.as_dict())
    assert str(found).startswith("Ensemble of 2 members")


@pytest.mark.parametrize(
    ("weights", "order"),
    [
        ({"hpgmn": 0.3, "boosting": 0.5, "mlp": 0.2}, ["hpgmn", "boosting", "mlp"]),
        ({"hpgmn": 0.15, "boosting": 0.85}, ["boosting", "hpgmn"]),
        ({"boosting": 0.2, "mlp": 0.8}, ["boosting", "mlp"]),
    ],
)
def test_a_member_of_little_weight_explains_nothing(small_graph, fit, weights, order):
    members = {name: fit(small_graph, name) for name in weights}
    ensemble = SavedEnsemble.of(members, {name: [one] for name, one in weights.items()}, [0])
    assert ensemble.explained() == order


def test_the_columns_are_those_of_one_named_member(small_graph, fit):
    members = {"hpgmn": fit(small_graph), "boosting": fit(small_graph, "boosting", min_leaf=1)}
    weights = {"hpgmn": [0.15], "boosting": [0.85]}
    found = explain_ensemble(SavedEnsemble.of(members, weights, [0]), small_graph)
    heading, *rest = columns_text(found).split("\n")
    assert "'boosting'" in heading
    assert "0.85" in heading
    _, rows = found.explanation.column_section()
    assert len([line for line in rest if line.startswith("  ")]) == len(rows) > 0
    alone = columns_text(explain_model(members["hpgmn"], small_graph))
    assert "pattern" not in alone


def test_an_unknown_node_is_refused(ensemble, small_graph):
    with pytest.raises(HPGMNError, match="no node '99'"):
        explain_ensemble(ensemble, small_graph, 99)


def test_votes_are_the_members_own_probabilities(ensemble, small_graph):
    found = explain_ensemble(ensemble, small_graph, 5)
    for vote in found.members:
        own = ensemble.members[vote.name].mean_probabilities(small_graph)[5]
        assert vote.probability == pytest.approx(float(own[int(found.prediction or 0)]))
        assert vote.prediction == str(int(torch.argmax(own)))
