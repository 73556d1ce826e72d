"""The local statistics of a graph's nodes, built from settings and pseudo labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from hpgmn.base.errors import GraphError
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Array, Attributes, Graph
from hpgmn.statistics.cache import Recipe, StatisticsCache, circumstances, digest
from hpgmn.statistics.diffusion import (
    DenseDiffusion,
    ImplicitDiffusion,
    coefficients,
    dense_arrays,
    transition,
)
from hpgmn.statistics.forms import (
    chosen_form,
    chosen_means_form,
    is_sketched,
    means_are_sketched,
    refuse_beyond_half,
)
from hpgmn.statistics.labelwise import (
    FactoredMeans,
    class_counts,
    class_mean_rows,
    class_means,
    dense_lengths,
    inverse_or_zero,
    row_lengths,
    scaled_counts,
    sparse_class_means,
)
from hpgmn.statistics.on_device import class_means_on_device
from hpgmn.statistics.operators import (
    DenseRows,
    Grouped,
    NeighborMean,
    ReplicaRows,
    SparseRows,
    Statistic,
    reindexed,
)
from hpgmn.statistics.push import largest_entries, prepare_push
from hpgmn.statistics.settings import (
    StatisticsSettings,
    averaged,
    base_name,
    mode_of,
    statistic_names,
)
from hpgmn.statistics.sketch import node_keys, sketch, sketched_attributes

TWO_HOP_LIMIT = 2**28
"""Most entries of a two-hop matrix, 2 GiB; crocodile's has 32, squirrel's 8, pubmed's 1 million."""

_MODERATE = 1e15  # single precision holds its square, and that of its inverse
_BLOCK = 1024  # rows of the two-hop matrix made at once

_Built: TypeAlias = tuple[
    Array, Array | None, int, list[StatisticsSettings], dict[str, Statistic]
]  # labels, shares, classes and settings of the statistics built last, and these


def scaled_attributes(x: Attributes, scaling: str) -> Attributes:
    """Attributes as given ("raw"), divided by the row's sum ("fraction"), or of unit length."""
    if scaling == "raw":
        return x
    x = _moderate(x)
    if sp.issparse(x):
        sums = np.asarray(abs(x).sum(axis=1)).reshape(-1).astype(np.float32)
        factor = inverse_or_zero(sums if scaling == "fraction" else row_lengths(x))
        data = x.data * np.repeat(factor, np.diff(x.indptr))
        return sp.csr_array((data, x.indices, x.indptr), shape=x.shape)
    lengths = np.abs(x).sum(axis=1) if scaling == "fraction" else np.sqrt((x * x).sum(axis=1))
    return np.asarray(x * inverse_or_zero(lengths)[:, None], dtype=np.float32)


def _moderate(x: Attributes) -> Attributes:
    """Attributes whose squares are neither infinite nor 0, each row divided by a number of its own.

    Where all are such, which is usual, these are the ones given.
    """
    if sp.issparse(x):
        top = np.asarray(abs(x).max(axis=1).todense()).reshape(-1)
    else:
        top = np.maximum(x.max(axis=1), -x.min(axis=1))
    is_odd = (top > _MODERATE) | ((top < 1 / _MODERATE) & (top > 0))
    if not is_odd.any():
        return x
    by = np.where(is_odd, top, 1).astype(np.float32)
    if sp.issparse(x):
        data = x.data / np.repeat(by, np.diff(x.indptr))
        return sp.csr_array((data, x.indices, x.indptr), shape=x.shape)
    return np.asarray(x / by[:, None], dtype=np.float32)


