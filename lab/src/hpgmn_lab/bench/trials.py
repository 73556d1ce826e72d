"""The trials of one model on one split, in the measured process: timed, selected on validation.

PyTorch Geometric's models (``pyg-gcn``) are trained in a plain loop: all nodes in one step, Adam,
the best epoch, and the settings of our model of the same name. They get the graph as a sparse
matrix, several times faster than a list of edges on a CPU, or as a list where the device has no
backward pass for sparse matrices.
"""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import make_settings
from hpgmn.evaluation.scores import scores
from hpgmn.graph import Graph
from hpgmn.graph.datasets import load
from hpgmn.graph.synthetic import trading_network
from hpgmn.models import find_model
from hpgmn.training.replicas import Progress
from hpgmn.training.trainer import run_training_thread
from hpgmn_lab.bench.process import Meter, ProgressLines, StageClock, fit_once
from hpgmn_lab.bench.records import Record

PYG = "pyg-"
"""The prefix of PyTorch Geometric's models; the rest is the name of ours."""


def label(model: str) -> str:
    """Return a model's name in tables.

    >>> label("pyg-gcn"), label("gcn"), label("hpgmn")
    ('PyG GCN', 'gcn', 'hpgmn')
    """
    return f"PyG {model.removeprefix(PYG).upper()}" if model.startswith(PYG) else model


@dataclass(frozen=True)
class Assignment:
    """What a trial trains on, and the value of ``time.perf_counter`` when it has to stop."""

    graph: Graph
    split: int
    seed: int
    device: str
    deadline: float = float("inf")
    report: Callable[[Progress], None] | None = None


@dataclass(frozen=True)
class Trial:
    """A timed training.

    Attributes:
        epochs: the seconds of each epoch.
        curve: (seconds since the start, best validation score) after each epoch.
        logits: (N, C) at the best epoch; None if the training was cut.
    """

    epochs: list[float]
    curve: list[tuple[float, float]]
    is_finished: bool
    logits: Tensor | None

    @classmethod
    def of(cls, clock: StageClock, logits: Tensor | None) -> Trial:
        """Return the trial that a clock has timed."""
        epochs = clock.epochs.get("main", [])
        return cls(epochs, clock.curve if epochs else [], logits is not None, logits)

    @property
    def best(self) -> float:
        """Return the best validation score; -1 without an epoch."""
        return self.curve[-1][1] if self.curve else -1.0

    def summary(self, epochs: int) -> Record:
        """Return the row of the record; preparation is all that precedes the first epoch."""
        first = self.curve[0][0] - self.epochs[0] if self.curve else None
        return {
            "val_accuracy": self.best if self.curve else None,
            "preparation_seconds": first,
            "epoch_seconds": statistics.median(self.epochs) if self.epochs else None,
            "seconds": self.curve[-1][0] if self.curve else None,
            "epochs_trained": len(self.epochs),
            "epochs": epochs,
            "is_finished": self.is_finished,
        }


def run_trials(
    source: str,
    split: int,
    model: str,
    candidates: Sequence[dict[str, Any]],
    seed: int,
    device: str,
    limit: float | None,
) -> Record:
    """Train every candidate, select one on validation, and compute its test score.

    All trials together have ``limit`` seconds.
    """
    entry = find_model(model.removeprefix(PYG))
    fit = pyg_fit(model.removeprefix(PYG)) if model.startswith(PYG) else partial(_fit, model)
    tiny = Assignment(trading_network(200, num_features=4).graph, 0, 0, device)
    fit(make_settings(entry.settings, candidates[0] | {"epochs": 1}), tiny)  # the warm-up
    graph = load(source)
    edges = graph.num_edges  # merges the edges into the adjacency, for every model alike
    meter, lines = Meter(device), ProgressLines(label(model))
    deadline = float("inf") if limit is None else time.perf_counter() + limit
    assignment = Assignment(graph, split, seed, device, deadline, lines)
    rows: list[Record] = []
    chosen, number = None, 0
    for values in candidates:
        if rows and time.perf_counter() > deadline:
            break
        settings = make_settings(entry.settings, values)
        trial = fit(settings, assignment)
        rows.append({"settings": values} | trial.summary(settings.epochs))
        lines.print(f"trial {len(rows)} of {len(candidates)}: validation {trial.best:.4f}")
        if chosen is None or (trial.is_finished, trial.best) > (chosen.is_finished, chosen.best):
            chosen, number = trial, len(rows) - 1
        del trial
        gc.collect()
    assert chosen is not None
    test = graph.split(split).test
    score = None
    if chosen.logits is not None and test.any():
        score = scores(chosen.logits[None], graph.y, [test], "accuracy")[0]
    return {
        "nodes": graph.num_nodes,
        "edges": edges,
        "trials": rows,
        "chosen": number,
        "curve": chosen.curve,
        "test_accuracy": score,
        **meter.record(),
    }


