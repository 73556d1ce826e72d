"""Settings of the statistics, and the names of statistics."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpgmn.base.settings import setting
from hpgmn.graph import NEIGHBORS

STATISTICS = (
    *("attributes", "class_counts", "class_means", "diffusion", "adjacency"),
    *("neighbor_attributes", "neighbor_class_counts", "neighbor_class_means"),
    *("neighbor_adjacency", "hops", "message_passing"),
)
"""The paper's four, adjacency rows, means of these over neighbours (two-hop statistics), means of
attributes over several hops, and the state of a message-passing network."""

TARGET_STATISTICS = ("target_means",)
"""Statistics of a regression alone: the mean targets of neighbours."""


FORMS = ("dense", "implicit", "topk", "sketch")
"""Forms of diffusion that may be set beside ``auto``."""

MEANS_FORMS = ("dense", "half", "sparse", "sketch", "factored")
"""Forms of class means that may be set beside ``auto``."""

_AVERAGED = "neighbor_"
# Message passing has a matrix per type instead.
_BY_TYPE = ("class_counts", "class_means", "target_means")
_SUFFIX = re.compile(r"(_out|_in)?(?:_type(\d+))?$")


@dataclass(frozen=True, kw_only=True)
class StatisticsSettings:
    """Which statistics describe a node, and how each is scaled."""

    statistics: tuple[str, ...] = setting(
        (*STATISTICS[:3], "adjacency"),
        "the local statistics in use",
        choices=(*STATISTICS, *TARGET_STATISTICS),
    )
    neighbors: str = setting(
        "both",
        "edge direction of neighbours; both: one set of statistics per direction",
        choices=NEIGHBORS,
        per_replica=True,
    )
    edge_types: str = setting(
        "separate",
        "class counts, class means, target means and message passing for each edge type or for all "
        "together; no effect on a graph without edge types",
        choices=("separate", "merged"),
    )
    attributes_scaling: str = setting(
        "raw",
        "attributes as given, divided by the row's absolute sum, or of unit length",
        choices=("raw", "fraction", "unit"),
    )
    class_counts_scaling: str = setting(
        "log",
        "class counts as they are, log(1+n), divided by their sum, or of unit length",
        choices=("raw", "log", "fraction", "unit"),
    )
    soft_counts: bool = setting(
        False, "count class probabilities of neighbours instead of their labels"
    )
    class_means_scaling: str = setting(
        "raw", "class means as they are or of unit length", choices=("raw", "unit")
    )
    class_means_form: str = setting(
        "auto",
        "class means as dense rows, as rows for batches (of half precision, sparse, or a random "
        "sketch), or factored (never an N×C·F array)",
        choices=("auto", *MEANS_FORMS),
    )
    class_means_dim: int = setting(64, "sketch of class means: columns per class", low=4)
    diffusion: str = setting(
        "ppr", "personalised PageRank or the heat kernel", choices=("ppr", "heat")
    )
    teleport: float = setting(0.15, "restart probability of PPR", low=0.01, high=0.99)
    heat_time: float = setting(3.0, "time of the heat kernel", low=0.01, high=50.0)
    normalization: str = setting(
        "column",
        "how the transition matrix is normalised; column is the paper's A·D⁻¹",
        choices=("column", "row", "symmetric"),
    )
    diffusion_self_loop: int = setting(
        0, "1 adds self-loops to the transition matrix alone", low=0, high=1
    )
    diffusion_form: str = setting(
        "auto",
        "diffusion as a matrix, by power iteration, its largest entries, or a random sketch",
        choices=("auto", *FORMS),
    )
    diffusion_tolerance: float = setting(
        1e-6, "largest sum of the truncated terms of the series", low=1e-12, high=0.1
    )
    diffusion_topk: int = setting(64, "topk: maximum number of entries per row", low=1)
    diffusion_threshold: float = setting(
        1e-4, "topk: residuals up to this size are not pushed", low=1e-9, high=0.1
    )
    diffusion_dim: int = setting(256, "sketch: number of columns", low=16)
    diffusion_scaling: str = setting(
        "unit", "diffusion rows as they are or of unit length", choices=("raw", "unit")
    )
    diffusion_self_entry: bool = setting(False, "whether a node's own entry stays in its row")
    adjacency_scaling: str = setting(
        "unit",
        "adjacency rows as they are, divided by the row's sum, or of unit length",
        choices=("raw", "fraction", "unit"),
    )
    hops: int = setting(2, "hops: mean attributes up to this number of edges away", low=1, high=10)
    hops_dim: int = setting(0, "hops: columns of a random sketch of attributes; 0: none", low=0)
    mp_normalization: str = setting(
        "symmetric",
        "message passing: the mean of neighbours, or degree exponents of -0.5 or -0.25 on both "
        "sides of an edge",
        choices=("row", "symmetric", "quarter"),
    )
    mp_residual: bool = setting(
        True, "message passing: weights of their own for a node's own state; false: self-loops"
    )


def statistic_names(settings: StatisticsSettings, num_types: int = 0) -> list[str]:
    """Return the names of the statistics of a model, one for each direction and edge type.

    >>> chosen = ("attributes", "diffusion")
    >>> statistic_names(StatisticsSettings(statistics=chosen, neighbors="both"))
    ['attributes', 'diffusion_out', 'diffusion_in']
    >>> chosen = ("class_counts", "diffusion")
    >>> statistic_names(StatisticsSettings(statistics=chosen, neighbors="out"), num_types=2)
    ['class_counts_type0', 'class_counts_type1', 'diffusion']
    """
    directions = ("_out", "_in") if settings.neighbors == "both" else ("",)
    if settings.edge_types == "merged":
        num_types = 0
    types = [f"_type{number}" for number in range(num_types)] or [""]
    return [
        f"{name}{direction}{edge_type}"
        for name in settings.statistics
        for direction in (("",) if name == "attributes" else directions)
        for edge_type in (types if name in _BY_TYPE else ("",))
    ]


def base_name(name: str) -> str:
    """Return a statistic's name without its direction and edge type.

    >>> base_name("class_means_out"), base_name("class_counts_in_type3")
    ('class_means', 'class_counts')
    """
    return _SUFFIX.sub("", name)


def type_of(name: str) -> int | None:
    """Return the number of a statistic's edge type; None if it reads all edges."""
    match = _SUFFIX.search(name)
    return None if match is None or match[2] is None else int(match[2])


def averaged_statistic(name: str) -> str | None:
    """Return the statistic that a ``neighbor_*`` name averages over neighbours; None for others.

    >>> averaged_statistic("neighbor_class_means"), averaged_statistic("class_means")
    ('class_means', None)
    """
    return name.removeprefix(_AVERAGED) if name.startswith(_AVERAGED) else None


def mode_of(name: str, neighbors: str) -> str:
    """Return the single neighbour mode of a statistic, such as "in", or "in:2" of edge type 2."""
    if name == "attributes":
        return "out"  # attributes have no neighbours: one form serves every mode
    edge_type = type_of(name)
    if neighbors == "both":
        neighbors = "out" if name.startswith(f"{base_name(name)}_out") else "in"
    return neighbors if edge_type is None else f"{neighbors}:{edge_type}"
