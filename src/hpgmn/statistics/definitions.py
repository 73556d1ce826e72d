"""One class per statistic: the settings it reads, its forms, their memory, how it is built.

A definition sees only the settings that it declares (:func:`select`), and the keys of caches in
memory and on disk are derived from them: an undeclared setting raises AttributeError instead of
reusing a result that was computed with another value.

``auto`` chooses a sketch by the graph alone, never by free memory: a sketch has fewer columns, so
a run resumed on a smaller machine would not fit its own weights.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
from typing_extensions import override

from hpgmn.base.errors import HPGMNError, Remedy, format_bytes
from hpgmn.base.files import array_digest
from hpgmn.base.machine import free_bytes
from hpgmn.base.sparse import SparseMatrix, dense_lengths, inverse_or_zero, scale_attributes
from hpgmn.graph import Array, Attributes, Graph
from hpgmn.statistics.labelwise import (
    FactoredMeans,
    class_counts,
    class_mean_rows,
    class_means,
    class_means_on_device,
    scale_counts,
    sparse_class_means,
)
from hpgmn.statistics.operators import DenseRows, ReplicaRows, SparseRows, Statistic
from hpgmn.statistics.source import Source

if TYPE_CHECKING:
    from hpgmn.statistics.cache import Recipe

logger = logging.getLogger(__name__)

MEANS_LIMIT_BYTES = 512 * 2**20
"""Most bytes of dense class means that ``auto`` takes without batches."""

MEANS_GPU_SHARE = 0.2
"""On a GPU ``auto`` takes dense class means up to this share of free memory, if that is more."""

ROWS_LIMIT_BYTES = 2 * 2**30
"""Most bytes of class means in batches that are not sketched, per replica and edge direction."""

DENSE_LIMIT_BYTES = 512 * 2**20
"""``form="auto"`` takes the dense form up to this size of the N×N matrix (about 11,500 nodes)."""

IMPLICIT_LIMIT = 5 * 10**9
"""Most N·E for which ``auto`` takes the implicit form of diffusion, about five minutes."""

HALF_LIMIT = 65504
"""The largest number in half precision."""


class Selection:
    """Some settings by name; any other name raises AttributeError."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(f"The setting '{name}' is not declared by the statistic.")
        return self._values[name]

    def as_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        return dict(self._values)

    @property
    def key(self) -> tuple[tuple[str, Any], ...]:
        """The settings as a key of a dictionary."""
        return tuple(self._values.items())


def select(settings: Any, names: Sequence[str]) -> Selection:
    """Return the named settings; ``batch_size``, which not all models have, defaults to 0."""
    return Selection(
        {
            name: getattr(settings, name, 0) if name == "batch_size" else getattr(settings, name)
            for name in names
        }
    )


@dataclass(frozen=True)
class Request:
    """What a statistic of some replicas is built from.

    Attributes:
        mode: the neighbour mode, with an edge type as :func:`mode_of` returns it.
        labels: (R, N) pseudo-labels; -1 is unknown.
        shares: (R, N, C) class probabilities for soft counts, or None; of a regression what
            the mean targets average.
    """

    source: Source
    mode: str
    labels: Array = field(default_factory=lambda: np.empty((1, 0), np.int64))
    num_classes: int = 0
    shares: Array | None = None

    @property
    def adjacency(self) -> sp.csr_array:
        """Row v lists the neighbours of v."""
        return self.source.adjacency(self.mode)

    def recipe(self, kind: str, parameters: dict[str, Any], **inputs: str) -> Recipe:
        """Return the key of a result on disk."""
        from hpgmn.statistics.cache import Recipe

        adjacency = self.source.cache.digest(f"adjacency {self.mode}", self.adjacency)
        return Recipe(kind, parameters, {"adjacency": adjacency, **inputs})


