"""The sections of ``docs/RESULTS.md`` that ``hpgmn reproduce`` is behind."""

from __future__ import annotations

from pathlib import Path

from hpgmn.graph.datasets import DATASETS
from hpgmn.models import MODELS
from hpgmn_lab.reproduction.cells import SHIPPED, CellRecord, read_cell, remedy
from hpgmn_lab.reproduction.documents import document
from hpgmn_lab.reproduction.plan import EXPERIMENTS, experiment, shipped
from hpgmn_lab.reproduction.tables import is_as_planned
from hpgmn_lab.reproduction.work import CELLS_FOLDER
from hpgmn_lab.reproduction.writers import markdown
from hpgmn_lab.results.records import Record, checked_record


def shipped_records(folder: Path) -> list[Record]:
    """The runs of shipped settings among the cells, named GRAPH-MODEL as those of a run folder.

    A run of settings that ship no longer is left out.

    Args:
        folder: of the reproduction.
    """
    found = []
    for path in sorted((folder / CELLS_FOLDER).glob(f"*-{SHIPPED}.json")):
        record = read_cell(folder / CELLS_FOLDER, path.stem)
        if record is not None and _is_shipped(record):
            name = record.name.removesuffix(f"-{SHIPPED}")
            found.append(checked_record(name, record.metrics, path, remedy(path)))
    return found


def _is_shipped(record: CellRecord) -> bool:
    """Whether a record is of the settings that ship now."""
    graph, model = record.cell["graph"], record.cell["model"]
    if graph not in DATASETS or model not in MODELS:
        return False
    return is_as_planned(shipped(model, graph), record)


def reproduction_sections(folder: Path) -> list[str]:
    """A section for every experiment with a record, each with its command; none without records.

    Args:
        folder: of the reproduction, ``lab/results/reproduction``: the records are in ``cells``, the
            figure beside it.
    """
    found = [document(experiment(name), folder / CELLS_FOLDER) for name in EXPERIMENTS]
    shown = [one for one in found if one.count]
    if not shown:
        return []
    pictures = f"../lab/{folder.parent.name}/{folder.name}/"  # as seen from docs
    sections = [markdown(one, level=2, pictures=pictures).strip() for one in shown]
    absent = [f"`hpgmn reproduce {one.name}`" for one in found if not one.count]
    if absent:
        sections.append(f"No record yet: {', '.join(absent)}.")
    return sections
