"""The page of a reproduction: whole, offline, readable by machines, and with the right numbers."""

from __future__ import annotations

import dataclasses
import html
import re
import shutil
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.runs.search import planned_trials
from hpgmn_lab import paper
from hpgmn_lab.reproduction.cells import Cell, CellRecord, write_cell
from hpgmn_lab.reproduction.documents import Document, document
from hpgmn_lab.reproduction.grids import Grid, Heading, Items, Words
from hpgmn_lab.reproduction.html import build_page, main, write_page, write_reproduction
from hpgmn_lab.reproduction.plan import EXPERIMENTS, QUICK, Experiment, experiment
from hpgmn_lab.results.records import score_words

VOID = {"meta", "br"}
HARDWARE = {"processor": "A Processor", "threads": 2, "device": "cpu", "torch": "2.0.1"}


def made_record(cell: Cell) -> CellRecord:
    """A record whose scores follow from the cell's name."""
    runs = len(cell.splits) * cell.seeds
    scores = np.random.default_rng(zlib.crc32(cell.name.encode())).uniform(0.5, 0.9, runs)
    about = {"graph": cell.graph, "model": cell.model, "metric": cell.metric, "seeds": cell.seeds}
    groups = np.resize(scores, len(cell.splits))
    planned = planned_trials(cell.model, cell.graph, cell.trials) if cell.trials else [{}]
    trials = [
        {"val_score": [0.5], "settings": settings_of(cell, {**trial, **cell.settings})}
        for trial in planned
    ]
    metrics = about | {
        "splits": list(cell.splits),
        "test_score": scores.tolist(),
        "test_score_mean": float(scores.mean()),
        "test_score_std": float(scores.std(ddof=1)),
        "val_score": scores.tolist(),
        "label_estimator": None,
        "seconds": 1.0,
        "peak_memory_mb": 2.0,
        "nodes": {"train": [2] * len(cell.splits), "test": [1] * len(cell.splits)},
        "version": "9.8.7",
        "config": {"settings": trials[0]["settings"]},
        "hardware": HARDWARE,
        "created": "2030-01-02T03:04:05+00:00",
        "ensemble": {"test_score": groups.tolist(), "test_score_mean": float(groups.mean())},
    }
    search = {"best": 0, "seconds": 1.0, "trials": trials} if cell.trials else None
    return CellRecord(cell.as_dict(), "identity", search, metrics)


def settings_of(cell: Cell, settings: dict[str, Any]) -> Any:
    """Settings as a record holds them."""
    return dataclasses.replace(cell, settings=settings).as_dict()["settings"]


@pytest.fixture
def plans(tmp_path: Path) -> list[Experiment]:
    """Every experiment, quick, with all records but one."""
    found = [experiment(name, QUICK) for name in EXPERIMENTS]
    for cell in (cell for plan in found for cell in plan.cells):
        write_cell(tmp_path / "cells", made_record(cell))
    (tmp_path / "cells" / "texas-mmp-tuned.json").unlink()
    return found


