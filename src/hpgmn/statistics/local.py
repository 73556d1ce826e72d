"""The local statistics of a graph's nodes, built from settings and pseudo-labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp

from hpgmn.base.errors import GraphError
from hpgmn.base.sparse import SparseMatrix, transition
from hpgmn.graph import Array, Graph
from hpgmn.graph.edges import sorted_csr
from hpgmn.statistics.definitions import (
    AdjacencyRows,
    AttributeRows,
    ClassCounts,
    ClassMeans,
    Definition,
    Request,
    diffusion_is_sketched,
)
from hpgmn.statistics.operators import Grouped, LinkedAttributes, NeighborMean, Statistic
from hpgmn.statistics.settings import (
    StatisticsSettings,
    averaged_statistic,
    base_name,
    mode_of,
    statistic_names,
)
from hpgmn.statistics.source import Progress, Source
from hpgmn.statistics.targets import TargetMeans, num_groups

TWO_HOP_LIMIT = 2**28
"""Most entries of a two-hop matrix, 2 GiB; crocodile's has 32, squirrel's 8, pubmed's 1 million."""

_BLOCK = 1024  # rows of the two-hop matrix computed at once

DEFINITIONS: dict[str, Definition] = {
    "attributes": AttributeRows(),
    "class_counts": ClassCounts(),
    "class_means": ClassMeans(),
    "adjacency": AdjacencyRows(),
    "target_means": TargetMeans(),
}


def definition(name: str) -> Definition:
    """Return the definition of a statistic; ``neighbor_*`` are means of these over neighbours."""
    if name == "diffusion":
        from hpgmn.statistics.diffusion_forms import Diffusion  # not among the defaults

        return Diffusion()
    if name == "hops":
        from hpgmn.statistics.hops import Hops

        return Hops()
    return DEFINITIONS[name]


