"""Graphs: attributes, edges, labels and splits, and where they come from."""

from hpgmn.graph.graph import NEIGHBORS, Array, Attributes, Graph, Split, Splits

__all__ = ["NEIGHBORS", "Array", "Attributes", "Graph", "Split", "Splits"]
