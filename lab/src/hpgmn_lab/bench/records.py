"""What every record says, the bars it is judged by, and the tables it is shown in."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import write_text
from hpgmn.base.machine import hardware
from hpgmn.base.parsing import parse_json, read_json
from hpgmn.base.version import __version__
from hpgmn_lab.results.records import grid

Record: TypeAlias = dict[str, Any]


def head(
    benchmark: str, command: str, device: str, *, seeds: Any, settings: Mapping[str, Any]
) -> Record:
    """What every record begins with: what was measured, with what, on what and when.

    Args:
        benchmark: its name.
        command: what to type to make the record again.
        device: "cpu" or "cuda".
        seeds: every seed that was used.
        settings: every setting that was used.
    """
    return {
        "benchmark": benchmark,
        "command": command,
        "version": __version__,
        "date": datetime.date.today().isoformat(),
        "device_kind": device,
        **hardware(device),
        "seeds": seeds,
        "settings": dict(settings),
    }


def machine_words(record: Mapping[str, Any]) -> str:
    """What a record was measured on, in a line."""
    where = record.get("processor") or record["machine"]  # as early records call it
    if record.get("device_kind", "cpu") == "cuda":
        where = f"{record['device']}; host {where}"
    return (
        f"Machine: {where}; {record['threads']} threads; torch {record['torch']}; "
        f"hpgmn {record['version']}; {record['date']}."
    )


def make_folder(folder: Path) -> None:
    """Make sure that a folder can be written to, before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise HPGMNError(
            f"Cannot write into the folder {folder} ({error.strerror or error}). "
            "Choose another --out."
        ) from None


def write_record(record: Mapping[str, Any], path: Path) -> None:
    """A record as JSON, written whole."""
    write_text(path, json.dumps(record, indent=1) + "\n")


def read_record(path: Path) -> Record:
    """A record from its file."""
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise HPGMNError(f"Cannot read the record {path}: {error}. Measure it again.") from None
    if not isinstance(content, dict):
        raise HPGMNError(f"{path} holds no record. Measure it again.")
    return content


def kept(path: Path, asked: Mapping[str, Any], make: Callable[[], Record]) -> Record:
    """What was made before for the same request, or made now; so that long work can be cut.

    Args:
        path: where the answer is kept together with its request.
        asked: everything that the answer depends on.
        make: gives the answer.
    """
    same = parse_json(json.dumps(asked))  # tuples become lists, as in the file
    if path.is_file():
        content = read_record(path)
        if content.get("asked") == same:
            answer: Record = content["answer"]
            return answer
    made = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record({"asked": same, "answer": made}, path)
    return made


def verdict(value: float, required: float, *, at_most: bool = False, unit: str = "") -> str:
    """Whether a bar is reached, or by how much it is missed.

    >>> verdict(12.0, 10.0), verdict(0.4, 0.33, at_most=True), verdict(-0.7, -0.5, unit=" points")
    ('reached', 'short by 0.07', 'short by 0.20 points')
    """
    good = value <= required if at_most else value >= required
    return "reached" if good else f"short by {abs(value - required):.2f}{unit}"


@dataclass(frozen=True)
class Bar:
    """Something a measurement has to reach.

    Attributes:
        what: the quantity.
        value: what was measured; None where it could not be.
        required: the bar.
        unit: of both.
        at_most: whether the value must not be above the bar, rather than not below.
        why_missing: what stands in the place of a value that could not be measured.
        excuse: what is said where the value is short and that suffices; empty: nothing does.
    """

    what: str
    value: float | None
    required: float
    unit: str = ""
    at_most: bool = True
    why_missing: str = "not measured"
    excuse: str = ""

    @property
    def words(self) -> str:
        """Reached, short by how much, or why nobody knows."""
        if self.value is None:
            return self.why_missing
        found = verdict(self.value, self.required, at_most=self.at_most, unit=self.unit)
        return found if found == "reached" else self.excuse or found


def disturbance_of_sides(record: Mapping[str, Any]) -> float:
    """The most cores that others took during any side of any repeat."""
    sides = [side for found in record["repeats"] for side in found.values()]
    return float(max(side["cores_taken_by_others"] or 0.0 for side in sides))


@dataclass(frozen=True)
class Table:
    """A table of words, for the terminal and for the page.

    Attributes:
        columns: the header.
        rows: one cell for each column.
        title: what it shows; empty where the text around it says so.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def markdown(self) -> str:
        """The table for the page."""
        table = grid(self.columns, self.rows)
        return f"{self.title}\n\n{table}" if self.title else table


def bars_table(bars: Iterable[Bar]) -> Table:
    """The bars of a benchmark with what was measured."""
    rows = []
    for bar in bars:
        sign = "≤" if bar.at_most else "≥"
        found = "–" if bar.value is None else f"{bar.value:.2f}{bar.unit}"
        rows.append([bar.what, found, f"{sign} {bar.required:g}{bar.unit}", bar.words])
    return Table(("bar", "measured", "required", "verdict"), rows)