class LocalStatistics(Source):
    """Builds the statistics of one graph; those that do not depend on labels are built once.

    Arguments as for :class:`Source`.
    """

    _latest: tuple[tuple[Any, ...], dict[str, Statistic]] | None = None

    def on(self, graph: Graph) -> LocalStatistics:
        """Return the statistics of a graph of the same nodes with other edges, same columns."""
        types = self.edge_type_names
        twin = LocalStatistics(graph, self.device, width=self.width, edge_type_names=types)
        twin.columns = self.columns
        return twin

    @contextmanager
    def reporting(self, progress: Progress) -> Iterator[None]:
        """Report the progress of expensive statistics that are built inside the block."""
        before, self.progress = self.progress, progress
        try:
            yield
        finally:
            self.progress = before

    def attributes(self, scaling: str) -> Statistic:
        """Return the attributes in one of their scalings, cached."""
        return self._label_free("attributes", "out", StatisticsSettings(attributes_scaling=scaling))

    def adjacency_rows(self, neighbors: str, scaling: str) -> Statistic:
        """Return the rows of the adjacency in one of the attributes' scalings, cached."""
        settings = StatisticsSettings(adjacency_scaling=scaling)
        return self._label_free("adjacency", neighbors, settings)

    def propagation(
        self, neighbors: str, normalization: str, self_loop: float = 0.0, num_types: int = 0
    ) -> SparseMatrix:
        """Return the normalised adjacency (:func:`transition`), cached.

        With ``num_types`` those of the edge types, side by side: (N, T·N).
        """
        modes = [f"{neighbors}:{number}" for number in range(num_types)] or [neighbors]

        def compute() -> SparseMatrix:
            blocks = [transition(self.adjacency(mode), normalization, self_loop) for mode in modes]
            matrix = blocks[0] if len(blocks) == 1 else sorted_csr(sp.hstack(blocks, format="csr"))
            return SparseMatrix(matrix, self.device)

        return self.once(("propagation", *modes, normalization, self_loop), compute)

    def linked_attributes(self, neighbors: str, settings: StatisticsSettings) -> LinkedAttributes:
        """Return the attributes with the matrix of message passing."""
        self_loop = 0.0 if settings.mp_residual else 1.0
        types = len(self.edge_type_names) if settings.edge_types == "separate" else 0
        propagation = self.propagation(neighbors, settings.mp_normalization, self_loop, types)
        return LinkedAttributes(self.attributes(settings.attributes_scaling), propagation)

    def two_hop(self, neighbors: str) -> SparseMatrix:
        """Return the symmetrically normalised matrix of nodes exactly two edges away, cached.

        Every such node counts once, whatever the number and weights of paths.
        """

        def compute() -> SparseMatrix:
            matrix = transition(_two_hop(self.adjacency(neighbors)), "symmetric")
            result = SparseMatrix(matrix, self.device)
            if neighbors == "undirected":  # symmetric: no second copy of millions of entries
                result.transpose = result
            return result

        return self.once(("two_hop", neighbors), compute)

    def build(
        self,
        labels: Array,
        num_classes: int,
        settings: Sequence[StatisticsSettings],
        shares: Array | None = None,
    ) -> dict[str, Statistic]:
        """Build the statistics of R replicas; the latest are cached for training and prediction.

        Args:
            labels: (R, N) pseudo-labels; -1 is unknown.
            settings: one per replica; they may differ in ``neighbors`` alone.
            shares: (R, N, C) probabilities of each class, for ``soft_counts``; None takes the
                labels as certain. Of a regression what the mean targets average.

        Returns:
            A statistic for each name of :func:`statistic_names`.
        """
        if not settings[0].soft_counts and "target_means" not in settings[0].statistics:
            shares = None
        inputs = (num_classes, list(settings), labels, shares)
        if self._latest is not None:
            if _same_inputs(self._latest[0], inputs):
                return self._latest[1]
            self._latest = None  # frees its memory before the next is built
        built: dict[str, Statistic] = {}
        parts: dict[tuple[str, str], Statistic] = {}
        for name in statistic_names(settings[0], len(self.edge_type_names)):
            modes = [mode_of(name, replica.neighbors) for replica in settings]
            members = []
            for mode in dict.fromkeys(modes):
                chosen = [number for number, other in enumerate(modes) if other == mode]
                some_shares = None if shares is None else shares[chosen]
                request = Request(self, mode, labels[chosen], num_classes, some_shares)
                members.append((self._one(base_name(name), request, settings[0], parts), chosen))
            built[name] = members[0][0] if len(members) == 1 else Grouped(members)
        self._latest = (inputs, built)
        return built

    def _one(
        self,
        name: str,
        request: Request,
        settings: StatisticsSettings,
        parts: dict[tuple[str, str], Statistic],
    ) -> Statistic:
        """Build a statistic; ``parts`` keeps it for its mean over neighbours."""
        key = (name, request.mode)
        if key not in parts:
            inner = averaged_statistic(name)
            if inner is not None:
                statistic = self._one(inner, request, settings, parts)
                parts[key] = NeighborMean(statistic, self.propagation(request.mode, "row"))
            elif name == "message_passing":
                parts[key] = self.linked_attributes(request.mode, settings)
            elif definition(name).reads_labels:
                parts[key] = definition(name).make(request, settings)
            else:
                parts[key] = self._label_free(name, request.mode, settings)
        return parts[key]

    def _label_free(self, name: str, mode: str, settings: StatisticsSettings) -> Statistic:
        chosen = definition(name)
        return self.once(
            chosen.key(mode, settings), lambda: chosen.make(Request(self, mode), settings)
        )


def fix_sketches(graph: Graph, settings: Any) -> Any:
    """Return settings that name the sketches ``auto`` took on the training graph.

    A trained model keeps these, so that ``auto`` on another graph never changes its columns.
    """
    used = set(getattr(settings, "statistics", ()))
    named = {}
    if "diffusion" in used and diffusion_is_sketched(graph, settings):
        named["diffusion_form"] = "sketch"
    uses_means = used & {"class_means", "neighbor_class_means"}
    if uses_means and ClassMeans.is_sketched(graph, settings, num_groups(graph, settings)):
        named["class_means_form"] = "sketch"
    if all(getattr(settings, key) == value for key, value in named.items()):
        return settings
    return dataclasses.replace(settings, **named)


def _same_inputs(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    return first[:2] == second[:2] and all(
        left is right or (left is not None and right is not None and np.array_equal(left, right))
        for left, right in zip(first[2:], second[2:], strict=True)
    )


def _two_hop(adjacency: sp.csr_array) -> sp.csr_array:
    """Return ones where two edges lead, but neither one edge nor none."""
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
                "entries.",
                "Choose a model that reads direct neighbours only, such as gcn",
            )
    matrix = sp.csr_array(sp.vstack(blocks, format="csr"))
    matrix.sort_indices()
    return matrix