class Definition(ABC):
    """How a statistic is built.

    Attributes:
        settings: names of every setting that it reads.
        reads_labels: whether it depends on labels; otherwise it is built once per key.
    """

    settings: ClassVar[tuple[str, ...]]
    reads_labels: ClassVar[bool] = False

    @classmethod
    def key(cls, mode: str, settings: Any) -> tuple[Any, ...]:
        """Return the key of the built statistic in memory."""
        return (cls.__name__, mode, *select(settings, cls.settings).key)

    def make(self, request: Request, settings: Any) -> Statistic:
        """Build the statistic from the declared settings alone."""
        return self.build(request, select(settings, self.settings))

    @abstractmethod
    def build(self, request: Request, settings: Selection) -> Statistic:
        """Build the statistic."""


class AttributeRows(Definition):
    """r¹: the attributes of the node."""

    settings = ("attributes_scaling",)

    @override
    def build(self, request: Request, settings: Selection) -> Statistic:
        x = scale_attributes(request.source.graph.x, settings.attributes_scaling)
        if sp.issparse(x):
            return SparseRows(SparseMatrix(x, request.source.device))
        return DenseRows(request.source.tensor(x))


class AdjacencyRows(Definition):
    """The row of the adjacency."""

    settings = ("adjacency_scaling",)

    @override
    def build(self, request: Request, settings: Selection) -> Statistic:
        rows = scale_attributes(request.adjacency, settings.adjacency_scaling)
        return request.source.reindex(SparseRows(SparseMatrix(rows, request.source.device)))


class ClassCounts(Definition):
    """r²: how many neighbours have each label."""

    settings = ("class_counts_scaling", "soft_counts")
    reads_labels = True

    @override
    def build(self, request: Request, settings: Selection) -> Statistic:
        is_soft = settings.soft_counts and request.shares is not None
        labels = request.shares if is_soft else request.labels
        assert labels is not None
        counts = class_counts(request.adjacency, labels, request.num_classes)
        return ReplicaRows(
            request.source.tensor(scale_counts(counts, settings.class_counts_scaling))
        )


