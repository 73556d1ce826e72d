"""Batches of replicas: grouped by shape, kept within memory, joined in order, resumed."""

import itertools
import json
import math
import os
import signal
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import verify_checksum, with_checksum
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.models.propagated import PropagatedSettings
from hpgmn.models.stage import Replica, logits, make_task
from hpgmn.statistics import STATISTICS
from hpgmn.training import replicas as replicas_module
from hpgmn.training.replicas import (
    Progress,
    fit_replicas,
    replica_bytes,
    replica_groups,
    replicas_at_once,
)
from hpgmn.training.trainer import run_training_thread, train

CPU = torch.device("cpu")
ENTRY = MODELS["hpgmn"]
TINY = HPGMNSettings(
    statistics=STATISTICS,
    neighbors="out",
    hidden_dim=6,
    num_patterns=5,
    estimator_hidden=6,
    estimator_epochs=4,
    epochs=6,
    patience=0,
)


def replicas_of(*settings):
    """One replica per settings, alternating between the two splits, each with its own seed."""
    return [Replica(number % 2, number, one) for number, one in enumerate(settings)]


def masks_of(graph, replicas):
    return [(graph.split(one.split).train, graph.split(one.split).val) for one in replicas]


def fit(graph, replicas, **options):
    return fit_replicas(graph, ENTRY, replicas, masks_of(graph, replicas), **options)


@pytest.fixture
def at_most(monkeypatch):
    """Say how many replicas fit into memory."""

    def limit(number):
        monkeypatch.setattr(replicas_module, "replicas_at_once", lambda *_: number)

    return limit


def flat(fitted):
    """Every tensor of a result by name; those of history lead with R too."""
    found = {"logits": fitted.logits, "score": fitted.val_score, "loss": fitted.val_loss}
    for stage in fitted.history:
        for name, value in fitted.done.get(stage, {}).items():
            found[f"{stage}/{name}"] = value
        found[f"{stage}/epoch"] = fitted.best_epoch[stage]
        found |= {f"{stage}/{key}": rows.T for key, rows in fitted.history[stage].items()}
    return found


def assert_same_bits(one, other):
    first, second = flat(one), flat(other)
    assert set(first) == set(second)
    for name, value in first.items():
        assert torch.equal(value.nan_to_num(nan=-9.0), second[name].nan_to_num(nan=-9.0)), name


def assert_close(one, other):
    torch.testing.assert_close(flat(one), flat(other), rtol=1e-3, atol=1e-3, equal_nan=True)


# Which replicas are trained together.


def test_replicas_that_differ_only_in_rates_weights_and_neighbours_are_one_batch(small_graph):
    different = [
        TINY,
        replace(TINY, lr=0.5, weight_decay=0.1, estimator_lr=0.1),
        replace(TINY, dropout=0.7, attributes_dropout=0.1, estimator_dropout=0.1),
        replace(TINY, kpattern_weight=0.1, entropy_weight=0.2, norm_weight=0.3),
        replace(TINY, neighbors="in"),
        replace(TINY, neighbors="out"),
    ]
    assert replica_groups(small_graph, ENTRY, replicas_of(*different), CPU, [8] * 6) == [
        [0, 1, 2, 3, 4, 5]
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_dim": 7},
        {"num_patterns": 6},
        {"memory": False},
        {"memory_dim": 4},
        {"statistics": ("attributes", "class_counts")},
        {"neighbors": "both"},
        {"attributes_scaling": "unit"},
        {"teleport": 0.3},
        {"gate": False},
        {"epochs": 7},
        {"patience": 3},
        {"estimator_epochs": 9},
        {"consistency_weight": 0.5},
        {"kpattern_weight": 0.0, "entropy_weight": 0.0},  # such a step reads the train nodes only
    ],
    ids=str,
)
def test_replicas_of_different_shapes_are_trained_apart(small_graph, change):
    other = replace(TINY, **change)
    found = replica_groups(small_graph, ENTRY, replicas_of(TINY, other, TINY, other), CPU, [8] * 4)
    assert found == [[0, 2], [1, 3]]


