"""What is outside the receptive field changes nothing."""

import numpy as np
import pytest

import hpgmn
from hpgmn.training.receptive_field import receptive_field

LENGTH, CENTER = 41, 20
SETTINGS = {
    0: {"statistics": ("attributes",)},
    1: {},
    2: {"statistics": ("attributes", "neighbor_attributes", "neighbor_class_means")},
    3: {"statistics": ("attributes", "hops"), "hops": 3},
    4: {"statistics": ("attributes", "message_passing"), "mp_layers": 3},
    6: {"statistics": ("attributes", "hops", "class_counts"), "hops": 3, "refinement": True},
    None: {"statistics": ("attributes", "diffusion")},
}


def path(x=None, extra=()):
    """A path in both directions, where an edge more matters as little as it can."""
    random = np.random.default_rng(0)
    steps = np.arange(LENGTH - 1)
    pairs = np.stack([steps, steps + 1], axis=1)
    edges = np.concatenate([pairs, pairs[::2, ::-1], np.array(extra, int).reshape(-1, 2)])
    attributes, y = random.normal(size=(LENGTH, 3)), random.integers(2, size=LENGTH)
    graph = hpgmn.Graph(
        attributes if x is None else x, edges.T, y, node_ids=[f"n{i}" for i in range(LENGTH)]
    )
    return graph.with_splits(hpgmn.random_splits(graph, 1))


@pytest.mark.parametrize("radius", SETTINGS)
def test_radius(radius, tmp_path):
    graph = path()
    short = {"epochs": 4, "estimator_epochs": 4, "hidden_dim": 8, "num_patterns": 3}
    run = hpgmn.train(
        graph, model="hpgmn", settings=short | SETTINGS[radius], out=tmp_path / "run", report=False
    )
    model = run.models_of()[1]
    assert receptive_field(model) == radius
    if radius is None:
        return
    before = model.logits(graph)[:, CENTER]
    far = np.abs(np.arange(LENGTH) - CENTER) > radius
    changed = np.where(far[:, None], 9.0, graph.x)
    ends = [(CENTER + radius, LENGTH - 1), (0, CENTER - radius), (1, 3)] if radius else [(20, 3)]
    after = model.logits(path(changed, ends))[:, CENTER]
    np.testing.assert_allclose(after, before, atol=1e-6)
    nearer = np.where((far | (np.arange(LENGTH) == CENTER + radius))[:, None], 9.0, graph.x)
    is_seen = (model.logits(path(nearer))[:, CENTER] != before).any()
    assert is_seen or radius in (1, 4, 6)  # which a bound may exceed


def test_other_models_have_none(tmp_path):
    for name, radius in (("gcn", None), ("mlp", 0)):
        run = hpgmn.train(
            path(), model=name, settings={"epochs": 2}, out=tmp_path / name, report=False
        )
        assert receptive_field(run.model) == radius
