"""Files read within limits: what is held against what, and what is said."""

import io
import json
import os
import zipfile

import numpy as np
import pytest

from hpgmn.base import parsing
from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.parsing import (
    TooLargeError,
    load_yaml,
    parse_json,
    read_archive,
    read_array,
    read_json,
    read_npy_header,
    require_memory,
)
from hpgmn.base.settings import read_yaml


def test_json_is_bounded_in_depth_and_size(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    content = {"a": [1, 2.5, None, "ü"]}
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    assert read_json(path) == content
    with pytest.raises(ValueError, match="it is nested too deeply"):
        parse_json("[" * 100_000)
    monkeypatch.setattr(parsing, "LARGEST_JSON", path.stat().st_size)
    assert read_json(path) == content
    monkeypatch.setattr(parsing, "LARGEST_JSON", path.stat().st_size - 1)
    with pytest.raises(TooLargeError, match="it is larger than"):
        read_json(path)


def test_a_pipe_is_no_record(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="Not a file"):
        read_json(tmp_path / "pipe")
    with pytest.raises(OSError, match="Not a file"):
        read_array(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "missing")


def test_a_config_may_refer_to_itself_within_limits(tmp_path, monkeypatch):
    path = tmp_path / "a.yaml"
    path.write_text("a: &a [1, 2]\nb: *a\nc: {<<: {d: 3}}\n")  # 1 + 3 names, 3 + 3, 5 below c
    assert load_yaml(path) == {"a": [1, 2], "b": [1, 2], "c": {"d": 3}}
    path.write_text("a: &a [1, 2]\nb: &b [*a, *a]\nc: [*b, *b]\n")
    with pytest.raises(ValueError, match="alias"):
        load_yaml(path)
    path.write_text("")
    assert load_yaml(path) is None


def test_a_config_beyond_the_limits_is_one_sentence(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: 1" + "0" * 1000)
    with pytest.raises(SettingError) as caught:
        read_yaml(path)
    assert str(caught.value) == (
        f"The config file {path} cannot be used (a number has 1,001 digits). Keep to 'name: value' "
        "lines."
    )
    path.write_text("a: '1" + "0" * 1000 + "'")  # text may be as long as it likes
    assert len(read_yaml(path)["a"]) == 1001
    path.write_text("a: 1\n#" + "x" * parsing.LARGEST_CONFIG)
    with pytest.raises(SettingError, match="it is larger than 256 KiB"):
        read_yaml(path)


@pytest.mark.parametrize("mapped", [None, "r", "c"])
@pytest.mark.parametrize("shape", [(3, 2), (0, 2), ()])
def test_arrays_are_read_and_mapped(tmp_path, mapped, shape):
    array = np.arange(np.prod(shape, dtype=int), dtype=float).reshape(shape)
    np.save(tmp_path / "a.npy", array)
    found = read_array(tmp_path / "a.npy", mapped)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype
    assert isinstance(found, np.memmap) == (mapped is not None and array.size > 0)


def test_a_header_says_how_large_the_array_is():
    file = io.BytesIO()
    np.save(file, np.zeros((5, 3), np.int16, order="F"))
    size = file.tell()
    file.seek(0)
    header = read_npy_header(file, size)
    assert header == ((5, 3), True, np.dtype(np.int16), 30)
    assert size - file.tell() == 30
    file.seek(0)
    with pytest.raises(ValueError, match=r"it is cut short: its header declares shape \(5, 3\)"):
        read_npy_header(file, size - 1)


def test_nothing_larger_than_memory_is_read(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.zeros(1000))
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(1000), b=np.zeros(1000))
    monkeypatch.setattr(parsing, "free_host_bytes", lambda: 2**14)
    assert read_array(tmp_path / "a.npy").size == 1000
    assert set(read_archive(tmp_path / "a.npz", bool)[0]) == {"a", "b"}
    monkeypatch.setattr(parsing, "free_host_bytes", lambda: 15_999)
    with pytest.raises(TooLargeError, match=r"it takes 0\.0 MiB, and 0\.0 MiB are free"):
        read_archive(tmp_path / "a.npz", bool)  # both together
    arrays, others = read_archive(tmp_path / "a.npz", lambda name: name == "b")
    assert (set(arrays), others) == ({"b"}, ["a"])
    monkeypatch.setattr(parsing, "free_host_bytes", lambda: 7_999)
    with pytest.raises(TooLargeError):
        read_array(tmp_path / "a.npy")
    assert read_array(tmp_path / "a.npy", mapped="r").size == 1000
    with pytest.raises(TooLargeError, match=r"it takes 3\.0 GiB"):
        require_memory(3 * 2**30)


def test_an_archive_may_hold_what_is_no_array(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("readme", "words")
        file.writestr("a.npy", b"no array")
    assert read_archive(tmp_path / "a.npz", lambda name: False) == ({}, ["readme", "a"])
    with pytest.raises(ValueError, match="array 'a': the magic string is not correct"):
        read_archive(tmp_path / "a.npz", bool)


@pytest.mark.parametrize("field", [30, 32], ids=["extra", "comment"])
def test_no_entry_of_an_archive_hides_in_the_one_before(tmp_path, field):
    """A wrong length in the directory would make an array vanish without a word."""
    path = tmp_path / "a.npz"
    np.savez(path, x=np.ones(2), **{f"{place}" * 200: np.ones(2) for place in range(3)})
    content = bytearray(path.read_bytes())
    first = content.index(b"PK\x01\x02")
    rest = content.index(b"PK\x05\x06") - content.index(b"PK\x01\x02", first + 4)
    content[first + field : first + field + 2] = rest.to_bytes(2, "little")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"its directory is damaged|Corrupt extra field"):
        read_archive(path, lambda name: True)


def test_a_model_beyond_memory_says_so(tmp_path, monkeypatch):
    import torch

    from hpgmn.base import files

    path = tmp_path / "a.safetensors"
    files.write_tensors(path, {"a": torch.zeros(3), "b": torch.zeros(2)}, {"x": 1})
    assert files.read_tensors(path)[1] == {"x": 1}
    monkeypatch.setattr(files, "MOST_TENSORS", 1)
    with pytest.raises(HPGMNError, match=r"it declares 2 tensors\. Free some memory"):
        files.read_tensors(path)
    monkeypatch.setattr(parsing, "free_host_bytes", lambda: 10)
    with pytest.raises(HPGMNError, match=r"cannot be read: it takes .* Free some memory, or use"):
        files.read_tensors(path)


def test_a_parquet_table_beyond_memory_says_so(tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from hpgmn.tables import sources

    pq.write_table(pa.table({"id": ["a"] * 100}), tmp_path / "nodes.parquet")
    monkeypatch.setattr(sources, "free_host_bytes", lambda: 800)
    assert sources.open_table(tmp_path / "nodes.parquet").num_rows() == 100
    monkeypatch.setattr(sources, "free_host_bytes", lambda: 799)
    with pytest.raises(HPGMNError, match="needs more memory than is available"):
        sources.open_table(tmp_path / "nodes.parquet")