@pytest.mark.parametrize("limit", [1, 3, 10, 11])
def test_no_batch_is_larger_than_what_fits(small_graph, at_most, limit):
    at_most(limit)
    wide = replace(TINY, hidden_dim=7)
    found = replica_groups(
        small_graph, ENTRY, replicas_of(*[TINY] * 10, *[wide] * 3), CPU, [8] * 13
    )
    assert sorted(itertools.chain.from_iterable(found)) == list(range(13))
    assert max(map(len, found)) <= limit
    assert len(found) == -(-10 // limit) + -(-3 // limit)  # and no more batches than needed
    for places in found:
        assert len({place >= 10 for place in places}) == 1


def test_at_least_one_replica_is_trained_at_once_however_little_memory_there_is(
    small_graph, monkeypatch
):
    monkeypatch.setattr(replicas_module, "CPU_BATCH_BYTES", 1)
    assert replicas_at_once(small_graph, ENTRY, TINY, CPU) == 1


def test_more_memory_means_more_replicas_at_once(small_graph, monkeypatch):
    each = replica_bytes(small_graph, ENTRY, TINY)
    monkeypatch.setattr(replicas_module, "CPU_BATCH_BYTES", 7 * each)
    assert replicas_at_once(small_graph, ENTRY, TINY, CPU) == 7


def test_a_share_of_the_memory_means_fewer_replicas_at_once_and_the_same_result(
    small_graph, monkeypatch
):
    each = replica_bytes(small_graph, ENTRY, TINY)
    monkeypatch.setattr(replicas_module, "CPU_BATCH_BYTES", 6 * each)
    pages = {"SC_PHYS_PAGES": 24, "SC_PAGE_SIZE": each}  # of which a process takes a quarter
    with monkeypatch.context() as patch:
        patch.setattr(os, "sysconf", pages.__getitem__)
        assert replicas_at_once(small_graph, ENTRY, TINY, CPU) == 6
        assert replicas_at_once(small_graph, ENTRY, TINY, CPU, 0.5) == 3
    monkeypatch.setattr(replicas_module, "replicas_at_once", lambda *given: int(6 * given[4]))
    sizes = []
    fits = []
    for share in (1.0, 0.5):
        told: set[tuple[int, int]] = set()
        fits.append(
            fit(
                small_graph,
                replicas_of(*[TINY] * 6),
                memory_share=share,
                report=lambda now, told=told: told.add((now.batch, now.batches)),
            )
        )
        sizes.append(max(told)[1])
    assert sizes == [1, 2]
    assert torch.allclose(fits[0].logits, fits[1].logits, atol=1e-5)  # products round otherwise


def test_a_share_of_a_gpus_memory_is_of_what_is_free(small_graph, monkeypatch):
    each = replica_bytes(small_graph, ENTRY, TINY)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 * each, 200 * each))
    place = torch.device("cuda")
    assert replicas_at_once(small_graph, ENTRY, TINY, place) == 60
    assert replicas_at_once(small_graph, ENTRY, TINY, place, 1 / 8) == 7


@pytest.mark.parametrize(
    "larger",
    [
        replace(TINY, hidden_dim=12),
        replace(TINY, num_patterns=50),
        replace(TINY, neighbors="both"),
        replace(TINY, consistency_weight=1.0),
    ],
)
def test_a_larger_model_is_thought_larger(small_graph, larger):
    assert replica_bytes(small_graph, ENTRY, larger) > replica_bytes(small_graph, ENTRY, TINY)


@pytest.mark.parametrize(
    "settings",
    [TINY, replace(TINY, neighbors="both"), PropagatedSettings(hidden_dim=6, query_dim=5)],
)
def test_the_memory_thought_of_covers_the_parameters_and_their_moments(small_graph, settings):
    entry = ENTRY if isinstance(settings, HPGMNSettings) else MODELS["hpgmn-gcn"]
    replicas = replicas_of(replace(settings, epochs=1))
    task = make_task(small_graph, replicas, masks_of(small_graph, replicas), CPU)
    sizes = []
    train(task, entry, watch=lambda _, stage: sizes.append(_size(stage.model)))
    assert replica_bytes(small_graph, entry, settings) > 4 * max(sizes) * 4


