"""The training loop: replicas do not mix, selection and stopping by rule, resume bit for bit."""

import copy
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from hpgmn.base import sparse
from hpgmn.base.errors import HPGMNError
from hpgmn.base.randomness import Noise
from hpgmn.base.settings import settings_dict
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Graph
from hpgmn.graph.synthetic import trading_network
from hpgmn.models import MODELS
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.models.layers import Initialised, Output, initialise
from hpgmn.models.propagated import PropagatedSettings
from hpgmn.models.stage import Replica, TrainingStage, logits, main_stage, make_task
from hpgmn.statistics import STATISTICS, LocalStatistics
from hpgmn.statistics.labelwise import class_means_on_device
from hpgmn.training import trainer
from hpgmn.training.stage_runner import LabelledNodes
from hpgmn.training.state import read_state, write_state
from hpgmn.training.trainer import (
    cause_of_divergence,
    deterministic_algorithms,
    estimate_labels,
    largest,
    matmul_precision,
    run_training_thread,
    train,
)

HETERO, APPNP, GCN = (MODELS[name] for name in ("hpgmn", "hpgmn-appnp", "hpgmn-gcn"))
DEFAULTS = HPGMNSettings(
    hidden_dim=6, num_patterns=5, estimator_hidden=6, estimator_epochs=6, epochs=12, patience=0
)
TINY = replace(  # wide enough that no node's hidden units are all zero, which would be a tie
    DEFAULTS, statistics=STATISTICS, neighbors="out", classifier_layers=2, hidden_dim=10
)
PROPAGATED = PropagatedSettings(
    hidden_dim=6, query_dim=5, num_patterns=4, pretraining_epochs=6, epochs=8, rounds=3
)


def entry_of(settings):
    return HETERO if isinstance(settings, HPGMNSettings) else APPNP


def task_of(graph, settings):
    """One replica per settings, alternating between the two splits, each with its own seed."""
    replicas = [Replica(number % 2, number, one) for number, one in enumerate(settings)]
    masks = [(graph.split(one.split).train, graph.split(one.split).val) for one in replicas]
    return make_task(graph, replicas, masks, "cpu")


def assert_replicas_agree(many, places, few, tolerance=2e-4):
    """Replicas ``places`` of one state are those of another, to rounding."""
    for stage, parameters in few.done.items():
        for key, rows in few.history[stage].items():
            torch.testing.assert_close(
                many.history[stage][key][: len(rows), places],
                rows,
                rtol=tolerance,
                atol=tolerance,
                equal_nan=True,
            )
        assert torch.equal(many.best_epoch[stage][places], few.best_epoch[stage])
        torch.testing.assert_close(many.best_score[stage][places], few.best_score[stage])
        for name, value in parameters.items():
            torch.testing.assert_close(
                many.done[stage][name][places], value, rtol=tolerance, atol=tolerance
            )


# Replicas.


def varied(base, **columns):
    """Settings that take their values from columns, one row per replica."""
    rows = zip(*columns.values(), strict=True)
    return [replace(base, **dict(zip(columns, row, strict=True))) for row in rows]


TEN = {
    "alike": [TINY] * 10,
    "defaults": [DEFAULTS] * 10,
    "rates": varied(
        TINY,
        lr=[0.005 * n for n in range(10)],
        weight_decay=[0.0, 1e-3] * 5,
        estimator_lr=[0.01, 0.05] * 5,
    ),
    "dropouts": varied(
        TINY,
        dropout=[0.1 * n for n in range(10)],
        attributes_dropout=[0.0, 0.5] * 5,
        diffusion_dropout=[0.9, 0.0] * 5,
        estimator_dropout=[0.0, 0.3, 0.6, 0.8, 0.5] * 2,
    ),
    "neighbours": varied(TINY, neighbors=["out", "in", "undirected", "in", "out"] * 2),
    "penalties": varied(
        TINY,
        kpattern_weight=[10.0 ** (n - 8) for n in range(10)],
        entropy_weight=[0.1, 0.01] * 5,
        norm_weight=[0.0, 1e-3] * 5,
    ),
    "everything": varied(
        TINY,
        lr=[0.005, 0.01, 0.02, 0.03, 0.04] * 2,
        dropout=[0.0, 0.5] * 5,
        neighbors=["out", "in", "undirected", "in", "out"] * 2,
        kpattern_weight=[1e-3, 1e-2] * 5,
    ),
    "both directions": [replace(TINY, neighbors="both")] * 10,
    "unpenalised": [replace(TINY, kpattern_weight=0.0, entropy_weight=0.0)] * 10,
    "consistent": varied(
        replace(TINY, consistency_passes=2), consistency_weight=[0.1 * n for n in range(1, 11)]
    ),
    "stopping": [replace(TINY, patience=2, estimator_patience=2, epochs=20)] * 10,
    "appnp": varied(
        PROPAGATED,
        lr=[0.005, 0.01, 0.02, 0.03, 0.04] * 2,
        node_dropout=[0.0, 0.5] * 5,
        attributes_dropout=[0.0, 0.2, 0.4, 0.6, 0.8] * 2,
    ),
    "propagated before": varied(
        replace(PROPAGATED, propagation="before", mixing="mean", encoder="joint"),
        node_dropout=[0.0, 0.5] * 5,
        dropout=[0.0, 0.2, 0.4, 0.6, 0.8] * 2,
    ),
    "normalised": varied(
        # Where one attribute is left, its weights have no effect, and Adam follows rounding.
        replace(PROPAGATED, propagation="before", batch_norm=True, attributes_dropout=0.0),
        node_dropout=[0.0, 0.5] * 5,
        dropout=[0.0, 0.2, 0.4, 0.6, 0.8] * 2,
    ),
}


