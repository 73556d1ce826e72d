"""Records of benchmarks: their common fields, the bars they have to reach, and their tables."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import write_text
from hpgmn.base.machine import hardware
from hpgmn.base.parsing import parse_json, read_json
from hpgmn.base.version import __version__
from hpgmn_lab.rendering import frame, markdown_table

Record: TypeAlias = dict[str, Any]

GIB = 2**30


@dataclass(frozen=True)
class Call:
    """How a benchmark was called.

    ``command`` measures the record again; ``out`` also holds intermediate results.
    """

    command: str
    device: str = "cpu"
    out: Path = Path("bench")
    graphs: Path | None = None

    @property
    def graph_folder(self) -> Path:
        """Return the folder of generated graphs, by default inside ``out``."""
        return self.graphs or self.out / "graphs"


def new_record(benchmark: str, call: Call, *, seeds: Any, settings: Mapping[str, Any]) -> Record:
    """Return the fields that every record starts with."""
    return {
        "benchmark": benchmark,
        "command": call.command,
        "version": __version__,
        "date": datetime.date.today().isoformat(),
        "device_kind": call.device,
        **hardware(call.device),
        "seeds": seeds,
        "settings": dict(settings),
    }


def machine_name(record: Mapping[str, Any]) -> str:
    """Return the GPU of a record, or its processor."""
    if record.get("device_kind") == "cuda":
        return str(record["device"])
    return str(record.get("processor") or record["machine"])  # "machine" in the oldest records


def environment_text(record: Mapping[str, Any]) -> str:
    """Describe in one line what a record was measured on."""
    name = machine_name(record)
    if record.get("device_kind") == "cuda":
        name += f"; host {record['processor']}"
    return (
        f"Machine: {name}; {record['threads']} threads; torch {record['torch']}; "
        f"hpgmn {record['version']}; {record['date']}."
    )


def cores_taken(content: Any) -> float | None:
    """Return the most cores that other processes used during any measurement of a record."""
    return max(_all_cores_taken(content), default=None)


def _all_cores_taken(content: Any) -> Iterator[float]:
    if isinstance(content, Mapping):
        if "cores_taken_by_others" in content:
            yield float(content["cores_taken_by_others"] or 0.0)
        content = content.values()
    elif not isinstance(content, list):
        return
    for member in content:
        yield from _all_cores_taken(member)


def make_folder(folder: Path, option: str = "out") -> None:
    """Create the folder of an option and check that it is writable, before any measurement."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise HPGMNError(
            f"Cannot write into the folder {folder} ({error.strerror or error}).",
            Remedy("Choose another folder", option=option),
        ) from None


def write_record(record: Mapping[str, Any], path: Path) -> None:
    """Write a record as JSON, atomically."""
    write_text(path, json.dumps(record, indent=1) + "\n")


def read_record(path: Path) -> Record:
    """Read a record."""
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise HPGMNError(f"Cannot read the record {path}: {error}.", "Measure it again") from None
    if not isinstance(content, dict):
        raise HPGMNError(f"{path} is not a record.", "Measure it again")
    return content


def reuse(path: Path, request: Mapping[str, Any], compute: Callable[[], Record]) -> Record:
    """Return the stored answer to the same request, or compute and store it.

    Interrupted benchmarks resume this way.
    """
    request = parse_json(json.dumps(request))  # tuples become lists, as in the file
    if path.is_file():
        content = read_record(path)
        if content.get("request") == request:
            answer: Record = content["answer"]
            return answer
    answer = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record({"request": request, "answer": answer}, path)
    return answer


@dataclass(frozen=True)
class Bar:
    """A requirement on a measured quantity.

    Attributes:
        value: the measured value; None if it is missing.
        required: the largest value, or the smallest unless ``at_most``.
        why_missing: the verdict on a missing value.
        excuse: the verdict if the bar is missed but that is acceptable.
    """

    what: str
    value: float | None
    required: float
    unit: str = ""
    at_most: bool = True
    why_missing: str = "not measured"
    excuse: str = ""

    @property
    def verdict(self) -> str:
        """Return "reached", by how much the bar is missed, or why the value is missing.

        >>> Bar("share", 0.4, 0.33).verdict, Bar("speed", 12.0, 10.0, at_most=False).verdict
        ('short by 0.07', 'reached')
        """
        if self.value is None:
            return self.why_missing
        gap = self.value - self.required if self.at_most else self.required - self.value
        return "reached" if gap <= 0 else self.excuse or f"short by {gap:.2f}{self.unit}"


@dataclass(frozen=True)
class Table:
    """A table of text, printed on the terminal and in Markdown below its title, if any."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def markdown(self) -> str:
        """Return the table in Markdown."""
        table = markdown_table(frame(self.columns, self.rows))
        return f"{self.title}\n\n{table}" if self.title else table


def bars_table(bars: Iterable[Bar]) -> Table:
    """Return a table of bars with the measured values and verdicts."""
    rows = []
    for bar in bars:
        sign = "≤" if bar.at_most else "≥"
        value = "–" if bar.value is None else f"{bar.value:.2f}{bar.unit}"
        rows.append([bar.what, value, f"{sign} {bar.required:g}{bar.unit}", bar.verdict])
    return Table(("bar", "measured", "required", "verdict"), rows)
