"""Atomic writes, stale drafts, checksums and format versions."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import zlib

import numpy as np
import pytest
import scipy.sparse as sp

from hpgmn.base import files as writing
from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import (
    LOCK_FILE,
    array_digest,
    atomic_folder,
    atomic_write,
    check_format,
    describe_os_error,
    digest,
    file_checksum,
    json_digest,
    lock_file,
    lock_folder,
    remove_stale_drafts,
    verify_checksum,
    verify_run_checksum,
    with_checksum,
    write_bytes,
    write_error,
    write_text,
)


def names(folder):
    return {path.name for path in folder.iterdir()}


def content(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_what_is_written_is_there_and_nothing_else(tmp_path):
    write_text(tmp_path / "a.txt", "grün\n")
    write_text(tmp_path / "a.txt", "größer\n")
    write_bytes(tmp_path / "b", b"\0\xff")
    assert (tmp_path / "a.txt").read_bytes() == "größer\n".encode()
    assert (tmp_path / "b").read_bytes() == b"\0\xff"
    assert names(tmp_path) == {"a.txt", "b"}


def test_a_draft_has_the_name_of_its_file(tmp_path):
    """Libraries add an ending to names that lack it."""
    with atomic_write(tmp_path / "rows.npy") as draft:
        assert draft.name == "rows.npy"
        assert draft.parent.name.startswith(".rows.npy.")
        draft.write_text("rows")
        assert not (tmp_path / "rows.npy").exists()
    assert content(tmp_path) == {"rows.npy": "rows"}


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_after_an_error_the_old_one_stays(tmp_path, error):
    write_text(tmp_path / "a", "old")
    with atomic_folder(tmp_path / "b") as made:
        (made / "old").write_text("1")

    def failing(draft):
        draft.write_text("half")
        raise error

    with pytest.raises(error), atomic_write(tmp_path / "a") as draft:
        failing(draft)
    with pytest.raises(error), atomic_folder(tmp_path / "b") as made:
        failing(made / "new")
    assert names(tmp_path) == {"a", "b"}
    assert (tmp_path / "a").read_text() == "old"
    assert content(tmp_path / "b") == {"old": "1"}


@pytest.mark.parametrize("is_exchanged", [True, False])
def test_a_folder_takes_the_place_of_another(tmp_path, monkeypatch, is_exchanged):
    if not is_exchanged:
        monkeypatch.setattr(writing, "_exchange", lambda *_: False)
    for number in range(3):
        with atomic_folder(tmp_path / "a") as draft:
            (draft / f"{number}").write_text("1")
    assert names(tmp_path) == {"a"}
    assert content(tmp_path / "a") == {"2": "1"}


def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(tmp_path, monkeypatch):
    with atomic_folder(tmp_path / "a") as draft:
        (draft / "old").write_text("1")
    before, tried = os.rename, []

    def describe_os_error(source, target):
        tried.append(target)
        if len(tried) == 3:  # the first finds the old one there, the second moves that away
            raise OSError(errno.EACCES, "denied")
        before(source, target)

    monkeypatch.setattr(writing, "_exchange", lambda *_: False)
    monkeypatch.setattr(writing.os, "rename", describe_os_error)
    with pytest.raises(HPGMNError) as caught, atomic_folder(tmp_path / "a") as draft:
        (draft / "new").write_text("1")
    assert str(caught.value) == (
        f"Cannot write {tmp_path / 'a'} (Permission denied). Choose a writable path."
    )
    assert names(tmp_path) == {"a"}
    assert content(tmp_path / "a") == {"old": "1"}


def test_two_names_are_exchanged_at_once(tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("Linux alone exchanges names")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own").write_text(name)
    assert writing._exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "own").read_text() == "b"
    assert (tmp_path / "b" / "own").read_text() == "a"


def test_a_file_in_the_place_of_a_folder_stays(tmp_path):
    (tmp_path / "a").write_text("file")
    with (
        pytest.raises(
            HPGMNError, match=r"Cannot write .*/a \(Not a directory\)\. Choose a writable path"
        ),
        atomic_folder(tmp_path / "a") as draft,
    ):
        (draft / "new").write_text("1")
    assert content(tmp_path) == {"a": "file"}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, ""), "(No space left on device). Free disk space, or"),
        (OSError(errno.EFBIG, "Error writing bytes"), "(File too large). Free disk space"),
        (OSError(errno.EROFS, ""), "(Read-only file system). Choose a writable path"),
        (OSError(errno.ENOENT, ""), "(No such file or directory). Create its folder, or choose"),
        (
            OSError("9 requested and 4 written"),
            "(9 requested and 4 written). Check free disk space",
        ),
    ],
)
def test_every_reason_has_its_remedy(tmp_path, error, words):
    assert words in str(write_error(tmp_path / "a", error))
    with pytest.raises(HPGMNError) as caught, atomic_write(tmp_path / "a"):
        raise error
    assert str(caught.value) == str(write_error(tmp_path / "a", error))
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("missing/a", "(No such file or directory). Create its folder, or choose another path."),
        ("file/a", "(Not a directory). Choose a writable path."),
    ],
)
def test_a_place_without_a_folder_is_a_sentence(tmp_path, place, why):
    (tmp_path / "file").touch()
    with pytest.raises(HPGMNError) as caught:
        write_text(tmp_path / place, "text")
    assert str(caught.value) == f"Cannot write {tmp_path / place} {why}"


def test_a_disk_that_says_no_at_last_is_told(tmp_path, monkeypatch):
    """Some file systems find out that they are full when the file is forced onto the disk."""
    write_text(tmp_path / "a", "old")

    def full(_):
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(writing.os, "fsync", full)
    with pytest.raises(HPGMNError, match="No space left"):
        write_text(tmp_path / "a", "new")
    assert content(tmp_path) == {"a": "old"}
    write_text(tmp_path / "a", "new", fsync=False)
    assert content(tmp_path) == {"a": "new"}


def test_a_file_system_that_forces_no_folders_is_written_to(tmp_path, monkeypatch):
    def describe_os_error(_):
        raise OSError(errno.EINVAL, "")

    monkeypatch.setattr(writing.os, "fsync", describe_os_error)
    write_text(tmp_path / "a", "new")
    assert content(tmp_path) == {"a": "new"}


def test_only_stale_drafts_are_removed(tmp_path):
    young, old, busy, other = (
        tmp_path / f".{name}.{digit * 32}.unfinished"
        for name, digit in (("a", "1"), ("a", "2"), ("a", "3"), ("b", "4"))
    )
    for draft in (young, old, busy, other):
        draft.mkdir()
    (busy / "a").write_text("half")
    for draft in (old, busy, other):
        os.utime(draft, (0, 0))
    (tmp_path / "book.unfinished").write_text("not a draft")
    os.mkfifo(tmp_path / f".a.{'5' * 32}.unfinished")  # a reader would block
    (tmp_path / f".a.{'6' * 32}.unfinished").symlink_to(tmp_path)
    write_text(tmp_path / "a", "text")
    assert not old.exists()
    assert young.exists()
    assert busy.exists()
    assert other.exists()  # a draft of another file
    remove_stale_drafts(tmp_path)
    assert not other.exists()
    remove_stale_drafts(tmp_path, older_than=0)
    assert names(tmp_path) == {
        *("a", "book.unfinished"),
        *(f".a.{digit * 32}.unfinished" for digit in "56"),
    }


WRITER = """
import sys
import zlib
from pathlib import Path
from hpgmn.base.files import write_text

