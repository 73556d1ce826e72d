"""What is to be cut: a graph folder, its ranges, the settings; and the units of work in order.

A unit makes the files of one range. Units of one stage need nothing of each other; a stage needs
those before it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpgmn.base.digests import json_digest
from hpgmn.base.errors import HPGMNError, Remedy, SettingError
from hpgmn.base.parsing import read_json
from hpgmn.base.text import format_bytes
from hpgmn.statistics.definitions import ROWS_LIMIT_BYTES
from hpgmn.statistics.diffusion import coefficients
from hpgmn.statistics.settings import (
    StatisticsSettings,
    averaged_statistic,
    base_name,
    mode_of,
    statistic_names,
)

FORMAT = 1
"""Counts changes of what shards hold or of how their values come about."""

MEMORY = 1 << 30
"""What a task may hold at once in blocks, unless told otherwise."""

EDGE_BYTES = 64
"""What cutting, sorting and looking up takes for one edge while it is in memory."""


FREE = ("graph", "memory", "name")
"""What may change from call to call: where the graph lies and is called, what a task may hold."""


@dataclass(frozen=True)
class Unit:
    """One piece of work: what is made, and for which range.

    Attributes:
        kind: the name of its function in ``units.KINDS``.
        part: the range.
        name: a neighbour mode, or a statistic's name.
        step: the round of a sketch.
    """

    kind: str
    part: int
    name: str = ""
    step: int = 0

    @property
    def key(self) -> str:
        """A name of its own.

        >>> Unit("round", 3, "diffusion_out", 2).key
        'round-diffusion_out-002-00003'
        """
        step = f"{self.step:03d}" if self.kind == "round" else ""
        return "-".join(word for word in (self.kind, self.name, step, f"{self.part:05d}") if word)


@dataclass(frozen=True)
class Stage:
    """Units that need nothing of each other.

    Attributes:
        what: what they do, for progress.
        units: one for each range, mostly.
        chain: stages of one chain replace each other: what the last finished one made is enough.
    """

    what: str
    units: tuple[Unit, ...]
    chain: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that shards are made from; plain values, kept as ``plan.json``."""

    graph: str
    name: str
    source: str
    num_nodes: int
    num_features: int
    num_edges: int
    is_directed: bool
    is_weighted: bool
    is_sparse: bool
    starts: tuple[int, ...]
    class_names: tuple[str, ...]
    labels: str
    split: int | None
    memory: int
    settings: dict[str, Any]

    @property
    def num_ranges(self) -> int:
        """R."""
        return len(self.starts) - 1

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_names)

    @property
    def folder(self) -> Path:
        """The graph folder."""
        return Path(self.graph)

    def span(self, part: int) -> tuple[int, int]:
        """The first node of a range and the one after the last."""
        return self.starts[part], self.starts[part + 1]

    @property
    def statistics(self) -> StatisticsSettings:
        """The settings of the statistics, forms settled."""
        known = {info.name for info in dataclasses.fields(StatisticsSettings)}
        values = {key: value for key, value in self.settings.items() if key in known}
        return StatisticsSettings(**{**values, "statistics": tuple(values["statistics"])})

    def mode(self, name: str) -> str:
        """The stored edges that a statistic is made from."""
        mode = mode_of(name, self.statistics.neighbors)
        return mode if self.is_directed else "undirected"

    @property
    def theta(self) -> Any:
        """The coefficients of diffusion."""
        chosen = self.statistics
        return coefficients(
            chosen.diffusion,
            teleport=chosen.teleport,
            heat_time=chosen.heat_time,
            tolerance=chosen.diffusion_tolerance,
        )

    @property
    def digest(self) -> str:
        """A hash of all that values depend on: not of the fields in :data:`FREE`."""
        said = dataclasses.asdict(self) | dict.fromkeys(FREE) | {"format": FORMAT}
        return json_digest(said)

    def text(self) -> str:
        """The plan as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> Plan:
        """The plan in a file."""
        values = read_json(path)
        tuples = {key: tuple(values[key]) for key in ("starts", "class_names")}
        return cls(**(values | tuples))

    @property
    def _modes(self) -> set[str]:
        """The stored edges that statistics are made from."""
        names = statistic_names(self.statistics)
        return {self.mode(name) for name in names if name != "attributes"}

    @property
    def _diffusions(self) -> list[str]:
        """The statistics that are diffusion rows."""
        names = statistic_names(self.statistics)
        return [name for name in names if base_name(name) == "diffusion"]

    @property
    def needs_entering(self) -> bool:
        """Whether the edges that enter a range are needed, so that those that leave are sorted."""
        needs_sums = bool(self._diffusions) and self.statistics.normalization != "row"
        return needs_sums or bool(self._modes & {"in", "undirected"})

    def stages(self) -> list[Stage]:
        """All work, in order."""
        diffusions = self._diffusions
        found = [self._stage("Edges by source", "out")]
        if self.needs_entering:
            found.append(self._stage("Edges by target", "in"))
        if "undirected" in self._modes:
            found.append(self._stage("Edges both ways", "undirected"))
        found.append(self._stage("Labels and splits", "nodes"))
        for name in statistic_names(self.statistics):
            if base_name(name) != "diffusion":
                found.append(self._stage(f"Rows of {name}", "rows", name))
        for mode in dict.fromkeys(self.mode(name) for name in diffusions):
            found.append(self._stage(f"Transition matrix ({mode})", "transition", mode))
        for name in diffusions:
            if self.statistics.diffusion_form == "topk":
                mode = self.mode(name)
                found.append(Stage(f"One file ({mode})", (Unit("join", 0, mode),)))
                found.append(self._stage(f"Rows of {name}", "topk", name))
                continue
            rounds = len(self.theta)
            found += [
                self._stage(f"{name}, round {step + 1} of {rounds}", "round", name, step, name)
                for step in range(rounds)
            ]
        return found

    def _stage(self, what: str, kind: str, name: str = "", step: int = 0, chain: str = "") -> Stage:
        units = tuple(Unit(kind, part, name, step) for part in range(self.num_ranges))
        return Stage(what, units, chain)


def resolve_forms(settings: Any, shape: tuple[int, int], num_classes: int, *, sparse: bool) -> Any:
    """Settings with the forms that shards hold in the place of ``auto``.

    Class means follow the rule of batches, but sparse attributes always have sparse means.
    Diffusion is a sketch unless ``topk`` is asked for.

    Args:
        settings: of the statistics, or of a model with statistics.
        shape: N and F.
        num_classes: C.
        sparse: whether the attributes are.
    """
    refused = [name for name in settings.statistics if averaged_statistic(name) is not None]
    if refused:
        raise SettingError(
            f"Shards have no means over neighbours ({', '.join(refused)}). Leave them out of "
            "statistics."
        )
    if settings.soft_counts:
        raise SettingError("Shards count neighbours by their labels. Set soft_counts=false.")
    means, diffusion = settings.class_means_form, settings.diffusion_form
    if means == "auto":
        rows = 2 * shape[0] * shape[1] * num_classes
        is_long = rows > ROWS_LIMIT_BYTES and settings.class_means_dim < shape[1]
        means = "sparse" if sparse else "sketch" if is_long else "half"
    if diffusion == "auto":
        diffusion = "sketch"
    for value, name, choices in (
        (means, "class_means_form", ("dense", "half", "sparse", "sketch")),
        (diffusion, "diffusion_form", ("sketch", "topk")),
    ):
        if value not in choices:
            raise SettingError(
                f"Shards have no {name}={value}. Choose from: auto, {', '.join(choices)}."
            )
    return dataclasses.replace(settings, class_means_form=means, diffusion_form=diffusion)


def balanced_starts(
    edges_before: Callable[[int], int], num_nodes: int, count: int
) -> tuple[int, ...]:
    """Where ranges begin, and N, so that each has as many nodes and edges together as any other.

    An edge counts for as much as a node times N/E. Only a few nodes are asked for.

    Args:
        edges_before: the number of edges that leave nodes before the given one.
        num_nodes: N.
        count: R, the number of ranges.

    >>> balanced_starts(lambda node: max(0, 6 * (node - 2)), 4, 2)
    (0, 3, 4)
    """
    if not 1 <= count <= num_nodes:
        raise SettingError(
            f"There must be between 1 range and one for each node, {num_nodes:,} (got {count})."
        )
    edges, starts = max(1, edges_before(num_nodes)), [0]
    for part in range(1, count):
        low, high = starts[-1] + 1, num_nodes - (count - part)
        while low < high:
            middle = (low + high) // 2
            if middle / num_nodes + edges_before(middle) / edges < 2 * part / count:
                low = middle + 1
            else:
                high = middle
        starts.append(low)
    return (*starts, num_nodes)


def require_task_memory(needed: int, memory: int, what: str, remedy: Remedy) -> None:
    """Raise HPGMNError before a task starts that needs more memory than it may use."""
    if needed > memory:
        raise HPGMNError(
            f"{what} take {format_bytes(needed)} at once, and a task may use "
            f"{format_bytes(memory)}.",
            remedy,
        )


def largest_of(lengths: Any) -> int:
    """Return the largest of some integers, 0 of none."""
    return int(np.max(lengths, initial=0))
