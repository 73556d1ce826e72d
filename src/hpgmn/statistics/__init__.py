"""Local statistics of nodes: attributes, class counts, class means, diffusion, adjacency."""

from hpgmn.statistics.local import LocalStatistics
from hpgmn.statistics.operators import Statistic
from hpgmn.statistics.settings import (
    STATISTICS,
    StatisticsSettings,
    averaged_statistic,
    base_name,
    statistic_names,
)

__all__ = [
    "STATISTICS",
    "LocalStatistics",
    "Statistic",
    "StatisticsSettings",
    "averaged_statistic",
    "base_name",
    "statistic_names",
]