def _fit(model: str, settings: Any, on: Assignment) -> Trial:
    """Train one of our models."""
    clock, was_cut, logits = StageClock(on.report), False, None

    def should_stop() -> bool:
        nonlocal was_cut
        was_cut = time.perf_counter() > on.deadline
        return was_cut

    options: dict[str, Any] = {"device": on.device, "report": clock, "should_stop": should_stop}
    try:
        fitted = fit_once(on.graph, model, settings, split=on.split, seed=on.seed, **options)
        logits = fitted.logits[0]
    except KeyboardInterrupt:
        if not was_cut:
            raise
    return Trial.of(clock, logits)


# PyTorch Geometric's models.


def pyg_module(name: str, graph: Graph, settings: Any) -> nn.Module:
    """Return PyTorch Geometric's gcn, linkx, appnp or mlp."""
    from torch_geometric.nn import APPNP, GCN, LINKX, MLP, Sequential

    hidden, classes = settings.hidden_dim, graph.num_classes
    widths = [graph.num_features, *[hidden] * (settings.layers - 1), classes]
    module: nn.Module
    if name == "gcn":
        sizes = (graph.num_features, hidden, settings.layers, classes)
        module = GCN(*sizes, dropout=settings.dropout, cached=True)
    elif name == "linkx":
        sizes = (graph.num_nodes, graph.num_features, hidden, classes)
        layers = (settings.layers, settings.adjacency_layers, settings.attributes_layers)
        module = LINKX(*sizes, *layers, dropout=settings.dropout)
    elif name == "appnp":  # as in PyTorch Geometric's example
        encode = MLP(widths, dropout=settings.dropout, norm=None)
        propagate = APPNP(settings.rounds, settings.teleport, cached=True)
        steps = [(encode, "x -> x"), (propagate, "x, adjacency -> x")]
        module = Sequential("x, adjacency", steps)
    else:
        module = MLP(widths, dropout=settings.dropout)  # its second argument is None
    return module


def pyg_adjacency(graph: Graph, neighbors: str, *, as_matrix: bool, device: str) -> Tensor:
    """Return a sparse matrix whose row v lists v's neighbours, or the edges towards v."""
    matrix = graph.adjacency(neighbors)
    if as_matrix:
        sparse = torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int64)),
            torch.from_numpy(matrix.indices.astype(np.int64)),
            torch.from_numpy(matrix.data),
            matrix.shape,
            check_invariants=False,
        )
        return sparse.to(device)
    coo = matrix.tocoo()
    return torch.from_numpy(np.stack([coo.col, coo.row]).astype(np.int64)).to(device)


def pyg_fit(name: str) -> Callable[[Any, Assignment], Trial]:
    """Return a function that trains PyTorch Geometric's model; its first call picks the format."""
    as_matrix = True

    def fit(settings: Any, on: Assignment) -> Trial:
        nonlocal as_matrix
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")
        try:
            return run_training_thread(partial(_train_pyg, name, settings, on, as_matrix))
        except (MemoryError, RuntimeError) as error:
            is_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
            if is_memory or "allocate memory" in str(error):  # torch's message on a CPU
                message = f"Out of memory while training PyG's {name}."
                remedy = "Leave the model out, or use a larger machine"
                raise HPGMNError(message, remedy) from None
            if not as_matrix:
                raise
            as_matrix = False
        return fit(settings, on)

    return fit


def _train_pyg(
    name: str, settings: Any, on: Assignment, as_matrix: bool, interrupted: Event
) -> Trial:
    torch.manual_seed(on.seed)
    graph, device, clock = on.graph, on.device, StageClock(on.report)
    attributes = graph.x.toarray() if graph.has_sparse_attributes else graph.x
    x = torch.from_numpy(np.require(attributes, requirements="W")).to(device)
    y, masks = torch.from_numpy(graph.y).to(device), graph.split(on.split)
    train, val = (torch.from_numpy(mask.copy()).to(device) for mask in (masks.train, masks.val))
    neighbors = getattr(settings, "neighbors", None)
    adjacency = None
    if neighbors is not None:
        adjacency = pyg_adjacency(graph, neighbors, as_matrix=as_matrix, device=device)
    model = pyg_module(name, graph, settings).to(device)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
    )
    best, best_logits, epoch = -1.0, None, 0
    prepared = time.perf_counter() - clock.started
    for epoch in range(1, settings.epochs + 1):
        model.train()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x, adjacency)[train], y[train])
        torch.autograd.backward(loss)
        optimizer.step()
        model.eval()
        with torch.no_grad():
            logits = model(x, adjacency)
            score = float((logits[val].argmax(dim=-1) == y[val]).float().mean())  # synchronises
        if score > best:
            best, best_logits = score, logits
        loss_value = float(loss.detach())
        clock(Progress(0, 1, "main", epoch, settings.epochs, loss_value, best, prepared))
        if interrupted.is_set() or clock.last > on.deadline:
            break
    if epoch < settings.epochs or best_logits is None:
        return Trial.of(clock, None)
    return Trial.of(clock, best_logits.cpu())