def _size(model):
    return sum(parameter.numel() for parameter in model.parameters())


# What comes out.


def mixed():
    """Two shapes in turn, so that batches do not follow the order of the replicas."""
    kinds = [replace(TINY, lr=0.02), replace(TINY, neighbors="in"), replace(TINY, lr=0.005)]
    return replicas_of(*kinds, *kinds)


def test_results_are_in_the_order_of_the_replicas(small_graph):
    short, long = replace(TINY, epochs=3), replace(TINY, epochs=6)
    replicas = replicas_of(long, short, long, short, short)
    fitted = fit(small_graph, replicas)
    assert fitted.replicas == replicas
    assert set(fitted.done) == {"estimator", "main"}  # equal shapes, though not one batch
    alone = [fit(small_graph, [replica]) for replica in replicas]
    for place, expected in enumerate(alone):
        for name, value in flat(fitted).items():
            own = flat(expected)[name]
            if value.dim() == 2 and "/" in name:  # history, filled up to the longest
                assert value[place, own.shape[1] :].isnan().all()
                value = value[:, : own.shape[1]]
            torch.testing.assert_close(value[place], own[0], rtol=1e-3, atol=1e-3, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"hidden_dim": 5},
        {"num_patterns": 3},
        {"memory": False},
        {"gate": False},
        {"neighbors": "both"},
    ],
    ids=str,
)
def test_replicas_of_different_shapes_can_be_fitted_in_one_call(small_graph, change):
    replicas = replicas_of(TINY, replace(TINY, **change), TINY)
    fitted = fit(small_graph, replicas)
    assert fitted.done == {}  # there is no one model to save
    for place, replica in enumerate(replicas):
        alone = fit(small_graph, [replica])
        torch.testing.assert_close(fitted.logits[[place]], alone.logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("limit", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_several_batches_give_what_one_gives(small_graph, at_most, limit):
    together = fit(small_graph, mixed())
    at_most(limit)
    assert_close(fit(small_graph, mixed()), together)


def test_a_replica_without_penalties_is_not_changed_by_those_with_penalties(small_graph):
    free = replace(TINY, kpattern_weight=0.0, entropy_weight=0.0, dropout=0.5)
    replicas = replicas_of(free, replace(TINY, dropout=0.5))
    together, alone = fit(small_graph, replicas), fit(small_graph, replicas[:1])
    torch.testing.assert_close(together.logits[:1], alone.logits, rtol=1e-3, atol=1e-3)


def test_the_result_is_that_of_the_trainer(small_graph):
    replicas = mixed()
    task = make_task(small_graph, replicas, masks_of(small_graph, replicas), CPU)

    def work(_):
        state = train(task, ENTRY)
        return state, logits(task, ENTRY, state.done)

    state, expected = run_training_thread(work)
    fitted = fit(small_graph, replicas)
    assert torch.equal(fitted.logits, expected)
    assert torch.equal(fitted.val_score, state.best_score["main"])
    assert torch.equal(fitted.val_loss, state.best_loss["main"])
    for stage in ("estimator", "main"):
        assert torch.equal(fitted.best_epoch[stage], state.best_epoch[stage])
        assert torch.equal(fitted.history[stage]["loss"], state.history[stage]["loss"])
        for name, value in state.done[stage].items():
            assert torch.equal(fitted.done[stage][name], value)
    assert fitted.seconds["training"] > 0


def test_progress_is_told_after_every_epoch(small_graph, at_most):
    at_most(3)
    told: list[Progress] = []
    fitted = fit(small_graph, mixed(), report=told.append)
    expected = [
        (batch, 2, stage, epoch, epochs)
        for batch in range(2)
        for stage, epochs in (("estimator", 4), ("main", 6))
        for epoch in range(1, epochs + 1)
    ]
    assert [(p.batch, p.batches, p.stage, p.epoch, p.epochs) for p in told] == expected
    losses = fitted.history["main"]["loss"]
    assert told[-1].loss == pytest.approx(losses[-1, 3:].mean().item())
    assert told[-1].val_score == pytest.approx(fitted.val_score[3:].mean().item())


PUSHED = replace(TINY, diffusion_form="topk", diffusion_topk=4)


def test_rows_of_a_slow_statistic_are_told(small_graph):
    told: list[Progress] = []
    fit(small_graph, replicas_of(PUSHED, PUSHED), report=told.append)
    assert [one.stage for one in told] == ["estimator"] * 4 + ["diffusion"] + ["main"] * 6
    rows = told[4]
    assert (rows.batch, rows.batches, rows.epoch, rows.epochs) == (0, 1, 18, 18)
    assert math.isnan(rows.loss)
    assert math.isnan(rows.val_score)


def test_progress_tells_the_seconds_of_statistics_so_far(small_graph, at_most):
    at_most(3)
    told: list[Progress] = []
    fitted = fit(small_graph, mixed(), report=told.append)
    for batch in range(2):
        spent = [p.seconds_statistics for p in told if p.batch == batch]
        assert 0 < spent[0] == spent[3] < spent[4] == spent[9]  # each stage prepares once
    both = told[9].seconds_statistics + told[19].seconds_statistics
    assert both == pytest.approx(fitted.seconds["statistics"])


# Interrupted and continued.


class StopAfter:
    """Asks to stop after so many epochs."""

    def __init__(self, epochs):
        self.left = epochs

    def __call__(self):
        self.left -= 1
        return self.left == 0


INTERRUPTED = {"rates": mixed(), "groups": replicas_of(TINY, replace(TINY, teleport=0.5), TINY)}


@pytest.mark.parametrize(
    "epochs",
    [4, 13, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 5, 9, 10, 19, 20))],
)
@pytest.mark.parametrize("name", INTERRUPTED)
def test_a_stopped_training_goes_on_to_the_same_bits(small_graph, tmp_path, at_most, name, epochs):
    at_most(3)
    replicas = INTERRUPTED[name]
    undisturbed = fit(small_graph, replicas)
    with pytest.raises(KeyboardInterrupt):
        fit(small_graph, replicas, folder=tmp_path, identity="me", should_stop=StopAfter(epochs))
    told: list[Progress] = []
    resumed = fit(small_graph, replicas, folder=tmp_path, identity="me", report=told.append)
    assert len(told) == 20 - epochs  # nothing is done twice
    assert_same_bits(resumed, undisturbed)


