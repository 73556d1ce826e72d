"""Tensors in a file come back bit for bit; damaged or foreign files are refused."""

import math
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import read_tensors, write_tensors


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bits(tensors):
    """Type, shape and bytes of tensors, so that even a NaN can be compared."""
    return {
        name: (value.dtype, value.shape, value.contiguous().numpy().tobytes())
        for name, value in tensors.items()
    }


@pytest.fixture
def path(tmp_path):
    """A file of one tensor."""
    write_tensors(tmp_path / "state", {"a": normal(3)}, {"format": 2})
    return tmp_path / "state"


def test_tensors_and_their_description_come_back_exactly(tmp_path):
    tensors = {
        "float": torch.tensor([1 / 3, -0.0, math.inf, math.nan, 1e-30]),
        "double": normal(2, 3).double(),
        "whole": torch.tensor([-(2**63), 2**63 - 1]),
        "flag": torch.tensor([True, False]),
        "empty": torch.empty(0, 3),
        "number": torch.tensor(7.0),
        "turned": normal(3, 2).T,
    }
    about = {"words": "ein ‖ Wort", "number": 1 / 3, "list": [1, None, True], "map": {"a": []}}
    write_tensors(tmp_path / "file", tensors, about)
    found, metadata = read_tensors(tmp_path / "file")
    assert bits(found) == bits(tensors)
    assert metadata == about


def test_nothing_but_the_file_is_left_behind(path):
    write_tensors(path, {"a": normal(3)}, {})
    assert list(path.parent.iterdir()) == [path]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(HPGMNError, match=r"gone.safetensors does not exist"):
        read_tensors(tmp_path / "gone.safetensors")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_truncated_file_is_refused(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(HPGMNError, match="is damaged or not an hpgmn file"):
        read_tensors(path)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_who_may_read_a_new_file_may_read_a_model(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_tensors(tmp_path / "a.safetensors", {"a": torch.ones(1)}, {})
    finally:
        os.umask(before)
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == mode


def test_a_file_that_is_something_else_is_refused(path):
    for content in (b"not a safetensors file at all", b"\x00" * 64, b"\xff" * 64, b"{}"):
        path.write_bytes(content)
        with pytest.raises(HPGMNError, match="is damaged or not an hpgmn file"):
            read_tensors(path)


@pytest.mark.parametrize("position", [0, 4, 9, 40])
def test_a_damaged_header_is_refused(path, position):
    content = bytearray(path.read_bytes())
    content[position] = 0xFF
    path.write_bytes(content)
    with pytest.raises(HPGMNError, match="is damaged or not an hpgmn file"):
        read_tensors(path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"about": "{unfinished"}])
def test_tensors_of_another_program_are_refused(path, metadata):
    save_file({"a": normal(3)}, path, metadata=metadata)
    with pytest.raises(HPGMNError, match="is damaged or not an hpgmn file"):
        read_tensors(path)


def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    with pytest.raises(HPGMNError, match="is damaged or not an hpgmn file"):
        read_tensors(tmp_path)


@pytest.mark.parametrize("step", ["save_file", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(path, monkeypatch, step):
    old, new = read_tensors(path)[0], {"a": normal(5)}

    def fail(*arguments, **_):
        if step == "save_file":  # a disk that fills up half way
            Path(arguments[1]).write_bytes(b"half a file")
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch if step == "save_file" else os, step, fail)
        with pytest.raises(HPGMNError, match=r"No space left.*Free disk space"):
            write_tensors(path, new, {})
    assert list(path.parent.iterdir()) == [path]
    assert bits(read_tensors(path)[0]) == bits(old)
    write_tensors(path, new, {})
    assert bits(read_tensors(path)[0]) == bits(new)
