"""Numbers that run away in training: the step, the statistic and the setting, never a NaN."""

import logging
import os
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.sparse import scale_attributes
from hpgmn.cli import main
from hpgmn.estimators.classifier import HPGMNClassifier
from hpgmn.graph import Graph
from hpgmn.graph.files import write_graph
from hpgmn.models import MODELS
from hpgmn.training.saved import SavedModel

OUT_OF_REACH = 3e37
"""Times the small graph's attributes, which are at most 3: nearly the largest number there is."""


UNIT = {"attributes_scaling": "unit", "class_means_scaling": "unit"}


def scaled(graph, factor, nodes=slice(None), **options):
    """The same graph with the attributes of some nodes multiplied."""
    x = graph.x.copy()
    x[nodes] *= factor
    splits = graph.splits
    assert splits is not None
    masks = {"train_mask": splits.train, "val_mask": splits.val, "test_mask": splits.test}
    return Graph(x, graph.edge_index, graph.y, name="small", **masks, **options)


SLOW = set() if os.environ.get("HPGMN_SOAK") else {"dssl"}
"""Takes 8 seconds, which only a long run has."""


@pytest.mark.soak
@pytest.mark.parametrize("model", sorted(set(MODELS) - SLOW - {"boosting"}))  # has no gradients
def test_a_learning_rate_without_bounds_is_named(model, small_graph, caplog):
    """A model stops with stage, epoch, split and seed, and names lr; or keeps a sound epoch."""
    told = ""
    classifier = HPGMNClassifier(model=model, epochs=8, lr=1e30, seed=5)
    try:
        with caplog.at_level(logging.WARNING, "hpgmn"):
            classifier.fit(small_graph, split=1)
    except HPGMNError as error:
        told = str(error)
    else:
        assert np.isfinite(classifier.predict_proba(small_graph)).all()
        assert all(
            v.isfinite().all() for own in classifier.saved_.done.values() for v in own.values()
        )
        told = next(line for line in caplog.messages if "not finite" in line)
    assert re.search(r"^Stage '\w+' diverged in 1 of 1 runs: in split 1, seed 5, the ", told)
    assert re.search(r"loss is not finite from epoch \d+ on\.", told)
    assert "Setting lr is 1e+30, and no statistic exceeds " in told
    assert told.endswith("Lower it (lr=...).")


@pytest.mark.parametrize("model", ["hpgmn", "mlp", "gcn", "h2gcn", "linkx", "dirgcn"])
def test_attributes_out_of_reach_are_named(model, small_graph):
    """Loss or gradients overflow; the sentence names the statistic and the setting that helps."""
    graph = scaled(small_graph, OUT_OF_REACH)
    with pytest.raises(
        HPGMNError, match=r"Statistic '(attributes|class_means)\w*' holds values up to"
    ) as e:
        HPGMNClassifier(model=model, epochs=8).fit(graph)
    assert e.value.remedy.setting.endswith("_scaling")
    assert e.value.remedy.value == "unit"
    assert re.search(r"^Stage '(main|estimator)' .*split 0, seed 0", str(e.value))


def test_the_remedy_helps(small_graph):
    """Rows of unit length are the same whatever the scale; squares of large ones are infinite."""
    wanted = small_graph.x / np.linalg.norm(small_graph.x.astype(np.float64), axis=1)[:, None]
    for factor in (1e-30, 1.0, 1e30, OUT_OF_REACH):
        graph = scaled(small_graph, factor)
        for x in (graph.x, sp.csr_array(graph.x)):
            found = scale_attributes(x, "unit")
            found = found if isinstance(found, np.ndarray) else found.toarray()
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)
            shares = scale_attributes(x, "fraction")
            np.testing.assert_allclose(np.abs(shares).sum(axis=1), 1, rtol=1e-5)
    graph = scaled(small_graph, OUT_OF_REACH)
    model = HPGMNClassifier(epochs=8, **UNIT).fit(graph)
    assert np.isfinite(model.predict_proba(graph)).all()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"weight_decay": 1e38}, "weight_decay is 1e\\+38"),
        ({"entropy_weight": 1e38}, "entropy_weight is 1e\\+38"),
        ({"kpattern_weight": 1e38}, "kpattern_weight is 1e\\+38"),
        ({"norm_weight": 1e38}, "norm_weight is 1e\\+38"),
        ({"consistency_weight": 1e38}, "consistency_weight is 1e\\+38"),
        ({"estimator_lr": 1e30}, "estimator_lr is 1e\\+30"),
    ],
)
def test_another_setting_is_named_where_it_is_the_cause(settings, named, small_graph):
    with pytest.raises(HPGMNError, match=rf"Setting {named}, and no statistic .* Lower it"):
        HPGMNClassifier(epochs=8, estimator_epochs=8, **settings).fit(small_graph)