def test_a_training_stopped_again_and_again_gives_the_same_bits(small_graph, tmp_path, at_most):
    at_most(3)
    undisturbed = fit(small_graph, mixed())
    options = {"folder": tmp_path, "identity": "me"}
    for _ in range(6):
        with pytest.raises(KeyboardInterrupt):
            fit(small_graph, mixed(), should_stop=StopAfter(3), **options)
    assert_same_bits(fit(small_graph, mixed(), **options), undisturbed)


def test_an_interrupt_saves_the_state(small_graph, tmp_path, at_most):
    at_most(3)
    undisturbed = fit(small_graph, mixed())
    told: list[Progress] = []

    def report(progress):
        told.append(progress)
        if len(told) == 7:  # Ctrl-C, which reaches the thread that waits
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if len(told) >= 7:
            time.sleep(0.1)

    options = {"folder": tmp_path, "identity": "me"}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            fit(small_graph, mixed(), report=report, **options)
    finally:
        signal.signal(signal.SIGINT, before)
    assert 7 <= len(told) < 20
    resumed = fit(small_graph, mixed(), report=told.append, **options)
    assert len(told) == 20  # nothing is done twice
    assert_same_bits(resumed, undisturbed)


@pytest.mark.parametrize("saved", [True, False])
def test_a_stop_among_the_rows_of_a_statistic_loses_no_epoch(small_graph, tmp_path, saved):
    replicas = replicas_of(PUSHED, PUSHED)
    undisturbed = fit(small_graph, replicas)
    told: list[Progress] = []
    options: dict[str, Any] = {"folder": tmp_path, "identity": "me"} if saved else {}
    with pytest.raises(KeyboardInterrupt):
        fit(
            small_graph,
            replicas,
            should_stop=lambda: told[-1].stage == "diffusion",
            report=told.append,
            **options,
        )
    assert len(told) == 5
    resumed = fit(small_graph, replicas, report=told.append, **options)
    before = [] if saved else ["estimator"] * 4
    assert [one.stage for one in told[5:]] == [*before, "diffusion", *["main"] * 6]
    assert_same_bits(resumed, undisturbed)