for number in range(300):
    write_text(Path(sys.argv[1]), "x" * number)
"""


def test_writers_of_one_place_take_no_draft_from_each_other(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "a")]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [writer.communicate(timeout=100)[1] for writer in writers] == [""] * 4
    assert content(tmp_path) == {"a": "x" * 299}


def test_a_folder_between_two_names_is_not_lost(tmp_path, monkeypatch):
    """Where names cannot be exchanged: a kill after the old one was moved away."""
    place, before = tmp_path / "a", os.rename
    with atomic_folder(place) as draft:
        (draft / "old").write_text("1")

    class Killed(BaseException):
        pass

    def killed(source, target):
        if not place.exists():
            raise Killed
        before(source, target)

    monkeypatch.setattr(writing, "_exchange", lambda *_: False)
    with monkeypatch.context() as patch:
        patch.setattr(writing.os, "rename", killed)
        with pytest.raises(Killed), atomic_folder(place) as draft:
            (draft / "new").write_text("1")
    remove_stale_drafts(tmp_path)
    [kept] = tmp_path.iterdir()
    assert content(kept) == {"old": "1"}
    for number in (2, 3):
        with atomic_folder(place) as draft:
            (draft / f"{number}").write_text("1")
    assert names(tmp_path) == {"a"}
    assert content(place) == {"3": "1"}


def test_a_place_that_is_a_link_stays_one(tmp_path):
    for name in ("far", "new"):
        (tmp_path / "a").unlink(missing_ok=True)
        (tmp_path / "far").mkdir(exist_ok=True)
        (tmp_path / "a").symlink_to("far")
        with atomic_folder(tmp_path / "a") as draft:
            (draft / name).write_text("1")
        assert (tmp_path / "a").is_symlink()
        assert content(tmp_path / "far") == {name: "1"}
    assert names(tmp_path) == {"a", "far"}


def test_a_folder_that_cannot_be_listed_is_not_swept(tmp_path):
    remove_stale_drafts(tmp_path / "missing")
    assert names(tmp_path) == set()


def test_a_description_that_was_changed_is_told():
    kept = json.loads(json.dumps(with_checksum({"trials": {10: 0.5, 9: 0.25}, "name": "ü"})))
    assert verify_checksum(kept) == {"trials": {"10": 0.5, "9": 0.25}, "name": "ü"}
    assert with_checksum(with_checksum({"a": 1})) == with_checksum({"a": 1})
    assert verify_checksum({"a": 1}) == {"a": 1}  # of an earlier version
    kept["trials"]["10"] = 0.75
    with pytest.raises(ValueError, match="its checksum differs"):
        verify_checksum(kept)
    with pytest.raises(ValueError, match="not a mapping"):
        verify_checksum([1])


def test_a_file_checksum_may_skip_a_header(tmp_path):
    (tmp_path / "a").write_bytes(b"header" + b"x" * 3_000_000)
    assert file_checksum(tmp_path / "a") == zlib.crc32(b"header" + b"x" * 3_000_000)
    assert file_checksum(tmp_path / "a", 6) == zlib.crc32(b"x" * 3_000_000)


def test_errors_of_disks_are_told_from_those_of_programs():
    told = describe_os_error(OSError(errno.EROFS, "read-only", "runs/a"))
    assert "Cannot read or write runs/a (Read-only file system)." in str(told)
    assert "Cannot read or write a file (No space left" in str(
        describe_os_error(OSError(errno.ENOSPC, ""))
    )
    assert describe_os_error(OSError(errno.EPIPE, "")) is None


# Format versions; tests/reliability/test_old_files.py has every kind of file.


@pytest.mark.parametrize("found", [None, 1, 2])
def test_forms_up_to_the_known_one_are_read(found):
    check_format("a.yaml", found, 2)


def test_a_newer_format_asks_for_an_update():
    with pytest.raises(HPGMNError, match=r"a\.yaml .*format 3, this one reads up to 2") as error:
        check_format("a.yaml", 3, 2)
    assert "pip install -U hpgmn" in error.value.remedy.action


@pytest.mark.parametrize("found", ["2", 2.5, True, [2]])
def test_an_invalid_format_version_is_refused(found):
    with pytest.raises(HPGMNError, match="invalid format version"):
        check_format("a.yaml", found, 2)


@pytest.mark.parametrize("form", [{}, {"format": 1}, {"format": None}])
def test_files_of_the_first_form_may_have_no_checksum(form):
    assert verify_run_checksum({**form, "a": 1}) == {**form, "a": 1}
    assert verify_run_checksum(with_checksum({**form, "a": 1})) == {**form, "a": 1}


def test_a_later_form_has_a_checksum():
    assert verify_run_checksum(with_checksum({"format": 2, "a": 1})) == {"format": 2, "a": 1}
    with pytest.raises(ValueError, match="its checksum is missing"):
        verify_run_checksum({"format": 2, "a": 1})
    with pytest.raises(ValueError, match="its checksum differs"):
        verify_run_checksum({**with_checksum({"format": 2, "a": 1}), "a": 2})
    with pytest.raises(ValueError, match="not a mapping"):
        verify_run_checksum([2])


HOLDER = """
import sys, time
from pathlib import Path
from hpgmn.base.files import lock_folder

