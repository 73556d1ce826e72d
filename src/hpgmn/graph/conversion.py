"""What a graph can be made from and turned into: methods that import what they need when called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpgmn.graph.graph import Graph


class Conversions:
    """The part of :class:`Graph` that speaks with other libraries."""

    @staticmethod
    def from_pyg(data: Any, name: str = "graph") -> Graph:
        """A graph from a PyTorch Geometric ``Data`` object (edges taken as listed)."""
        from hpgmn.graph.pyg import from_pyg

        return from_pyg(data, name)

    @staticmethod
    def from_networkx(network: Any, **options: Any) -> Graph:
        """A graph from a networkx graph; see :func:`hpgmn.from_networkx`."""
        from hpgmn.tables import from_networkx

        return from_networkx(network, **options)

    @staticmethod
    def from_tables(nodes: Any, edges: Any, **options: Any) -> Graph:
        """A graph from two tables in memory; see :func:`hpgmn.from_tables`."""
        from hpgmn.tables import from_tables

        return from_tables(nodes, edges, **options)

    def to_pyg(self: Any) -> Any:
        """The graph as a PyTorch Geometric ``Data`` object; sparse attributes stay sparse."""
        from hpgmn.graph.pyg import to_pyg

        return to_pyg(self)

    def _repr_html_(self: Any) -> str:
        """The graph as a small table, for notebooks."""
        from hpgmn.graph.notebook import graph_html

        return graph_html(self)