def test_a_finished_training_is_read_not_repeated(small_graph, tmp_path):
    told: list[Progress] = []
    options = {"folder": tmp_path, "identity": "me", "report": told.append}
    first = fit(small_graph, mixed(), **options)
    count = len(told)
    again = fit(small_graph, mixed(), **options)
    assert len(told) == count
    assert_same_bits(again, first)


def test_a_resumed_training_keeps_the_batches_it_began_with(small_graph, tmp_path, at_most):
    at_most(2)
    undisturbed = fit(small_graph, mixed())
    options = {"folder": tmp_path, "identity": "me"}
    with pytest.raises(KeyboardInterrupt):
        fit(small_graph, mixed(), should_stop=StopAfter(14), **options)
    plan = verify_checksum(json.loads((tmp_path / "plan.json").read_text()))
    assert plan == {"format": 3, "identity": "me", "plan": [[0, 1], [2, 3], [4, 5]]}
    at_most(6)  # more memory than before
    assert_same_bits(fit(small_graph, mixed(), **options), undisturbed)
    assert verify_checksum(json.loads((tmp_path / "plan.json").read_text())) == plan


@pytest.mark.parametrize("form", ["sealed", "bare", "before"])
def test_a_plan_without_the_checksum_of_its_form_is_refused(small_graph, tmp_path, form):
    """Bare: without the checksum that its form has; before: of the first form, which has none."""
    content = {"format": 3, "identity": "me", "plan": [[0, 1]]}
    if form == "before":
        del content["format"]
    text = json.dumps(with_checksum(content) if form == "sealed" else content)
    (tmp_path / "plan.json").write_text(text)
    options = {"folder": tmp_path, "identity": "me"}
    if form != "bare":
        fit(small_graph, mixed()[::3], **options)
        return
    with pytest.raises(HPGMNError, match=r"plan\.json is damaged or not an hpgmn file"):
        fit(small_graph, mixed()[::3], **options)


@pytest.mark.parametrize("plan", [None, "x", [0, 1], [[7]], [[0, 1], [1]], [[0], [1], []]])
def test_a_plan_that_is_no_partition_of_the_replicas_is_refused(small_graph, tmp_path, plan):
    """Plans of the first format may lack a checksum."""
    (tmp_path / "plan.json").write_text(json.dumps({"identity": "me", "plan": plan}))
    with pytest.raises(HPGMNError, match=r"plan\.json is damaged or not an hpgmn file"):
        fit(small_graph, mixed()[::3], folder=tmp_path, identity="me")


def test_states_are_saved_now_and_then(small_graph, tmp_path, monkeypatch):
    monkeypatch.setattr(replicas_module, "SAVE_SECONDS", -1.0)
    path = tmp_path / "state-000.safetensors"
    there = []
    undisturbed = fit(small_graph, mixed())

    class Crash(Exception):
        pass

    def report(progress):
        there.append(path.exists())
        if len(there) == 7:
            raise Crash

    with pytest.raises(Crash):
        fit(small_graph, mixed(), folder=tmp_path, identity="me", report=report)
    assert there == [False, *[True] * 6]
    told: list[Progress] = []
    resumed = fit(small_graph, mixed(), folder=tmp_path, identity="me", report=told.append)
    assert len(told) == 10 - 6  # the seventh epoch was not saved
    assert_same_bits(resumed, undisturbed)