def test_weights_of_edges_out_of_reach_name_a_statistic_of_neighbours(small_graph):
    count = small_graph.edge_index.shape[1]
    graph = scaled(small_graph, 1.0, edge_weight=np.full(count, 1e35))
    model = HPGMNClassifier(epochs=8, statistics="adjacency", adjacency_scaling="raw")
    with pytest.raises(HPGMNError, match=r"'adjacency\w*' holds values up to 2e\+35\. Scale"):
        model.fit(graph)


def test_balanced_classes_of_one_node_stay_finite(small_graph):
    """A class without a train node has weight 0, not infinite."""
    splits = small_graph.splits
    assert splits is not None
    train = splits.train[:, 0] & (small_graph.y != 2)
    model = HPGMNClassifier(epochs=5, class_weights="balanced")
    model.fit(small_graph, train=train, val=splits.val[:, 0])
    assert np.isfinite(model.predict_proba(small_graph)).all()
    assert np.isfinite(model.val_score_)


def test_no_score_is_told_where_an_answer_is_not_finite(small_graph):
    """The losses are finite, but a node that neither trains nor chooses overflows."""
    splits = small_graph.splits
    assert splits is not None
    odd = np.flatnonzero(splits.test[:, 0])[:1]
    graph = scaled(small_graph, 3e38 / np.abs(small_graph.x[odd]).max(), odd)
    large = {"model": "mlp", "epochs": 8, "lr": 3.0}
    with pytest.raises(HPGMNError, match=rf"no finite output for 1 of 18 nodes .*'{odd[0]}'"):
        HPGMNClassifier(**large).fit(graph)
    model = HPGMNClassifier(**large).fit(small_graph)
    for use in (model.predict, model.predict_proba, model.score):
        with pytest.raises(HPGMNError, match="no finite output for 1 of 18 nodes"):
            use(graph)


def test_a_model_that_is_not_finite_is_neither_written_nor_read(small_graph, tmp_path):
    saved = HPGMNClassifier(model="mlp", epochs=2).fit(small_graph).saved_
    path = tmp_path / "model.safetensors"
    value = next(iter(saved.done["main"].values()))
    kept = value.clone()
    value.view(-1)[0] = float("nan")
    with pytest.raises(
        HPGMNError, match=r"parameter main/\S+ of mlp is not finite; .* not written"
    ):
        saved.write(path)
    assert not path.exists()
    isfinite = torch.Tensor.isfinite
    with pytest.MonkeyPatch.context() as patch:  # as an earlier version would have written it
        patch.setattr(torch.Tensor, "isfinite", lambda own: isfinite(torch.zeros_like(own)))
        saved.write(path)
    with pytest.raises(
        HPGMNError, match=r"damaged or not an hpgmn file \(main/\S+ is not finite\)"
    ):
        SavedModel.read(path)
    value.copy_(kept)
    saved.write(path)
    assert SavedModel.read(path).entry.name == "mlp"


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """A command in a folder of its own: its exit code and what it told."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = main([str(word) for word in words])
        return code, " ".join(capsys.readouterr().err.split())

    return run


def test_the_command_stops_and_leaves_no_result(command, small_graph):
    write_graph(scaled(small_graph, OUT_OF_REACH), "big.npz")
    words = ("train", "big.npz", "--no-portfolio", "--set", "epochs=5", "--out", "run")
    code, told = command(*words)
    assert code == 2
    assert "split 0, seed 0, the gradients are too large to be squared" in told
    assert "set attributes_scaling=unit" in told
    assert not list(Path("run").glob("m*"))  # neither model nor metrics


def test_a_search_without_a_sound_trial_says_why(command, small_graph):
    write_graph(small_graph, "graph.npz")
    words = ("tune", "graph.npz", "--trials", "1", "--splits", "0", "--study", "study.db")
    code, told = command(*words, "--set", "lr=1e30", "--set", "epochs=3")
    assert code == 2
    assert "Setting lr is 1e+30" in told
    assert told.endswith("Lower it (--set lr=...).")
