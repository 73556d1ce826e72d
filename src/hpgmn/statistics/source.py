"""A graph as statistics see it: what is computed from it is kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from hpgmn.base.edge_types import match_graph_types
from hpgmn.graph import Array, Graph
from hpgmn.statistics.operators import Statistic, reindex

if TYPE_CHECKING:
    from hpgmn.statistics.cache import StatisticsCache

_Result = TypeVar("_Result")

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the statistic, the rows done and all rows."""


class Source:
    """A graph and what is computed from it once, for all statistics.

    Args:
        columns: for another graph than the training graph: position of each node in the training
            graph, -1 if it was not there.
        width: the number of nodes of the training graph, with ``columns``.
        nodes: ascending positions of the only nodes whose rows will be read; expensive rows of
            others stay empty. None for all nodes.
        edge_type_names: the edge types of the training graph; None for those of this one.
    """

    progress: Progress | None = None

    def __init__(
        self,
        graph: Graph,
        device: torch.device | str = "cpu",
        *,
        columns: Array | None = None,
        width: int | None = None,
        nodes: Array | None = None,
        edge_type_names: Sequence[str] | None = None,
    ) -> None:
        self.graph = graph
        names = graph.edge_type_names if edge_type_names is None else edge_type_names
        self.edge_type_names = tuple(names)
        self.device = torch.device(device)
        self.nodes = nodes
        self.columns = None if columns is None else torch.from_numpy(columns).to(self.device)
        self.width = width
        self._results: dict[Hashable, Any] = {}

    def once(self, key: Hashable, compute: Callable[[], _Result]) -> _Result:
        """Return what a function computes; it is called once for each key."""
        if key not in self._results:
            self._results[key] = compute()
        result: _Result = self._results[key]
        return result

    @cached_property
    def cache(self) -> StatisticsCache:
        """The results on disk; imported on use, because few statistics take long."""
        from hpgmn.statistics.cache import StatisticsCache

        return StatisticsCache.of_user()

    def adjacency(self, mode: str) -> sp.csr_array:
        """Return the graph's adjacency in one of the single modes, cached: (N, N)."""
        neighbors, _, number = mode.partition(":")
        types = None
        if number:
            types = [own for own, known in enumerate(self._types) if known == int(number)]
        return self.once(("adjacency", mode), lambda: self.graph.adjacency(neighbors, types))

    @cached_property
    def _types(self) -> list[int]:
        """The number of each of the graph's edge types among those of the training graph."""
        return match_graph_types(self.graph, self.edge_type_names)

    def reindex(self, statistic: Statistic) -> Statistic:
        """Express a statistic whose columns are nodes in the columns of the training graph."""
        if self.columns is None:
            return statistic
        return reindex(statistic, self.columns, self.width or 0)

    def tensor(self, array: Array) -> Tensor:
        """Return an array as a float32 tensor on the device."""
        return torch.from_numpy(np.require(array, np.float32, ["C", "W"])).to(self.device)
