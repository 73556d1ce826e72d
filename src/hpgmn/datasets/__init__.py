"""Where graphs come from: known datasets, graph files, downloads and a built-in graph."""

from hpgmn.datasets.download import download
from hpgmn.datasets.files import read_graph, write_graph
from hpgmn.datasets.registry import DATASETS, PROTOCOLS, Dataset, Protocol, find_file, load
from hpgmn.datasets.splits import random_splits
from hpgmn.datasets.synthetic import SyntheticGraph, trading_network

__all__ = [
    "DATASETS",
    "PROTOCOLS",
    "Dataset",
    "Protocol",
    "SyntheticGraph",
    "download",
    "find_file",
    "load",
    "random_splits",
    "read_graph",
    "trading_network",
    "write_graph",
]