def slow(*values):
    """Mark parameters for the complete suite."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


FAST = {("everything", "dense"), ("stopping", "sparse"), ("appnp", "dense")}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=() if (name, kind) in FAST else pytest.mark.slow)
        for name in TEN
        for kind in ("dense", "sparse")
    ],
)
def test_a_replica_alone_is_the_same_as_among_ten(small_graph, name, kind):
    graph = small_graph
    if kind == "sparse":
        graph = Graph(sp.csr_array(graph.x), graph.edge_index, graph.y).with_splits(graph.splits)
    task = task_of(graph, TEN[name])
    entry = entry_of(TEN[name][0])
    many = train(task, entry)
    everyone = logits(task, entry, many.done)
    for place in (0, 3, 9):
        part = task.subset([place])
        alone = train(part, entry)
        assert_replicas_agree(many, [place], alone)
        torch.testing.assert_close(
            everyone[[place]], logits(part, entry, alone.done), rtol=1e-3, atol=1e-3
        )


def test_the_order_of_the_replicas_does_not_matter(small_graph):
    task = task_of(small_graph, TEN["everything"])
    order = [7, 2, 9, 0, 1, 3, 4, 5, 6, 8]
    assert_replicas_agree(train(task, HETERO), order, train(task.subset(order), HETERO))


def test_splits_of_different_sizes_are_padded_without_effect(small_graph):
    small, large = small_graph.split(0), small_graph.split(1)
    few = small.train & (np.cumsum(small.train) <= 4)
    one = small.val & (np.cumsum(small.val) <= 1)
    replicas = [Replica(split, split, TINY) for split in (0, 1)]
    task = make_task(small_graph, replicas, [(few, one), (large.train, large.val)], "cpu")
    together = train(task, HETERO)
    for place in (0, 1):
        assert_replicas_agree(together, [place], train(task.subset([place]), HETERO))


# Losses.


def consistency_by_hand(stage, task, passes):
    """The loss of the first epoch, pass by pass and node by node, differentiable."""
    outputs = [
        stage.model(stage.inputs, Noise(task.keys("main"), passes + number), penalties=True)
        for number in range(passes)
    ]
    losses = []
    for r, settings in enumerate(task.settings):
        train_nodes = torch.from_numpy(np.flatnonzero(task.train_labels[r] >= 0))
        y = torch.from_numpy(task.train_labels[r])[train_nodes]
        loss = torch.tensor(0.0)
        for output in outputs:
            loss = loss + functional.cross_entropy(output.logits[r, train_nodes], y) / passes
            for name, penalty in output.penalties.items():
                loss = loss + getattr(settings, f"{name}_weight") * penalty[r] / passes
        chances = [output.logits[r].softmax(dim=-1) for output in outputs]
        distance = torch.tensor(0.0)
        for v in range(task.graph.num_nodes):
            mean = sum(one[v].detach() for one in chances) / passes
            sharp = mean ** (1 / settings.consistency_temperature)
            target = sharp / sharp.sum()
            for one in chances:
                distance = distance + (one[v] - target).square().sum()
        share = distance / (passes * task.graph.num_nodes)
        losses.append(loss + settings.consistency_weight * share)
    return torch.stack(losses)


@pytest.mark.parametrize(("passes", "temperature"), [(2, 0.5), (3, 1.0)])
def test_the_consistency_loss_and_its_gradient_match_the_sum_written_out(
    small_graph, passes, temperature
):
    base = replace(TINY, consistency_passes=passes, consistency_temperature=temperature, epochs=1)
    task = task_of(small_graph, varied(base, consistency_weight=[0.5, 2.0]))
    gradients: dict[str, Tensor] = {}

    def watch(state, stage):
        if stage.name == "main":
            trained = (item for item in stage.model.named_parameters() if item[1].requires_grad)
            gradients.update({name: value.grad.clone() for name, value in trained})

    state = train(task, HETERO, watch=watch)
    stage = HETERO.stages["main"](task, state.done)
    initialise(stage.model, task.keys("main"))
    expected = consistency_by_hand(stage, task, passes)
    torch.testing.assert_close(state.history["main"]["loss"][0], expected.detach())
    expected.sum().backward()
    for name, parameter in stage.model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=1e-6)


# Selection and stopping.


def chosen_by_loop(scores, losses, patience=0):
    """The best epoch: highest score, then lower loss, then earlier; nothing after patience."""
    best, best_score, best_loss = 0, -math.inf, math.inf
    for epoch, (score, loss) in enumerate(zip(scores, losses, strict=True), start=1):
        if patience and epoch - best > patience:
            break
        if score > best_score or (score == best_score and loss < best_loss):
            best, best_score, best_loss = epoch, score, loss
    return best


def columns(state, stage, replica):
    history = state.history[stage]
    return history["val_score"][:, replica].tolist(), history["val_loss"][:, replica].tolist()


@pytest.mark.parametrize("metric", ["accuracy", *slow("roc_auc")])
def test_the_best_epoch_has_the_highest_score_and_then_the_lowest_loss(small_graph, metric):
    graph = small_graph
    if metric == "roc_auc":
        y = np.minimum(graph.y, 1)
        graph = Graph(graph.x, graph.edge_index, y).with_splits(graph.splits)
    task = task_of(graph, [replace(TINY, epochs=30, lr=0.03)] * 8)
    state = train(task, HETERO, metric=metric)
    ties = 0
    for stage in ("estimator", "main"):
        for r in range(8):
            scores, losses = columns(state, stage, r)
            best = chosen_by_loop(scores, losses)
            assert state.best_epoch[stage][r] == best
            assert state.best_score[stage][r] == scores[best - 1] == max(scores)
            assert state.best_loss[stage][r] == losses[best - 1]
            ties += scores.count(max(scores)) > 1
    assert ties  # otherwise the second rule was not put to the test


def test_of_equal_epochs_the_earliest_is_best(small_graph):
    still = replace(DEFAULTS, lr=0.0, estimator_lr=0.0)  # without a running average
    state = train(task_of(small_graph, [still] * 2), HETERO)
    assert state.history["main"]["val_loss"][:, 0].unique().numel() == 1
    assert state.best_epoch["main"].tolist() == [1, 1]
    assert state.best_epoch["estimator"].tolist() == [1, 1]


def test_the_parameters_kept_are_those_of_the_best_epoch(small_graph):
    seen: dict[tuple[str, int], dict[str, Tensor]] = {}

    def watch(state, stage):
        current = state.current
        assert current is not None
        values = {name: value.clone() for name, value in current.parameters.items()}
        seen[stage.name, current.epoch] = values

    state = train(task_of(small_graph, [TINY] * 3), HETERO, watch=watch)
    for stage, parameters in state.done.items():
        for r, epoch in enumerate(state.best_epoch[stage].tolist()):
            for name, value in parameters.items():
                assert torch.equal(value[r], seen[stage, epoch][name][r])


def test_the_score_on_record_is_that_of_the_kept_parameters(small_graph):
    task = task_of(small_graph, [TINY] * 3)
    state = train(task, HETERO)
    found = logits(task, HETERO, state.done)
    for r in range(3):
        val = torch.from_numpy(task.val_labels[r])
        own, y = found[r][val >= 0], val[val >= 0]
        assert state.best_score["main"][r].item() == pytest.approx(
            (own.argmax(dim=-1) == y).float().mean().item()
        )
        torch.testing.assert_close(state.best_loss["main"][r], functional.cross_entropy(own, y))


PATIENT = replace(TINY, epochs=40, lr=0.05, estimator_epochs=20)


@pytest.mark.slow
@pytest.mark.parametrize("patience", [2, *slow(1, 5)])
def test_patience_stops_where_the_rule_written_out_stops(small_graph, patience):
    settings = replace(PATIENT, estimator_epochs=1)  # the same estimator in both runs
    never = train(task_of(small_graph, [settings] * 6), HETERO)
    state = train(task_of(small_graph, [replace(settings, patience=patience)] * 6), HETERO)
    expected = [chosen_by_loop(*columns(never, "main", r), patience) for r in range(6)]
    assert state.best_epoch["main"].tolist() == expected
    for r, best in enumerate(expected):
        seen = state.history["main"]["loss"][:, r].isfinite().sum()
        assert min(best + patience, 40) <= seen  # it waited as long as it was told to
    assert state.history["main"]["loss"].shape[0] <= min(max(expected) + patience, 40)


@pytest.mark.parametrize("settings", [PATIENT, *slow(replace(PROPAGATED, epochs=40, lr=0.05))])
def test_taking_stopped_replicas_out_changes_no_result(small_graph, settings, monkeypatch):
    settings = replace(settings, patience=4)
    task = task_of(small_graph, [settings] * 8)
    sizes = set()

    def watch(state, stage):
        if stage.name == "main":
            assert state.current is not None
            sizes.add(len(state.current.live))

    shrunk = train(task, entry_of(settings), watch=watch)
    assert len(sizes) > 1
    monkeypatch.setattr(
        trainer, "improving_replicas", lambda current, *_: list(range(len(current.live)))
    )
    whole = train(task, entry_of(settings))
    assert whole.history["main"]["loss"].isfinite().all()
    for stage in whole.done:
        assert torch.equal(shrunk.best_epoch[stage], whole.best_epoch[stage])
        torch.testing.assert_close(shrunk.best_score[stage], whole.best_score[stage])
        for name, value in whole.done[stage].items():
            torch.testing.assert_close(shrunk.done[stage][name], value, rtol=1e-3, atol=1e-4)


def test_replicas_taken_out_have_no_numbers_on_record(small_graph):
    state = train(task_of(small_graph, [replace(PATIENT, patience=3)] * 8), HETERO)
    loss = state.history["main"]["loss"]
    assert loss.isnan().any()
    for r in range(8):
        seen = loss[:, r].isfinite()
        assert seen[: int(seen.sum())].all()  # nothing but a tail is missing


# A replica that diverges.


def poisoned(state, stage):
    """Make replica 1 infinite after three epochs of the main stage, as a huge step would."""
    current = state.current
    assert current is not None
    if stage.name == "main" and current.epoch == 3:
        for value in current.parameters.values():
            value[1] = math.inf


@pytest.mark.parametrize("kind", ["dense", *slow("sparse", "no edges")])
@pytest.mark.parametrize("settings", [TINY, replace(PROPAGATED, patience=0)])
def test_a_replica_that_diverges_does_not_disturb_the_others(small_graph, settings, kind):
    graph = small_graph
    edges = graph.edge_index[:, :0] if kind == "no edges" else graph.edge_index
    x = graph.x if kind == "dense" else sp.csr_array(graph.x)
    graph = Graph(x, edges, graph.y).with_splits(graph.splits)
    task = task_of(graph, varied(settings, lr=[0.01, 0.02, 0.03, 0.04]))
    state = train(task, entry_of(settings), watch=poisoned)
    loss = state.history["main"]["loss"]
    assert loss[:3, 1].isfinite().all()
    assert not loss[3:, 1].isfinite().any()
    others = [0, 2, 3]
    assert_replicas_agree(state, others, train(task.subset(others), entry_of(settings)))


@pytest.mark.parametrize("replicas", [2, 5], ids=["taken out", "left in"])
def test_a_replica_that_diverges_keeps_the_best_parameters_from_before(small_graph, replicas):
    state = train(task_of(small_graph, [TINY] * replicas), HETERO, watch=poisoned)
    assert not state.history["main"]["loss"][-1, 1].isfinite()
    assert 1 <= state.best_epoch["main"][1] <= 3
    assert state.best_loss["main"].isfinite().all()
    for value in state.done["main"].values():
        assert value.isfinite().all()


def test_a_replica_that_was_never_finite_is_an_error(small_graph):
    task = task_of(small_graph, varied(TINY, lr=[0.01, 1e30]))
    message = (
        r"^Stage 'main' diverged in 1 of 2 runs: in split \d, seed \d, the .*loss is not "
        r"finite from epoch 1 on\. Setting lr is 1e\+30, "
    )
    with pytest.raises(HPGMNError, match=message) as error:
        train(task, HETERO)
    assert error.value.remedy.setting == "lr"


# Resume.


def snapshot(state):
    """Everything of a state but the time it took."""
    whole = copy.deepcopy(state)
    parts = dict(vars(whole))
    del parts["seconds"]
    if whole.current is not None:
        parts["current"] = vars(whole.current)
    return parts


def assert_same_bits(one, other, place=""):
    assert type(one) is type(other), place
    if isinstance(one, dict):
        assert set(one) == set(other), place
        for key, value in one.items():
            assert_same_bits(value, other[key], f"{place}/{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), place
        for number, value in enumerate(one):
            assert_same_bits(value, other[number], f"{place}/{number}")
    elif isinstance(one, Tensor):
        assert one.dtype == other.dtype, place
        assert torch.equal(one.nan_to_num(nan=-9.0), other.nan_to_num(nan=-9.0)), place
    else:
        assert one == other, place


SHORT = replace(TINY, estimator_epochs=3, epochs=6)
STOPPING = replace(PATIENT, estimator_epochs=6, estimator_patience=2, epochs=12, patience=2)
RESUMED = {
    "plain": ([SHORT] * 2, HETERO),
    "rates": (varied(SHORT, lr=[0.01, 0.05, 0.02]), HETERO),
    "stopping": ([STOPPING] * 5, HETERO),
    "consistent": ([replace(SHORT, consistency_weight=1.0, epochs=4)] * 2, HETERO),
    "pretrained": ([replace(PROPAGATED, encoder="pretrained")] * 2, APPNP),
    "finetuned": ([replace(PROPAGATED, encoder="finetuned", patience=2)] * 4, GCN),
    "joint": ([replace(PROPAGATED, encoder="joint")] * 2, GCN),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "stopping" else pytest.mark.slow) for name in RESUMED],
)
def test_a_run_cut_after_any_epoch_and_resumed_gives_the_same_bits(small_graph, tmp_path, name):
    settings, entry = RESUMED[name]
    task = task_of(small_graph, settings)
    seen: list[dict[str, Any]] = []

    def save(state, stage):
        write_state(tmp_path / f"{len(seen)}.safetensors", state, "same")
        seen.append(snapshot(state))

    final = snapshot(train(task, entry, watch=save))
    assert {state["current"]["name"] for state in seen} >= {"main"}
    assert all(state["current"]["first"] for state in seen)
    for cut in range(len(seen)):
        state = read_state(tmp_path / f"{cut}.safetensors", "same")
        assert_same_bits(snapshot(state), seen[cut])
        rest: list[dict[str, Any]] = []
        end = train(
            task, entry, state=state, watch=lambda state, _, rest=rest: rest.append(snapshot(state))
        )
        assert_same_bits(rest, seen[cut + 1 :])
        assert_same_bits(snapshot(end), final)


def test_a_finished_state_is_left_alone(small_graph):
    task = task_of(small_graph, [TINY] * 2)
    state = train(task, HETERO)
    before = snapshot(state)
    called = []
    again = train(task, HETERO, state=state, watch=lambda *_: called.append(1))
    assert not called
    assert_same_bits(snapshot(again), before)


def test_seconds_are_added_up(small_graph):
    state = train(task_of(small_graph, [TINY]), HETERO)
    assert state.seconds["training"] > 0
    assert state.seconds["statistics"] > 0


# Stages without labels, and what moves without a gradient.


class Averaging(Initialised):
    """A number that is pulled to 3 without labels, and a slow average of it."""

    def __init__(self, replicas):
        super().__init__()
        self.fast = torch.nn.Parameter(torch.zeros(replicas, 1, 1))
        self.slow = torch.nn.Parameter(torch.zeros(replicas, 1, 1), requires_grad=False)

    def reset_parameters(self, noise, place):
        self.fast.copy_(noise.uniform("fast", (1, 1)))
        self.slow.copy_(self.fast)

    def forward(self, inputs, noise=None, *_, penalties=False):
        distance = (self.fast - 3).square().flatten()
        return Output(self.fast.expand(-1, 18, 3), {"distance": distance} if penalties else {})


def follow(model):
    model.slow.lerp_(model.fast, 0.5)


def averaging_stage(task, done):
    return main_stage(
        task,
        Averaging(len(task.replicas)),
        {},
        penalty_weights={"distance": [1.0] * len(task.replicas)},
        is_supervised=False,
        after_step=follow,
    )


def test_an_unsupervised_stage_follows_its_penalties_and_ends_with_its_last_epoch(
    small_graph, tmp_path
):
    entry = replace(HETERO, stages={"main": averaging_stage})
    task = task_of(small_graph, [replace(TINY, epochs=9, lr=0.1)] * 2)
    slow: list[Tensor] = []
    fast: list[Tensor] = []

    def watch(state, stage):
        slow.append(stage.model.slow.detach().clone())
        fast.append(stage.model.fast.detach().clone())
        if state.current is not None and state.current.epoch == 4:
            write_state(tmp_path / "state", state, "averaging")

    state = train(task, entry, watch=watch)
    assert state.best_epoch["main"].tolist() == [9] * len(task.replicas)
    assert state.history["main"]["loss"].isfinite().all()
    assert state.history["main"]["val_loss"].isnan().all()  # nothing was validated
    assert state.history["main"]["val_score"].isnan().all()
    assert ((fast[8] - 3).abs() < (fast[0] - 3).abs() - 0.5).all()
    for before, after, now in zip(slow, slow[1:], fast[1:], strict=False):
        torch.testing.assert_close(after, (before + now) / 2)
    assert torch.equal(state.done["main"]["slow"], slow[-1])
    again = train(task, entry, state=read_state(tmp_path / "state", "averaging", task.device))
    assert torch.equal(again.done["main"]["slow"], slow[-1])
    assert torch.equal(again.done["main"]["fast"], fast[-1])


# Batches of train nodes.

OF_ROWS = STATISTICS[:5]  # all but the means over neighbours, which batches cannot have
BATCHED = replace(TINY, statistics=OF_ROWS, batch_size=2, kpattern_weight=0.1, entropy_weight=0.5)


def test_one_batch_of_all_nodes_is_the_full_batch(small_graph):
    plain = replace(
        TINY,
        statistics=OF_ROWS,
        class_means_form="dense",  # in batches they would have half the precision
        kpattern_weight=0.0,
        entropy_weight=0.0,
        **{
            name: 0.0
            for name in settings_dict(TINY)
            if name.endswith("dropout") and name != "dropout"
        },
        dropout=0.0,
    )
    whole = train(task_of(small_graph, [plain] * 2), HETERO)
    part = train(task_of(small_graph, [replace(plain, batch_size=100)] * 2), HETERO)
    for key, value in whole.done["main"].items():
        torch.testing.assert_close(part.done["main"][key], value, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        part.history["main"]["loss"], whole.history["main"]["loss"], rtol=1e-4, atol=1e-5
    )


def test_steps_in_batches_are_those_of_torchs_adam_on_each_batch(small_graph):
    task = task_of(small_graph, [replace(BATCHED, epochs=2, entropy_weight=0.0)])
    seen: list[TrainingStage] = []
    state = train(task, HETERO, watch=lambda _, stage: seen.append(stage))
    stage = HETERO.stages["main"](task, state.done)
    initialise(stage.model, task.keys("main"))
    trained = [p for n, p in stage.model.named_parameters() if n != "head.memory.use"]
    adam = torch.optim.Adam(trained, lr=BATCHED.lr, weight_decay=BATCHED.weight_decay)
    labelled = LabelledNodes.of(task.train_labels, task.device)
    weights = {key: values[0] for key, values in stage.penalty_weights.items()}
    step = 0
    for epoch in (1, 2):
        for part in labelled.node_batches(2, Noise(task.keys("main"), epoch)):
            step += 1
            noise = Noise(task.keys("main"), step)
            output = stage.model(stage.inputs, noise, part.nodes, penalties=True)
            loss = functional.cross_entropy(output.logits[0], part.labels[0])
            loss = loss + sum(weights[key] * output.penalties[key][0] for key in weights)
            adam.zero_grad()
            loss.backward()
            adam.step()
    assert step == 6
    for name, value in stage.model.named_parameters():
        if name != "head.memory.use":
            found = dict(seen[-1].model.named_parameters())[name]
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5)


def test_batches_resume_bit_for_bit(small_graph, tmp_path):
    task = task_of(small_graph, [BATCHED, BATCHED])

    def watch(state, stage):
        if state.current is not None and state.current.epoch == 3:
            write_state(tmp_path / stage.name, state, "batches")

    whole = train(task, HETERO, watch=watch)
    for name in ("estimator", "main"):
        again = train(task, HETERO, state=read_state(tmp_path / name, "batches", task.device))
        for key, value in whole.done["main"].items():
            assert torch.equal(value, again.done["main"][key]), (name, key)
    use = whole.done["main"]["head.memory.use"]
    assert (use != 1 / use.shape[1]).any()
    torch.testing.assert_close(use.sum(dim=1), torch.ones(2))


def test_a_replica_in_batches_is_the_same_alone(small_graph):
    task = task_of(small_graph, [BATCHED, BATCHED])
    together = train(task, HETERO)
    for place in (0, 1):
        assert_replicas_agree(together, [place], train(task.subset([place]), HETERO))


def test_evaluation_in_parts_is_that_of_all(small_graph, monkeypatch):
    task = task_of(small_graph, [BATCHED, BATCHED])
    whole = train(task, HETERO)
    expected = logits(task, HETERO, whole.done)
    monkeypatch.setattr("hpgmn.models.stage.READ_NODES", 5)
    torch.testing.assert_close(logits(task, HETERO, whole.done), expected)
    parts = train(task, HETERO)
    assert torch.equal(parts.best_score["main"], whole.best_score["main"])


can_flush = pytest.mark.skipif(
    not torch.set_flush_denormal(False), reason="this processor cannot flush denormals"
)


def product():
    """1e-40, or 0 where denormals are flushed."""
    return float(torch.tensor(1e-40) * 1)


@can_flush
def test_denormals_are_zero_inside_and_stay_outside():
    assert product() > 0
    assert run_training_thread(lambda _: product()) == 0
    assert product() > 0


@can_flush
def test_gradients_are_flushed():
    def work(_):
        weight = torch.tensor(1e-20, requires_grad=True)
        (weight * 1e-20 * 1e-20).backward()
        assert weight.grad is not None
        return float(weight.grad)

    assert work(threading.Event()) > 0
    assert run_training_thread(work) == 0


@can_flush
@pytest.mark.slow
def test_the_workers_of_torch_flush_too():
    """In a process of its own, as the number of workers is that of a whole process."""
    script = """
