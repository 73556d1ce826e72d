"""An ensemble of trained models: what it predicts, what is in its folder, what is refused."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch

from hpgmn.base.calibration import Calibrator, fit_temperature, from_temperatures
from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import with_checksum
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import find_model
from hpgmn.models.stage import Replica
from hpgmn.training.ensemble import ENSEMBLE_FILE, SavedEnsemble, member_folder
from hpgmn.training.replicas import fit_replicas
from hpgmn.training.saved import SavedModel

# Of splits 1 and 0, two seeds each; "linkx" has weight in split 0 alone.
WEIGHTS = {
    "memory": [0.5, 0.0, 0.25, 0.25],
    "a/b": [0.25, 0.25, 0.0, 0.0],
    "linkx": [0.0, 0.0, 0.1, 0.4],
}


def models(members):
    return {name: model for name, (model, _) in members.items()}


@pytest.fixture
def ensemble(small_members):
    return SavedEnsemble.of(models(small_members), WEIGHTS, [1, 0])


@pytest.fixture
def folder(ensemble, tmp_path):
    ensemble.write(tmp_path)
    return tmp_path


def test_logits_are_the_weighted_mean_of_log_probabilities(ensemble, small_members, small_graph):
    expected = np.zeros((2, 18, 3))
    for name, (model, fitted) in small_members.items():
        for place, weight in enumerate(WEIGHTS[name]):
            scores = fitted.logits[place].double().numpy() * model.calibration[place, 0]
            logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
            expected[place // 2] += weight * logs
    np.testing.assert_allclose(ensemble.logits(small_graph), expected, atol=1e-5)
    assert ensemble.logits(small_graph) is ensemble.logits(small_graph)
    assert all(model._latest is None for model in ensemble.members.values())
    assert [replica.split for replica in ensemble.replicas] == [1, 0]
    for row, split in enumerate((1, 0)):
        train = small_graph.split(split).train
        expected_labels = np.where(train, small_graph.y, -1)
        np.testing.assert_array_equal(ensemble.train_labels[row], expected_labels)


def test_only_replicas_with_weight_are_kept(ensemble):
    pairs = {
        name: [(replica.split, replica.seed) for replica in model.replicas]
        for name, model in ensemble.members.items()
    }
    assert pairs == {
        "memory": [(1, 0), (0, 0), (0, 1)],
        "a/b": [(1, 0), (1, 1)],
        "linkx": [(0, 0), (0, 1)],
    }
    assert ensemble.mean_weights() == {"memory": 0.5, "a/b": 0.25, "linkx": 0.25}


def test_a_split_is_predicted_by_its_members_alone(ensemble, small_graph):
    every = ensemble.logits(small_graph)
    for position, names in ((0, ["memory", "a/b"]), (1, ["memory", "linkx"])):
        for chosen in (ensemble.choose([position]), _without_outputs(ensemble).choose([position])):
            assert list(chosen.members) == names
            torch.testing.assert_close(chosen.logits(small_graph), every[[position]])


def _without_outputs(ensemble):
    return SavedEnsemble(ensemble.members, ensemble.weights, ensemble.splits)


def test_temperatures_are_fitted_to_the_ensemble(ensemble, small_graph, tmp_path):
    logits = ensemble.logits(small_graph)
    val = [small_graph.split(1).val, small_graph.split(0).val]
    ensemble.calibration = Calibrator().fit(logits, small_graph.y, val)
    expected = [
        fit_temperature(row[torch.from_numpy(mask)].double().numpy(), small_graph.y[mask])
        for row, mask in zip(logits, val, strict=True)
    ]
    np.testing.assert_array_equal(ensemble.calibration, from_temperatures(expected, 3))
    ensemble.write(tmp_path)
    second = SavedEnsemble.read(tmp_path).choose([1])
    np.testing.assert_array_equal(second.calibration, from_temperatures(expected[1:], 3))
    chances = (logits[1].double() / expected[1]).softmax(dim=-1)
    torch.testing.assert_close(
        second.mean_probabilities(small_graph).double(), chances, atol=1e-6, rtol=0
    )


def test_some_nodes_are_predicted_as_among_all(ensemble, small_graph):
    nodes = np.array([2, 7, 17])
    some = ensemble.logits(small_graph, nodes=nodes)
    torch.testing.assert_close(some, ensemble.logits(small_graph)[:, nodes])


def test_what_is_read_is_what_was_written(ensemble, folder, small_graph):
    again = SavedEnsemble.read(folder)
    assert again.weights == ensemble.weights
    assert again.splits == [1, 0]
    assert torch.equal(again.logits(small_graph), ensemble.logits(small_graph))
    assert again.known_positions(small_graph) is None


def test_names_are_safe_for_paths(folder):
    assert member_folder("../x") != member_folder("--x") != "../x"
    assert "/" not in member_folder("a/b")
    assert sorted(path.name for path in (folder / "members").iterdir()) == sorted(
        map(member_folder, WEIGHTS)
    )


def test_a_folder_may_hold_more(folder, small_graph):
    (folder / "members" / "other").mkdir()
    (folder / "members" / "other" / "model.safetensors").write_text("no model")
    SavedEnsemble.read(folder).logits(small_graph)


def test_a_missing_member_is_named(folder):
    shutil.rmtree(folder / "members" / "linkx")
    with pytest.raises(HPGMNError, match="lacks its member 'linkx'"):
        SavedEnsemble.read(folder)


def test_a_damaged_member_is_named(folder):
    path = folder / "members" / "linkx" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(HPGMNError, match=r"linkx.model\.safetensors is damaged"):
        SavedEnsemble.read(folder)


def test_a_member_of_another_run_is_refused(folder, small_members):
    small_members["linkx"][0].write(folder / "members" / "linkx" / "model.safetensors")
    with pytest.raises(HPGMNError, match="not that of the member 'linkx'"):
        SavedEnsemble.read(folder)


@pytest.mark.parametrize(
    "change",
    [{"members": []}, {"members": [{"name": "memory"}]}, {"members": 3}, {"splits": [1, 0, 2]}],
)
def test_a_damaged_list_of_members_is_refused(folder, change):
    path = folder / ENSEMBLE_FILE
    content = json.loads(path.read_text()) | change
    path.write_text(json.dumps(content))
    with pytest.raises(HPGMNError, match=rf"{ENSEMBLE_FILE} is damaged .*checksum"):
        SavedEnsemble.read(folder)
    path.write_text(json.dumps(with_checksum(content)))
    with pytest.raises(HPGMNError, match=rf"{ENSEMBLE_FILE} is damaged"):
        SavedEnsemble.read(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}"])
def test_a_file_of_another_kind_is_refused(folder, text):
    (folder / ENSEMBLE_FILE).write_text(text)
    with pytest.raises(HPGMNError, match=ENSEMBLE_FILE):
        SavedEnsemble.read(folder)


def test_a_newer_format_is_refused(folder):
    path = folder / ENSEMBLE_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(HPGMNError, match="newer hpgmn"):
        SavedEnsemble.read(folder)


def test_a_model_that_is_no_member_is_refused(folder):
    with pytest.raises(HPGMNError, match="without the model 'own:Model'"):
        SavedEnsemble.read(folder, "own:Model")


def test_members_share_the_statistics_of_a_graph(ensemble, small_graph, monkeypatch):
    built = []
    kind = ensemble.members["memory"].on_graph(small_graph).task.statistics.__class__
    original = kind.__init__

    def count(self, *words, **named):
        built.append(1)
        original(self, *words, **named)

    ensemble.members["memory"].release()
    monkeypatch.setattr(kind, "__init__", count)
    ensemble.logits(small_graph)
    assert len(built) == 1


def test_new_nodes_are_known_by_their_ids(small_graph, small_members):
    ids = [f"n{number}" for number in range(18)]
    for model in models(small_members).values():
        model.node_ids = np.array(ids)
    weights = WEIGHTS | {"linkx": [0.0] * 4, "memory": [0.5, 0.0, 0.5, 0.5]}
    ensemble = SavedEnsemble.of(models(small_members), weights, [1, 0])
    grown = Graph(
        np.concatenate([small_graph.x, small_graph.x[:1]]),
        np.concatenate([small_graph.edge_index, [[18], [2]]], axis=1),
        node_ids=[*ids, "new"],
    )
    known = ensemble.known_positions(grown)
    assert known is not None
    assert known.tolist() == [*range(18), -1]
    every = ensemble.logits(grown)
    assert every.shape == (2, 19, 3)
    assert every.isfinite().all()
    some = ensemble.logits(grown, nodes=np.array([18]))
    torch.testing.assert_close(some[:, 0], every[:, 18])


OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_features, num_classes):
        super().__init__()
        self.out = nn.Linear(num_features, num_classes)

    def forward(self, x, edge_index):
        return self.out(x)
"""