class LocalStatistics:
    """Builds the statistics of one graph; what does not depend on labels is built once.

    Args:
        graph: the graph.
        device: where products happen.
        columns: for another graph than the one trained on: for each of its nodes the position in
            the training graph, -1 where it was not there.
        width: the number of nodes of the training graph, where ``columns`` is given.
        wanted: positions of the only nodes whose rows will be read, ascending; rows that cost as
            much one by one as together are left empty for others. None: all nodes.

    Attributes:
        progress: told what is computed, how much of it is done and how much there is.
    """

    def __init__(
        self,
        graph: Graph,
        device: torch.device | str = "cpu",
        *,
        columns: Array | None = None,
        width: int | None = None,
        wanted: Array | None = None,
    ) -> None:
        self.graph = graph
        self._wanted = wanted
        self.device = torch.device(device)
        self._columns = None if columns is None else torch.from_numpy(columns).to(self.device)
        self._width = width
        self.progress: Callable[[str, int, int], None] | None = None
        self._cache = StatisticsCache.of_user()
        self._shared: dict[tuple[Any, ...], Statistic] = {}
        self._latest: _Built | None = None
        self._adjacency: dict[str, sp.csr_array] = {}
        self._propagation: dict[tuple[str, str, float], SparseMatrix] = {}
        self._two_hop: dict[str, SparseMatrix] = {}

    def on(self, graph: Graph) -> LocalStatistics:
        """The statistics of a graph of the same nodes with other edges, in the same columns."""
        twin = LocalStatistics(graph, self.device, width=self._width)
        twin._columns = self._columns
        return twin

    def adjacency(self, neighbors: str) -> sp.csr_array:
        """The graph's adjacency in one of the single modes, kept."""
        if neighbors not in self._adjacency:
            self._adjacency[neighbors] = self.graph.adjacency(neighbors)
        return self._adjacency[neighbors]

    def attributes(self, scaling: str) -> Statistic:
        """The attributes in one of their scalings, kept."""
        return self._once(("attributes", scaling), lambda: self._attributes(scaling))

    def adjacency_rows(self, neighbors: str, scaling: str) -> Statistic:
        """The rows of the adjacency in one of the attributes' scalings, kept."""
        return self._once(
            ("adjacency", neighbors, scaling),
            lambda: self.reindexed(self._adjacency_rows(neighbors, scaling)),
        )

    def propagation(
        self, neighbors: str, normalization: str, self_loop: float = 0.0
    ) -> SparseMatrix:
        """The normalised adjacency (:func:`transition`) that spreads hidden states, kept."""
        key = (neighbors, normalization, self_loop)
        if key not in self._propagation:
            matrix = transition(self.adjacency(neighbors), normalization, self_loop)
            self._propagation[key] = SparseMatrix(matrix, self.device)
        return self._propagation[key]

    def two_hop(self, neighbors: str) -> SparseMatrix:
        """The nodes two edges away and no fewer, symmetrically normalised, kept.

        Every such node counts once, however many paths lead to it and whatever their weights.
        """
        if neighbors not in self._two_hop:
            matrix = transition(_two_hop(self.adjacency(neighbors)), "symmetric")
            kept = self._two_hop[neighbors] = SparseMatrix(matrix, self.device)
            if neighbors == "undirected":  # symmetric: no second copy of millions of entries
                kept.transpose = kept
        return self._two_hop[neighbors]

    def build(
        self,
        labels: Array,
        num_classes: int,
        settings: Sequence[StatisticsSettings],
        shares: Array | None = None,
    ) -> dict[str, Statistic]:
        """The statistics of R replicas; those built last are kept, for training and prediction.

        Args:
            labels: (R, N) pseudo labels; -1 is unknown.
            num_classes: C.
            settings: one per replica; they may differ in ``neighbors`` alone.
            shares: (R, N, C) probabilities of each class, for ``soft_counts``; None takes the
                labels as certain.

        Returns:
            A statistic for each name of :func:`statistic_names`.
        """
        if not settings[0].soft_counts or shares is None:
            shares = None  # nothing reads them
        if self._latest is not None:
            known, certainty, classes, chosen, found = self._latest
            is_same = (classes, chosen) == (num_classes, list(settings))
            if is_same and _equal(known, labels) and _equal(certainty, shares):
                return found
            self._latest = None  # frees its memory before the next takes some
        built: dict[str, Statistic] = {}
        made: dict[tuple[str, str], Statistic] = {}
        for name in statistic_names(settings[0]):
            modes = [mode_of(name, one.neighbors) for one in settings]
            groups = [
                (mode, [r for r, own in enumerate(modes) if own == mode])
                for mode in dict.fromkeys(modes)
            ]
            members = [
                (
                    self._one(
                        base_name(name),
                        mode,
                        labels[chosen],
                        num_classes,
                        settings[0],
                        None if shares is None else shares[chosen],
                        made,
                    ),
                    chosen,
                )
                for mode, chosen in groups
            ]
            built[name] = members[0][0] if len(members) == 1 else Grouped(members)
        self._latest = (labels, shares, num_classes, list(settings), built)
        return built

    def _one(
        self,
        name: str,
        mode: str,
        labels: Array,
        num_classes: int,
        settings: StatisticsSettings,
        shares: Array | None,
        made: dict[tuple[str, str], Statistic],
    ) -> Statistic:
        """A statistic of the replicas that have a mode; ``made`` keeps it for its mean."""
        if (name, mode) not in made:
            inner = averaged(name)
            if inner is None:
                made[name, mode] = self._plain(name, mode, labels, num_classes, settings, shares)
            else:
                own = self._one(inner, mode, labels, num_classes, settings, shares, made)
                made[name, mode] = NeighborMean(own, self.propagation(mode, "row"))
        return made[name, mode]

    def _plain(
        self,
        name: str,
        mode: str,
        labels: Array,
        num_classes: int,
        settings: StatisticsSettings,
        shares: Array | None,
    ) -> Statistic:
        """A statistic that is no mean over neighbours."""
        if name == "class_counts":
            known = labels if shares is None else shares
            return self._class_counts(mode, known, num_classes, settings)
        if name == "class_means":
            return self._class_means(mode, labels, num_classes, settings)
        if name == "attributes":
            return self.attributes(settings.attributes_scaling)
        if name == "adjacency":
            return self.adjacency_rows(mode, settings.adjacency_scaling)
        key = (
            "diffusion",
            mode,
            settings.diffusion,
            settings.teleport,
            settings.heat_time,
            settings.normalization,
            settings.diffusion_self_loop,
            settings.diffusion_form,
            settings.diffusion_tolerance,
            settings.diffusion_topk,
            settings.diffusion_threshold,
            settings.diffusion_dim,
            settings.diffusion_scaling,
            settings.diffusion_self_entry,
        )
        return self._once(key, lambda: self._diffusion(mode, settings))

    def _once(self, key: tuple[Any, ...], build: Callable[[], Statistic]) -> Statistic:
        if key not in self._shared:
            self._shared[key] = build()
        return self._shared[key]

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.require(array, np.float32, ["C", "W"])).to(self.device)

    def reindexed(self, statistic: Statistic) -> Statistic:
        """A statistic whose columns are nodes, in the columns of the graph trained on."""
        if self._columns is None:
            return statistic
        return reindexed(statistic, self._columns, self._width or 0)

    def _attributes(self, scaling: str) -> Statistic:
        x = scaled_attributes(self.graph.x, scaling)
        if sp.issparse(x):
            return SparseRows(SparseMatrix(x, self.device))
        return DenseRows(self._tensor(x))

    def _adjacency_rows(self, mode: str, scaling: str) -> Statistic:
        rows = scaled_attributes(self.adjacency(mode), scaling)
        return SparseRows(SparseMatrix(rows, self.device))

    def _class_counts(
        self, mode: str, labels: Array, num_classes: int, settings: StatisticsSettings
    ) -> Statistic:
        counts = class_counts(self.adjacency(mode), labels, num_classes)
        return ReplicaRows(self._tensor(scaled_counts(counts, settings.class_counts_scaling)))

    def _class_means(
        self, mode: str, labels: Array, num_classes: int, settings: StatisticsSettings
    ) -> Statistic:
        x, adjacency = self.graph.x, self.adjacency(mode)
        unit_length = settings.class_means_scaling == "unit"
        # A trained model whose automatic form was a sketch names it in its settings.
        sketched = self._width is None and means_are_sketched(self.graph, settings)
        form = chosen_means_form(
            adjacency, x, len(labels), num_classes, settings, self.device, sketched=sketched
        )
        if form in ("factored", "sparse"):
            build = FactoredMeans if form == "factored" else sparse_class_means
            return build(
                adjacency, x, labels, num_classes, unit_length=unit_length, device=self.device
            )
        if form == "sketch":
            x = sketched_attributes(x, settings.class_means_dim)
        if form in ("half", "sketch") and not unit_length:
            refuse_beyond_half(x)
        if self.device.type == "cuda":
            return ReplicaRows(
                class_means_on_device(
                    SparseMatrix(adjacency, self.device),
                    self._tensor(x.toarray() if sp.issparse(x) else x),
                    torch.from_numpy(labels).to(self.device),
                    num_classes,
                    unit_length=unit_length,
                    dtype=torch.float32 if form == "dense" else torch.float16,
                )
            )
        if form in ("half", "sketch"):

            def fill(halves: Array) -> None:
                for row, own in zip(labels, halves, strict=True):
                    class_mean_rows(
                        adjacency, x, row, num_classes, unit_length=unit_length, out=own
                    )

            name = "attributes" if form == "half" else f"attributes in {x.shape[1]}"
            recipe = self._recipe(
                "Class means",
                mode,
                {"num_classes": num_classes, "unit_length": unit_length},
                attributes=self._cache.digest(name, x),
                labels=digest(labels),
            )
            shape = (*labels.shape, num_classes * x.shape[1])
            halves = self._cache.rows(recipe, shape, fill)
            return ReplicaRows(torch.from_numpy(halves).to(self.device))
        rows = np.stack([class_means(adjacency, x, row, num_classes).toarray() for row in labels])
        if unit_length:
            rows *= inverse_or_zero(dense_lengths(rows))[..., None]
        return ReplicaRows(self._tensor(rows))

    def _diffusion(self, mode: str, settings: StatisticsSettings) -> Statistic:
        matrix = transition(
            self.adjacency(mode), settings.normalization, settings.diffusion_self_loop
        )
        # A trained model whose automatic form was a sketch names it in its settings.
        sketched = self._width is None and is_sketched(self.graph, settings)
        form = chosen_form(matrix, settings, self.device, sketched=sketched)
        kind = settings.diffusion
        parameters: dict[str, Any] = {
            "teleport": settings.teleport,
            "heat_time": settings.heat_time,
            "tolerance": settings.diffusion_tolerance,
        }
        shape: dict[str, Any] = {
            "self_entry": settings.diffusion_self_entry,
            "unit_length": settings.diffusion_scaling == "unit",
        }
        theta = coefficients(kind, **parameters)
        if form == "implicit":
            shape["device"] = self.device
            return self.reindexed(ImplicitDiffusion(matrix, theta, **shape))
        made_from = {
            **parameters,
            "diffusion": kind,
            "normalization": settings.normalization,
            "self_loop": settings.diffusion_self_loop,
        }
        what = f"Diffusion of the {form} form"
        if form == "sketch":
            dim = settings.diffusion_dim

            def sketch_rows() -> dict[str, Array]:
                on_device, keys = SparseMatrix(matrix, self.device), node_keys(self.graph)
                return {"rows": sketch(on_device, theta, keys, dim, **shape).cpu().numpy()}

            made_from |= {**shape, "dim": dim, "on": circumstances(self.device)}
            names = self._cache.digest("names", self.graph.node_ids)
            recipe = self._recipe(what, mode, made_from, names=names)
            arrays = self._cache.arrays(recipe, sketch_rows)
            return DenseRows(torch.from_numpy(arrays["rows"]).to(self.device))
        if form == "topk":
            most: dict[str, Any] = {
                "count": settings.diffusion_topk,
                "threshold": settings.diffusion_threshold,
                "self_entry": settings.diffusion_self_entry,
            }
            progress = None if self.progress is None else partial(self.progress, "diffusion")
            of_some = {} if self._wanted is None else {"wanted": digest(self._wanted)}
            entries = self._cache.sparse(  # the same bits whatever the number of threads
                self._recipe(what, mode, made_from | most, **of_some),
                lambda: largest_entries(
                    matrix, kind, progress=progress, nodes=self._wanted, **most, **parameters
                ),
                lambda: prepare_push(kind),
            )
            rows = scaled_attributes(entries, settings.diffusion_scaling)
            return self.reindexed(SparseRows(SparseMatrix(rows, self.device)))
        made_from |= {**shape, "on": circumstances(torch.device("cpu"))}
        arrays = self._cache.arrays(
            self._recipe(what, mode, made_from),
            lambda: dense_arrays(matrix, kind, **shape, **parameters),
        )
        return self.reindexed(DenseDiffusion(arrays, self.device))

    def _recipe(self, kind: str, mode: str, parameters: dict[str, Any], **inputs: str) -> Recipe:
        """All that a statistic is made from; the neighbour mode counts by its adjacency."""
        adjacency = self._cache.digest(f"adjacency {mode}", self.adjacency(mode))
        return Recipe(kind, parameters, {"adjacency": adjacency, **inputs})


def _equal(one: Array | None, other: Array | None) -> bool:
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


def _two_hop(adjacency: sp.csr_array) -> sp.csr_array:
    """Ones where two edges lead, but neither one edge nor none."""
    num_nodes = adjacency.shape[0]
    loops = sp.eye_array(num_nodes, dtype=np.float32, format="csr")
    once = sp.csr_array(
        (np.ones_like(adjacency.data), adjacency.indices, adjacency.indptr), shape=adjacency.shape
    )
    nearer = sp.csr_array(once + loops)
    blocks, entries = [], 0
    for first in range(0, num_nodes, _BLOCK):
        rows = slice(first, first + _BLOCK)
        reached = once[rows] @ once
        reached.data[:] = 1
        blocks.append((reached > nearer[rows]).astype(np.float32))
        entries += blocks[-1].nnz
        if entries > TWO_HOP_LIMIT:
            raise GraphError(
                f"The two-hop neighbourhoods of this graph have more than {TWO_HOP_LIMIT:,} "
                "entries. Choose a model that reads neighbours only, such as gcn."
            )
    matrix = sp.csr_array(sp.vstack(blocks, format="csr"))
    matrix.sort_indices()
    return matrix
