"""The local statistics as transforms of PyTorch Geometric.

Each transform adds one node attribute to a ``Data`` object. Edges are read as listed, with their
``edge_weight`` if there is one. Only labels of train nodes are read, unless you say otherwise.

>>> import torch
>>> from torch_geometric.data import Data
>>> path = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([0, 1, 1]), num_nodes=3)
>>> path.train_mask = torch.tensor([True, True, False])
>>> AddClassCounts(neighbors="out")(path).class_counts
tensor([[0.0000, 0.6931],
        [0.0000, 0.0000],
        [0.0000, 0.0000]])
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from hpgmn.base.errors import GraphError, SettingError
from hpgmn.base.settings import make_settings
from hpgmn.graph import Array, Graph
from hpgmn.statistics import LocalStatistics, Statistic, StatisticsSettings, statistic_names
from hpgmn.statistics.definitions import DENSE_LIMIT_BYTES, MEANS_LIMIT_BYTES
from hpgmn.statistics.operators import SparseReplicaRows, SparseRows

__all__ = ["AddAdjacencyRows", "AddClassCounts", "AddClassMeans", "AddDiffusion"]

_SETTINGS = [field.name for field in dataclasses.fields(cast(Any, StatisticsSettings))]


class _AddStatistic(BaseTransform):  # type: ignore[misc]  # PyG has no types
    """Base of the transforms, each of which adds one statistic as a node attribute.

    Attributes:
        statistic: the statistic's name among the settings.
        forms: the forms that have rows.
    """

    statistic: ClassVar[str]
    forms: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Check the options."""
        try:
            form = getattr(self, "form", "auto")
            if form not in ("auto", *self.forms):
                choices = ("auto", *self.forms)
                raise SettingError.unknown("value for 'form':", str(form), choices)
            self._settings: StatisticsSettings = make_settings(
                cast(Any, StatisticsSettings),
                {setting: getattr(self, option) for option, setting in self._names().items()}
                | {"statistics": (self.statistic,)},
            )
        except SettingError as error:
            message = str(error)
            for option, setting in self._names().items():
                message = message.replace(f"'{setting}'", f"'{option}'")
            raise SettingError(f"{type(self).__name__}: {message}") from None

    def _names(self) -> dict[str, str]:
        """Return the setting behind each option that has one."""
        names = {"kind": self.statistic}
        for field in dataclasses.fields(cast(Any, self)):
            for setting in (f"{self.statistic}_{field.name}", field.name):
                if setting in _SETTINGS:
                    names.setdefault(field.name, setting)
        return {option: setting for option, setting in names.items() if hasattr(self, option)}

    def forward(self, data: Any) -> Any:
        """Add the attribute to the object and return it."""
        if not isinstance(data, Data):
            raise GraphError(
                f"{type(self).__name__} reads a torch_geometric.data.Data object of one kind of "
                f"nodes and edges (got {type(data).__name__}).",
                "Call to_homogeneous() first",
            )
        if data.edge_index is None:
            raise GraphError(
                "The PyG object has no edge_index.",
                "Add it, or put this transform before the one that takes it away, such as "
                "ToSparseTensor",
            )
        labels, num_classes = self._labels(data)
        graph = _graph(data, num_classes, needs_attributes=self.statistic == "class_means")
        settings = self._settings
        if getattr(self, "form", "") == "auto":
            chosen: dict[str, Any] = {f"{self.statistic}_form": self._form(graph)}
            settings = dataclasses.replace(settings, **chosen)
        built = LocalStatistics(graph).build(labels[None], num_classes, [settings])
        parts = [_rows(built[name], graph.num_nodes) for name in statistic_names(settings)]
        joined = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if joined.is_sparse:
            joined = joined.coalesce()
        data[self.name] = joined.to(data.edge_index.device)
        return data

    def _labels(self, data: Any) -> tuple[Array, int]:
        """Return the known classes (N,), -1 elsewhere, and their number."""
        return np.full(_num_nodes(data), -1, np.int64), 0

    def __repr__(self) -> str:
        changed = [
            f"{option.name}={value!r}"
            for option in dataclasses.fields(cast(Any, self))
            if (value := getattr(self, option.name)) != option.default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"


class _AddLabelwise(_AddStatistic):
    """Base of the transforms that read labels."""

    def _labels(self, data: Any) -> tuple[Array, int]:
        labels = _known_labels(data, self.labels, self.split)
        needed = int(labels.max(initial=-1)) + 1
        num_classes = needed if self.num_classes is None else int(self.num_classes)
        if needed > num_classes:
            raise SettingError(
                f"num_classes is {num_classes}, but the labels hold class {needed - 1}.",
                f"Give at least {needed}",
            )
        if not needed:
            raise GraphError(
                f"{type(self).__name__} found no label it may read.",
                "Mark train nodes in train_mask, or name an attribute of pseudo-labels with "
                "labels=...",
            )
        return labels, num_classes


@dataclass(repr=False, eq=False)
class AddClassCounts(_AddLabelwise):
    """Count the neighbours of each class, as ``data.class_counts``.

    Dense, (N, C); with ``neighbors="both"`` (N, 2·C), out-neighbours first. Only neighbours with a
    readable label count: by default the train nodes.

    Args:
        neighbors: edge direction: "out", "in", "undirected" (weights of both directions are added)
            or "both". For an object that lists every edge in both directions, use "out".
        scaling: "raw", "log" (log(1+n)), "fraction" or "unit".
        labels: "train" reads labels under ``train_mask`` only. "true" reads all labels, of test
            nodes too: for inspection, not for training. Any other name is an attribute (N,) of
            pseudo-labels, -1 where unknown.
        split: the column of ``train_mask``, if it has several.
        num_classes: C; None for the number of classes among the readable labels.
        name: the name of the attribute.
    """

    statistic: ClassVar = "class_counts"

    neighbors: str = "both"
    scaling: str = "log"
    labels: str = "train"
    split: int | None = None
    num_classes: int | None = None
    name: str = "class_counts"


@dataclass(repr=False, eq=False)
class AddClassMeans(_AddLabelwise):
    """Average the attributes of the neighbours of each class, as ``data.class_means``.

    (N, C·F), class by class; with ``neighbors="both"`` (N, 2·C·F), out-neighbours first. A class
    without neighbours has zeros. Sparse (torch COO) if the form is "sparse", else dense.

    Args:
        neighbors: as in :class:`AddClassCounts`, like ``labels``, ``split`` and ``num_classes``.
        scaling: "raw" or "unit" (rows of length 1).
        form: "dense", "sparse", or "sketch" (``dim`` columns for each class instead of F). "auto"
            is sparse if the attributes are or dense rows would exceed 512 MiB, else dense.
        dim: columns for each class in a sketch.
        name: the name of the attribute.
    """

    statistic: ClassVar = "class_means"
    forms: ClassVar = ("dense", "sparse", "sketch")

    neighbors: str = "both"
    scaling: str = "raw"
    form: str = "auto"
    dim: int = 64
    labels: str = "train"
    split: int | None = None
    num_classes: int | None = None
    name: str = "class_means"

    def _form(self, graph: Graph) -> str:
        size = 4 * graph.num_nodes * graph.num_classes * graph.num_features
        is_small = not graph.has_sparse_attributes and size <= MEANS_LIMIT_BYTES
        return "dense" if is_small else "sparse"


@dataclass(repr=False, eq=False)
class AddDiffusion(_AddStatistic):
    """Add a node's row of the diffusion matrix, as ``data.diffusion``; reads no labels.

    (N, N), or (N, ``dim``) as a sketch; twice as wide with ``neighbors="both"``, out-neighbours
    first. Sparse (torch COO) if the form is "topk", else dense.

    Args:
        kind: "ppr" (personalised PageRank) or "heat" (heat kernel).
        neighbors: as in :class:`AddClassCounts`.
        teleport: PPR's restart probability.
        heat_time: time of the heat kernel.
        normalization: of the transition matrix: "column", "row" or "symmetric".
        self_loop: 1 adds self-loops to the transition matrix.
        scaling: "raw" or "unit" (rows of length 1).
        self_entry: whether a node's self entry stays in its row.
        form: "dense", "topk" (the largest entries of each row) or "sketch" (a random sketch).
            "auto" is dense up to 512 MiB, about 11,500 nodes, and a sketch beyond.
        tolerance: largest sum of the truncated terms of the series.
        topk: most entries of a row.
        threshold: topk: the largest residual that is not pushed.
        dim: columns of a sketch.
        name: the name of the attribute.
    """

    statistic: ClassVar = "diffusion"
    forms: ClassVar = ("dense", "topk", "sketch")

    kind: str = "ppr"
    neighbors: str = "both"
    teleport: float = 0.15
    heat_time: float = 3.0
    normalization: str = "column"
    self_loop: int = 0
    scaling: str = "unit"
    self_entry: bool = False
    form: str = "auto"
    tolerance: float = 1e-6
    topk: int = 64
    threshold: float = 1e-4
    dim: int = 256
    name: str = "diffusion"

    def _form(self, graph: Graph) -> str:
        return "dense" if 4 * graph.num_nodes**2 <= DENSE_LIMIT_BYTES else "sketch"


@dataclass(repr=False, eq=False)
class AddAdjacencyRows(_AddStatistic):
    """Add a node's row of the adjacency, as ``data.adjacency_rows``; reads no labels.

    Sparse (torch COO), (N, N); with ``neighbors="both"`` (N, 2·N), out-neighbours first.

    Args:
        neighbors: as in :class:`AddClassCounts`.
        scaling: "raw", "fraction" (divided by the row's sum) or "unit" (rows of length 1).
        name: the name of the attribute.
    """

    statistic: ClassVar = "adjacency"

    neighbors: str = "both"
    scaling: str = "unit"
    name: str = "adjacency_rows"


def _num_nodes(data: Any) -> int:
    """Return N, from a mask if PyG would infer it from edges alone."""
    is_inferred = data.x is None and "num_nodes" not in data
    mask = getattr(data, "train_mask", None) if is_inferred else None
    return int(data.num_nodes if mask is None else mask.shape[0])


def _graph(data: Any, num_classes: int, *, needs_attributes: bool) -> Graph:
    """Return the graph of an object, without labels."""
    if needs_attributes and data.x is None:
        raise GraphError(
            "The PyG object has no attributes x, of which class means are means.", "Add them"
        )
    return Graph(
        data.x if needs_attributes else np.zeros((_num_nodes(data), 1), np.float32),
        data.edge_index,
        edge_weight=getattr(data, "edge_weight", None),
        class_names=[str(number) for number in range(num_classes)],
    )


def _known_labels(data: Any, which: str, split: int | None) -> Array:
    """Return the readable labels, -1 elsewhere: (N,) int64."""
    name, num_nodes = which if which not in ("train", "true") else "y", _num_nodes(data)
    value = getattr(data, name, None)
    if value is None:
        raise GraphError(
            f"The PyG object has no attribute '{name}' to read labels from.",
            "Add it, or choose another with labels=...",
        )
    shape = tuple(value.shape)
    if shape not in ((num_nodes,), (num_nodes, 1)):
        raise GraphError(
            f"'{name}' must hold one class for each of the {num_nodes} nodes (got shape {shape}).",
            "Make classes of probabilities by argmax(dim=-1)",
        )
    blank = np.zeros((num_nodes, 1), np.float32)
    labels = Graph(blank, np.empty((2, 0), np.int64), value).y  # checked as those of a graph
    return labels if which != "train" else np.where(_train_nodes(data, split), labels, -1)


def _train_nodes(data: Any, split: int | None) -> Array:
    """Return the train nodes of one split: (N,)."""
    mask, num_nodes = getattr(data, "train_mask", None), _num_nodes(data)
    if mask is None:
        raise GraphError(
            "The PyG object has no train_mask, so no label may be read.",
            "Add it (RandomNodeSplit does), or name an attribute of pseudo-labels with labels=...",
        )
    array = mask.detach().cpu().numpy()
    if array.ndim == 1:
        array = array[:, None]
    if array.dtype != np.bool_ or array.ndim != 2 or array.shape[0] != num_nodes:
        raise GraphError(
            f"train_mask must be true or false for each of the {num_nodes} nodes (got "
            f"{tuple(mask.shape)} values of {mask.dtype})."
        )
    count = array.shape[1]
    if split is None and count == 1:
        split = 0
    if split is None or not 0 <= split < count:
        raise SettingError(
            f"The columns of train_mask are {count} splits, and train nodes of one are test nodes "
            f"of another (got split={split}).",
            f"Choose one with split=0 to {count - 1}",
        )
    return np.asarray(array[:, split])


def _rows(statistic: Statistic, num_nodes: int) -> Tensor:
    """Return all rows of a statistic of one replica, sparse if they are stored so."""
    if not isinstance(statistic, SparseRows | SparseReplicaRows):
        return statistic.rows(torch.arange(num_nodes))
    coo = statistic.matrix.host.tocoo()
    indices = torch.from_numpy(np.stack([coo.row, coo.col]).astype(np.int64))
    return torch.sparse_coo_tensor(
        indices, torch.from_numpy(coo.data), coo.shape, check_invariants=True
    ).coalesce()
