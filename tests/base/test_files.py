"""A file or folder is there whole or not at all; drafts of the killed go, those at work stay."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpgmn.base import files as writing
from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import (
    refused,
    sealed,
    sweep_folder,
    unsealed,
    unwritable,
    whole,
    whole_folder,
    write_bytes,
    write_text,
)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_what_is_written_is_there_and_nothing_else(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "grün\n")
    write_text(tmp_path / "a.txt", "größer\n")
    write_bytes(tmp_path / "b", b"\0\xff")
    assert (tmp_path / "a.txt").read_bytes() == "größer\n".encode()
    assert (tmp_path / "b").read_bytes() == b"\0\xff"
    assert names(tmp_path) == {"a.txt", "b"}


def test_a_draft_has_the_name_of_its_file(tmp_path: Path) -> None:
    """Libraries add an ending to names that lack it."""
    with whole(tmp_path / "rows.npy") as draft:
        assert draft.name == "rows.npy"
        assert draft.parent.name.startswith(".rows.npy.")
        draft.write_text("rows")
        assert not (tmp_path / "rows.npy").exists()
    assert content(tmp_path) == {"rows.npy": "rows"}


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_after_an_error_the_old_one_stays(tmp_path: Path, error: type[BaseException]) -> None:
    write_text(tmp_path / "a", "old")
    with whole_folder(tmp_path / "b") as made:
        (made / "old").write_text("1")

    def failing(draft: Path) -> None:
        draft.write_text("half")
        raise error

    with pytest.raises(error), whole(tmp_path / "a") as draft:
        failing(draft)
    with pytest.raises(error), whole_folder(tmp_path / "b") as made:
        failing(made / "new")
    assert names(tmp_path) == {"a", "b"}
    assert (tmp_path / "a").read_text() == "old"
    assert content(tmp_path / "b") == {"old": "1"}


@pytest.mark.parametrize("is_exchanged", [True, False])
def test_a_folder_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_exchanged: bool
) -> None:
    if not is_exchanged:
        monkeypatch.setattr(writing, "_exchanged", lambda *_: False)
    for number in range(3):
        with whole_folder(tmp_path / "a") as draft:
            (draft / f"{number}").write_text("1")
    assert names(tmp_path) == {"a"}
    assert content(tmp_path / "a") == {"2": "1"}


def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with whole_folder(tmp_path / "a") as draft:
        (draft / "old").write_text("1")
    before, tried = os.rename, []

    def refused(source: Path, target: Path) -> None:
        tried.append(target)
        if len(tried) == 3:  # the first finds the old one there, the second moves that away
            raise OSError(errno.EACCES, "denied")
        before(source, target)

    monkeypatch.setattr(writing, "_exchanged", lambda *_: False)
    monkeypatch.setattr(writing.os, "rename", refused)
    with pytest.raises(HPGMNError) as caught, whole_folder(tmp_path / "a") as draft:
        (draft / "new").write_text("1")
    assert str(caught.value) == (
        f"Cannot write {tmp_path / 'a'} (Permission denied). "
        "Choose another place, one that you may write to."
    )
    assert names(tmp_path) == {"a"}
    assert content(tmp_path / "a") == {"old": "1"}


def test_two_names_are_exchanged_at_once(tmp_path: Path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("Linux alone exchanges names")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own").write_text(name)
    assert writing._exchanged(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "own").read_text() == "b"
    assert (tmp_path / "b" / "own").read_text() == "a"


def test_a_file_in_the_place_of_a_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("file")
    with (
        pytest.raises(
            HPGMNError, match=r"Cannot write .*/a \(Not a directory\)\. Choose another place"
        ),
        whole_folder(tmp_path / "a") as draft,
    ):
        (draft / "new").write_text("1")
    assert content(tmp_path) == {"a": "file"}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, ""), "(No space left on device). Make room on its disk, or"),
        (OSError(errno.EFBIG, "Error writing bytes"), "(File too large). Make room on its disk"),
        (
            OSError(errno.EROFS, ""),
            "(Read-only file system). Choose another place, one that you may write",
        ),
        (OSError(errno.ENOENT, ""), "(No such file or directory). Make its folder, or choose"),
        (OSError("9 requested and 4 written"), "(9 requested and 4 written). See that its disk"),
    ],
)
def test_every_reason_has_its_remedy(tmp_path: Path, error: OSError, words: str) -> None:
    assert words in str(unwritable(tmp_path / "a", error))
    with pytest.raises(HPGMNError) as caught, whole(tmp_path / "a"):
        raise error
    assert str(caught.value) == str(unwritable(tmp_path / "a", error))
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (
            "missing/a",
            "(No such file or directory). Make its folder, or choose another place.",
        ),
        ("file/a", "(Not a directory). Choose another place, one that you may write to."),
    ],
)
def test_a_place_without_a_folder_is_a_sentence(tmp_path: Path, place: str, why: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HPGMNError) as caught:
        write_text(tmp_path / place, "text")
    assert str(caught.value) == f"Cannot write {tmp_path / place} {why}"


def test_a_disk_that_says_no_at_last_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems find out that they are full when the file is forced onto the disk."""
    write_text(tmp_path / "a", "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(writing.os, "fsync", full)
    with pytest.raises(HPGMNError, match="No space left"):
        write_text(tmp_path / "a", "new")
    assert content(tmp_path) == {"a": "old"}
    write_text(tmp_path / "a", "new", forced=False)
    assert content(tmp_path) == {"a": "new"}


def test_a_file_system_that_forces_no_folders_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: int) -> None:
        raise OSError(errno.EINVAL, "")

    monkeypatch.setattr(writing.os, "fsync", refused)
    write_text(tmp_path / "a", "new")
    assert content(tmp_path) == {"a": "new"}