with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    folder = tmp_path / "new" / "folder"
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(HPGMNError, match=rf"Another process is using {folder}\. Wait"),
            lock_folder(folder),
        ):
            pass
        with lock_file(folder / "other.lock", HPGMNError("taken")):
            pass
        holder.kill()
    with lock_folder(folder):
        assert (folder / ".lock").exists()


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(HPGMNError, match=r"Cannot write .*file .* Choose a writable path"),
        lock_folder(tmp_path / "file"),
    ):
        pass


def test_a_file_system_without_locks_is_worked_on(tmp_path, monkeypatch):
    def missing(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    with lock_folder(tmp_path):
        assert (tmp_path / ".lock").exists()


def test_no_lock_is_written_through_a_link(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK_FILE).symlink_to(tmp_path / "outside")
    with (
        pytest.raises(HPGMNError, match=r"Cannot write .*symbolic links.*Choose a writable path"),
        lock_folder(tmp_path / "run"),
    ):
        pass
    assert not (tmp_path / "outside").exists()


def test_stored_digests_stay():
    assert json_digest({"b": 1, "a": [2]})[:16] == "41ff4104bc489a1b"
    assert digest("a", b"b", np.zeros(2).data)[:16] == "fdaf59ca221102b1"
    assert array_digest(np.arange(3, dtype=np.int32))[:16] == "52b7d6be1a9a7f93"
    assert array_digest(sp.csr_array(np.eye(2, dtype=np.float32)))[:16] == "6f19ff35b0cbdba4"
