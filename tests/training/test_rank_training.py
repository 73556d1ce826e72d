"""Two ranks have the batches, the loss, the gradient and the training of one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typing_extensions import override

import hpgmn as package
from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models.hpgmn import ENTRY, HPGMNSettings
from hpgmn.models.stage import Replica
from hpgmn.shards import Shards
from hpgmn.training import rank_training as module
from hpgmn.training.checkpoint import read_tensors
from hpgmn.training.rank_rows import Rows
from hpgmn.training.rank_training import ParallelTraining, check_settings, fit
from hpgmn.training.ranks import Ranks

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
from hpgmn.base.settings import make_settings
from hpgmn.training.ranks import joined
from hpgmn.training.rank_rows import Rows
from hpgmn.training.rank_training import ParallelTraining
from hpgmn.models.hpgmn import ENTRY
from hpgmn.models.stage import Replica
from hpgmn.shards import Shards
from hpgmn.training.checkpoint import write_tensors

folder, out, seeds, double = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with joined("cpu") as ranks:
    shards = Shards(folder)
    settings = make_settings(ENTRY.settings, shards.settings)
    rows = Rows(shards, shards.shares(ranks.size)[ranks.rank])
    if double == "double":
        torch.set_default_dtype(torch.float64)
    training = ParallelTraining(rows, [Replica(0, seed, settings) for seed in range(seeds)], ranks)
    if double == "double":
        training.model.double()
    found = {}
    for number, batch in enumerate(training.batches(1)):
        for parameter in training.trained.values():
            parameter.grad = None
        loss = training.loss(batch, training.some(batch.nodes), number + 1)
        loss.sum().backward()
        found[f"loss-{number}"] = loss.detach()
        found[f"read-{number}"] = torch.tensor([len(batch.nodes), batch.size])
        for name, parameter in training.trained.items():
            found[f"{name}-{number}"] = parameter.grad
        training.stage.after_step(training.model.requires_grad_(False))
        for parameter in training.trained.values():
            parameter.requires_grad_(True)
        found[f"use-{number}"] = training.model.head.memory.use
    score, val_loss = training.evaluate()
    found |= {"score": score, "val_loss": val_loss}
    write_tensors(out / f"{ranks.size}-{ranks.rank}", {k: v.clone() for k, v in found.items()}, {})
"""


def trading(num_nodes: int = 220) -> Graph:
    return package.trading_network(num_nodes=num_nodes, seed=3).graph


def rows_of(folder: Path) -> Rows:
    shards = Shards(folder)
    return Rows(shards, range(len(shards)))


