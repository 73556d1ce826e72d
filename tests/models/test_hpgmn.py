"""HP-GMN against the paper's equations written out densely from the model's own weights."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from hpgmn.base.errors import SettingError
from hpgmn.base.randomness import Noise, stable_key
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.hpgmn import HPGMN, HPGMNSettings, compute_pseudo_labels, estimator_logits
from hpgmn.models.layers import initialise
from hpgmn.models.stage import Replica, logits, make_task
from hpgmn.statistics import STATISTICS, LocalStatistics, statistic_names
from hpgmn.statistics.operators import ReplicaRows
from hpgmn.training.trainer import train

NO_DROPOUT = dict.fromkeys(
    (
        "dropout",
        "attributes_dropout",
        "class_counts_dropout",
        "class_means_dropout",
        "diffusion_dropout",
        "adjacency_dropout",
        "estimator_dropout",
    ),
    0.0,
)
DEFAULTS = HPGMNSettings(
    hidden_dim=4, num_patterns=5, estimator_hidden=4, estimator_epochs=5, epochs=5, **NO_DROPOUT
)
TINY = replace(DEFAULTS, statistics=STATISTICS[:4], neighbors="out", classifier_layers=2)
PAPER = replace(
    TINY,
    gate=False,
    class_counts_scaling="raw",
    class_means_scaling="raw",
    diffusion_scaling="raw",
    diffusion_self_entry=True,
    adjacency_scaling="raw",
    kpattern_reduction="sum",
)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def labels_of(graph, replicas=2):
    """Pseudo labels, other ones in each replica."""
    return np.random.default_rng(5).integers(0, 3, (replicas, graph.num_nodes))


def statistics_of(graph, settings, labels=None):
    labels = labels_of(graph) if labels is None else labels
    return LocalStatistics(graph).build(labels, 3, [settings] * len(labels))


def model_of(inputs, settings):
    """Two replicas with random values in every parameter, biases and gate included."""
    widths = {name: inputs[name].width for name in statistic_names(settings)}
    model = HPGMN(widths, 3, settings, replicas=2)
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed) * 0.7)
    return model


# The paper's statistics, one node and one edge at a time.


def dense_adjacency(graph, neighbors):
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    for source, target in graph.edge_index.T:
        if source != target:
            if neighbors in ("out", "undirected"):
                matrix[source, target] = 1
            if neighbors in ("in", "undirected"):
                matrix[target, source] = 1
    return matrix


def dense_statistics(graph, labels, neighbors, teleport):
    adjacency, x = dense_adjacency(graph, neighbors), np.asarray(graph.x, float)
    num_nodes, width = x.shape
    counts, means = np.zeros((num_nodes, 3)), np.zeros((num_nodes, 3 * width))
    for v in range(num_nodes):
        for c in range(3):
            members = [u for u in np.flatnonzero(adjacency[v]) if labels[u] == c]
            counts[v, c] = len(members)
            if members:
                means[v, c * width : (c + 1) * width] = x[members].mean(axis=0)
    degree = adjacency.sum(axis=0)
    transition = adjacency / np.where(degree > 0, degree, 1)  # A·D⁻¹
    diffusion = teleport * np.linalg.inv(np.eye(num_nodes) - (1 - teleport) * transition)
    return {
        "attributes": x,
        "class_counts": counts,
        "class_means": means,
        "diffusion": diffusion,
        "adjacency": adjacency,
    }


def logits_by_hand(values, statistics, *, gate=False, unit_encodings=False, classifier_layers=2):
    """One replica's logits by Eqs. (8) to (12), two layers each encoder, in double precision."""
    values = {name: value.double() for name, value in values.items()}
    weights = [1.0] * len(statistics)
    if gate:
        shares = values["gate.logits"].exp() / values["gate.logits"].exp().sum()
        weights = [float(share) * len(statistics) for share in shares]
    parts = []
    for (name, rows), weight in zip(statistics.items(), weights, strict=True):
        first, second = f"encode.{name}.first", f"encode.{name}.rest.layers.0"
        hidden = torch.from_numpy(rows) @ values[f"{first}.weight"] + values[f"{first}.bias"]
        part = hidden.relu() @ values[f"{second}.weight"] + values[f"{second}.bias"]
        if unit_encodings:
            part = part / part.square().sum(dim=1, keepdim=True).sqrt()
        parts.append(weight * part)
    query, patterns = torch.cat(parts, dim=1), values["head.memory.patterns"]
    scores = query @ patterns.T
    attention = (scores - scores.amax(dim=1, keepdim=True)).exp()
    attention = attention / attention.sum(dim=1, keepdim=True)
    hidden = torch.cat([query, attention @ patterns], dim=1)
    for number in range(classifier_layers):
        hidden = hidden.relu() if number or classifier_layers == 1 else hidden
        layer = f"head.classify.layers.{number}"
        hidden = hidden @ values[f"{layer}.weight"] + values[f"{layer}.bias"]
    return hidden.float()