import torch
from hpgmn.training.trainer import run_training_thread

def kept():  # how many of so many products that every worker gets some
    return int((torch.full((4_000_000,), 1e-40) * 1).count_nonzero())

assert torch.get_num_threads() == 2
assert kept() == 4_000_000
assert run_training_thread(lambda _: (torch.get_num_threads(), kept())) == (2, 0)
assert kept() == 4_000_000
"""
    environment = os.environ | {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_work_has_its_own_thread_which_ends():
    thread = run_training_thread(lambda _: threading.current_thread())
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_without_an_interrupt_the_event_is_not_set():
    event = run_training_thread(lambda interrupted: interrupted)
    assert not event.is_set()


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_exceptions_pass_through(kind):
    error = kind("mine")

    def work(_):
        raise error

    with pytest.raises(kind) as caught:
        run_training_thread(work)
    assert caught.value is error


@pytest.fixture
def interruptible():
    """SIGINT raises KeyboardInterrupt, even where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_sets_the_event_and_waits_for_the_work_to_end():
    waiting = threading.main_thread().ident
    assert waiting == threading.get_ident()
    seen: list[object] = []

    def work(interrupted):
        seen.append(interrupted.wait(0.3))  # the caller is waiting by now
        signal.pthread_kill(waiting, signal.SIGINT)
        seen.append(interrupted.wait(30))
        time.sleep(0.1)
        seen.append("ended")
        return "not handed on"

    with pytest.raises(KeyboardInterrupt):
        run_training_thread(work)
    assert seen == [False, True, "ended"]


