"""Rows read by place and written in blocks, against whole arrays."""

import numpy as np
import pytest
import scipy.sparse as sp

from hpgmn.base.errors import HPGMNError
from hpgmn.shards import files
from hpgmn.shards.files import (
    RowFile,
    RowWriter,
    ShardedRows,
    SparseRowFile,
    SparseWriter,
    are_complete,
    write_array,
)


@pytest.mark.parametrize("width", [(), (3,), (2, 2)])
@pytest.mark.parametrize(("gap", "run"), [(1, 1), (64, 128), (1 << 20, 1 << 20)])
def test_rows_are_those_of_the_array(tmp_path, monkeypatch, width, gap, run):
    monkeypatch.setattr(files, "GAP_BYTES", gap)
    monkeypatch.setattr(files, "RUN_BYTES", run)
    random = np.random.default_rng(0)
    array = random.normal(size=(200, *width))
    np.save(tmp_path / "array.npy", array)
    file = RowFile(tmp_path / "array.npy")
    assert (len(file), file.shape, file.dtype) == (200, array.shape, array.dtype)
    np.testing.assert_array_equal(file.span(3, 17), array[3:17])
    np.testing.assert_array_equal(file.whole(), array)
    for count in (0, 1, 30, 200):
        places = np.sort(random.choice(200, count, replace=False))
        np.testing.assert_array_equal(file.take(places), array[places])


def test_shards_are_one_array(tmp_path):
    array = np.arange(20.0).reshape(10, 2)
    starts = (0, 4, 4, 10)
    paths = [tmp_path / f"{part}.npy" for part in range(3)]
    for path, first, last in zip(paths, starts, starts[1:], strict=False):
        np.save(path, array[first:last])
    rows = ShardedRows(paths, starts)
    for places in ([0, 3, 4, 9], [5], [], list(range(10))):
        np.testing.assert_array_equal(rows.take(np.array(places, int)), array[places])


def test_sparse_rows_come_and_go(tmp_path):
    matrix = sp.random_array((30, 7), density=0.2, format="csr", dtype=np.float32, rng=0)
    for part in ("indptr", "indices", "data"):
        np.save(tmp_path / f"{part}.npy", getattr(matrix, part))
    names = (tmp_path / f"{part}.npy" for part in ("indptr", "indices", "data"))
    rows = SparseRowFile(*names, 7)
    places = np.array([0, 3, 4, 11, 29])
    np.testing.assert_array_equal(rows.take(places).toarray(), matrix.toarray()[places])
    assert rows.lengths(places)[1].tolist() == np.diff(matrix.indptr)[places].tolist()
    with SparseWriter(tmp_path / "out" / "rows.npz", 7) as writer:
        for first, last in ((0, 10), (10, 10), (10, 30)):
            writer.append(rows.span(first, last))
        said = writer.done()
    found = sp.load_npz(tmp_path / "out" / "rows.npz")
    np.testing.assert_array_equal(found.toarray(), matrix.toarray())
    assert (said["shape"], said["entries"]) == ([30, 7], matrix.nnz)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["rows.npz"]
    assert are_complete(tmp_path / "out", {"rows.npz": said}, checked=True)


@pytest.mark.parametrize("rows", [0, 3, 12_345])
def test_blocks_make_one_file(tmp_path, rows):
    array = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    with RowWriter(tmp_path / "new" / "array.npy", np.float16, (2,)) as writer:
        for first in range(0, rows, 5000):
            writer.append(array[first : first + 5000])
        said = writer.done()
    found = np.load(tmp_path / "new" / "array.npy")
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, array.astype(np.float16))
    assert are_complete(tmp_path / "new", {"array.npy": said}, checked=True)


def test_an_error_leaves_nothing(tmp_path):
    with (
        pytest.raises(ValueError, match="could not convert"),
        RowWriter(tmp_path / "a.npy", np.float32) as writer,
    ):
        writer.append(np.array(["no number"]))
    with pytest.raises(ZeroDivisionError), SparseWriter(tmp_path / "b.npz", 2):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_draft(tmp_path, monkeypatch):
    """The buffer is flushed when the file is closed, so that closing it fails, too."""
    draft = tmp_path / "draft"
    draft.symlink_to("/dev/full")
    monkeypatch.setattr(files, "draft_path", lambda path: draft)
    with pytest.raises(OSError, match="No space left"):
        write_array(tmp_path / "a.npy", np.arange(3.0))
    assert not list(tmp_path.iterdir())


def test_damage_is_seen(tmp_path):
    said = {"a.npy": write_array(tmp_path / "a.npy", np.arange(100))}
    path = tmp_path / "a.npy"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    assert are_complete(tmp_path, said)
    assert not are_complete(tmp_path, said, checked=True)
    path.write_bytes(content[:-8])
    assert not are_complete(tmp_path, said)
    with pytest.raises(HPGMNError, match="cut short"):
        RowFile(path)
    path.unlink()
    assert not are_complete(tmp_path, said)


def test_what_is_no_array_of_plain_rows_is_refused(tmp_path):
    path = tmp_path / "a.npy"
    with pytest.raises(HPGMNError, match="cannot be read"):
        RowFile(path)
    path.write_bytes(b"no array")
    with pytest.raises(HPGMNError, match="cannot be read"):
        RowFile(path)
    np.save(path, np.asfortranarray(np.ones((2, 3))))
    with pytest.raises(HPGMNError, match="C order"):
        RowFile(path)