def parameters_of(model, replica):
    return {name: value[replica].detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize(
    "extras", [{}, {"gate": True}, {"unit_encodings": True}, {"classifier_layers": 1}], ids=str
)
@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_forward_matches_the_equations_written_out(small_graph, neighbors, extras):
    settings = replace(PAPER, neighbors=neighbors, **extras)
    inputs = statistics_of(small_graph, settings)
    model = model_of(inputs, settings)
    found = model(inputs).logits
    for r, labels in enumerate(labels_of(small_graph)):
        rows = dense_statistics(small_graph, labels, neighbors, settings.teleport)
        del rows["adjacency"]
        expected = logits_by_hand(parameters_of(model, r), rows, **extras)
        torch.testing.assert_close(found[r], expected, rtol=1e-4, atol=1e-4)


def test_both_directions_give_one_encoder_each(small_graph):
    settings = replace(PAPER, neighbors="both", statistics=("attributes", "class_means"))
    inputs = statistics_of(small_graph, settings)
    model = model_of(inputs, settings)
    found = model(inputs).logits
    for r, labels in enumerate(labels_of(small_graph)):
        out, into = (
            dense_statistics(small_graph, labels, mode, settings.teleport) for mode in ("out", "in")
        )
        rows = {
            "attributes": out["attributes"],
            "class_means_out": out["class_means"],
            "class_means_in": into["class_means"],
        }
        expected = logits_by_hand(parameters_of(model, r), rows)
        torch.testing.assert_close(found[r], expected, rtol=1e-4, atol=1e-4)


def test_a_trained_model_matches_the_equations_written_out(small_graph):
    settings = replace(PAPER, lr=0.05)
    task = task_of(small_graph, settings)
    done = train(task, MODELS["hpgmn"]).done
    computed = logits(task, MODELS["hpgmn"], done)
    labels = compute_pseudo_labels(task, done["estimator"])
    for r in range(2):
        values = {name: value[r] for name, value in done["main"].items()}
        rows = dense_statistics(small_graph, labels[r], "out", settings.teleport)
        del rows["adjacency"]
        expected = logits_by_hand(values, rows)
        torch.testing.assert_close(computed[r], expected, rtol=1e-4, atol=1e-4)


def test_a_refined_model_uses_the_predictions_of_the_first(small_graph):
    """Two trainings by hand: the second's labels are the first's predictions."""
    settings = replace(PAPER, lr=0.05, refinement=True)
    task = task_of(small_graph, settings)
    state = train(task, MODELS["hpgmn"])
    assert list(state.done) == ["estimator", "refinement", "main"]
    found = logits(task, MODELS["hpgmn"], state.done)
    first = compute_pseudo_labels(task, state.done["estimator"])
    for r in range(2):
        labels = first[r]
        for stage in ("refinement", "main"):
            values = {name: value[r] for name, value in state.done[stage].items()}
            rows = dense_statistics(small_graph, labels, "out", settings.teleport)
            del rows["adjacency"]
            expected = logits_by_hand(values, rows)
            known = task.train_labels[r]
            labels = np.where(known >= 0, known, expected.argmax(dim=1).numpy())
        torch.testing.assert_close(found[r], expected, rtol=1e-4, atol=1e-4)


def test_without_refinement_there_is_no_such_stage(small_graph):
    task = task_of(small_graph, PAPER)
    assert list(train(task, MODELS["hpgmn"]).done) == ["estimator", "main"]


def test_a_refined_model_of_batches_predicts_as_one_of_all_nodes_with_its_parameters(small_graph):
    settings = replace(PAPER, lr=0.05, refinement=True, batch_size=4, class_means_form="half")
    task = task_of(small_graph, settings)
    done = train(task, MODELS["hpgmn"]).done
    assert list(done) == ["estimator", "refinement", "main"]
    without_use = {
        stage: {name: value for name, value in own.items() if name != "head.memory.use"}
        for stage, own in done.items()
    }
    whole = task_of(small_graph, replace(settings, batch_size=0, class_means_form="dense"))
    found = logits(task, MODELS["hpgmn"], done)
    expected = logits(whole, MODELS["hpgmn"], without_use)
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=5e-3)  # means of half precision


