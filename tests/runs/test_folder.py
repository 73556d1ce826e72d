"""The folder of a run: made, continued, replaced, and never another's."""

import errno
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import settings_dict
from hpgmn.models.baselines.mlp import MLPSettings
from hpgmn.runs import folder as module
from hpgmn.runs.fit import fit_run
from hpgmn.runs.folder import (
    InterruptedRunError,
    backup_note,
    create_backup,
    drop_backup,
    finished_run,
    interruptible,
    log_file,
    prepare_folder,
    record_log,
    restore_backup,
    warnings_among,
)
from hpgmn.runs.outputs import read_metrics
from hpgmn.runs.spec import RunSpec

SPEC = RunSpec(
    "small", "mlp", settings_dict(MLPSettings(hidden_dim=4, epochs=2)), splits=(0, 1), seeds=2
)


def test_a_new_folder_holds_the_config_at_once(tmp_path):
    folder = tmp_path / "a" / "b"
    prepare_folder(folder, SPEC, resume=False, overwrite=False)
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]
    written = yaml.safe_load((folder / "config.yaml").read_text())
    assert written == {"format": 3, **SPEC.as_dict()}


def test_an_existing_folder_is_refused_unless_asked(tmp_path):
    prepare_folder(tmp_path / "run", SPEC, resume=False, overwrite=False)
    with pytest.raises(HPGMNError, match=r"Continue it .resume=True., replace it .overwri"):
        prepare_folder(tmp_path / "run", SPEC, resume=False, overwrite=False)
    prepare_folder(tmp_path / "run", SPEC, resume=True, overwrite=False)
    prepare_folder(tmp_path / "run", replace(SPEC, seeds=9), resume=False, overwrite=True)
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["seeds"] == 9


def test_an_empty_folder_is_taken(tmp_path):
    prepare_folder(tmp_path, SPEC, resume=False, overwrite=False)
    assert (tmp_path / "config.yaml").exists()


OURS = ("metrics.json", "history.jsonl", "predictions.parquet", "model.safetensors", "report.html")
LATER = ("log.txt", "audit.json", "understanding.json", "explorer.json", "portfolio.json")


def finished(folder):
    """The files of a finished run, written for the test, beside a note that is the user's."""
    prepare_folder(folder, SPEC, resume=False, overwrite=False)
    for name in (*OURS, *LATER):
        (folder / name).write_text(f"old {name}")
    found = contents(folder)
    (folder / "notes.txt").write_text("mine")
    return found


def contents(folder):
    """Name → content of the files in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_an_unfinished_run_is_replaced_and_nothing_else(tmp_path):
    finished(tmp_path)
    (tmp_path / "metrics.json").rename(tmp_path / "metrics.json.unfinished")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "plan.json").write_text("[]")
    prepare_folder(tmp_path, SPEC, resume=False, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "notes.txt"}


def test_a_finished_run_is_kept_until_the_next_is_finished(small_graph, tmp_path):
    old = finished(tmp_path)
    new = replace(SPEC, splits=(1,))
    for _ in range(2):  # the second time an unfinished run is replaced, and the old one stays
        prepare_folder(tmp_path, new, resume=False, overwrite=True)
        assert set(contents(tmp_path)) == {"config.yaml", "notes.txt"}
        assert contents(tmp_path / ".replaced") == old
        (tmp_path / "log.txt").write_text("of the run that was not finished")
    metrics = fit_run(new, small_graph, tmp_path).metrics
    assert not (tmp_path / ".replaced").exists()
    assert metrics["splits"] == [1]
    prepare_folder(tmp_path, SPEC, resume=False, overwrite=True)
    assert read_metrics(tmp_path / ".replaced" / "metrics.json") == metrics


STEPS = ("write_text", "write_config", "shutil.rmtree")


@pytest.mark.parametrize(
    ("step", "is_finished"),
    [
        ("create_backup", True),
        *((step, is_finished) for step in STEPS for is_finished in (True, False)),
    ],
)
def test_a_folder_that_cannot_be_prepared_holds_what_it_held(
    step, is_finished, tmp_path, monkeypatch
):
    """Where the run that is replaced is not finished, the finished one before it comes back."""
    old = finished(tmp_path)
    if not is_finished:
        (tmp_path / "portfolio.json").unlink()
        del old["portfolio.json"]
        prepare_folder(tmp_path, replace(SPEC, seeds=9), resume=False, overwrite=True)
    (tmp_path / "state").mkdir()

    remove = shutil.rmtree

    def full(place, *_, **options):
        if step == "shutil.rmtree" and place.name != "state":
            remove(place, **options)
        elif step == "shutil.rmtree":
            raise OSError(errno.EIO, "Input/output error")
        else:
            raise HPGMNError("Cannot write (No space left on device). Make room.")

    with monkeypatch.context() as patch:
        patch.setattr(f"{module.__name__}.{step}", full)
        with pytest.raises(HPGMNError, match=r"No space left|Input/output error"):
            prepare_folder(tmp_path, SPEC, resume=False, overwrite=True)
    assert contents(tmp_path) == old | {"notes.txt": b"mine"}
    assert not list(tmp_path.glob(".replaced/*"))


def test_a_refusal_changes_nothing(tmp_path):
    """Neither beside a run that was kept too long, nor in a folder that is no run's."""
    finished(tmp_path)
    prepare_folder(tmp_path, SPEC, resume=False, overwrite=True)
    for name in OURS:  # the next run is finished, and killed before it could drop the other
        (tmp_path / name).write_text(f"new {name}")
    (tmp_path / "link").symlink_to(tmp_path / "notes.txt")
    before, aside = contents(tmp_path), contents(tmp_path / ".replaced")
    with pytest.raises(HPGMNError, match="holds a link"):
        prepare_folder(tmp_path, SPEC, resume=False, overwrite=True)
    (tmp_path / "link").unlink()
    (tmp_path / "config.yaml").rename(tmp_path / "elsewhere.yaml")
    with pytest.raises(HPGMNError, match="nothing was changed"):
        prepare_folder(tmp_path, SPEC, resume=False, overwrite=True)
    (tmp_path / "elsewhere.yaml").rename(tmp_path / "config.yaml")
    assert contents(tmp_path) | {"link": b"mine"} == before
    assert contents(tmp_path / ".replaced") == aside
    prepare_folder(tmp_path, SPEC, resume=True, overwrite=False)
    assert not (tmp_path / ".replaced").exists()
    assert (tmp_path / "model.safetensors").read_text() == "new model.safetensors"


