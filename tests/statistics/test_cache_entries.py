"""Entries on disk: whole or not there, checked to the last byte, first writer wins, bounded."""

import errno
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import hpgmn
from hpgmn.base.parsing import npy_header
from hpgmn.statistics import cache
from hpgmn.statistics.cache import (
    ENTRY_FILE,
    _map_array,
    _reserve,
    drop,
    entry_draft,
    make_room,
    publish,
    read_entry,
    save_array,
)

SOURCE = Path(hpgmn.__file__).parents[1]
KEY = "0123456789abcdef0123456789abcdef01234567"
RANDOM = np.random.default_rng(0)
ARRAYS: dict[str, np.ndarray] = {
    "rows": RANDOM.normal(size=(7, 5)).astype(np.float16),
    "data": RANDOM.normal(size=11).astype(np.float32),
    "indices": np.arange(2_000, dtype=np.int32)[::2],  # not contiguous
    "none": np.empty((4, 0), np.float32),
    "large": RANDOM.integers(0, 256, 3 * 2**20 + 17, dtype=np.uint8),  # more than a block
}


def key_of(number):
    return f"{number:040x}"


def write(folder, key=KEY, arrays=None):
    arrays = ARRAYS if arrays is None else arrays
    folder.mkdir(parents=True, exist_ok=True)
    with entry_draft(folder, key) as place:
        said = {name: save_array(place / f"{name}.npy", array) for name, array in arrays.items()}
        return publish(place, key, {"kind": "test"}, said)


def sized(folder, number, size, age):
    """An entry of about that many bytes, used so many seconds ago."""
    write(folder, key_of(number), {"rows": np.zeros(size, np.uint8)})
    place = folder / key_of(number)
    then = time.time() - age
    os.utime(place / ENTRY_FILE, (then, then))
    return place


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_what_is_written_is_read(tmp_path):
    assert write(tmp_path)
    found = read_entry(tmp_path, KEY)
    assert set(found) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
        plain = np.load(tmp_path / KEY / f"{name}.npy", allow_pickle=False)  # by any reader
        np.testing.assert_array_equal(plain, array)
        assert array.size == 0 or found[name].ctypes.data % 64 == 0
    assert names(tmp_path) == {KEY}


def test_arrays_are_mapped_and_may_be_written_to_without_harm(tmp_path):
    write(tmp_path)
    found = read_entry(tmp_path, KEY)["rows"]
    assert isinstance(found.base, np.memmap)
    found[:] = 9
    np.testing.assert_array_equal(read_entry(tmp_path, KEY)["rows"], ARRAYS["rows"])


def test_a_mapped_array_outlives_its_entry(tmp_path):
    write(tmp_path)
    found = read_entry(tmp_path, KEY)["large"]
    drop(tmp_path / KEY)
    assert names(tmp_path) == set()
    np.testing.assert_array_equal(found, ARRAYS["large"])


def test_every_changed_byte_is_noticed(tmp_path):
    small = {name: ARRAYS[name] for name in ("rows", "none")}
    write(tmp_path, KEY, small)
    for path in sorted((tmp_path / KEY).iterdir()):
        whole = path.read_bytes()
        for place in range(len(whole)):
            bad = bytearray(whole)
            bad[place] ^= 0x10
            path.write_bytes(bad)
            with pytest.raises((ValueError, KeyError)):
                read_entry(tmp_path, KEY)
        path.write_bytes(whole)
    read_entry(tmp_path, KEY)


@pytest.mark.parametrize("name", [ENTRY_FILE, "rows.npy", "none.npy", "large.npy"])
def test_cut_longer_and_missing_files_are_noticed(tmp_path, name):
    write(tmp_path)
    path = tmp_path / KEY / name
    whole = path.read_bytes()
    for bad in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"\0"):
        path.write_bytes(bad)
        with pytest.raises(ValueError):  # noqa: PT011 - which one depends on the file
            read_entry(tmp_path, KEY)
    path.unlink()
    with pytest.raises((ValueError, FileNotFoundError)):
        read_entry(tmp_path, KEY)


def test_entries_of_other_keys_and_other_arrays_are_not_mistaken(tmp_path):
    write(tmp_path)
    write(tmp_path, key_of(1), {"rows": ARRAYS["rows"] + 1})
    shutil.copytree(tmp_path / KEY, tmp_path / key_of(2))
    with pytest.raises(ValueError, match="was changed"):
        read_entry(tmp_path, key_of(2))
    shutil.copy(tmp_path / key_of(1) / "rows.npy", tmp_path / KEY / "rows.npy")
    with pytest.raises(ValueError, match=r"rows\.npy was changed"):
        read_entry(tmp_path, KEY)
    (tmp_path / key_of(1) / ENTRY_FILE).write_text("[]\n")
    with pytest.raises(ValueError, match="was changed"):
        read_entry(tmp_path, key_of(1))


def test_of_two_writers_the_first_wins(tmp_path):
    with entry_draft(tmp_path, KEY) as place:
        said = {"rows": save_array(place / "rows.npy", np.zeros(3, np.float32))}
        assert write(tmp_path, KEY, {"rows": np.ones(3, np.float32)})
        assert not publish(place, KEY, {}, said)
    assert read_entry(tmp_path, KEY)["rows"].tolist() == [1, 1, 1]
    assert names(tmp_path) == {KEY}


def test_a_file_in_the_place_of_an_entry_is_an_error(tmp_path):
    (tmp_path / KEY).write_text("not a folder")
    with pytest.raises(NotADirectoryError):
        write(tmp_path)
    assert names(tmp_path) == {KEY}
    drop(tmp_path / KEY)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, MemoryError])