def test_code_of_an_own_model_is_imported_only_when_it_is_named(
    small_graph, small_members, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_member.py").write_text(OWN)
    entry = find_model("own_member:Net")
    settings = make_settings(entry.settings, {"epochs": 2})
    replicas = [Replica(split, seed, settings) for split in (1, 0) for seed in (0, 1)]
    splits = [small_graph.split(replica.split) for replica in replicas]
    masks = [(split.train, split.val) for split in splits]
    fitted = fit_replicas(small_graph, entry, replicas, masks)
    own = SavedModel.of(entry, fitted, small_graph, [split.train for split in splits])
    members = models(small_members) | {"own": own}
    halves = [0.5, 0.0, 0.5, 0.0]
    weights = {name: [0.0] * 4 for name in members} | {"a/b": halves, "own": halves}
    ensemble = SavedEnsemble.of(members, weights, [1, 0])
    ensemble.write(tmp_path)
    del sys.modules["own_member"]
    with pytest.raises(HPGMNError, match="only when you name it"):
        SavedEnsemble.read(tmp_path)
    assert "own_member" not in sys.modules
    again = SavedEnsemble.read(tmp_path, "own_member:Net")
    assert torch.equal(again.logits(small_graph), ensemble.logits(small_graph))
    del sys.modules["own_member"]
