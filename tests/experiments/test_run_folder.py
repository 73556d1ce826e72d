"""The folder of a run: made, continued, replaced, and never another's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpgmn.config import settings_dict
from hpgmn.errors import HPGMNError
from hpgmn.experiments import run_folder as module
from hpgmn.experiments.run import RunSpec, run
from hpgmn.experiments.run_folder import finished_run, prepare_folder
from hpgmn.experiments.run_metrics import read_metrics
from hpgmn.graph import Graph
from hpgmn.models.mlp import MLPSettings

SPEC = RunSpec(
    "small", "mlp", settings_dict(MLPSettings(hidden_dim=4, epochs=2)), splits=(0, 1), seeds=2
)


def test_a_new_folder_holds_the_config_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    prepare_folder(folder, SPEC, resume=False, overwrite=False)
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]
    written = yaml.safe_load((folder / "config.yaml").read_text())
    assert written == {"format": 2, **SPEC.as_dict()}


def test_an_existing_folder_is_refused_unless_asked(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "run", SPEC, resume=False, overwrite=False)
    with pytest.raises(HPGMNError, match=r"Continue it with --resume, replace it with --overwri"):
        prepare_folder(tmp_path / "run", SPEC, resume=False, overwrite=False)
    prepare_folder(tmp_path / "run", SPEC, resume=True, overwrite=False)
    prepare_folder(tmp_path / "run", replace(SPEC, seeds=9), resume=False, overwrite=True)
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["seeds"] == 9


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    prepare_folder(tmp_path, SPEC, resume=False, overwrite=False)
    assert (tmp_path / "config.yaml").exists()


OURS = ("metrics.json", "history.jsonl", "predictions.parquet", "model.safetensors", "report.html")
LATER = ("log.txt", "audit.json", "understanding.json", "explorer.json", "portfolio.json")


def finished(folder: Path) -> dict[str, bytes]:
    """The files of a finished run, written for the test, beside a note that is the user's."""
    prepare_folder(folder, SPEC, resume=False, overwrite=False)
    for name in (*OURS, *LATER):
        (folder / name).write_text(f"old {name}")
    found = contents(folder)
    (folder / "notes.txt").write_text("mine")
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """Name → content of the files in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_an_unfinished_run_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    finished(tmp_path)
    (tmp_path / "metrics.json").rename(tmp_path / "metrics.json.unfinished")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "plan.json").write_text("[]")
    prepare_folder(tmp_path, SPEC, resume=False, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "notes.txt"}


def test_a_finished_run_is_kept_until_the_next_is_finished(
    small_graph: Graph, tmp_path: Path
) -> None:
    old = finished(tmp_path)
    new = replace(SPEC, splits=(1,))
    for _ in range(2):  # the second time an unfinished run is replaced, and the old one stays
        prepare_folder(tmp_path, new, resume=False, overwrite=True)
        assert set(contents(tmp_path)) == {"config.yaml", "notes.txt"}
        assert contents(tmp_path / ".replaced") == old
        (tmp_path / "log.txt").write_text("of the run that was not finished")
    metrics = run(new, small_graph, tmp_path)
    assert not (tmp_path / ".replaced").exists()
    assert metrics["splits"] == [1]
    prepare_folder(tmp_path, SPEC, resume=False, overwrite=True)
    assert read_metrics(tmp_path / ".replaced" / "metrics.json") == metrics


@pytest.mark.parametrize("step", ["set_aside", "write_text", "write_config"])
def test_a_folder_that_cannot_be_prepared_holds_what_it_held(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = finished(tmp_path)

    def full(*_: Any) -> None:
        raise HPGMNError("Cannot write (No space left on device). Make room.")

    monkeypatch.setattr(module, step, full)
    with pytest.raises(HPGMNError, match="No space left"):
        prepare_folder(tmp_path, SPEC, resume=False, overwrite=True, choice={"a": 1})
    assert contents(tmp_path) == old | {"notes.txt": b"mine"}
    assert not (tmp_path / ".replaced").exists()


@pytest.mark.parametrize("number", range(12))
def test_killed_at_any_file_the_earlier_run_is_whole_somewhere(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = finished(tmp_path)
    real, done = Path.unlink, []

    def killed(path: Path, missing_ok: bool = False) -> None:
        if len(done) == number:
            raise KeyboardInterrupt
        done.append(path)
        real(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare_folder(tmp_path, SPEC, resume=False, overwrite=True)
    assert contents(tmp_path / ".replaced") == old
    assert number == 0 or finished_run(tmp_path) is None
    prepare_folder(tmp_path, SPEC, resume=False, overwrite=True)
    kept = contents(tmp_path / ".replaced")
    assert kept == old
    assert set(contents(tmp_path)) == {"config.yaml", "notes.txt"}


def test_only_a_complete_folder_counts_as_finished(small_graph: Graph, tmp_path: Path) -> None:
    assert finished_run(tmp_path) is None
    metrics = run(SPEC, small_graph, tmp_path)
    assert finished_run(tmp_path) == metrics
    (tmp_path / "report.html").write_text("page")
    with pytest.raises(HPGMNError, match="is finished"):
        finished_run(tmp_path)


def test_files_of_others_are_neither_drafts_nor_nothing(small_graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "book.unfinished").write_text("mine")
    with pytest.raises(HPGMNError, match="exists"):
        prepare_folder(tmp_path, SPEC, resume=False, overwrite=False)
    assert (tmp_path / "book.unfinished").read_text() == "mine"
