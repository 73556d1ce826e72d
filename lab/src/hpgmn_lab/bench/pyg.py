"""PyTorch Geometric's own models in a plain loop: all nodes in one step, Adam, the best epoch.

They read what ours of the same name reads, with the same settings: hidden width, layers, dropout,
learning rate, weight decay, neighbours. Everything else is as PyTorch Geometric makes it. The graph
is handed over as a sparse matrix, which is several times faster than a list of edges on a CPU;
where a device does not know how to go back through it, as a list of edges.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hpgmn.base.errors import HPGMNError
from hpgmn.graph import Graph
from hpgmn.training.numerics import run_training_thread
from hpgmn.training.replicas import Progress
from hpgmn_lab.bench.trials import Fit, Trial

Forward = Callable[[Tensor, Any], Tensor]


class _Spread(nn.Module):
    """APPNP as its example has it: an MLP without normalisation, then the propagation."""

    def __init__(self, widths: list[int], settings: Any) -> None:
        super().__init__()
        from torch_geometric.nn import APPNP, MLP

        self.encode = MLP(widths, dropout=settings.dropout, norm=None)
        self.spread = APPNP(settings.rounds, settings.teleport, cached=True)

    def forward(self, x: Tensor, adjacency: Any) -> Tensor:
        """(N, C)."""
        logits: Tensor = self.spread(self.encode(x), adjacency)
        return logits


class _Alone(nn.Module):
    """An MLP, which reads no edges."""

    def __init__(self, widths: list[int], settings: Any) -> None:
        super().__init__()
        from torch_geometric.nn import MLP

        self.encode = MLP(widths, dropout=settings.dropout)

    def forward(self, x: Tensor, adjacency: Any) -> Tensor:
        """(N, C)."""
        logits: Tensor = self.encode(x)
        return logits


def module_of(name: str, graph: Graph, settings: Any) -> nn.Module:
    """PyTorch Geometric's model of that name: gcn, linkx, appnp or mlp."""
    from torch_geometric.nn import GCN, LINKX

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
    elif name == "appnp":
        module = _Spread(widths, settings)
    else:
        module = _Alone(widths, settings)
    return module


def neighbours_of(graph: Graph, neighbors: str, *, as_matrix: bool, device: str) -> Tensor:
    """Row v of the matrix lists the neighbours that v reads; a list of edges runs to v."""
    matrix = graph.adjacency(neighbors)
    if as_matrix:
        found = torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int64)),
            torch.from_numpy(matrix.indices.astype(np.int64)),
            torch.from_numpy(matrix.data),
            matrix.shape,
            check_invariants=False,
        )
        return found.to(device)
    coo = matrix.tocoo()
    return torch.from_numpy(np.stack([coo.col, coo.row]).astype(np.int64)).to(device)


def fitting(name: str) -> Fit:
    """How PyTorch Geometric's model of a name is trained; its first call finds what works."""
    as_matrix = True

    def fit(
        graph: Graph,
        settings: Any,
        split: int,
        seed: int,
        device: str,
        deadline: float,
        tell: Callable[[Progress], None] | None,
    ) -> Trial:
        nonlocal as_matrix
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")
        work = partial(_trained, name, graph, settings, split, seed, device, deadline, tell)
        try:
            return run_training_thread(lambda interrupted: work(as_matrix, interrupted))
        except (MemoryError, torch.OutOfMemoryError):
            raise _no_memory(name) from None
        except (RuntimeError, NotImplementedError) as error:
            if "allocate memory" in str(error):  # how torch says it on a CPU
                raise _no_memory(name) from None
            if not as_matrix:
                raise
            as_matrix = False
        return fit(graph, settings, split, seed, device, deadline, tell)

    return fit


def _no_memory(name: str) -> HPGMNError:
    return HPGMNError(
        f"Out of memory while training PyG's {name}. Leave it out, or use a larger machine."
    )


def _trained(
    name: str,
    graph: Graph,
    settings: Any,
    split: int,
    seed: int,
    device: str,
    deadline: float,
    tell: Callable[[Progress], None] | None,
    as_matrix: bool,
    interrupted: Event,
) -> Trial:
    torch.manual_seed(seed)
    began = time.perf_counter()
    attributes = graph.x.toarray() if graph.has_sparse_attributes else graph.x
    x = torch.from_numpy(np.require(attributes, requirements="W")).to(device)
    y, own = torch.from_numpy(graph.y).to(device), graph.split(split)
    train, val = (torch.from_numpy(part.copy()).to(device) for part in (own.train, own.val))
    neighbors = getattr(settings, "neighbors", None)
    adjacency = None
    if neighbors is not None:
        adjacency = neighbours_of(graph, neighbors, as_matrix=as_matrix, device=device)
    model = module_of(name, graph, settings).to(device)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
    )
    epochs: list[float] = []
    curve: list[tuple[float, float]] = []
    best, best_logits = -1.0, None
    last = time.perf_counter()
    for epoch in range(1, settings.epochs + 1):
        model.train()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x, adjacency)[train], y[train])
        torch.autograd.backward(loss)
        optimizer.step()
        model.eval()
        with torch.no_grad():
            logits = model(x, adjacency)
            score = float((logits[val].argmax(dim=-1) == y[val]).float().mean())  # waits for a GPU
        if score > best:
            best, best_logits = score, logits
        now = time.perf_counter()
        epochs.append(now - last)
        curve.append((now - began, best))
        last = now
        if tell is not None:
            tell(Progress(0, 1, "main", epoch, settings.epochs, float(loss.detach()), best))
        if interrupted.is_set() or now > deadline:
            break
    is_finished = len(epochs) == settings.epochs
    kept = best_logits.cpu() if best_logits is not None and is_finished else None
    return Trial(epochs, curve, is_finished, kept)
