"""A folder is locked by one process at a time; the lock ends with its holder."""

import fcntl
import subprocess
import sys

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.base.locking import LOCK_FILE, lock_file, lock_folder

HOLDER = """
import sys, time
from pathlib import Path
from hpgmn.base.locking import lock_folder

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
        with lock_file(folder / "other.lock", "taken"):
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