class Reader(HTMLParser):
    """Checks that tags are balanced and collects them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def test_page_is_well_formed_and_accessible(tmp_path: Path, plans: list[Experiment]) -> None:
    path = write_page(tmp_path, plans, cells_folder=tmp_path / "cells")
    assert path == tmp_path / "index.html"
    reader = read(path.read_text(encoding="utf-8"))
    names = [tag for tag, _ in reader.tags]
    assert names.count("section") == len(EXPERIMENTS)
    assert names.count("caption") == names.count("table") > 10
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in reader.tags:
        if tag == "th":
            assert attributes["scope"] in ("col", "row")
        if tag == "svg":
            assert attributes["role"] == "img"
            assert str(attributes["aria-label"]).startswith("Test accuracy of HP-GMN")
        if tag == "a":
            assert str(attributes["href"])[1:] in ids
    assert names.count("svg") == 1


def test_page_stands_alone(tmp_path: Path, plans: list[Experiment]) -> None:
    page = write_page(tmp_path, plans, cells_folder=tmp_path / "cells").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    for word in ("http:", "https:", "<script", "<img", 'src="', "@import"):
        assert word not in page
    for reference in re.findall(r"url\(([^)]*)\)", page):
        assert f'id="{reference.strip("#")}"' in page  # hatches and clips are on the page


def test_numbers_are_those_of_the_records(tmp_path: Path, plans: list[Experiment]) -> None:
    page = write_page(tmp_path, plans, cells_folder=tmp_path / "cells").read_text(encoding="utf-8")
    found = document(plans[1], tmp_path / "cells")
    assert found.table is not None
    shown = html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page)))
    for entry in found.table.done:
        assert entry.record is not None
        assert score_words(entry.record) in shown
    best = next(entry.record for entry in found.table.entries if entry.is_best)
    assert best is not None
    assert f"<strong>{score_words(best)}</strong>" in page
    every = {entry.cell.name for plan in plans for entry in _entries(plan, tmp_path)}
    assert f"<strong>{len(every) - 1} of {len(every)}</strong>" in page
    assert "<code>hpgmn reproduce table2</code>" in page


def test_each_printed_number_counts_once(tmp_path: Path, plans: list[Experiment]) -> None:
    cells = {cell.name: cell for plan in plans for cell in plan.cells if cell.trials}
    del cells["texas-mmp-tuned"]  # has no record
    count = reached = 0
    for cell in cells.values():
        printed = paper.published(cell.model, cell.graph)
        if printed is not None:
            metrics = made_record(cell).metrics
            scores = [100 * one for one in metrics["test_score"]]
            count += 1
            reached += paper.reached(cell.graph, scores, printed.mean).is_reached
    page = write_page(tmp_path, plans, cells_folder=tmp_path / "cells").read_text(encoding="utf-8")
    shown = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert 0 < reached < count
    assert f"Printed numbers reached {reached} of {count} by tuned rows" in shown


def _entries(plan: Experiment, folder: Path) -> list[object]:
    found = document(plan, folder / "cells").table
    return list(found.entries) if found else []


def test_same_records_give_the_same_page(tmp_path: Path, plans: list[Experiment]) -> None:
    first = write_page(tmp_path / "a", plans, cells_folder=tmp_path / "cells").read_bytes()
    second = write_page(tmp_path / "b", plans, cells_folder=tmp_path / "cells").read_bytes()
    assert first == second


def test_page_comes_last_of_all_files(tmp_path: Path, plans: list[Experiment]) -> None:
    files = write_reproduction(
        tmp_path / "a", plans, cells_folder=tmp_path / "cells", options=" --quick"
    )
    assert files[-1].name == "index.html"
    assert "<code>hpgmn reproduce sound --quick</code>" in files[-1].read_text(encoding="utf-8")
    assert sorted(files) == sorted((tmp_path / "a").iterdir())


def test_page_keeps_what_earlier_commands_left(tmp_path: Path, plans: list[Experiment]) -> None:
    *_, path = write_reproduction(
        tmp_path / "a", [plans[3]], cells_folder=tmp_path / "cells", others=plans
    )
    shown = re.findall('<section id="([^"]*)"', path.read_text(encoding="utf-8"))
    # Table 1 has no record here
    assert shown == list(EXPERIMENTS[1:])
    assert {one.stem for one in (tmp_path / "a").iterdir()} == {"figure3", "index"}


def test_words_never_become_markup() -> None:
    evil = "<script>x</script>"
    grid = Grid("g", evil, (evil, "b"), ((Words(evil), Words(evil, f" / {evil}", True)),), True)
    page = build_page(
        [Document("g", evil, (evil, grid, Heading(evil), Items((f"`{evil}`",))), None, 0)]
    )
    assert "<script" not in page
    assert f"<code>{html.escape(evil)}</code>" in page
    assert f"<h3>{html.escape(evil)}</h3>" in page
    assert f"<details><summary>{html.escape(evil)}</summary>" in page


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HPGMNError, match=r"Cannot write .*index.html .*Choose a writable path"):
        write_page(tmp_path / "file", [], cells_folder=tmp_path)


COMMITTED = Path(__file__).parents[2] / "results" / "reproduction"


def test_committed_tables_are_what_the_committed_records_give(tmp_path: Path) -> None:
    """All but the PNG, whose bytes depend on the version of a library."""
    shutil.copytree(COMMITTED / "cells", tmp_path / "cells")
    main([str(tmp_path)])
    written = [path for path in sorted(tmp_path.iterdir()) if path.is_file()]
    assert {path.name for path in written} == {
        path.name for path in COMMITTED.iterdir() if path.is_file()
    }
    for path in written:
        if path.suffix != ".png":
            assert path.read_bytes() == (COMMITTED / path.name).read_bytes(), path.name


def test_a_folder_without_records_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path)])
    assert stop.value.code == 2
    assert "make some with hpgmn reproduce" in capsys.readouterr().err
