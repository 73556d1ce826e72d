"""Two ranks have the batches, the loss, the gradient and the training of one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from typing_extensions import override

import hpgmn as package
from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.files import read_tensors
from hpgmn.base.metrics import accuracy
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models.hpgmn import ENTRY, HPGMNSettings
from hpgmn.models.stage import Replica
from hpgmn.shards import Shards
from hpgmn.training import replicas as replicas_module
from hpgmn.training.ranks import Ranks
from hpgmn.training.shard_task import (
    BlockRows,
    ShardRows,
    ShardTask,
    check_shard_settings,
    fit_shards,
    read_common_state,
    shard_stage,
)
from hpgmn.training.stage_runner import LabelledNodes, NodeBatch, StageRunner
from hpgmn.training.state import TrainState

SETTINGS: dict[str, Any] = {
    "hidden_dim": 6,
    "num_patterns": 5,
    "estimator_hidden": 6,
    "estimator_epochs": 10,
    "epochs": 8,
    "batch_size": 40,
    "classifier_layers": 2,
    "kpattern_weight": 0.1,
    "entropy_weight": 0.3,
    "statistics": ("attributes", "class_counts", "class_means", "adjacency"),
}
DROPPED = ("attributes", "class_counts", "class_means", "adjacency")
WITHOUT_DROPOUT = {"dropout": 0.0} | {f"{name}_dropout": 0.0 for name in DROPPED}
DENSE = {"statistics": ("attributes", "class_counts", "class_means")}

# Writes the loss of each of three batches, and the gradient, from every rank.
PROGRAM = """
import sys
from pathlib import Path
import torch
from hpgmn.base.metrics import metric
from hpgmn.base.settings import make_settings
from hpgmn.models.hpgmn import ENTRY
from hpgmn.models.layers import initialise
from hpgmn.models.stage import Replica
from hpgmn.shards import Shards
from hpgmn.base.files import write_tensors
from hpgmn.training.ranks import join_ranks
from hpgmn.training.shard_task import ShardRows, ShardTask, shard_stage
from hpgmn.training.stage_runner import StageRunner
from hpgmn.training.state import TrainState

folder, out, seeds, double = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with join_ranks("cpu") as ranks:
    shards = Shards(folder)
    settings = make_settings(ENTRY.settings, shards.settings)
    rows = ShardRows(shards, shards.shares(ranks.size)[ranks.rank])
    if double == "double":
        torch.set_default_dtype(torch.float64)
    task = ShardTask.of(rows, [Replica(0, seed, settings) for seed in range(seeds)], ranks)
    live = list(range(seeds))
    runner = StageRunner(task, shard_stage, TrainState(), live, metric("accuracy", 1), ranks)
    initialise(runner.model, runner.keys)
    if double == "double":
        runner.model.double()
    found = {}
    for number, batch in enumerate(runner.node_batches(1)):
        for parameter in runner.trained.values():
            parameter.grad = None
        loss = runner.batch_loss(batch, runner._rows(batch), number + 1)
        loss.sum().backward()
        found[f"loss-{number}"] = loss.detach()
        found[f"read-{number}"] = torch.tensor([batch.nodes.shape[1], int(batch.size[0])])
        for name, parameter in runner.trained.items():
            found[f"{name}-{number}"] = parameter.grad
        with torch.no_grad():
            runner.stage.after_step(runner.model)
        found[f"use-{number}"] = runner.model.head.memory.use
    score, val_loss = runner.evaluate()
    found |= {"score": score.float(), "val_loss": val_loss.float()}
    write_tensors(out / f"{ranks.size}-{ranks.rank}", {k: v.clone() for k, v in found.items()}, {})