def test_a_failed_writer_leaves_nothing(tmp_path, error):
    def fail(folder):
        with entry_draft(folder, KEY) as place:
            save_array(place / "rows.npy", ARRAYS["rows"])
            raise error

    with pytest.raises(error):
        fail(tmp_path)
    assert names(tmp_path) == set()


# Room.


def test_those_used_least_recently_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "LIMIT_BYTES", 45_000)
    for number, age in enumerate((40, 30, 20, 10)):
        sized(tmp_path, number, 10_000, age)
    assert make_room(tmp_path, 1_000)  # there is room
    assert names(tmp_path) == {key_of(number) for number in range(4)}
    read_entry(tmp_path, key_of(0))  # the oldest is used
    assert make_room(tmp_path, 10_000)
    assert names(tmp_path) == {key_of(0), key_of(2), key_of(3)}
    assert make_room(tmp_path, 30_000)
    assert names(tmp_path) == {key_of(0)}
    assert make_room(tmp_path, 45_000)
    assert names(tmp_path) == set()


def test_what_is_too_large_drives_nobody_out(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "hpgmn")
    monkeypatch.setattr(cache, "LIMIT_BYTES", 45 * 2**20)
    sized(tmp_path, 0, 10_000, 10)
    assert not make_room(tmp_path, 50 * 2**20)
    assert names(tmp_path) == {key_of(0)}
    assert "50.0 MiB are too large for the cache" in caplog.text
    assert "may take 45.0 MiB" in caplog.text


def test_a_full_disk_makes_the_limit_smaller(tmp_path, monkeypatch):
    for number in range(4):
        sized(tmp_path, number, 10_000, 40 - number)
    total = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())

    def free(size):
        usage = shutil.disk_usage(tmp_path)._replace(free=size)
        monkeypatch.setattr(cache.shutil, "disk_usage", lambda folder: usage)

    free(total)
    assert make_room(tmp_path, 0)  # half of twice the total: all may stay
    assert len(names(tmp_path)) == 4
    free(0)
    assert make_room(tmp_path, 0)  # half of the total, which is two of four
    assert names(tmp_path) == {key_of(2), key_of(3)}


def test_room_is_made_from_entries_only(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "LIMIT_BYTES", 10)
    others = {"texas.npz", "0123", KEY.upper(), ".hidden", f".{KEY}.draft"}
    for name in others:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(bytes(1_000))
        os.utime(tmp_path / name / "file", (0, 0))
        os.utime(tmp_path / name, (0, 0))
    sized(tmp_path, 0, 10_000, 10)
    (tmp_path / key_of(1)).mkdir()  # as empty as a killed dropper may leave it
    make_room(tmp_path, 5)
    assert names(tmp_path) == others | {key_of(1)}


def test_an_entry_that_vanishes_while_room_is_made_is_no_error(tmp_path, monkeypatch):
    sized(tmp_path, 0, 100, 10)
    seen = cache._last_used_and_size

    def vanish(path):
        shutil.rmtree(path)
        return seen(path)

    monkeypatch.setattr(cache, "_last_used_and_size", vanish)
    assert make_room(tmp_path, 0)


@pytest.mark.parametrize("has_fallocate", [True, False])
def test_room_for_a_mapped_file_is_taken_at_once(tmp_path, monkeypatch, has_fallocate):
    if not has_fallocate:
        monkeypatch.delattr(os, "posix_fallocate")
    header = npy_header(np.dtype(np.float16), (2**20, 3))
    path = tmp_path / "rows.npy"
    with path.open("wb") as file:
        file.write(header)
        file.flush()
        _reserve(file.fileno(), len(header) + 6 * 2**20)
    assert path.stat().st_size == len(header) + 6 * 2**20
    assert path.stat().st_blocks * 512 >= 6 * 2**20  # not a hole
    assert path.read_bytes()[: len(header)] == header
    assert _map_array(path).shape == (2**20, 3)
    assert not _map_array(path).any()


# Processes.

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from hpgmn.statistics.cache import entry_draft, make_room, publish, read_entry, save_array

folder, number = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
for line in sys.stdin:
    key = line.strip()
    rows = np.full((300, 1000), int(key[:4]), np.float32)
    make_room(folder, rows.nbytes)
    with entry_draft(folder, key) as place:
        said = {"rows": save_array(place / "rows.npy", rows)}
        won = publish(place, key, {"writer": number}, said)
    found = read_entry(folder, key)["rows"]
    print(won, (found == rows).all(), flush=True)
"""


@contextmanager
def children(*arguments):
    """Processes of the program, each with its arguments; none is left at the end."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    started = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, *own], env=environment, text=True, **pipes)
        for own in arguments
    ]
    try:
        for child in started:
            assert child.stdout.readline() == "ready\n"
        yield started
    finally:
        for child in started:
            child.kill()
            child.communicate()


def tell(stream, line):
    assert stream is not None
    stream.write(f"{line}\n")
    stream.flush()


@pytest.mark.slow
def test_writers_that_start_at_the_same_time_agree(tmp_path):
    with children(*((str(tmp_path), str(number)) for number in range(3))) as started:
        for number in range(25):
            key = f"{number:04d}" + KEY[4:]
            for child in started:
                tell(child.stdin, key)
            answers = [child.stdout.readline().split() for child in started]
            assert sorted(won for won, _ in answers) == ["False", "False", "True"]
            assert all(right == "True" for _, right in answers)
            np.testing.assert_array_equal(
                read_entry(tmp_path, key)["rows"], np.full((300, 1000), number, np.float32)
            )
    assert names(tmp_path) == {f"{number:04d}" + KEY[4:] for number in range(25)}


def test_other_errors_of_the_rename_are_told(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(cache.os, "rename", refuse)
    with pytest.raises(OSError, match="read-only"):
        write(tmp_path)
    assert names(tmp_path) == set()