@pytest.mark.parametrize("soft_counts", [False, True])
def test_uncertain_pseudo_labels_are_not_counted(small_graph, soft_counts):
    """With confidence 1 only train labels are known: counts are those of train neighbours."""
    settings = replace(PAPER, label_confidence=1.0, statistics=("class_counts", "class_means"))
    settings = replace(settings, soft_counts=soft_counts)
    task = task_of(small_graph, settings)
    stage = MODELS["hpgmn"].stages["main"](task, train(task, MODELS["hpgmn"]).done)
    adjacency = dense_adjacency(small_graph, "out")
    for r, known in enumerate(task.train_labels):
        rows = stage.inputs["class_counts"].rows(torch.arange(small_graph.num_nodes), r)
        wanted = [[(adjacency[v] * (known == c)).sum() for c in range(3)] for v in range(len(rows))]
        assert rows.tolist() == wanted


def test_soft_counts_follow_the_estimators_probabilities(small_graph):
    settings = replace(PAPER, soft_counts=True, statistics=("class_counts",))
    task = task_of(small_graph, settings)
    done = train(task, MODELS["hpgmn"]).done
    stage = MODELS["hpgmn"].stages["main"](task, done)
    shares = estimator_logits(task, done["estimator"]).softmax(dim=-1).double().numpy()
    adjacency = dense_adjacency(small_graph, "out")
    for r, known in enumerate(task.train_labels):
        own = np.where(known[:, None] >= 0, np.eye(3)[known], shares[r])
        rows = stage.inputs["class_counts"].rows(torch.arange(small_graph.num_nodes), r)
        np.testing.assert_allclose(rows.numpy(), adjacency @ own, rtol=1e-5, atol=1e-6)


def test_a_mean_over_neighbours_has_the_dropout_of_its_statistic(small_graph):
    settings = replace(
        TINY,
        neighbors="both",
        statistics=("class_counts", "neighbor_class_counts", "neighbor_adjacency"),
        class_counts_dropout=0.25,
        adjacency_dropout=0.75,
    )
    inputs = statistics_of(small_graph, settings)
    model = model_of(inputs, settings)
    scales = {name: rate.scale.tolist() for name, rate in model.input_rates.items()}
    for direction in ("out", "in"):
        assert scales[f"class_counts_{direction}"] == pytest.approx([4 / 3] * 2)
        assert scales[f"neighbor_class_counts_{direction}"] == pytest.approx([4 / 3] * 2)
        assert scales[f"neighbor_adjacency_{direction}"] == pytest.approx([4.0] * 2)


def test_means_over_neighbours_are_rejected_in_batches():
    chosen = {"statistics": "attributes,neighbor_class_counts"}
    with pytest.raises(SettingError, match=r"neighbor_class_counts.*batch_size=0"):
        make_settings(HPGMNSettings, chosen | {"batch_size": 2})
    assert make_settings(HPGMNSettings, chosen).batch_size == 0
    assert make_settings(HPGMNSettings, {"batch_size": 2}).batch_size == 2
    with pytest.raises(SettingError, match="consistency_weight=0"):
        make_settings(HPGMNSettings, {"batch_size": 2, "consistency_weight": 1})


def test_an_even_gate_changes_nothing(small_graph):
    inputs = statistics_of(small_graph, PAPER)
    plain, gated = model_of(inputs, PAPER), model_of(inputs, replace(PAPER, gate=True))
    own = dict(gated.named_parameters())
    with torch.no_grad():
        own["gate.logits"].fill_(0.3)
        for name, value in plain.named_parameters():
            own[name].copy_(value)
    torch.testing.assert_close(gated(inputs).logits, plain(inputs).logits)


def test_details_hold_the_gate_the_query_and_the_attention(small_graph):
    settings = replace(PAPER, gate=True)
    inputs = statistics_of(small_graph, settings)
    model = model_of(inputs, settings)
    details = model(inputs, details=True).details
    torch.testing.assert_close(details["gate"], 4 * model.gate.logits.softmax(dim=1))
    torch.testing.assert_close(details["query"], model.query(inputs))
    expected = (details["query"] @ model.head.memory.patterns.mT).softmax(dim=-1)
    torch.testing.assert_close(details["attention"], expected)


