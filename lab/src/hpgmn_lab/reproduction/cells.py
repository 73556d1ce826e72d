"""A cell of a table as a unit of work: what determines it, and its record on disk.

A record carries the identity of what it was made from. Work whose record has the same identity is
never done again; anything else is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpgmn.base.files import CELL_FORMAT, check_format, verify_checksum, with_checksum, write_text
from hpgmn.base.parsing import read_json
from hpgmn.base.settings import plain

TUNED, SHIPPED = "tuned", "shipped"
"""The two variants that tables compare: settings from the common search, and those that ship."""


@dataclass(frozen=True)
class Cell:
    """One model on one graph: a search by validation, where asked for, then all splits once.

    Attributes:
        graph: the dataset's name.
        model: the model's name.
        variant: what sets it apart from other cells of this model and graph, in words of a file
            name: "tuned", "shipped", "without-entropy".
        settings: over the model's defaults; in a search, over every trial.
        trials: how many trials choose the rest; 0: ``settings`` are all.
        search_splits: the splits of the search.
        search_seeds: how many seeds on each of them.
        splits: the splits of the final run.
        seeds: how many seeds on each of them.
        metric: what selects epochs and trials, and is reported.
        protocol: the protocol whose splits these are.
    """

    graph: str
    model: str
    variant: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    trials: int = 0
    search_splits: tuple[int, ...] = ()
    search_seeds: int = 1
    splits: tuple[int, ...] = (0,)
    seeds: int = 1
    metric: str = "accuracy"
    protocol: str | None = None

    @property
    def name(self) -> str:
        """The name of its record, unique in a reproduction."""
        return f"{self.graph}-{self.model}-{self.variant}"

    def as_dict(self) -> dict[str, Any]:
        """All of it, as JSON holds it."""
        found = {name: plain(value) for name, value in dataclasses.asdict(self).items()}
        return found | {"settings": {name: plain(own) for name, own in self.settings.items()}}


def identity(*parts: Any) -> str:
    """A digest of plain values: what work is made from.

    >>> identity({"a": 1, "b": 2}) == identity({"b": 2, "a": 1}) != identity({"a": 1})
    True
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class CellRecord:
    """What is known of a cell once its work is done.

    Attributes:
        cell: the cell, as :meth:`Cell.as_dict` gives it.
        identity: of everything the metrics were made from but the settings, which they name.
        search: None without a search; else its identity, the model's ``defaults`` on that day, the
            number ``best`` of the chosen trial, ``seconds``, and ``trials``, each with its
            settings over these, ``val_score``, ``val_loss`` and ``val_score_mean``.
        metrics: the content of ``metrics.json`` of the final run.
    """

    cell: Mapping[str, Any]
    identity: str
    search: Mapping[str, Any] | None
    metrics: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of its cell."""
        return f"{self.cell['graph']}-{self.cell['model']}-{self.cell['variant']}"


def record_path(folder: Path, name: str) -> Path:
    """The file of a cell's record."""
    return folder / f"{name}.json"


def remedy(path: Path) -> str:
    """What to do about a record that does not hold together."""
    return f"Delete {path} and run hpgmn reproduce again."


def read_cell(folder: Path, name: str) -> CellRecord | None:
    """A cell's record; None where there is none, or none that can be read."""
    try:
        content = read_json(record_path(folder, name))
        check_format(record_path(folder, name), content.get("format"), CELL_FORMAT)
        content = verify_checksum(content)
        return CellRecord(
            content["cell"], content["identity"], content["search"], content["metrics"]
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_cell(folder: Path, record: CellRecord) -> None:
    """Write a record whole: a crash leaves the old one or the new one."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        with_checksum({"format": CELL_FORMAT, **dataclasses.asdict(record)}), indent=1
    )
    write_text(record_path(folder, record.name), text + "\n")