class ClassMeans(Definition):
    """r³: the mean attributes of the neighbours of each class.

    ``auto`` in batches, which read single rows: *sketch* where neither half-precision nor sparse
    rows keep to :data:`ROWS_LIMIT_BYTES`; *sparse* where attributes are sparse and that is smaller;
    else *half*. Without batches: *dense* up to :data:`MEANS_LIMIT_BYTES`, *factored* beyond it or
    where attributes are sparse.
    """

    settings = ("class_means_scaling", "class_means_form", "class_means_dim", "batch_size")
    reads_labels = True
    stored: ClassVar[dict[str, tuple[str, ...]]] = {
        "half": ("class_means_scaling",),
        "sketch": ("class_means_scaling", "class_means_dim"),
    }
    """Settings that rows on disk depend on, by form."""

    @staticmethod
    def is_sketched(graph: Graph, settings: Any, num_classes: int) -> bool:
        """Return whether class means of a graph are a sketch, by setting or by ``auto``.

        Replicas may read different neighbours, so edges in both directions count.
        """
        if settings.class_means_form != "auto":
            return bool(settings.class_means_form == "sketch")
        width = num_classes * graph.num_features
        half = 2 * graph.num_nodes * width
        in_batches = getattr(settings, "batch_size", 0) > 0
        is_shorter = settings.class_means_dim < graph.num_features
        if not (in_batches and is_shorter and half > ROWS_LIMIT_BYTES):
            return False
        if not graph.has_sparse_attributes:
            return True
        adjacency = graph.adjacency("out")
        most = max(
            ClassMeans.most_entries(edges, graph.x, width) for edges in (adjacency, adjacency.T)
        )
        return 8 * most > ROWS_LIMIT_BYTES

    @staticmethod
    def most_entries(adjacency: Any, x: Attributes, width: int) -> int:
        """Bound the entries of class means of sparse attributes, at most ``width`` in a row."""
        pattern = copy(adjacency)
        pattern.data = np.ones_like(adjacency.data)
        reached = pattern @ np.diff(x.indptr).astype(np.float32)
        return int(np.minimum(reached, width).sum(dtype=np.float64))

    @staticmethod
    def form_bytes(
        adjacency: sp.csr_array, x: Attributes, replicas: int, num_classes: int, dim: int
    ) -> dict[str, int]:
        """Estimate the peak memory of each form."""
        num_nodes, width = x.shape
        cells = num_nodes * num_classes * width
        edges = int(adjacency.nnz)
        entries, values = cells, num_nodes * width
        if sp.issparse(x):
            entries = ClassMeans.most_entries(adjacency, x, num_classes * width)
            values = int(x.nnz)
        weights = 16 * edges  # the averaging matrix while it is built
        copies = replicas if replicas == 1 else 2 * replicas  # several are joined
        return {
            "dense": 4 * cells * (replicas + 2) + weights,
            "half": 2 * cells * replicas + weights,
            "sparse": 8 * (entries * copies + values) + weights,
            "sketch": num_nodes * dim * (2 * num_classes * replicas + 4) + weights,
            "factored": 32 * replicas * (edges + values),  # matrices, blocks and transposes
        }

    @staticmethod
    def choose_form(
        adjacency: sp.csr_array,
        x: Attributes,
        replicas: int,
        num_classes: int,
        settings: Any,
        device: torch.device,
        *,
        sketched: bool,
    ) -> str:
        """Return the form to build; raise HPGMNError before any work if it does not fit.

        Args:
            sketched: whether ``auto`` means the sketch (:meth:`is_sketched`).
        """
        num_nodes, free = adjacency.shape[0], free_bytes(device)
        in_batches = getattr(settings, "batch_size", 0) > 0
        names = ("half", "sparse", "sketch") if in_batches else ("dense", "factored", "sketch")
        needed = ClassMeans.form_bytes(
            adjacency, x, replicas, num_classes, settings.class_means_dim
        )
        form, reason = settings.class_means_form, "as set"
        if form == "auto" and sketched:
            form, reason = "sketch", f"rows take more than {format_bytes(ROWS_LIMIT_BYTES)}"
        elif form == "auto" and in_batches:
            form, reason = "half", "batches read single rows"
            width = num_classes * x.shape[1]
            half = 2 * num_nodes * width
            if sp.issparse(x) and 8 * ClassMeans.most_entries(adjacency, x, width) < half:
                form, reason = "sparse", "attributes are sparse"
        elif form == "auto":
            size = 4 * replicas * num_nodes * num_classes * x.shape[1]
            limit: float = MEANS_LIMIT_BYTES
            if device.type == "cuda":  # dense products are fast there
                limit = max(limit, MEANS_GPU_SHARE * free)
            form, reason = "dense", f"rows take at most {format_bytes(limit)}"
            if sp.issparse(x):
                form, reason = "factored", "attributes are sparse"
            elif size > limit:
                form, reason = "factored", f"rows take {format_bytes(size)}"
        log_form("Class means", num_nodes, form, needed[form], reason)
        is_mapped = form in ("half", "sketch") and device.type != "cuda"  # may go into a file
        if needed[form] > free and not is_mapped:
            fitting = {name: needed[name] for name in names if needed[name] <= free}
            smaller = Remedy("Use a smaller sketch", setting="class_means_dim")
            raise does_not_fit("class_means", form, num_nodes, needed[form], free, fitting, smaller)
        return str(form)

    @override
    def build(self, request: Request, settings: Selection) -> Statistic:
        x, adjacency, device = request.source.graph.x, request.adjacency, request.source.device
        labels, num_classes = request.labels, request.num_classes
        unit_length = settings.class_means_scaling == "unit"
        # A trained model names its sketch in its settings.
        sketched = request.source.width is None and self.is_sketched(
            request.source.graph, settings, request.num_classes
        )
        form = self.choose_form(
            adjacency, x, len(labels), num_classes, settings, device, sketched=sketched
        )
        if form in ("factored", "sparse"):
            make = FactoredMeans if form == "factored" else sparse_class_means
            return make(adjacency, x, labels, num_classes, unit_length=unit_length, device=device)
        if form == "sketch":
            from hpgmn.statistics.diffusion import sketch_attributes

            x = sketch_attributes(x, settings.class_means_dim)
        if form in ("half", "sketch") and not unit_length:
            require_half_range(x)
        if device.type == "cuda":
            return ReplicaRows(
                class_means_on_device(
                    SparseMatrix(adjacency, device),
                    request.source.tensor(x.toarray() if sp.issparse(x) else x),
                    torch.from_numpy(labels).to(device),
                    num_classes,
                    unit_length=unit_length,
                    dtype=torch.float32 if form == "dense" else torch.float16,
                )
            )
        if form in ("half", "sketch"):
            return self._stored_rows(request, select(settings, self.stored[form]), x)
        rows = np.stack([class_means(adjacency, x, row, num_classes).toarray() for row in labels])
        if unit_length:
            rows *= inverse_or_zero(dense_lengths(rows))[..., None]
        return ReplicaRows(request.source.tensor(rows))

    @staticmethod
    def _stored_rows(request: Request, settings: Selection, x: Attributes) -> Statistic:
        """Return half-precision rows from the cache, or compute them.

        Args:
            x: the attributes, or their sketch.
        """
        labels, num_classes = request.labels, request.num_classes

        def fill(halves: Array) -> None:
            for row, out in zip(labels, halves, strict=True):
                class_mean_rows(
                    *(request.adjacency, x, row, num_classes),
                    unit_length=settings.class_means_scaling == "unit",
                    out=out,
                )

        recipe = request.recipe(
            "Class means",
            {**settings.as_dict(), "num_classes": num_classes},
            attributes=request.source.cache.digest(f"attributes {settings.key}", x),
            labels=array_digest(labels),
        )
        shape = (*labels.shape, num_classes * x.shape[1])
        halves = request.source.cache.rows(recipe, shape, fill)
        return ReplicaRows(torch.from_numpy(halves).to(request.source.device))


