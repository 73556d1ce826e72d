"""Local statistics of nodes: attributes, class counts, class means, diffusion, adjacency."""

from hpgmn.statistics.local import (
    STATISTICS,
    LocalStatistics,
    StatisticsSettings,
    base_name,
    statistic_names,
)
from hpgmn.statistics.operators import Statistic

__all__ = [
    "STATISTICS",
    "LocalStatistics",
    "Statistic",
    "StatisticsSettings",
    "base_name",
    "statistic_names",
]
