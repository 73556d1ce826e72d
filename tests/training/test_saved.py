"""A trained model on disk: what is in the file, what comes back, what is refused."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hpgmn.base.calibration import Calibrator, fit_temperature, from_temperatures
from hpgmn.base.errors import GraphError, HPGMNError
from hpgmn.base.files import RUN_FORMAT, _tensor_checksum
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.models.propagated import PropagatedSettings
from hpgmn.models.stage import Replica
from hpgmn.statistics import definitions
from hpgmn.training.replicas import fit_replicas
from hpgmn.training.saved import SavedModel

TINY = HPGMNSettings(
    hidden_dim=4,
    num_patterns=3,
    estimator_hidden=4,
    estimator_epochs=3,
    epochs=3,
    neighbors="undirected",
    statistics=("attributes", "class_counts", "class_means", "diffusion"),
)


def trained(graph, settings=TINY, model="hpgmn"):
    """Two replicas, one on each split, the second with another learning rate."""
    replicas = [Replica(0, 5, settings), Replica(1, 6, replace(settings, lr=0.05))]
    splits = [graph.split(0), graph.split(1)]
    masks = [(split.train, split.val) for split in splits]
    fitted = fit_replicas(graph, MODELS[model], replicas, masks)
    return SavedModel.of(MODELS[model], fitted, graph, [split.train for split in splits]), fitted


def about_of(path):
    with safe_open(str(path), framework="pt") as file:
        found: dict[str, Any] = json.loads(file.metadata()["about"])
    return found


def rewrite(path, about):
    """The same tensors with another description."""
    save_file(load_file(path), path, metadata={"about": json.dumps(about)})


@pytest.fixture
def saved(small_graph, tmp_path):
    path = tmp_path / "model.safetensors"
    trained(small_graph)[0].write(path)
    return path


def test_what_is_read_predicts_the_bits_of_what_was_fitted(small_graph, tmp_path):
    model, fitted = trained(small_graph)
    model.write(tmp_path / "m.safetensors")
    found = SavedModel.read(tmp_path / "m.safetensors")
    assert torch.equal(found.logits(small_graph), fitted.logits)
    tensors = [value for values in found.done.values() for value in values.values()]
    assert not any(value.data_ptr() % 64 for value in tensors)  # last bits depend on alignment
    assert found.replicas == fitted.replicas
    assert found.class_names == ("0", "1", "2")
    assert found.entry is MODELS["hpgmn"]
    assert list(tmp_path.iterdir()) == [tmp_path / "m.safetensors"]


def test_the_file_knows_train_labels_only(small_graph, saved):
    labels = load_file(saved)["train_labels"].numpy()
    for split in range(2):
        train = small_graph.split(split).train
        np.testing.assert_array_equal(labels[split, train], small_graph.y[train])
        assert (labels[split, ~train] == -1).all()


def test_the_estimator_is_kept_where_there_is_one(small_graph, saved):
    guesses = SavedModel.read(saved).on_graph(small_graph).estimator_logits
    assert guesses is not None
    assert guesses.shape == (2, 18, 3)
    settings = PropagatedSettings(
        hidden_dim=4, query_dim=4, num_patterns=3, epochs=2, pretraining_epochs=2
    )
    model, fitted = trained(small_graph, settings, "hpgmn-gcn")
    assert model.on_graph(small_graph).estimator_logits is None
    assert torch.equal(model.logits(small_graph), fitted.logits)


def test_without_its_estimator_a_model_cannot_be_used(small_graph):
    model, _ = trained(small_graph)
    model.require_stages()
    del model.done["estimator"]
    for use in (model.require_stages, lambda: model.logits(small_graph)):
        with pytest.raises(HPGMNError, match="hpgmn shard --labels estimated"):
            use()


def test_some_replicas_can_be_chosen(small_graph, saved):
    model = SavedModel.read(saved)
    both = model.logits(small_graph)
    for place in range(2):
        one = model.choose([place])
        assert [replica.seed for replica in one.replicas] == [5 + place]
        torch.testing.assert_close(one.logits(small_graph)[0], both[place], atol=1e-5, rtol=1e-5)


def test_node_ids_and_class_names_come_back(small_graph, tmp_path):
    assert small_graph.splits is not None
    graph = Graph(
        small_graph.x,
        small_graph.edge_index,
        small_graph.y,
        train_mask=small_graph.splits.train,
        val_mask=small_graph.splits.val,
        node_ids=[f"ä {number}" for number in range(18)],
        class_names=["rot", "grün", "blau"],
    )
    path = tmp_path / "m.safetensors"
    trained(graph)[0].write(path)
    found = SavedModel.read(path)
    assert found.node_ids is not None
    assert found.node_ids.tolist() == [f"ä {number}" for number in range(18)]
    assert found.class_names == ("rot", "grün", "blau")


def test_known_nodes_of_another_graph_keep_their_train_labels(small_graph, tmp_path):
    """A label that is known at a neighbour is counted, wherever the neighbour stands."""
    assert small_graph.splits is not None
    ids = np.array([f"n{number}" for number in range(18)])
    graph = Graph(
        small_graph.x,
        small_graph.edge_index,
        small_graph.y,
        train_mask=small_graph.splits.train,
        val_mask=small_graph.splits.val,
        node_ids=ids,
    )
    model, fitted = trained(graph)
    part = np.arange(17, -1, -1)  # turned round
    other = Graph(graph.x[part], 17 - graph.edge_index, node_ids=ids[part])
    torch.testing.assert_close(model.logits(other), fitted.logits[:, part], atol=1e-5, rtol=1e-4)


def test_new_nodes_have_no_label_and_no_column(small_graph):
    settings = replace(TINY, statistics=("attributes", "class_counts", "class_means"))
    model, _ = trained(small_graph, settings)
    other = Graph(small_graph.x + 1, small_graph.edge_index)
    task = model.on_graph(other).task
    assert (task.train_labels == -1).all()
    assert (task.val_labels == -1).all()
    assert task.train_labels.shape == (2, 18)


# Files that are refused.


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(HPGMNError, match="does not exist"):
        SavedModel.read(tmp_path / "none.safetensors")


def test_a_newer_format_is_told(saved):
    rewrite(saved, about_of(saved) | {"format": RUN_FORMAT + 1})
    with pytest.raises(
        HPGMNError, match=rf"newer hpgmn \(format {RUN_FORMAT + 1}, .* {RUN_FORMAT}\)"
    ):
        SavedModel.read(saved)


@pytest.mark.parametrize(
    "about", [[], 3, {"format": RUN_FORMAT}, {"format": RUN_FORMAT, "checksum": 0}]
)
def test_a_file_of_another_kind_is_told(saved, about):
    rewrite(saved, about)
    with pytest.raises(HPGMNError, match="is damaged or not an hpgmn file"):
        SavedModel.read(saved)


def test_a_changed_setting_is_told(saved):
    about = about_of(saved)
    about["replicas"][0]["settings"]["teleport"] = 0.5
    rewrite(saved, about)
    with pytest.raises(HPGMNError, match="its checksum differs"):
        SavedModel.read(saved)


def test_a_changed_weight_is_told(saved):
    tensors, about = load_file(saved), about_of(saved)
    tensors["main/head.memory.patterns"][0, 0, 0] += 1e-6
    save_file(tensors, saved, metadata={"about": json.dumps(about)})
    with pytest.raises(HPGMNError, match="its checksum differs"):
        SavedModel.read(saved)


def test_a_file_of_other_tensors_is_told(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "a.safetensors")
    with pytest.raises(HPGMNError, match="is damaged or not an hpgmn file"):
        SavedModel.read(tmp_path / "a.safetensors")


def test_a_model_tied_to_its_nodes_refuses_a_graph_of_strangers(small_graph):
    entry = MODELS["linkx"]
    split = small_graph.split(0)
    replica = Replica(0, 0, make_settings(entry.settings, {"epochs": 2, "hidden_dim": 4}))
    fitted = fit_replicas(small_graph, entry, [replica], [(split.train, split.val)])
    saved = SavedModel.of(entry, fitted, small_graph, [split.train])
    strangers = Graph(small_graph.x[:9], small_graph.edge_index % 9)
    with pytest.raises(HPGMNError, match=r"statistics=\(\"attributes\", \"class_counts"):
        saved.logits(strangers)


# The sketch of the diffusion belongs to no node.


def strangers(graph):
    return Graph(graph.x[:9] + 1, graph.edge_index % 9, name="strangers")


def test_a_model_on_a_sketch_serves_a_graph_of_strangers(small_graph, tmp_path):
    model, fitted = trained(small_graph, replace(TINY, diffusion_form="sketch", diffusion_dim=16))
    model.write(tmp_path / "m.safetensors")
    found = SavedModel.read(tmp_path / "m.safetensors")
    assert torch.equal(found.logits(small_graph), fitted.logits)
    chances = found.logits(strangers(small_graph))
    assert chances.shape == (2, 9, 3)
    assert chances.isfinite().all()


def test_a_model_keeps_the_sketch_of_class_means_that_auto_took(small_graph, tmp_path, monkeypatch):
    settings = replace(TINY, statistics=("class_means",), batch_size=3, class_means_dim=4)
    with monkeypatch.context() as patch:
        patch.setattr(definitions, "ROWS_LIMIT_BYTES", 0)
        model, fitted = trained(small_graph, settings)
    model.write(tmp_path / "m.safetensors")
    found = SavedModel.read(tmp_path / "m.safetensors")
    assert found.replicas[0].settings.class_means_form == "sketch"
    assert torch.equal(found.logits(small_graph), fitted.logits)
    assert found.logits(strangers(small_graph)).shape == (2, 9, 3)


def test_known_names_keep_their_directions(small_graph):
    assert small_graph.splits is not None
    ids = np.array([f"n{number}" for number in range(18)])
    graph = Graph(
        small_graph.x,
        small_graph.edge_index,
        small_graph.y,
        train_mask=small_graph.splits.train,
        val_mask=small_graph.splits.val,
        node_ids=ids,
    )
    model, fitted = trained(graph, replace(TINY, diffusion_form="sketch"))
    part = np.arange(17, -1, -1)  # turned round
    other = Graph(graph.x[part], 17 - graph.edge_index, node_ids=ids[part])
    torch.testing.assert_close(model.logits(other), fitted.logits[:, part], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("form", ["dense", "implicit", "topk"])
def test_a_form_whose_columns_are_nodes_refuses_strangers(small_graph, form):
    model, _ = trained(small_graph, replace(TINY, diffusion_form=form))
    with pytest.raises(HPGMNError, match=r"reads diffusion rows.*diffusion_form=\"sketch\""):
        model.logits(strangers(small_graph))


def test_beside_a_sketch_adjacency_rows_still_belong_to_their_nodes(small_graph):
    statistics = ("attributes", "diffusion", "adjacency")
    model, _ = trained(small_graph, replace(TINY, diffusion_form="sketch", statistics=statistics))
    told = r"reads adjacency rows.*statistics=\(\"attributes\", \"diffusion\"\)"
    with pytest.raises(HPGMNError, match=told):
        model.logits(strangers(small_graph))


def test_a_sketch_that_auto_took_is_kept_for_every_other_graph(monkeypatch, small_graph):
    with monkeypatch.context() as patch:
        patch.setattr(definitions, "DENSE_LIMIT_BYTES", 0)
        patch.setattr(definitions, "IMPLICIT_LIMIT", 0)
        model, fitted = trained(small_graph)
    assert {replica.settings.diffusion_form for replica in model.replicas} == {"sketch"}
    assert {replica.settings.diffusion_form for replica in fitted.replicas} == {"auto"}
    assert torch.equal(model.logits(small_graph), fitted.logits)
    assert model.logits(strangers(small_graph)).shape == (2, 9, 3)


def test_a_model_on_rows_of_nodes_takes_no_sketch_of_a_larger_graph(monkeypatch, small_graph):
    model, fitted = trained(small_graph)
    assert {replica.settings.diffusion_form for replica in model.replicas} == {"auto"}
    monkeypatch.setattr(definitions, "DENSE_LIMIT_BYTES", 0)
    monkeypatch.setattr(definitions, "IMPLICIT_LIMIT", 0)
    torch.testing.assert_close(model.logits(small_graph), fitted.logits, atol=1e-5, rtol=1e-4)


# Temperatures.


def test_temperatures_are_kept_and_chosen_with_their_replicas(small_graph, tmp_path):
    model, fitted = trained(small_graph)
    splits = [small_graph.split(0), small_graph.split(1)]
    masks = [[getattr(split, part) for split in splits] for part in ("train", "val")]
    model = SavedModel.of(model.entry, fitted, small_graph, *masks)
    expected = Calibrator().fit(fitted.logits, small_graph.y, masks[1])
    assert expected[0, 0, 0] != expected[1, 0, 0]
    model.write(tmp_path / "m.safetensors")
    found = SavedModel.read(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(found.calibration, expected)
    np.testing.assert_allclose(found.mean_calibration, expected, rtol=1e-5)  # one seed each
    assert not {"calibration", "mean_calibration"} & set(found.metadata)
    np.testing.assert_array_equal(found.choose([1]).calibration, expected[1:])
    np.testing.assert_array_equal(found.choose([1]).mean_calibration, found.mean_calibration[1:])
    scale = torch.from_numpy(expected[:, :1])
    chances = (found.logits(small_graph) * scale).softmax(dim=-1).float()
    alone = found.choose([1]).mean_probabilities(small_graph)
    torch.testing.assert_close(alone, chances[1], atol=1e-5, rtol=1e-4)


def test_the_average_over_seeds_has_a_temperature_of_its_own(small_graph):
    split = small_graph.split(1)
    replicas = [Replica(1, seed, TINY) for seed in range(3)]
    fitted = fit_replicas(small_graph, MODELS["hpgmn"], replicas, [(split.train, split.val)] * 3)
    model = SavedModel.of(MODELS["hpgmn"], fitted, small_graph, [split.train] * 3, [split.val] * 3)
    mean = fitted.logits.double().softmax(dim=-1).mean(dim=0)
    temperature = fit_temperature(mean.log().numpy()[split.val], small_graph.y[split.val])
    expected = from_temperatures([temperature] * 3, 3)
    np.testing.assert_allclose(model.mean_calibration, expected)
    powers = mean ** (1 / temperature)
    expected = powers / powers.sum(dim=-1, keepdim=True)
    found = model.mean_probabilities(small_graph)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(found.argmax(dim=-1), mean.argmax(dim=-1))


def test_some_seeds_of_a_split_have_not_the_temperature_of_all(small_graph):
    splits = [small_graph.split(place) for place in (1, 1, 1, 0)]
    replicas = [Replica(1, seed, TINY) for seed in range(3)] + [Replica(0, 0, TINY)]
    masks = [[getattr(split, part) for split in splits] for part in ("train", "val")]
    fitted = fit_replicas(small_graph, MODELS["hpgmn"], replicas, list(zip(*masks, strict=True)))
    model = SavedModel.of(MODELS["hpgmn"], fitted, small_graph, *masks)
    own, together = model.calibration, model.mean_calibration
    assert len({*own[:, 0, 0], together[0, 0, 0]}) == 5
    np.testing.assert_array_equal(model.choose([0, 1, 2]).mean_calibration, together[:3])
    np.testing.assert_array_equal(model.choose([3]).mean_calibration, together[3:])
    np.testing.assert_array_equal(model.choose([1]).mean_calibration, own[[1]])
    half = (own[0] + own[2]) / 2
    np.testing.assert_allclose(model.choose([0, 2, 3]).mean_calibration, [half, half, together[3]])
    alone = model.choose([0, 2]).choose([1])
    np.testing.assert_array_equal(alone.mean_calibration, own[[2]])
    chances = (model.logits(small_graph)[2] * own[2, 0, 0]).softmax(dim=-1)
    found = alone.mean_probabilities(small_graph)
    torch.testing.assert_close(found, chances, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("has_temperatures", [False, True])
def test_a_file_from_before_calibrations_is_read(saved, has_temperatures):
    tensors, about = load_file(saved), about_of(saved)
    del about["calibration"], about["mean_calibration"], about["checksum"]
    if has_temperatures:
        about |= {"temperatures": [2.0, 4.0], "mean_temperatures": [2.0, 4.0]}
    for replica in about["replicas"]:
        del replica["settings"]["class_weights"]
    rewrite(saved, about | {"checksum": _tensor_checksum(tensors, about)})
    found = SavedModel.read(saved)
    expected = from_temperatures([2.0, 4.0] if has_temperatures else [1.0, 1.0], 3)
    np.testing.assert_array_equal(found.calibration, expected)
    np.testing.assert_array_equal(found.mean_calibration, expected)
    assert found.replicas[0].settings == TINY


@pytest.mark.parametrize("kind", ["temperatures", "calibration", "mean_calibration"])
def test_too_few_calibrations_are_told(saved, kind):
    tensors, about = load_file(saved), about_of(saved)
    del about["checksum"]
    if kind == "temperatures":
        del about["calibration"]
    about[kind] = [1.5]
    rewrite(saved, about | {"checksum": _tensor_checksum(tensors, about)})
    with pytest.raises(HPGMNError, match=r"damaged or not an hpgmn file \(.* for 2 runs"):
        SavedModel.read(saved)


TYPED = ("attributes", "class_counts", "class_means", "message_passing")


def named(graph):
    ids = [f"n{node}" for node in range(graph.num_nodes)]
    return Graph(graph.x, graph.edge_index, graph.y, node_ids=ids).with_splits(graph.splits)


def test_a_model_of_types_predicts_the_same_after_reading(small_graph, typed, tmp_path):
    graph = typed(named(small_graph))
    model, fitted = trained(graph, replace(TINY, statistics=TYPED, neighbors="both"))
    model.write(tmp_path / "model.safetensors")
    again = SavedModel.read(tmp_path / "model.safetensors")
    torch.testing.assert_close(again.logits(graph), fitted.logits)
    names = ["wire", "card", "cash"]  # another order, as another table may have
    types = np.array([1, 2, 0])[graph.edge_type]
    parts = {"node_ids": graph.node_ids, "edge_type": types}
    other = Graph(graph.x, graph.edge_index, edge_type_names=names, **parts)
    torch.testing.assert_close(again.logits(other), fitted.logits)
    with pytest.raises(GraphError, match="have no types"):
        again.logits(named(small_graph))
    swapped = Graph(graph.x, graph.edge_index, edge_type_names=sorted(names), **parts)
    assert not torch.allclose(again.logits(swapped), fitted.logits, atol=1e-3)


def test_a_model_without_types_reads_all_edges_of_a_graph_with_types(small_graph, typed):
    plain = named(small_graph)
    model, fitted = trained(plain, replace(TINY, statistics=TYPED))
    graph = typed(plain)
    torch.testing.assert_close(model.logits(graph), fitted.logits)
    merged, merged_fit = trained(graph, replace(TINY, statistics=TYPED, edge_types="merged"))
    torch.testing.assert_close(merged_fit.logits, fitted.logits)
    torch.testing.assert_close(merged.logits(plain), fitted.logits)