def diffusion_is_sketched(graph: Graph, settings: Any) -> bool:
    """Return whether diffusion of a graph is a sketch, by setting or by ``auto``."""
    if settings.diffusion_form != "auto":
        return bool(settings.diffusion_form == "sketch")
    is_small = graph.num_nodes**2 * 4 <= DENSE_LIMIT_BYTES
    return not is_small and graph.num_nodes * graph.adjacency("out").nnz > IMPLICIT_LIMIT


def require_half_range(x: Attributes) -> None:
    """Raise HPGMNError for attributes whose means could exceed half precision."""
    values = x.data if sp.issparse(x) else x
    largest = max(float(values.max(initial=0)), -float(values.min(initial=0)))
    if largest > HALF_LIMIT:
        raise HPGMNError(
            f"Attributes as large as {largest:g} have class means beyond half precision (at most "
            f"{HALF_LIMIT:,}).",
            Remedy("Scale class means", setting="class_means_scaling", value="unit")
            | "Scale the attributes",
        )


def log_form(what: str, num_nodes: int, form: str, size: int, reason: str) -> None:
    """Log the chosen form and why."""
    logger.info(
        "%s of %s nodes: %s form, %s; %s.",
        *(what, f"{num_nodes:,}", form, format_bytes(size), reason),
    )


def does_not_fit(
    name: str,
    form: str,
    num_nodes: int,
    needed: int,
    free: float,
    fitting: dict[str, int],
    smaller: Remedy,
) -> HPGMNError:
    """Return the error for a form that exceeds free memory.

    Args:
        fitting: forms that would fit, with their bytes.
        smaller: what to do if none fits.
    """
    choices = [
        Remedy(f"Use {format_bytes(size)}", setting=f"{name}_form", value=other)
        for other, size in fitting.items()
    ] or [smaller]
    if not fitting and smaller.setting == f"{name}_dim":
        choices.insert(0, Remedy("Use a sketch", setting=f"{name}_form", value="sketch"))
    remedy = choices[0]
    for choice in choices[1:]:
        remedy |= choice
    return HPGMNError(
        f"The {form} form of {name} needs {format_bytes(needed)} for {num_nodes:,} nodes, and "
        f"{format_bytes(free)} are free.",
        remedy | f"Leave {name} out of statistics",
    )
