"""Numbers that must not change unnoticed; ``golden.json`` holds them as they were.

They say nothing about being right, which other tests do. Who changes one on purpose says so in
CHANGELOG.md under "Numbers", and writes them anew with

    PYTHONPATH=src OMP_NUM_THREADS=1 python tests/reliability/test_golden.py

Names of models after it write the numbers of these alone: ``test_golden.py gat``.

Whole numbers and hashes are compared exactly, floats to one part in a million: another kind of
processor adds in another order. Losses have a part in a hundred thousand, because Adam's first
steps divide gradients by their own size.
"""

import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpgmn.base.metrics import METRICS, class_loss
from hpgmn.base.randomness import DropRate, Noise, signs, stable_key, step_key
from hpgmn.base.settings import make_settings
from hpgmn.graph.graph import random_splits
from hpgmn.graph.homophily import homophily
from hpgmn.graph.synthetic import trading_network
from hpgmn.models import MODELS
from hpgmn.models.stage import Replica
from hpgmn.statistics import LocalStatistics, StatisticsSettings, statistic_names
from hpgmn.training.replicas import fit_replicas

FILE = Path(__file__).parent / "golden.json"
FLOATS, LOSSES = 1e-6, 1e-5
EPOCHS = 3
FORMS: dict[str, dict[str, Any]] = {
    "plain": {"statistics": ("attributes", "class_counts", "class_means", "adjacency")},
    "both directions": {"statistics": ("class_counts", "class_means"), "neighbors": "both"},
    "of neighbours": {"statistics": ("neighbor_class_counts", "neighbor_attributes")},
    "dense ppr": {"statistics": ("diffusion",), "diffusion_form": "dense"},
    "implicit heat": {
        "statistics": ("diffusion",),
        "diffusion_form": "implicit",
        "diffusion": "heat",
    },
    "topk": {"statistics": ("diffusion",), "diffusion_form": "topk", "diffusion_topk": 8},
    "sketch": {"statistics": ("diffusion",), "diffusion_form": "sketch", "diffusion_dim": 16},
}


def small():
    return trading_network(num_nodes=120, seed=1).graph


