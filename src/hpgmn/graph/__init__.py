"""Graphs: attributes, edges, labels and splits; files, datasets and converters."""

from hpgmn.graph.edges import Array
from hpgmn.graph.graph import NEIGHBORS, PARTS, Graph, Split, Splits, random_splits
from hpgmn.graph.validation import Attributes

from_networkx = Graph.from_networkx
from_pyg = Graph.from_pyg
from_tables = Graph.from_tables

__all__ = [
    "NEIGHBORS",
    "PARTS",
    "Array",
    "Attributes",
    "Graph",
    "Split",
    "Splits",
    "from_networkx",
    "from_pyg",
    "from_tables",
    "random_splits",
]