def test_a_run_is_not_kept_in_the_place_of_a_file(tmp_path):
    old = finished(tmp_path)
    (tmp_path / ".replaced").write_text("whose?")
    with pytest.raises(HPGMNError, match=r"Cannot write .*\.replaced"):
        prepare_folder(tmp_path, SPEC, resume=False, overwrite=True)
    assert contents(tmp_path) == old | {"notes.txt": b"mine", ".replaced": b"whose?"}


@pytest.mark.parametrize("end", ["--overwrite", "--resume"])
@pytest.mark.parametrize("number", range(21))
def test_killed_at_any_file_the_earlier_run_is_whole_somewhere(number, end, tmp_path, monkeypatch):
    """The last time all are removed, and the new config is not written."""
    old = finished(tmp_path)
    new = replace(SPEC, seeds=9)
    real, done = Path.unlink, []

    def killed(path, missing_ok=False):
        if len(done) == number:
            raise KeyboardInterrupt
        done.append(path)
        real(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare_folder(tmp_path, new, resume=False, overwrite=True)
    assert contents(tmp_path / ".replaced") == old
    if number == 0:  # it is in its place, too
        assert contents(tmp_path) == old | {"notes.txt": b"mine"}
        return
    prepare_folder(tmp_path, new, resume=end == "--resume", overwrite=end == "--overwrite")
    assert contents(tmp_path / ".replaced") == old
    assert set(contents(tmp_path)) == {"config.yaml", "notes.txt"}
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["seeds"] == 9


def test_only_a_complete_folder_counts_as_finished(small_graph, tmp_path):
    assert finished_run(tmp_path) is None
    metrics = fit_run(SPEC, small_graph, tmp_path).metrics
    assert finished_run(tmp_path) == metrics
    (tmp_path / "report.html").write_text("page")
    with pytest.raises(HPGMNError, match="is finished"):
        finished_run(tmp_path)
    (tmp_path / "metrics.json").write_text("{")
    with pytest.raises(HPGMNError, match="is damaged"):
        finished_run(tmp_path)


def test_files_of_others_are_neither_drafts_nor_nothing(small_graph, tmp_path):
    (tmp_path / "book.unfinished").write_text("mine")
    with pytest.raises(HPGMNError, match="exists"):
        prepare_folder(tmp_path, SPEC, resume=False, overwrite=False)
    assert (tmp_path / "book.unfinished").read_text() == "mine"


# Replacing a finished run.


NAMES = ("metrics.json", "model.safetensors", "config.yaml")


def written(folder, word):
    for name in NAMES[:2]:
        (folder / name).write_text(f"{word} {name}")


def test_files_are_kept_without_room_and_brought_back(tmp_path):
    written(tmp_path, "old")
    (tmp_path / "other").write_text("mine")
    create_backup(tmp_path)
    place = tmp_path / ".replaced"
    assert {path.name for path in place.iterdir()} == {"metrics.json", "model.safetensors"}
    assert (place / "model.safetensors").stat().st_nlink == 2  # the same file, not a copy
    assert str(place) in backup_note(tmp_path)
    for name in NAMES[:2]:
        (tmp_path / name).unlink()
    (tmp_path / "model.safetensors").write_text("new")
    restore_backup(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "metrics.json": "old metrics.json",
        "model.safetensors": "old model.safetensors",
        "other": "mine",
    }
    assert backup_note(tmp_path) == ""
    restore_backup(tmp_path)  # nothing is aside: nothing changes
    assert (tmp_path / "model.safetensors").read_text() == "old model.safetensors"


def test_a_file_that_says_finished_is_the_last_to_come_back(tmp_path, monkeypatch):
    written(tmp_path, "old")
    create_backup(tmp_path)
    order, real = [], os.replace

    def replace(source, target):
        real(source, target)
        order.append(target.name)

    monkeypatch.setattr(os, "replace", replace)
    restore_backup(tmp_path)
    assert order == ["model.safetensors", "metrics.json"]


def test_a_file_system_without_links_has_copies(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    written(tmp_path, "old")
    create_backup(tmp_path)
    assert (tmp_path / ".replaced" / "model.safetensors").stat().st_nlink == 1
    assert (tmp_path / ".replaced" / "model.safetensors").read_text() == "old model.safetensors"


def test_the_latest_finished_run_is_the_one_that_is_kept(tmp_path):
    written(tmp_path, "first")
    create_backup(tmp_path)
    for name in NAMES[:2]:
        (tmp_path / name).unlink()
    written(tmp_path, "second")  # and was killed before the first could be dropped
    create_backup(tmp_path)
    assert (tmp_path / ".replaced" / "metrics.json").read_text() == "second metrics.json"
    drop_backup(tmp_path)
    assert not (tmp_path / ".replaced").exists()


# The log.


logger = logging.getLogger("hpgmn.tests")


def test_the_log_file_holds_everything_that_is_logged(tmp_path, monkeypatch):
    monkeypatch.setattr(logging.getLogger("hpgmn"), "level", logging.INFO)
    logger.manager._clear_cache()
    path = tmp_path / "log.txt"
    with log_file(path):
        logger.info("an information")
        logger.warning("a warning")
    logger.warning("after the end")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line.split(maxsplit=2)[2] for line in lines] == [
        "INFO an information",
        "WARNING a warning",
    ]
    with log_file(path):  # a resumed run goes on with the same file
        logger.info("again")
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3


def test_a_log_begins_with_what_was_logged_before_it(tmp_path):
    with record_log() as records:
        logger.info("columns were read")
        logger.warning("a column was left out")
        logger.warning("a column was left out")
        early = tuple(records)
        for name in ("one", "two"):  # each log has the beginning, none has another's lines
            with log_file(tmp_path / name, early):
                logger.warning("of %s", name)
            lines = (tmp_path / name).read_text(encoding="utf-8").splitlines()
            assert [line.split(maxsplit=2)[2] for line in lines] == [
                "INFO columns were read",
                "WARNING a column was left out",
                "WARNING a column was left out",
                f"WARNING of {name}",
            ]
    assert warnings_among(early) == ["a column was left out"]
    logger.warning("later")
    assert len(records) == 5


def test_an_interrupt_names_the_folder_to_continue(tmp_path):
    with pytest.raises(KeyboardInterrupt) as early, interruptible(tmp_path, print):
        raise KeyboardInterrupt
    assert not isinstance(early.value, InterruptedRunError)  # nothing is there to continue
    (tmp_path / "config.yaml").write_text("")
    refused = pytest.raises(InterruptedRunError, match="resume=True")
    with refused as stopped, interruptible(tmp_path, print):
        raise KeyboardInterrupt
    assert stopped.value.folder == tmp_path


def test_a_failed_replacement_reports_the_backup(tmp_path):
    remarks: list[str] = []
    (tmp_path / ".replaced").mkdir()
    for name in (None, "metrics.json"):  # a finished run needs no backup
        if name is not None:
            (tmp_path / name).write_text("")
        with pytest.raises(HPGMNError), interruptible(tmp_path, remarks.append):
            raise HPGMNError("It broke.")
    [remark] = remarks
    assert str(tmp_path / ".replaced") in remark