# Training moves everything there is.


def task_of(graph, settings, splits=(0, 1)):
    masks = [(graph.split(split).train, graph.split(split).val) for split in splits]
    return make_task(graph, [Replica(split, 7, settings) for split in splits], masks, "cpu")


def first_step(task):
    """The main stage before its first step, its first values, and the state after one step."""
    state = train(task, MODELS["hpgmn"])
    stage = MODELS["hpgmn"].stages["main"](task, state.done)
    initialise(stage.model, task.keys("main"))
    return stage, {n: p.detach().clone() for n, p in stage.model.named_parameters()}, state


@pytest.mark.parametrize(
    "settings",
    [
        PAPER,
        replace(PAPER, kpattern_weight=0.0, entropy_weight=0.0, norm_weight=0.0),
        replace(TINY, dropout=0.2, attributes_dropout=0.5, memory_dim=6),
        replace(TINY, unit_encodings=True, classifier_layers=1),
        replace(TINY, consistency_weight=1.0, consistency_passes=2, dropout=0.2),
        replace(TINY, neighbors="both", statistics=STATISTICS),
        DEFAULTS,
    ],
    ids=[
        "paper",
        "no penalties",
        "map and dropout",
        "linear",
        "consistency",
        "all statistics",
        "defaults",
    ],
)
def test_one_step_moves_every_parameter_the_memory_included(small_graph, settings):
    task = task_of(small_graph, replace(settings, epochs=1, weight_decay=0.0, patience=0))
    _, before, state = first_step(task)
    after = state.done["main"]  # the only epoch is the best one
    assert set(before) == set(after)
    assert "head.memory.patterns" in after
    for name, value in before.items():
        moved = (value != after[name]).flatten(1).any(dim=1)
        assert moved.all(), name
    moved = (before["head.memory.patterns"] != after["head.memory.patterns"]).any(dim=-1)
    assert moved.all()  # each pattern of each replica


@pytest.mark.parametrize("absent", [None, "kpattern_weight", "entropy_weight", "norm_weight"])
def test_the_loss_is_cross_entropy_plus_the_weighted_penalties(small_graph, absent):
    weights = {"kpattern_weight": 0.3, "entropy_weight": 0.5, "norm_weight": 0.7}
    if absent:
        weights[absent] = 0.0
    settings = replace(PAPER, kpattern_reduction="mean", epochs=1, patience=0, **weights)
    task = task_of(small_graph, settings)
    stage, before, state = first_step(task)
    output = stage.model(stage.inputs, details=True)
    patterns = before["head.memory.patterns"]
    for r in range(2):
        train_mask = torch.from_numpy(small_graph.split(r).train)
        y = torch.from_numpy(small_graph.y)[train_mask]
        query, use = output.details["query"][r], output.details["attention"][r].mean(dim=0)
        expected = (
            torch.nn.functional.cross_entropy(output.logits[r][train_mask], y)
            + weights["kpattern_weight"] * torch.cdist(query, patterns[r]).amin(dim=1).mean()
            + weights["entropy_weight"] * (use * use.log()).sum()
            + weights["norm_weight"] * patterns[r].square().sum()
        )
        torch.testing.assert_close(state.history["main"]["loss"][0, r], expected.detach())


# Every option takes away its own piece.


def names_of(settings):
    widths = dict.fromkeys(statistic_names(settings), 3)
    return {name for name, _ in HPGMN(widths, 3, settings).named_parameters()}


def test_without_a_gate_there_is_no_gate_parameter():
    assert names_of(replace(TINY, gate=True)) - names_of(replace(TINY, gate=False)) == {
        "gate.logits"
    }


def test_without_a_memory_there_are_no_patterns():
    without = replace(TINY, memory=False)
    assert names_of(TINY) - names_of(without) == {"head.memory.patterns"}
    widths = dict.fromkeys(statistic_names(TINY), 3)
    assert HPGMN(widths, 3, without).head.classify.layers[0].weight.shape[1] == 4 * 4
    assert HPGMN(widths, 3, TINY).head.classify.layers[0].weight.shape[1] == 2 * 4 * 4


