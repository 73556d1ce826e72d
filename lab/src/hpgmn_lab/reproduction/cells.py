"""Cells of the tables as units of work, and their records.

A record carries the digest of its inputs: work whose record has the same digest is done.
At run time a record is a file in the folder ``cells``; committed records are lines of one file:

    python -m hpgmn_lab.reproduction.cells collect runs/reproduction/cells FILE.jsonl
    python -m hpgmn_lab.reproduction.cells restore FILE.jsonl runs/reproduction/cells
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpgmn.base.files import CELL_FORMAT, check_format, verify_checksum, with_checksum, write_text
from hpgmn.base.parsing import read_json
from hpgmn.base.settings import to_plain
from hpgmn.runs.trials import planned_trials
from hpgmn_lab.records import read_named, write_named

TUNED, SHIPPED = "tuned", "shipped"
"""The variants that tables compare: settings of the common search, and the shipped ones."""


@dataclass(frozen=True)
class Cell:
    """One model on one graph: an optional search on validation nodes, then all splits once.

    Attributes:
        variant: distinguishes cells of the same model and graph; part of a file name.
        settings: over the model's defaults; in a search, over every trial.
        trials: trials of the search; 0: no search.
        metric: selects epochs and trials, and is reported.
        protocol: defines the splits.
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
        """Return all fields as JSON values."""
        return plain_values(dataclasses.asdict(self)) | {"settings": plain_values(self.settings)}

    def trial_settings(self) -> list[dict[str, Any]]:
        """Return the settings of each trial; those of the cell override the planned ones."""
        planned = planned_trials(self.model, self.graph, self.trials)
        return [{**trial, **self.settings} for trial in planned]


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings or fields as JSON values."""
    return {name: to_plain(value) for name, value in values.items()}


def identity(*parts: Any) -> str:
    """Return the digest of plain values.

    >>> identity({"a": 1, "b": 2}) == identity({"b": 2, "a": 1}) != identity({"a": 1})
    True
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class CellRecord:
    """The result of a cell.

    Attributes:
        cell: :meth:`Cell.as_dict`.
        identity: digest of all inputs of the metrics except the settings, which they contain.
        search: None without a search; else its identity, the model's ``defaults`` at that time, the
            index ``best`` of the chosen trial, ``seconds``, and ``trials`` with their settings,
            ``val_score``, ``val_loss`` and ``val_score_mean``.
        metrics: ``metrics.json`` of the final run.
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
    """Return the file of a record."""
    return folder / f"{name}.json"


def read_cell(folder: Path, name: str) -> CellRecord | None:
    """Read a cell's record; None if it is missing or damaged."""
    path = record_path(folder, name)
    try:
        return _cell_record(read_json(path), path)
    except (OSError, ValueError):
        return None


def _cell_record(content: Any, path: Path) -> CellRecord | None:
    try:
        check_format(path, content.get("format"), CELL_FORMAT)
        content = verify_checksum(content)
        return CellRecord(
            content["cell"], content["identity"], content["search"], content["metrics"]
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def write_cell(folder: Path, record: CellRecord) -> None:
    """Write a record; the write is atomic."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        with_checksum({"format": CELL_FORMAT, **dataclasses.asdict(record)}), indent=1
    )
    write_text(record_path(folder, record.name), text + "\n")


@dataclass(frozen=True)
class Records:
    """The records of a reproduction by name, cells and facts of Table 1, as JSON values.

    Attributes:
        source: a folder of cell files or a ``.jsonl`` file.
        contents: name → content; damaged files are left out.
    """

    source: Path
    contents: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, source: Path) -> Records:
        """Read a folder or a ``.jsonl`` file; a missing one has no records."""
        if source.suffix == ".jsonl":
            return cls(source, read_named(source))
        contents = {}
        for path in sorted(source.glob("[!.]*.json")):
            try:
                contents[path.stem] = read_json(path)
            except (OSError, ValueError):
                continue
        return cls(source, contents)

    def cell(self, name: str) -> CellRecord | None:
        """Return a cell's record; None if it is missing or damaged."""
        content = self.contents.get(name)
        return None if content is None else _cell_record(content, self.source)

    def remedy(self, name: str) -> str:
        """Return the remedy for a record whose numbers do not match."""
        return f"Remove {name} from {self.source} and run `hpgmn reproduce` again"


def collect_cells(folder: Path, path: Path) -> int:
    """Add the records of a folder to a ``.jsonl`` file, replacing those of the same name."""
    added = Records.read(folder).contents
    write_named(path, dict(sorted({**Records.read(path).contents, **added}.items())))
    return len(added)


def restore_cells(path: Path, folder: Path) -> int:
    """Write the records of a ``.jsonl`` file as files of a folder."""
    contents = Records.read(path).contents
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_text(record_path(folder, name), json.dumps(content, indent=1) + "\n")
    return len(contents)


def main(arguments: Sequence[str] | None = None) -> None:
    """Collect or restore records."""
    parser = argparse.ArgumentParser(prog="python -m hpgmn_lab.reproduction.cells")
    parser.add_argument("action", choices=("collect", "restore"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args(arguments)
    action = collect_cells if options.action == "collect" else restore_cells
    print(f"{action(options.source, options.target)} records written to {options.target}.")


if __name__ == "__main__":
    main()
