"""Own data in: node and edge tables, edge lists, GraphML and networkx become a graph."""

from hpgmn.tables.layout import Columns, Tables, open_tables
from hpgmn.tables.objects import from_networkx, from_tables
from hpgmn.tables.preparation import Preparation
from hpgmn.tables.reading import read_tables

__all__ = [
    "Columns",
    "Preparation",
    "Tables",
    "from_networkx",
    "from_tables",
    "open_tables",
    "read_tables",
]
