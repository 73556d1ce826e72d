"""Own data in: node and edge tables, edge lists and GraphML become a graph."""

from hpgmn.tables.layout import Columns, Tables, open_tables
from hpgmn.tables.reading import read_tables

__all__ = ["Columns", "Tables", "open_tables", "read_tables"]