@pytest.mark.parametrize(
    "kept",
    [
        ("class_counts", "class_means", "diffusion"),
        ("attributes", "class_means", "diffusion"),
        ("attributes", "class_counts"),
        ("attributes", "adjacency"),
    ],
)
def test_a_statistic_left_out_has_no_encoder_and_no_influence(small_graph, kept):
    settings = replace(PAPER, statistics=kept)
    encoders = {name.split(".")[1] for name in names_of(settings) if name.startswith("encode.")}
    assert encoders == set(kept)
    inputs = statistics_of(small_graph, settings)
    model = model_of(inputs, settings)
    assert list(inputs) == list(kept)
    for r, labels in enumerate(labels_of(small_graph)):
        rows = dense_statistics(small_graph, labels, "out", settings.teleport)
        expected = logits_by_hand(parameters_of(model, r), {name: rows[name] for name in kept})
        torch.testing.assert_close(model(inputs).logits[r], expected, rtol=1e-4, atol=1e-4)


# Invariants.


def same_weights(source, inputs, settings):
    model = model_of(inputs, settings)
    model.load_state_dict(source.state_dict())
    return model


@pytest.mark.parametrize("scaling", ["raw", "unit"])
def test_sparse_attributes_give_what_dense_ones_give(small_graph, scaling):
    settings = replace(PAPER, attributes_scaling=scaling, class_means_scaling=scaling)
    sparse = Graph(sp.csr_array(small_graph.x), small_graph.edge_index, small_graph.y)
    assert sparse.has_sparse_attributes
    inputs, others = statistics_of(small_graph, settings), statistics_of(sparse, settings)
    model = model_of(inputs, settings)
    assert type(inputs["class_means"]) is not type(others["class_means"])
    torch.testing.assert_close(model(others).logits, model(inputs).logits, rtol=1e-4, atol=1e-4)