def digest(*arrays):
    """Of arrays of whole numbers or truth values."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array, np.int64).data)
    return found.hexdigest()[:16]


def marks(values):
    """A few sums by which an array of floats is known, its order included."""
    flat = np.asarray(values, np.float64).reshape(-1)
    weights = np.cos(np.arange(flat.size))
    return [float(flat.sum()), float(np.abs(flat).sum()), float(flat @ weights)]


def of_streams():
    noise = Noise(torch.tensor([7, -3]), 5)
    kept = noise.keep("place", (10, 8), DropRate([0.3, 0.7]))
    return {
        "keys": [str(stable_key("seed", 3, "split", 1)), str(step_key(9)), str(step_key("word"))],
        "uniform": noise.uniform("place", (3,)).reshape(-1).tolist(),
        "dropout": digest(kept.numpy()),
        "signs": digest(signs(torch.tensor([1, 2, 3]), 0, 70).numpy()),
    }


def of_graphs():
    graph = small()
    assert graph.splits is not None
    masks = [getattr(graph.splits, part) for part in ("train", "val", "test")]
    plain = random_splits(graph.y, count=3, stratified=False)
    even = random_splits(graph.y, count=2, stratified=True, first_seed=4)
    measures = dataclasses.asdict(homophily(graph))
    return {
        "network": digest(graph.edge_index, graph.y),
        "attributes": marks(graph.x),
        "its splits": digest(*masks),
        "random splits": digest(plain.train, plain.val, plain.test),
        "stratified splits": digest(even.train, even.val, even.test),
        "homophily": [value for value in measures.values() if isinstance(value, float)],
    }


def of_statistics(form):
    graph = small()
    settings = StatisticsSettings(**FORMS[form])
    built = LocalStatistics(graph).build(graph.y[None], graph.num_classes, [settings])
    every = torch.arange(graph.num_nodes)
    return {name: marks(built[name].rows(every)) for name in statistic_names(settings)}


def of_metrics():
    random = np.random.default_rng(0)
    logits = torch.from_numpy(random.normal(size=(2, 40, 3)))
    labels = torch.from_numpy(random.integers(0, 3, (2, 40)))
    valid = torch.from_numpy(random.random((2, 40)) < 0.8)
    found: dict[str, Any] = {"class loss": class_loss(logits, labels, valid).tolist()}
    for name, function in METRICS.items():
        two = (logits[..., :2], labels.clamp(max=1), valid)
        is_of_two = name in ("roc_auc", "average_precision")
        found[name] = function(*(two if is_of_two else (logits, labels, valid))).tolist()
    return found


def of_model(name):
    """Losses of each stage after its last step, and the validation score of the best epoch."""
    graph, cls = small(), MODELS[name].settings
    names = {info.name for info in dataclasses.fields(cls)}
    chosen: dict[str, Any] = {"hidden_dim": 8, "query_dim": 8, "estimator_hidden": 8}
    chosen |= {"num_patterns": 4} | {one: EPOCHS for one in names if one.endswith("epochs")}
    settings = make_settings(cls, {key: value for key, value in chosen.items() if key in names})
    masks = [(graph.split(number).train, graph.split(number).val) for number in (0, 1)]
    replicas = [Replica(number, 3, settings) for number in (0, 1)]
    fitted = fit_replicas(graph, MODELS[name], replicas, masks)
    found: dict[str, Any] = {
        f"{stage} {key}": history[key][-1].tolist()
        for stage, history in fitted.history.items()
        for key in ("loss", "val_loss")
        if len(history[key]) and not history[key][-1].isnan().any()
    }
    return found | {"val_score": fitted.val_score.tolist()}


def numbers():
    return {
        "streams": of_streams(),
        "graphs": of_graphs(),
        "metrics": of_metrics(),
        "statistics": {form: of_statistics(form) for form in FORMS},
        "models": {name: of_model(name) for name in MODELS},
    }


def golden():
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def assert_alike(found, kept, tolerance):
    assert found.keys() == kept.keys()
    for name, value in kept.items():
        if isinstance(value, list) and isinstance(value[0], float):
            assert found[name] == pytest.approx(value, rel=tolerance, abs=tolerance), name
        else:
            assert found[name] == value, name


def test_streams_of_random_numbers():
    assert_alike(of_streams(), golden()["streams"], FLOATS)


def test_generated_graphs_and_splits():
    assert_alike(of_graphs(), golden()["graphs"], FLOATS)


def test_metrics():
    assert_alike(of_metrics(), golden()["metrics"], FLOATS)


@pytest.mark.parametrize("form", FORMS)
def test_statistics(form):
    found, kept = of_statistics(form), golden()["statistics"][form]
    assert found.keys() == kept.keys()
    for name, (total, size, weighted) in kept.items():
        assert found[name][:2] == pytest.approx([total, size], rel=FLOATS, abs=FLOATS), name
        # Terms of the weighted sum cancel: single precision rounds them by shares of their size.
        rounding = float(np.finfo(np.float32).eps) * size
        assert found[name][2] == pytest.approx(weighted, abs=FLOATS + rounding), name


@pytest.mark.parametrize("name", MODELS)
def test_losses_after_a_few_steps(name):
    assert_alike(of_model(name), golden()["models"][name], LOSSES)


def test_nothing_is_kept_that_is_gone():
    assert golden()["models"].keys() == MODELS.keys()
    assert golden()["statistics"].keys() == FORMS.keys()


if __name__ == "__main__":
    content = golden() if sys.argv[1:] else numbers()
    stored = content["models"] | {name: of_model(name) for name in sys.argv[1:]}
    content["models"] = {name: stored[name] for name in MODELS if name in stored}
    FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