def replicas(settings: dict[str, Any], seeds: int = 1) -> list[Replica]:
    return [Replica(0, seed, make_settings(ENTRY.settings, settings)) for seed in range(seeds)]


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "seeds", "kind", "tolerance"),
    [
        (WITHOUT_DROPOUT | DENSE, 2, "double", 1e-9),
        ({"class_weights": "balanced", "kpattern_reduction": "sum"}, 1, "single", 1e-5),
    ],
    ids=["double, two seeds", "with dropout, weighted, sparse"],
)
def test_two_ranks_have_the_loss_and_gradient_of_one(
    changed: dict[str, Any],
    seeds: int,
    kind: str,
    tolerance: float,
    tmp_path: Path,
    shards_writer: Callable[..., Path],
    several: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
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


def test_one_rank_trains_as_the_trainer_does(
    tmp_path: Path, trained_writer: Callable[..., tuple[Path, Any]]
) -> None:
    folder, (state, _) = trained_writer(tmp_path, trading(), SETTINGS)
    training = ParallelTraining(rows_of(folder), replicas(SETTINGS), Ranks())
    found = fit(training)
    for key in ("loss", "val_loss", "val_score"):
        expected = state.history["main"][key]
        torch.testing.assert_close(found.history["main"][key], expected, rtol=1e-4, atol=1e-4)
    assert found.best_epoch["main"].tolist() == state.best_epoch["main"].tolist()
    for name, value in state.done["main"].items():
        torch.testing.assert_close(found.done["main"][name], value, rtol=1e-3, atol=1e-3)


def test_batches_are_all_train_nodes_once_and_the_share_of_a_rank_is_its_part(
    tmp_path: Path, shards_writer: Callable[..., Path]
) -> None:
    graph = trading()
    rows = rows_of(shards_writer(tmp_path, graph, SETTINGS))
    training = ParallelTraining(rows, replicas(SETTINGS), Ranks())
    whole = list(training.batches(3))
    nodes = torch.cat([batch.nodes for batch in whole])
    assert sorted(nodes.tolist()) == np.flatnonzero(graph.split(0).train).tolist()
    assert nodes.tolist() != sorted(nodes.tolist())
    assert [batch.size for batch in whole[:-1]] == [40] * (len(whole) - 1)
    assert len(whole) == training.steps
    assert torch.cat([batch.labels for batch in whole]).tolist() == graph.y[nodes].tolist()
    # The share of a rank whose train nodes are the 20th to the 49th of all.
    training._train_start = 20
    training.train_nodes, training.train_labels = (
        training.train_nodes[20:50],
        training.train_labels[20:50],
    )
    every = np.flatnonzero(graph.split(0).train)
    for batch, share in zip(whole, training.batches(3), strict=True):
        expected = [place for place, node in enumerate(batch.nodes) if node in every[20:50]]
        assert share.places.tolist() == expected
        assert share.nodes.tolist() == batch.nodes[expected].tolist()
        assert share.size == batch.size


def test_balanced_weights_are_those_of_the_trainer(
    tmp_path: Path, shards_writer: Callable[..., Path]
) -> None:
    graph = trading()
    settings = SETTINGS | {"class_weights": "balanced"}
    rows = rows_of(shards_writer(tmp_path, graph, settings))
    training = ParallelTraining(rows, replicas(settings), Ranks())
    counts = np.bincount(graph.y[graph.split(0).train], minlength=graph.num_classes)
    assert training.class_weights is not None
    expected = counts.sum() / (graph.num_classes * counts)
    assert training.class_weights.tolist() == pytest.approx(expected.tolist())


def test_a_saved_training_goes_on_with_the_same_bits(
    tmp_path: Path, shards_writer: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(shards_writer(tmp_path / "shards", trading(), SETTINGS))
    own = replicas(SETTINGS, seeds=2)
    whole = fit(ParallelTraining(rows, own, Ranks()))
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.0)
    path = tmp_path / "state.safetensors"

    def stop(now: Any) -> None:
        assert now.epochs == 8
        if now.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(ParallelTraining(rows, own, Ranks()), path=path, identity="it", report=stop)
    with pytest.raises(HPGMNError, match="other settings"):
        fit(ParallelTraining(rows, own, Ranks()), path=path, identity="other")
    resumed = ParallelTraining(rows, own, Ranks())
    found = fit(resumed, path=path, identity="it")
    assert found.history["main"]["loss"].shape == (8, 2)
    for name, value in whole.done["main"].items():
        assert torch.equal(found.done["main"][name], value), name
        assert torch.equal(dict(resumed.model.named_parameters())[name], value)
    again = fit(ParallelTraining(rows, own, Ranks()), path=path, identity="it")
    assert again.best_epoch["main"].tolist() == whole.best_epoch["main"].tolist()


def test_a_training_that_is_to_stop_saves_its_epoch(
    tmp_path: Path, shards_writer: Callable[..., Path]
) -> None:
    rows = rows_of(shards_writer(tmp_path / "shards", trading(), SETTINGS))
    path = tmp_path / "state.safetensors"
    answers = iter([False, False, True])
    with pytest.raises(KeyboardInterrupt):
        fit(
            ParallelTraining(rows, replicas(SETTINGS), Ranks()),
            path=path,
            identity="it",
            should_stop=lambda: next(answers),
        )
    assert read_tensors(path)[1]["current"]["epoch"] == 3


class Second(Ranks):
    """The second of two ranks; the first says where it stands, and agrees with itself."""

    first = (0, 0, 0)

    @override
    def agreed(self, values: Tensor) -> Tensor:
        return torch.tensor(self.first)

    @override
    def counts(self, own: int) -> list[int]:
        return [0, own]


@pytest.mark.parametrize(
    ("epoch", "first"), [(None, (1, 0, 2)), (2, (0, 0, 0)), (2, (1, 0, 3)), (2, (1, 1, 0))]
)
def test_a_rank_that_sees_another_state_does_not_train(
    epoch: int | None,
    first: tuple[int, int, int],
    tmp_path: Path,
    shards_writer: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shared disk may show a file late; ranks that begin at different epochs wait for ever."""
    path = tmp_path / "state.safetensors"
    if epoch is not None:
        rows = rows_of(shards_writer(tmp_path / "shards", trading(), SETTINGS))
        answers = iter([False] * (epoch - 1) + [True])
        training = ParallelTraining(rows, replicas(SETTINGS), Ranks())
        with pytest.raises(KeyboardInterrupt):
            fit(training, path=path, identity="it", should_stop=lambda: next(answers))
    monkeypatch.setattr(Second, "first", first)
    with pytest.raises(HPGMNError, match="Wait until every machine shows the same file"):
        module.saved_state(Second(1, 2), path, "it")
    monkeypatch.setattr(Second, "first", (0, 0, 0) if epoch is None else (1, 0, epoch))
    found = module.saved_state(Second(1, 2), path, "it")
    assert (found.current.epoch if found.current else None) == epoch


def test_where_one_rank_sees_another_state_all_end(tmp_path: Path) -> None:
    ranks = Ranks()
    object.__setattr__(ranks, "counts", lambda own: [own, 1])
    with pytest.raises(HPGMNError, match="Wait until every machine shows the same file"):
        module.saved_state(ranks, tmp_path / "none", "it")


def test_training_stops_when_nothing_gets_better(
    tmp_path: Path, shards_writer: Callable[..., Path]
) -> None:
    settings = SETTINGS | {"patience": 2, "lr": 0.0}
    rows = rows_of(shards_writer(tmp_path, trading(), settings))
    found = fit(ParallelTraining(rows, replicas(settings), Ranks()))
    assert found.best_epoch["main"].tolist() == [1]
    assert found.history["main"]["loss"].shape == (3, 1)


def test_without_a_memory_nothing_is_averaged_over_nodes(
    tmp_path: Path, shards_writer: Callable[..., Path]
) -> None:
    settings = SETTINGS | {"memory": False, "epochs": 2}
    rows = rows_of(shards_writer(tmp_path, trading(), settings))
    training = ParallelTraining(rows, replicas(settings), Ranks())
    assert not training.weights
    assert fit(training).history["main"]["loss"].shape == (2, 1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch_size": 0}, "Add --set batch_size=1024"),
        ({"refinement": True}, "Set refinement=false"),
        ({"neighbors": "undirected"}, "The shards lack class_counts, class_means"),
    ],
)
def test_settings_that_shards_cannot_have_are_refused(
    changed: dict[str, Any], message: str
) -> None:
    settings = HPGMNSettings(**({"batch_size": 10} | DENSE | changed))
    names = ["attributes", *(f"class_{n}_{d}" for n in ("counts", "means") for d in ("out", "in"))]
    with pytest.raises(SettingError, match=message):
        check_settings(settings, names)


def test_shards_without_labelled_validation_nodes_are_refused(
    tmp_path: Path, shards_writer: Callable[..., Path], rewrite: Callable[[Path, str, Any], None]
) -> None:
    graph = trading()
    folder = shards_writer(tmp_path, graph, SETTINGS, ranges=1)
    rewrite(folder, "rows-00000/val.npy", np.zeros(graph.num_nodes, bool))
    with pytest.raises(HPGMNError, match="have no val nodes with a label"):
        ParallelTraining(rows_of(folder), replicas(SETTINGS), Ranks())


def test_a_rank_without_train_nodes_takes_part(
    tmp_path: Path, shards_writer: Callable[..., Path]
) -> None:
    """Its share of a batch is empty: sums over nothing, and gradients of zero."""
    rows = rows_of(shards_writer(tmp_path, trading(), SETTINGS))
    training = ParallelTraining(rows, replicas(SETTINGS), Ranks())
    nothing = torch.empty(0, dtype=torch.int64)
    batch = module.Batch(nothing, nothing, nothing, 40)
    training.ranks = type("Two", (), {"size": 2, "device": torch.device("cpu")})()
    training.ranks.total = lambda values: values  # type: ignore[attr-defined]
    loss: Tensor = training.loss(batch, training.some(batch.nodes), 1)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert training.trained["encode.attributes.first.weight"].grad.abs().max() == 0