def test_evaluating_some_nodes_gives_those_rows_of_all(small_graph):
    settings = replace(TINY, statistics=(*TINY.statistics, "adjacency"))
    inputs = statistics_of(small_graph, settings)
    model = model_of(inputs, settings)
    nodes = torch.tensor([[17, 2, 2, 9], [0, 1, 5, 3]])
    everything, some = model(inputs).logits, model(inputs, nodes=nodes).logits
    within = torch.tensor([[3, 1], [0, 2]])
    fewer = model(inputs, nodes=nodes, classify=within).logits
    for r in range(2):
        torch.testing.assert_close(some[r], everything[r][nodes[r]], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(fewer[r], some[r][within[r]], rtol=1e-5, atol=1e-5)


def test_the_order_of_the_edges_does_not_matter(small_graph):
    order = np.random.default_rng(3).permutation(small_graph.edge_index.shape[1])
    shuffled = Graph(small_graph.x, small_graph.edge_index[:, order], small_graph.y)
    inputs, others = statistics_of(small_graph, TINY), statistics_of(shuffled, TINY)
    model = model_of(inputs, TINY)
    torch.testing.assert_close(model(others).logits, model(inputs).logits)


def relabelled(graph, order):
    """The same graph whose node v is the old node ``order[v]``."""
    place = np.argsort(order)
    splits = graph.splits
    return Graph(
        graph.x[order],
        place[graph.edge_index],
        graph.y[order],
        train_mask=splits.train[order],
        val_mask=splits.val[order],
        test_mask=splits.test[order],
    )


def test_relabelling_permutes_the_weights_of_statistics_tied_to_nodes(small_graph):
    order = np.random.default_rng(4).permutation(18)
    settings = replace(TINY, statistics=(*TINY.statistics, "adjacency"))
    inputs = statistics_of(small_graph, settings)
    moved = relabelled(small_graph, order)
    others = statistics_of(moved, settings, labels_of(small_graph)[:, order])
    model = model_of(inputs, settings)
    twin = same_weights(model, others, settings)
    with torch.no_grad():
        for name in ("diffusion", "adjacency"):
            weight = twin.encode[name].first.weight
            weight.copy_(weight[:, order])
    expected = model(inputs).logits[:, order]
    torch.testing.assert_close(twin(others).logits, expected, rtol=1e-4, atol=1e-5)


def test_training_on_relabelled_nodes_permutes_the_predictions(small_graph):
    order = np.random.default_rng(4).permutation(18)
    settings = replace(TINY, statistics=("attributes", "class_counts", "class_means"))
    found = []
    for graph in (small_graph, relabelled(small_graph, order)):
        task = task_of(graph, settings)
        found.append(logits(task, MODELS["hpgmn"], train(task, MODELS["hpgmn"]).done))
    torch.testing.assert_close(found[1], found[0][:, order], rtol=1e-3, atol=1e-4)


def test_default_settings_make_a_model():
    model = HPGMN({"attributes": 3}, 2)
    assert model.head.memory.patterns.shape == (1, 50, 64)
    assert [tuple(layer.weight.shape) for layer in model.head.classify.layers] == [(1, 128, 2)]
    assert model.gate is not None


@pytest.mark.parametrize(
    ("name", "dim", "wide", "narrow"), [("diffusion", 16, 18, 16), ("class_means", 4, 15, 12)]
)
def test_a_sketch_has_weights_for_its_own_columns(small_graph, name, dim, wide, narrow):
    settings = replace(TINY, statistics=(name,), **{f"{name}_dim": dim})
    sketched = replace(settings, **{f"{name}_form": "sketch"})
    estimates = [MODELS["hpgmn"].floats(small_graph, one)[0] for one in (settings, sketched)]
    assert estimates == [wide * settings.hidden_dim, narrow * settings.hidden_dim]
    assert statistics_of(small_graph, sketched)[name].width == narrow


@pytest.mark.parametrize("hidden_dim", [4, 32])
@pytest.mark.parametrize("unit_encodings", [False, True])
@pytest.mark.parametrize(
    "kinds",
    [
        ("neighbor_class_counts",),
        ("class_means", "neighbor_class_means", "neighbor_adjacency"),
        tuple(name for name in STATISTICS if name != "diffusion"),
    ],
    ids=len,
)
def test_the_size_estimate_covers_what_a_pass_stores(
    small_graph, kinds, unit_encodings, hidden_dim
):
    settings = replace(TINY, statistics=kinds, neighbors="both", hidden_dim=hidden_dim)
    settings = replace(settings, dropout=0.5, unit_encodings=unit_encodings)
    inputs = statistics_of(small_graph, settings)
    model, own = model_of(inputs, settings), set()
    for value in model.parameters():
        own.add(value.untyped_storage().data_ptr())
    for name in inputs:
        whole = getattr(inputs[name], "statistic", inputs[name])
        if isinstance(whole, ReplicaRows):
            own.add(whole.matrices.untyped_storage().data_ptr())
    kept: dict[int, Tensor] = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(inputs, Noise(torch.tensor([stable_key(1), stable_key(2)]), 1), penalties=True)
    size = sum(
        value.untyped_storage().nbytes() for place, value in kept.items() if place not in own
    )
    parameters, per_node = MODELS["hpgmn"].floats(small_graph, settings)
    assert size / 2 < 4 * (parameters + per_node * small_graph.num_nodes)


def opposite_types(seed, num_nodes=300, degree=8):
    """Edges of type 0 join equal classes, those of type 1 different ones; attributes say little."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, num_nodes)
    sources = np.repeat(np.arange(num_nodes), 2 * degree)
    types = np.tile(np.repeat([0, 1], degree), num_nodes)
    targets = [
        random.choice(np.flatnonzero((y == y[source]) == (kind == 0)))
        for source, kind in zip(sources, types, strict=True)
    ]
    x = random.normal(size=(num_nodes, 3)) + 0.3 * (2 * y - 1)[:, None]
    part = random.permutation(num_nodes) % 3
    masks = {"train_mask": part == 0, "val_mask": part == 1, "test_mask": part == 2}
    return Graph(x, [sources, targets], y, edge_type=types, **masks)


@pytest.mark.parametrize("statistics", [("class_counts",), ("message_passing",)])
def test_what_only_types_tell_is_learned_with_them_alone(statistics):
    graph = opposite_types(0)
    split = graph.split(0)
    accuracy = {}
    for types in ("separate", "merged"):
        settings = HPGMNSettings(
            statistics=statistics,
            edge_types=types,
            neighbors="out",
            mp_layers=1,
            hidden_dim=8,
            num_patterns=4,
            epochs=80,
            estimator_epochs=30,
            estimator_hidden=8,
        )
        task = make_task(graph, [Replica(0, 0, settings)], [(split.train, split.val)], "cpu")
        found = logits(task, MODELS["hpgmn"], train(task, MODELS["hpgmn"]).done)[0].argmax(dim=-1)
        accuracy[types] = float((found.numpy() == graph.y)[split.test].mean())
    assert accuracy["separate"] > 0.9
    assert accuracy["merged"] < 0.75