def test_the_folder_of_another_training_is_refused(small_graph, tmp_path):
    fit(small_graph, mixed(), folder=tmp_path, identity="me")
    with pytest.raises(HPGMNError, match="was started with other settings"):
        fit(small_graph, mixed(), folder=tmp_path, identity="you")


@pytest.mark.parametrize("number", [4, 8])
def test_batches_planned_for_another_training_are_refused(small_graph, tmp_path, number):
    class Crash(Exception):
        pass

    def crash(progress):
        raise Crash  # before any state was saved

    with pytest.raises(Crash):
        fit(small_graph, mixed(), folder=tmp_path, identity="me", report=crash)
    with pytest.raises(HPGMNError, match="was started with other settings"):
        fit(small_graph, replicas_of(*[TINY] * number), folder=tmp_path, identity="you")


def test_without_a_folder_nothing_is_saved(small_graph, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fit(small_graph, mixed(), should_stop=StopAfter(2))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory.")])
def test_running_out_of_memory_says_what_to_do(small_graph, monkeypatch, error):
    def train(*_, **__):
        raise error

    monkeypatch.setattr(replicas_module, "train", train)
    replicas = replicas_of(TINY)
    with pytest.raises(HPGMNError, match=r"Out of memory while training hpgmn on .*hidden_dim"):
        fit_replicas(small_graph, ENTRY, replicas, masks_of(small_graph, replicas))


# Batches of rows.


def test_replicas_in_batches_are_apart_where_their_train_nodes_differ_in_number():
    random = np.random.default_rng(0)
    part = np.arange(30)
    train = np.stack([part < 12, part < 12, part < 9], axis=1)
    val = np.stack([(part >= 12) & (part < 20)] * 3, axis=1)
    graph = Graph(
        random.normal(size=(30, 4)),
        random.integers(0, 30, (2, 80)),
        np.arange(30) % 3,
        train_mask=train,
        val_mask=val,
        test_mask=np.stack([part >= 20] * 3, axis=1),
    )
    settings = replace(TINY, statistics=STATISTICS[:5], batch_size=5, entropy_weight=0.5)
    every = [Replica(split, 0, settings) for split in range(3)]
    cpu = torch.device("cpu")
    assert replica_groups(graph, MODELS["hpgmn"], every, cpu, [12, 12, 9]) == [[0, 1], [2]]
    whole = [replace(one, settings=TINY) for one in every]
    assert replica_groups(graph, MODELS["hpgmn"], whole, cpu, [12, 12, 9]) == [[0, 1, 2]]
    masks = [(train[:, split], val[:, split]) for split in range(3)]
    together = fit_replicas(graph, MODELS["hpgmn"], every, masks)
    alone = fit_replicas(graph, MODELS["hpgmn"], every[2:], masks[2:])
    torch.testing.assert_close(together.logits[2:], alone.logits)


def test_groups_take_their_replicas_fixed_epochs_and_finish_together(small_graph, at_most):
    at_most(2)
    settings = replace(TINY, epochs=8, patience=0)
    replicas = [Replica(0, seed, settings) for seed in range(5)]
    epochs = torch.tensor([4, 1, 3, 2, 5])
    fitted = fit(small_graph, replicas, epochs={"main": epochs})
    assert torch.equal(fitted.best_epoch["main"], epochs)
    assert fitted.val_score.isnan().all()
    assert not fitted.history["estimator"]["val_score"].isnan().all()
    finished = fit(small_graph, replicas, should_finish=lambda: True)
    assert all(torch.equal(best, torch.ones(5)) for best in finished.best_epoch.values())
    assert finished.logits.isfinite().all()
    torch.testing.assert_close(
        finished.logits[3:4], fit(small_graph, replicas[3:4], should_finish=lambda: True).logits
    )