HOLDER = """
import sys, time
from pathlib import Path
from hpgmn.base.files import whole

with whole(Path(sys.argv[1])) as draft:
    draft.write_text("half")
    print("held", flush=True)
    time.sleep(600)
"""


def test_drafts_of_the_killed_go_and_those_at_work_stay(tmp_path: Path) -> None:
    path = tmp_path / "a"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with contextlib.ExitStack() as stack:
        pipes = {"stdout": subprocess.PIPE, "text": True}
        first, second = (stack.enter_context(subprocess.Popen(command, **pipes)) for _ in range(2))
        try:
            for process in (first, second):
                assert process.stdout.readline() == "held\n"
            assert len(names(tmp_path)) == 2
            first.send_signal(signal.SIGKILL)
            first.wait()
            write_text(tmp_path / "other", "text")  # sweeps its own place alone
            assert len(names(tmp_path)) == 3
            write_text(path, "whole")
            assert len(names(tmp_path)) == 3
        finally:
            second.kill()
            second.wait()
    assert len(names(tmp_path)) == 3
    (tmp_path / "book.unfinished").write_text("no draft of ours")
    os.mkfifo(tmp_path / f".a.{'0' * 32}.unfinished")  # a reader would wait for ever
    (tmp_path / f".a.{'1' * 32}.unfinished").symlink_to(tmp_path)
    sweep_folder(tmp_path)
    assert names(tmp_path) == {
        *("a", "other", "book.unfinished"),
        *(f".a.{digit * 32}.unfinished" for digit in "01"),
    }


WRITER = """
import sys
from pathlib import Path
from hpgmn.base.files import write_text

for number in range(300):
    write_text(Path(sys.argv[1]), "x" * number)
"""


def test_writers_of_one_place_take_no_draft_from_each_other(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "a")]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [writer.communicate(timeout=100)[1] for writer in writers] == [""] * 4
    assert content(tmp_path) == {"a": "x" * 299}


def test_a_folder_between_two_names_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where names cannot be exchanged: a kill after the old one was moved away."""
    place, before = tmp_path / "a", os.rename
    with whole_folder(place) as draft:
        (draft / "old").write_text("1")

    class Killed(BaseException):
        pass

    def killed(source: Path, target: Path) -> None:
        if not place.exists():
            raise Killed
        before(source, target)

    monkeypatch.setattr(writing, "_exchanged", lambda *_: False)
    with monkeypatch.context() as patch:
        patch.setattr(writing.os, "rename", killed)
        with pytest.raises(Killed), whole_folder(place) as draft:
            (draft / "new").write_text("1")
    sweep_folder(tmp_path)
    [kept] = tmp_path.iterdir()
    assert content(kept) == {"old": "1"}
    for number in (2, 3):
        with whole_folder(place) as draft:
            (draft / f"{number}").write_text("1")
    assert names(tmp_path) == {"a"}
    assert content(place) == {"3": "1"}


def test_a_place_that_is_a_link_stays_one(tmp_path: Path) -> None:
    for name in ("far", "new"):
        (tmp_path / "a").unlink(missing_ok=True)
        (tmp_path / "far").mkdir(exist_ok=True)
        (tmp_path / "a").symlink_to("far")
        with whole_folder(tmp_path / "a") as draft:
            (draft / name).write_text("1")
        assert (tmp_path / "a").is_symlink()
        assert content(tmp_path / "far") == {name: "1"}
    assert names(tmp_path) == {"a", "far"}


def test_without_locks_drafts_are_known_by_their_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    young, old = (tmp_path / f".a.{digit * 32}.unfinished" for digit in "12")
    for draft in (young, old):
        draft.mkdir()
    os.utime(old, (0, 0))
    write_text(tmp_path / "a", "text")
    assert names(tmp_path) == {"a", young.name}


def test_a_draft_that_is_swept_at_once_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, swept = fcntl.flock, []

    def late(held: int, how: int) -> None:
        if not swept:  # somebody was faster
            [draft] = tmp_path.iterdir()
            draft.rmdir()
            swept.append(draft)
        before(held, how)

    monkeypatch.setattr(fcntl, "flock", late)
    write_text(tmp_path / "a", "text")
    assert swept
    assert content(tmp_path) == {"a": "text"}


def test_a_folder_that_cannot_be_listed_is_not_swept(tmp_path: Path) -> None:
    sweep_folder(tmp_path / "missing")
    assert names(tmp_path) == set()


def test_a_description_that_was_changed_is_told() -> None:
    kept = json.loads(json.dumps(sealed({"trials": {10: 0.5, 9: 0.25}, "name": "ü"})))
    assert unsealed(kept) == {"trials": {"10": 0.5, "9": 0.25}, "name": "ü"}
    assert sealed(sealed({"a": 1})) == sealed({"a": 1})
    assert unsealed({"a": 1}) == {"a": 1}  # of an earlier version
    kept["trials"]["10"] = 0.75
    with pytest.raises(ValueError, match="its checksum differs"):
        unsealed(kept)
    with pytest.raises(ValueError, match="no description"):
        unsealed([1])


def test_errors_of_disks_are_told_from_those_of_programs() -> None:
    told = refused(OSError(errno.EROFS, "read-only", "runs/a"))
    assert "Cannot read or write runs/a (Read-only file system)." in str(told)
    assert "Cannot read or write a file (No space left" in str(refused(OSError(errno.ENOSPC, "")))
    assert refused(OSError(errno.EPIPE, "")) is None