"""


def trading(num_nodes=220):
    return package.trading_network(num_nodes=num_nodes, seed=3).graph


def rows_of(folder):
    shards = Shards(folder)
    return ShardRows(shards, range(len(shards)))


def replicas(settings, seeds=1):
    return [Replica(0, seed, make_settings(ENTRY.settings, settings)) for seed in range(seeds)]


def task_of(rows, settings, seeds=1):
    return ShardTask.of(rows, replicas(settings, seeds), Ranks())


def runner_of(task):
    live = list(range(len(task.replicas)))
    return StageRunner(task, shard_stage, TrainState(), live, accuracy)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("changed", "seeds", "kind", "tolerance"),
    [
        pytest.param(
            *(WITHOUT_DROPOUT | DENSE, 2, "double", 1e-9),
            id="double, two seeds",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *({"class_weights": "balanced", "kpattern_reduction": "sum"}, 1, "single", 1e-5),
            id="with dropout, weighted, sparse",
        ),
    ],
)
def test_two_ranks_have_the_loss_and_gradient_of_one(
    changed, seeds, kind, tolerance, tmp_path, shards_writer, several
):
    folder = shards_writer(tmp_path / "shards", trading(), SETTINGS | changed, ranges=5)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    for ranks in (1, 2):
        several(ranks, str(program), str(folder), str(tmp_path), str(seeds), kind)
    one, first, second = (read_tensors(tmp_path / name)[0] for name in ("1-0", "2-0", "2-1"))
    assert one.keys() == first.keys() == second.keys()
    reads = [name for name in one if name.startswith("read")]
    assert len(reads) > 1
    for name in reads:  # each rank reads a part, both together all
        assert first[name][0] + second[name][0] == one[name][0] == one[name][1]
        assert 0 < first[name][0] < one[name][0]
    for name in one.keys() - set(reads):
        torch.testing.assert_close(
            first[name],
            one[name],
            rtol=tolerance,
            atol=tolerance,
            msg=lambda m, n=name: f"{n}: {m}",
        )
        assert torch.equal(first[name], second[name]), name
    gradients = [name for name in one if name.startswith("head.memory.patterns")]
    assert all(one[name].abs().max() > 1e-4 for name in gradients)


def test_one_rank_trains_as_the_trainer_does(tmp_path, trained_writer):
    folder, (state, _) = trained_writer(tmp_path, trading(), SETTINGS)
    found = fit_shards(task_of(rows_of(folder), SETTINGS))
    for key in ("loss", "val_loss", "val_score"):
        expected = state.history["main"][key]
        torch.testing.assert_close(found.history["main"][key], expected, rtol=1e-4, atol=1e-4)
    assert found.best_epoch["main"].tolist() == state.best_epoch["main"].tolist()
    for name, value in state.done["main"].items():
        torch.testing.assert_close(found.done["main"][name], value, rtol=1e-3, atol=1e-3)


def test_batches_are_all_train_nodes_once_and_the_share_of_a_rank_is_its_part(
    tmp_path, shards_writer
):
    graph = trading()
    runner = runner_of(task_of(rows_of(shards_writer(tmp_path, graph, SETTINGS)), SETTINGS, 2))
    whole = list(runner.node_batches(3))
    nodes = torch.cat([batch.nodes[0] for batch in whole])
    assert sorted(nodes.tolist()) == np.flatnonzero(graph.split(0).train).tolist()
    assert nodes.tolist() != sorted(nodes.tolist())
    assert [int(batch.size) for batch in whole[:-1]] == [40] * (len(whole) - 1)
    assert len(whole) == runner.steps
    assert torch.cat([batch.labels[0] for batch in whole]).tolist() == graph.y[nodes].tolist()
    # The share of a rank whose train nodes are the 20th to the 49th of all.
    every = runner.train
    runner.train = LabelledNodes(
        *(values[:, 20:50] for values in (every.nodes, every.labels, every.valid)),
        first=20,
        total=every.count,
    )
    own_nodes = set(runner.train.nodes[0].tolist())
    for batch, share in zip(whole, runner.node_batches(3), strict=True):
        expected = [
            place for place, node in enumerate(batch.nodes[0].tolist()) if node in own_nodes
        ]
        assert share.positions is not None
        assert share.positions.tolist() == expected
        assert share.nodes[0].tolist() == batch.nodes[0, expected].tolist()
        assert share.size.tolist() == batch.size.tolist()


def test_batches_do_not_depend_on_the_replicas_still_in_training(tmp_path, shards_writer):
    task = task_of(rows_of(shards_writer(tmp_path, trading(), SETTINGS)), SETTINGS, 2)
    both, second = (list(runner_of(own).node_batches(2)) for own in (task, task.subset([1])))
    for one, other in zip(both, second, strict=True):
        assert torch.equal(one.nodes, other.nodes)


def test_balanced_weights_are_those_of_the_trainer(tmp_path, shards_writer):
    graph = trading()
    settings = SETTINGS | {"class_weights": "balanced"}
    task = task_of(rows_of(shards_writer(tmp_path, graph, settings)), settings)
    counts = np.bincount(graph.y[graph.split(0).train], minlength=graph.num_classes)
    assert task.objective.weights is not None
    expected = counts.sum() / (graph.num_classes * counts)
    assert task.objective.weights[0].tolist() == pytest.approx(expected.tolist())


def test_a_saved_training_goes_on_with_the_same_bits(tmp_path, shards_writer, monkeypatch):
    rows = rows_of(shards_writer(tmp_path / "shards", trading(), SETTINGS))
    task = task_of(rows, SETTINGS, seeds=2)
    whole = fit_shards(task)
    monkeypatch.setattr(replicas_module, "SAVE_SECONDS", -1.0)
    path = tmp_path / "state.safetensors"

    def stop(now):
        assert now.epochs == 8
        if now.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_shards(task, path=path, identity="it", report=stop)
    with pytest.raises(HPGMNError, match="other settings"):
        fit_shards(task, path=path, identity="other")
    assert read_tensors(path)[1]["current"]["epoch"] == 2
    found = fit_shards(task, path=path, identity="it")
    assert found.history["main"]["loss"].shape == (8, 2)
    for name, value in whole.done["main"].items():
        assert torch.equal(found.done["main"][name], value), name
    again = fit_shards(task, path=path, identity="it")
    assert again.best_epoch["main"].tolist() == whole.best_epoch["main"].tolist()


def test_a_training_that_is_to_stop_saves_its_epoch(tmp_path, shards_writer):
    rows = rows_of(shards_writer(tmp_path / "shards", trading(), SETTINGS))
    path = tmp_path / "state.safetensors"
    answers = iter([False, False, True])
    with pytest.raises(KeyboardInterrupt):
        fit_shards(
            task_of(rows, SETTINGS), path=path, identity="it", should_stop=lambda: next(answers)
        )
    assert read_tensors(path)[1]["current"]["epoch"] == 3


class Second(Ranks):
    """The second of two ranks; the first says where it stands, and agrees with itself."""

    first = (0, 0, 0)

    @override
    def broadcast(self, values):
        return torch.tensor(self.first)

    @override
    def gather_numbers(self, number):
        return [0, number]


@pytest.mark.parametrize(
    ("epoch", "first"), [(None, (1, 0, 2)), (2, (0, 0, 0)), (2, (1, 0, 3)), (2, (1, 1, 0))]
)
def test_a_rank_that_sees_another_state_does_not_train(
    epoch, first, tmp_path, shards_writer, monkeypatch
):
    """A shared disk may show a file late; ranks that begin at different epochs wait for ever."""
    path = tmp_path / "state.safetensors"
    if epoch is not None:
        rows = rows_of(shards_writer(tmp_path / "shards", trading(), SETTINGS))
        answers = iter([False] * (epoch - 1) + [True])
        with pytest.raises(KeyboardInterrupt):
            fit_shards(
                task_of(rows, SETTINGS), path=path, identity="it", should_stop=lambda: next(answers)
            )
    monkeypatch.setattr(Second, "first", first)
    with pytest.raises(HPGMNError, match="Wait until every machine shows the same file"):
        read_common_state(Second(1, 2), path, "it")
    monkeypatch.setattr(Second, "first", (0, 0, 0) if epoch is None else (1, 0, epoch))
    found = read_common_state(Second(1, 2), path, "it")
    assert (found.current.epoch if found.current else None) == epoch


def test_where_one_rank_sees_another_state_all_end(tmp_path):
    ranks = Ranks()
    object.__setattr__(ranks, "gather_numbers", lambda number: [number, 1])
    with pytest.raises(HPGMNError, match="Wait until every machine shows the same file"):
        read_common_state(ranks, tmp_path / "none", "it")


def test_training_stops_when_nothing_gets_better(tmp_path, shards_writer):
    settings = SETTINGS | {"patience": 2, "lr": 0.0}
    rows = rows_of(shards_writer(tmp_path, trading(), settings))
    found = fit_shards(task_of(rows, settings))
    assert found.best_epoch["main"].tolist() == [1]
    assert found.history["main"]["loss"].shape == (3, 1)


def test_without_a_memory_nothing_is_averaged_over_nodes(tmp_path, shards_writer):
    settings = SETTINGS | {"memory": False, "epochs": 2}
    rows = rows_of(shards_writer(tmp_path, trading(), settings))
    task = task_of(rows, settings)
    assert not runner_of(task).weights
    assert fit_shards(task).history["main"]["loss"].shape == (2, 1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch_size": 0}, "Set it .batch_size=1024"),
        ({"refinement": True}, "Train without it .refinement=False"),
        ({"neighbors": "undirected"}, "The shards lack class_counts, class_means"),
    ],
)
def test_settings_that_shards_cannot_have_are_refused(changed, message):
    settings = HPGMNSettings(**({"batch_size": 10} | DENSE | changed))
    names = ["attributes", *(f"class_{n}_{d}" for n in ("counts", "means") for d in ("out", "in"))]
    with pytest.raises(SettingError, match=message):
        check_shard_settings(settings, names)


def test_shards_without_labelled_validation_nodes_are_refused(tmp_path, shards_writer, rewrite):
    graph = trading()
    folder = shards_writer(tmp_path, graph, SETTINGS, ranges=1)
    rewrite(folder, "rows-00000/val.npy", np.zeros(graph.num_nodes, bool))
    with pytest.raises(HPGMNError, match="have no val nodes with a label"):
        task_of(rows_of(folder), SETTINGS)


def test_a_rank_without_train_nodes_takes_part(tmp_path, shards_writer):
    """Its share of a batch is empty: sums over nothing, and gradients of zero."""
    rows = rows_of(shards_writer(tmp_path, trading(), SETTINGS))
    task = replace(task_of(rows, SETTINGS), ranks=SumsOfAnother(0, 2))
    runner = StageRunner(task, shard_stage, TrainState(), [0], accuracy, task.ranks)
    nothing = torch.empty(1, 0, dtype=torch.int64)
    batch = NodeBatch(nothing, nothing, nothing.bool(), nothing[0], torch.tensor([40]))
    loss = runner.batch_loss(batch, runner._rows(batch), 1)
    loss.sum().backward()
    assert loss.isfinite().all()
    first = runner.trained["encode.attributes.first.weight"].grad
    assert first is not None
    assert first.abs().max() == 0


class SumsOfAnother(Ranks):
    """The first of two ranks, the second of which adds 40 to every sum."""

    @override
    def sum(self, values):
        return values + 40

    @override
    def average_gradients(self, model):
        return model

    @override
    def gather_numbers(self, number):
        return [number, 40]

    @override
    def gather(self, values):
        return values


ROW_SETTINGS = {"batch_size": 4, "statistics": ("attributes", "class_counts", "adjacency")}


def test_rows_of_a_rank_are_those_of_the_graph(tmp_path, small_graph, shards_writer):
    shards = Shards(shards_writer(tmp_path, small_graph, ROW_SETTINGS, ranges=5))
    first, last = shards.ranges[1][0], shards.ranges[3][1]
    assert 0 < first < last < 18
    rows = ShardRows(shards, range(1, 4))
    assert (rows.first, rows.last, len(rows)) == (first, last, last - first)
    split = small_graph.split(0)
    assert rows.y.tolist() == small_graph.y[first:last].tolist()
    for part in ("train", "val", "test"):
        assert getattr(rows.split, part).tolist() == getattr(split, part)[first:last].tolist()
    wanted = torch.tensor([len(rows) - 1, 0, 4, 4, 3])
    attributes = rows.statistic("attributes", torch.device("cpu"))
    expected = small_graph.x[wanted.numpy() + first]
    np.testing.assert_allclose(attributes.rows(wanted).numpy(), expected)
    adjacency = rows.statistic("adjacency_out", torch.device("cpu"))
    matrix = small_graph.adjacency("out").toarray()
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-30)
    np.testing.assert_allclose(adjacency.rows(wanted).numpy(), matrix[wanted + first], rtol=1e-6)


@pytest.mark.parametrize("kind", ["dense", "half", "sparse"])
def test_products_are_those_of_the_whole_matrix(kind):
    random = np.random.default_rng(0)
    matrix = random.normal(size=(11, 6)).round(2).astype(np.float32)
    matrix[random.random(matrix.shape) < 0.5] = 0
    blocks: list[Any] = [matrix[:4], matrix[4:5], matrix[5:]]
    if kind == "sparse":
        blocks = [sp.csr_array(block.astype(np.float64)) for block in blocks]
    if kind == "half":
        blocks = [block.astype(np.float16) for block in blocks]
    rows = BlockRows(blocks, torch.device("cpu"))
    weight = torch.from_numpy(random.normal(size=(2, 6, 3)).astype(np.float32))
    columns = torch.from_numpy(random.random((2, 6)).astype(np.float32))
    nodes = torch.tensor([9, 4, 4, 0]).expand(2, -1)
    whole = np.einsum("nf,rf,rfd->rnd", matrix, columns.numpy(), weight.numpy())
    close = {"rtol": 1e-2, "atol": 1e-2} if kind == "half" else {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(rows.times(weight, None, columns).numpy(), whole, **close)
    some = rows.times(weight, nodes, columns).numpy()
    np.testing.assert_allclose(some, whole[:, [9, 4, 4, 0]], **close)
    assert rows.width == 6


def test_rows_need_a_split(tmp_path, shards_writer):
    bare = Graph(np.eye(4), [[0, 1], [1, 2]], [0, 1, -1, -1])
    shards = Shards(shards_writer(tmp_path, bare, ROW_SETTINGS, ranges=2, labels=bare.y))
    with pytest.raises(HPGMNError, match="has no split"):
        ShardRows(shards, range(2))


def test_spoiled_rows_are_not_trained_on(tmp_path, small_graph, shards_writer):
    folder = shards_writer(tmp_path, small_graph, ROW_SETTINGS, ranges=3)
    path = folder / "rows-00001" / "attributes.npy"
    content = bytearray(path.read_bytes())
    content[-2] ^= 4
    path.write_bytes(content)
    ShardRows(Shards(folder), range(2, 3))
    with pytest.raises(HPGMNError, match=r"attributes\.npy is missing, damaged"):
        ShardRows(Shards(folder), range(0, 2))
