"""A folder is one process's at a time; the lock is gone with its holder."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.base.locking import LOCK_FILE, only_one

HOLDER = """
import sys, time
from pathlib import Path
from hpgmn.base.locking import only_one

with only_one(Path(sys.argv[1]), "work"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(HPGMNError, match=r"Another work is at work in .* another --out"),
            only_one(folder, "work"),
        ):
            pass
        with only_one(folder, "other work", "other.lock"):
            pass
        holder.kill()
    with only_one(folder, "work"):
        assert (folder / ".lock").exists()


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(HPGMNError, match=r"Cannot write .*file .* Choose another place"),
        only_one(tmp_path / "file", "work"),
    ):
        pass


def test_a_file_system_without_locks_is_worked_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    with only_one(tmp_path, "work"):
        assert (tmp_path / ".lock").exists()


def test_no_lock_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK_FILE).symlink_to(tmp_path / "outside")
    with (
        pytest.raises(HPGMNError, match=r"Cannot write .*symbolic links.*Choose another place"),
        only_one(tmp_path / "run", "training"),
    ):
        pass
    assert not (tmp_path / "outside").exists()
