"""A run that is being replaced: kept, brought back, dropped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpgmn.runs.replaced import bring_back, drop, kept_words, set_aside

NAMES = ("done", "model", "config")


def written(folder: Path, word: str) -> None:
    for name in NAMES[:2]:
        (folder / name).write_text(f"{word} {name}")


def test_files_are_kept_without_room_and_brought_back(tmp_path: Path) -> None:
    written(tmp_path, "old")
    (tmp_path / "other").write_text("mine")
    set_aside(tmp_path, NAMES)
    place = tmp_path / ".replaced"
    assert {path.name for path in place.iterdir()} == {"done", "model"}
    assert (place / "model").stat().st_nlink == 2  # the same file, not a copy
    assert str(place) in kept_words(tmp_path)
    for name in NAMES[:2]:
        (tmp_path / name).unlink()
    (tmp_path / "model").write_text("new")
    bring_back(tmp_path, NAMES)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "done": "old done",
        "model": "old model",
        "other": "mine",
    }
    assert kept_words(tmp_path) == ""
    bring_back(tmp_path, NAMES)  # nothing is aside: nothing changes
    assert (tmp_path / "model").read_text() == "old model"


def test_a_file_that_says_finished_is_the_last_to_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "old")
    set_aside(tmp_path, NAMES)
    order, real = [], os.replace

    def replace(source: Path, target: Path) -> None:
        real(source, target)
        order.append(target.name)

    monkeypatch.setattr(os, "replace", replace)
    bring_back(tmp_path, NAMES)
    assert order == ["model", "done"]


def test_a_file_system_without_links_has_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    written(tmp_path, "old")
    set_aside(tmp_path, NAMES)
    assert (tmp_path / ".replaced" / "model").stat().st_nlink == 1
    assert (tmp_path / ".replaced" / "model").read_text() == "old model"


def test_the_latest_finished_run_is_the_one_that_is_kept(tmp_path: Path) -> None:
    written(tmp_path, "first")
    set_aside(tmp_path, NAMES)
    for name in NAMES[:2]:
        (tmp_path / name).unlink()
    written(tmp_path, "second")  # and was killed before the first could be dropped
    set_aside(tmp_path, NAMES)
    assert (tmp_path / ".replaced" / "done").read_text() == "second done"
    drop(tmp_path)
    assert not (tmp_path / ".replaced").exists()
