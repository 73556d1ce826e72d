"""The plan of row shards: graph folder, ranges, settings; and the units of work in order.

A unit writes the files of one range. Units of one stage are independent; a stage depends on those
before it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpgmn.base.errors import HPGMNError, Remedy, SettingError, format_bytes
from hpgmn.base.files import json_digest
from hpgmn.base.parsing import read_json
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
"""Format of shards; incremented when their content or values change."""

MEMORY = 1 << 30
"""Default bytes that a task may hold in blocks."""

EDGE_BYTES = 64
"""Bytes of one edge while it is cut, sorted and looked up."""


FREE = ("graph", "memory", "name")
"""Fields that may change when a call is resumed."""


@dataclass(frozen=True)
class Unit:
    """A piece of work.

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
        """A unique name.

        >>> Unit("round", 3, "diffusion_out", 2).key
        'round-diffusion_out-002-00003'
        """
        step = f"{self.step:03d}" if self.kind == "round" else ""
        return "-".join(word for word in (self.kind, self.name, step, f"{self.part:05d}") if word)


@dataclass(frozen=True)
class Stage:
    """Independent units.

    Attributes:
        what: their description, for progress.
        chain: later stages of a chain supersede earlier ones.
    """

    what: str
    units: tuple[Unit, ...]
    chain: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All inputs of row shards as plain values, stored in ``plan.json``."""

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
        """Return the first node of a range and the one after the last."""
        return self.starts[part], self.starts[part + 1]

    @property
    def statistics(self) -> StatisticsSettings:
        """The settings of the statistics, with resolved forms."""
        known = {info.name for info in dataclasses.fields(StatisticsSettings)}
        values = {key: value for key, value in self.settings.items() if key in known}
        return StatisticsSettings(**{**values, "statistics": tuple(values["statistics"])})

    def mode(self, name: str) -> str:
        """Return the neighbour mode whose stored edges a statistic reads."""
        mode = mode_of(name, self.statistics.neighbors)
        return mode if self.is_directed else "undirected"

    @property
    def theta(self) -> Any:
        """The coefficients of diffusion."""
        return coefficients(self.statistics)

    @property
    def digest(self) -> str:
        """A digest of all fields but :data:`FREE`."""
        values = dataclasses.asdict(self) | dict.fromkeys(FREE) | {"format": FORMAT}
        return json_digest(values)

    def text(self) -> str:
        """Return the plan as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan from a file."""
        values = read_json(path)
        tuples = {key: tuple(values[key]) for key in ("starts", "class_names")}
        return cls(**(values | tuples))

    @property
    def _modes(self) -> set[str]:
        """The neighbour modes whose stored edges are read."""
        names = statistic_names(self.statistics)
        return {self.mode(name) for name in names if name != "attributes"}

    @property
    def _diffusions(self) -> list[str]:
        """The statistics that are diffusion rows."""
        names = statistic_names(self.statistics)
        return [name for name in names if base_name(name) == "diffusion"]

    @property
    def needs_entering(self) -> bool:
        """Whether incoming edges are needed, so that outgoing ones are sorted by target."""
        needs_sums = bool(self._diffusions) and self.statistics.normalization != "row"
        return needs_sums or bool(self._modes & {"in", "undirected"})

    def stages(self) -> list[Stage]:
        """Return all work in order."""
        diffusions = self._diffusions
        stages = [self._stage("Edges by source", "out")]
        if self.needs_entering:
            stages.append(self._stage("Edges by target", "in"))
        if "undirected" in self._modes:
            stages.append(self._stage("Edges both ways", "undirected"))
        stages.append(self._stage("Labels and splits", "nodes"))
        for name in statistic_names(self.statistics):
            if base_name(name) != "diffusion":
                stages.append(self._stage(f"Rows of {name}", "rows", name))
        for mode in dict.fromkeys(self.mode(name) for name in diffusions):
            stages.append(self._stage(f"Transition matrix ({mode})", "transition", mode))
        for name in diffusions:
            if self.statistics.diffusion_form == "topk":
                mode = self.mode(name)
                stages.append(Stage(f"One file ({mode})", (Unit("join", 0, mode),)))
                stages.append(self._stage(f"Rows of {name}", "topk", name))
                continue
            rounds = len(self.theta)
            stages += [
                self._stage(f"{name}, round {step + 1} of {rounds}", "round", name, step, name)
                for step in range(rounds)
            ]
        return stages

    def _stage(self, what: str, kind: str, name: str = "", step: int = 0, chain: str = "") -> Stage:
        units = tuple(Unit(kind, part, name, step) for part in range(self.num_ranges))
        return Stage(what, units, chain)


def has_shards(statistic: str) -> bool:
    """Return whether a range's rows of a statistic can be computed by themselves."""
    return averaged_statistic(statistic) is None and statistic not in ("hops", "message_passing")


def resolve_forms(settings: Any, shape: tuple[int, int], num_classes: int, *, sparse: bool) -> Any:
    """Replace ``auto`` in settings by the forms that shards use; raise SettingError for others.

    Class means follow the rule for batches, but sparse attributes always have sparse means;
    diffusion is a sketch.

    Args:
        settings: of the statistics, or of a model with statistics.
        shape: N and F.
        sparse: whether the attributes are sparse.
    """
    refused = [name for name in settings.statistics if not has_shards(name)]
    if refused:
        raise SettingError(
            f"Shards cannot have rows of other ranges, which {', '.join(refused)} would need.",
            f"Leave {', '.join(refused)} out of statistics.",
        )
    if settings.soft_counts:
        raise SettingError(
            "Shards count neighbours by their labels, not by the shares of classes.",
            Remedy("Count labels", setting="soft_counts", value=False),
        )
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
                f"Shards have no {name}={value}.", f"Choose from: auto, {', '.join(choices)}."
            )
    return dataclasses.replace(settings, class_means_form=means, diffusion_form=diffusion)


def balanced_starts(
    edges_before: Callable[[int], int], num_nodes: int, count: int
) -> tuple[int, ...]:
    """Return the first node of each range, and N, balancing nodes plus edges (weighted by N/E).

    Args:
        edges_before: returns the number of edges that leave nodes before the argument.
        count: the number of ranges.

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