@pytest.mark.parametrize(
    ("precision", "device", "inside"),
    [
        ("tf32", "cuda", "high"),
        ("tf32", "cpu", "highest"),
        ("float32", "cuda", "highest"),
        ("bfloat16", "cuda", "highest"),
    ],
)
def test_tf32_is_for_a_gpu_and_for_a_while(precision, device, inside):
    assert torch.get_float32_matmul_precision() == "highest"
    found = []

    def work():
        with matmul_precision(precision, torch.device(device)):
            found.append(torch.get_float32_matmul_precision())
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert found == [inside]
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("is_requested", "device"), [(True, "cpu"), (False, "cpu"), (False, "cuda")]
)
def test_nothing_is_done_where_nothing_has_to_be(is_requested, device, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with deterministic_algorithms(is_requested, device):
        assert not torch.are_deterministic_algorithms_enabled()
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


@pytest.mark.parametrize(
    ("before", "inside"), [(None, ":4096:8"), (":0:0", ":4096:8"), (":16:8", ":16:8")]
)
def test_a_gpu_is_deterministic_inside_the_block_only(before, inside, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", before or "")
    with deterministic_algorithms(True, torch.device("cuda")):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == inside
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory


class Watched(TorchDispatchMode):
    """Counts sparse products, and notes those that do not go the way which keeps to one order."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.ordered, self.others, self._is_inside = 0, [], False
        real = sparse.csr_matmul

        def multiplied(csr, dense):
            self._is_inside = True
            self.ordered += 1
            try:
                return real(csr, dense)
            finally:
                self._is_inside = False

        monkeypatch.setattr(sparse, "csr_matmul", multiplied)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        is_sparse = any(isinstance(a, Tensor) and a.layout is not torch.strided for a in args)
        if is_sparse and func.overloadpacket.__name__ not in NO_SUMS and not self._is_inside:
            self.others.append(str(func))
        return func(*args, **(kwargs or {}))


NO_SUMS = ("values", "crow_indices", "col_indices", "detach", "alias", "sparse_sampled_addmm")
"""What is done with sparse matrices, and adds nothing up, or each entry on its own."""


def _means():
    host = sp.random_array((20, 20), density=0.4, format="csr", dtype=np.float32, rng=1)
    host.indices, host.indptr = host.indices.astype(np.int32), host.indptr.astype(np.int32)
    labels = torch.arange(20).view(1, 20) % 3
    class_means_on_device(SparseMatrix(host), torch.ones(20, 2), labels, 3)


def _trained(name):
    def work():
        graph, cls = trading_network(120, seed=0).graph, MODELS[name].settings
        known = [info.name for info in fields(cls) if info.name.endswith("epochs")]
        replica = Replica(0, 0, cls(**dict.fromkeys(known, 1)))
        split = graph.split(0)
        train(make_task(graph, [replica], [(split.train, split.val)], "cpu"), MODELS[name])

    return work


@pytest.mark.parametrize(
    ("work", "has_some"),
    [
        (_means, True),
        *(
            pytest.param(
                _trained(name),
                name not in ("mlp", "boosting"),
                marks=() if name in ("hpgmn", "mlp", "gcn") else pytest.mark.slow,
            )
            for name in MODELS
        ),
    ],
    ids=["class means", *MODELS],
)
def test_every_sparse_product_goes_the_way_that_keeps_to_one_order(work, has_some, monkeypatch):
    monkeypatch.setenv("HPGMN_CACHE", "off")
    with Watched(monkeypatch) as watched:
        work()
    assert watched.others == []
    assert (watched.ordered > 0) == has_some


NODES = torch.tensor([0, 1])


def stage_with(inputs, **values):
    own = {"lr": [0.01], "weight_decay": [0.0], "epochs": 1, "patience": 0} | values
    return TrainingStage("main", nn.Identity(), {"attributes": inputs}, **own)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_the_largest_value_of_anything_that_a_model_reads():
    from hpgmn.graph import Graph

    assert largest(torch.tensor([1.0, -3.0]), NODES) == 3
    assert largest(torch.eye(2).to_sparse_csr() * -2, NODES) == 2
    assert largest(torch.zeros(0), NODES) == 0
    assert largest({"a": [torch.ones(2)], "b": (torch.ones(1) * 7, "text")}, NODES) == 7
    assert largest([torch.tensor([math.nan, 1.0])], NODES) == math.inf
    assert largest("text", NODES) == largest([], NODES) == 0
    graph = Graph(sp.csr_array([[1.0, -5.0], [0.0, 2.0]]), [[0], [1]])
    assert largest(LocalStatistics(graph).attributes("raw"), NODES) == 5


@pytest.mark.parametrize(
    ("value", "values", "settings", "reason", "remedies"),
    [
        (1e12, {}, {}, "'attributes' holds values up to 1e+12", ["attributes_scaling", None]),
        (math.nan, {}, {}, "'attributes' holds values up to inf", ["attributes_scaling", None]),
        (1e12, {}, {"attributes_scaling": "unit"}, "'attributes' holds values up to", [None]),
        (1.0, {"lr": [5.0]}, {}, "Setting lr is 5, and no statistic exceeds 1.", ["lr"]),
        (1.0, {"precision": "bfloat16"}, {}, "Setting lr is 0.01", ["lr", "precision"]),
        (1.0, {}, {"weight_decay": 1e9}, "Setting weight_decay is 1e+09", ["weight_decay"]),
    ],
)
def test_a_cause_is_a_statistic_or_else_a_setting(value, values, settings, reason, remedies):
    replica = Replica(0, 0, MODELS["mlp"].settings(**settings))
    found, remedy = cause_of_divergence(stage_with(torch.tensor([value]), **values), replica, NODES)
    assert reason in found
    assert [part.setting for part in (remedy, *remedy.alternatives)] == remedies


# Pseudo-labels.


def test_estimated_labels_are_true_on_train_nodes_alone(small_graph):
    settings = HPGMNSettings(estimator_hidden=6, estimator_epochs=1)
    found, shares, _ = estimate_labels(small_graph, settings, split=1)
    train = small_graph.split(1).train
    np.testing.assert_array_equal(found[train], small_graph.y[train])
    y = small_graph.y.copy()
    y[~train] = (y[~train] + 1) % 3
    masks = {f"{part}_mask": getattr(small_graph.splits, part) for part in ("train", "val", "test")}
    other = Graph(small_graph.x, small_graph.edge_index, y, **masks)
    again = estimate_labels(other, settings, split=1).labels
    np.testing.assert_array_equal(again, found)  # one epoch: nothing is chosen by val labels
    np.testing.assert_array_equal(shares.argmax(axis=1), found)
    np.testing.assert_array_equal(shares[train], np.eye(3)[small_graph.y[train]])
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-6)


def test_predictions_below_the_confidence_are_unknown(small_graph):
    settings = HPGMNSettings(estimator_hidden=6, estimator_epochs=20)
    labels, shares, _ = estimate_labels(small_graph, settings)
    sure = float(np.median(shares[~small_graph.split(0).train].max(axis=1)))
    found, rest, _ = estimate_labels(small_graph, replace(settings, label_confidence=sure))
    known = shares.max(axis=1) >= sure
    assert 0 < (~known).sum() < len(known)
    np.testing.assert_array_equal(found, np.where(known, labels, -1))
    np.testing.assert_array_equal(rest, np.where(known[:, None], shares, 0))


# Ending early, and fixed epochs.


def test_a_training_that_should_finish_keeps_the_best_epochs_so_far(small_graph):
    settings = [replace(TINY, epochs=30, estimator_epochs=20, refinement=True)] * 2
    task = task_of(small_graph, settings)
    whole = train(task, HETERO)
    calls = []

    def should_finish():
        calls.append(1)
        return len(calls) >= 7

    state = train(task, HETERO, should_finish=should_finish)
    lengths = {stage: len(history["loss"]) for stage, history in state.history.items()}
    assert lengths == {"estimator": 7, "refinement": 1, "main": 1}
    for key, rows in state.history["estimator"].items():
        assert torch.equal(rows, whole.history["estimator"][key][:7])
    best = state.history["estimator"]["val_score"].amax(dim=0)
    assert torch.equal(state.best_score["estimator"], best)
    assert state.best_epoch["main"].tolist() == [1, 1]
    assert logits(task, HETERO, state.done).isfinite().all()


def test_a_training_that_finishes_in_its_last_stage_leaves_earlier_ones_whole(small_graph):
    task = task_of(small_graph, [TINY])
    whole = train(task, HETERO)
    stages = []

    def watch(state, stage):
        stages.append(stage.name)

    state = train(task, HETERO, watch=watch, should_finish=lambda: stages.count("main") == 4)
    for key, value in whole.done["estimator"].items():
        assert torch.equal(state.done["estimator"][key], value)
    for key, rows in state.history["main"].items():
        assert torch.equal(rows, whole.history["main"][key][:4])


@pytest.mark.parametrize("settings", [TINY, PROPAGATED], ids=["hpgmn", "appnp"])
def test_fixed_epochs_keep_the_parameters_of_those_epochs(small_graph, settings):
    task, entry = task_of(small_graph, [settings] * 3), entry_of(settings)
    fixed, stages = torch.tensor([2, 5, 0]), entry.stages_of(settings)
    seen = {stage: {} for stage in stages}

    def watch(state, stage):
        current = state.current
        values = zip(*(value.clone() for value in current.parameters.values()), strict=True)
        for replica, row in zip(current.live, values, strict=True):
            seen[stage.name][replica, current.epoch] = dict(
                zip(current.parameters, row, strict=True)
            )

    state = train(task, entry, watch=watch, epochs=dict.fromkeys(stages, fixed))
    for stage in stages:
        assert state.best_epoch[stage].tolist() == fixed.tolist()
        assert len(state.history[stage]["loss"]) == 5
        assert state.history[stage]["val_score"].isnan().all()
        assert state.best_score[stage].isnan().all()
        assert state.best_loss[stage].isnan().all()
        for replica, epoch in ((0, 2), (1, 5)):
            for key, value in seen[stage][replica, epoch].items():
                assert torch.equal(state.done[stage][key][replica], value)
        assert max(epoch for replica, epoch in seen[stage] if replica == 2) < 5  # was dropped


def test_fixed_epochs_repeat_a_training_and_resume_bit_for_bit(small_graph, tmp_path):
    task = task_of(small_graph, [TINY])
    whole = train(task, HETERO)

    def watch(state, stage):
        if stage.name == "main" and state.current.epoch == 1:
            write_state(tmp_path / "state", state, "fixed")

    again = train(task, HETERO, epochs=whole.best_epoch, watch=watch)
    state = read_state(tmp_path / "state", "fixed", task.device)
    resumed = train(task, HETERO, epochs=whole.best_epoch, state=state)
    for stage, parameters in whole.done.items():
        assert torch.equal(again.best_epoch[stage], whole.best_epoch[stage])
        assert len(again.history[stage]["loss"]) == whole.best_epoch[stage].item()
        for key, value in parameters.items():
            assert torch.equal(again.done[stage][key], value)
            assert torch.equal(resumed.done[stage][key], value)


@pytest.mark.parametrize("settings", [TINY, PROPAGATED], ids=["hpgmn", "appnp"])
def test_with_fixed_epochs_no_validation_label_matters(small_graph, settings):
    entry = entry_of(settings)
    epochs = dict.fromkeys(entry.stages_of(settings), torch.tensor([3, 6]))
    task = task_of(small_graph, [settings] * 2)
    known = task.val_labels >= 0
    states = [
        train(replace(task, val_labels=labels), entry, epochs=epochs)
        for labels in (
            task.val_labels,
            np.where(known, (task.val_labels + 1) % 3, -1),
            np.full_like(task.val_labels, -1),
        )
    ]
    for other in states[1:]:
        for stage, parameters in states[0].done.items():
            for key, value in parameters.items():
                assert torch.equal(value, other.done[stage][key])


def test_fixed_epochs_without_a_finite_loss_are_reported(small_graph):
    task = task_of(small_graph, [replace(TINY, lr=1e30)] * 2)
    with pytest.raises(HPGMNError, match="Stage 'main' diverged"):
        train(task, HETERO, epochs={"main": torch.tensor([9, 9])})
