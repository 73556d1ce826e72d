"""Write files and folders atomically, with checksums, digests, locks and format versions.

Content is written to a hidden draft folder beside the target, fsynced and renamed, so a crash or a
full disk leaves the previous content. Drafts of killed processes are removed by age.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpgmn.base.errors import HPGMNError, Remedy

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RUN_FORMAT = 3
"""Format of run folders. 2: the config suffices to retrain. 3: ensembles."""

GRAPH_FORMAT = 1
"""Format of graph files and folders."""

CELL_FORMAT = 1
"""Format of the records of a reproduction."""

STUDY_FORMAT = 1
"""Format of what hpgmn stores in the study of a search."""

DRAFT_SUFFIX = ".unfinished"
"""Suffix of draft names, which are ``.<target>.<32 hex digits>.unfinished``."""

STALE_SECONDS = 24 * 60 * 60
"""Age after which a draft is considered abandoned."""

CHECKSUM_KEY = "crc32"
"""Key of the checksum inside a JSON mapping."""

LOCK_FILE = ".lock"
"""Name of the lock file inside a folder."""


_NAME, _OLD = re.compile(rf"\..+\.[0-9a-f]{{32}}{re.escape(DRAFT_SUFFIX)}"), ".old"
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL}
_STORAGE = _DISK_FULL | {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EIO}


class WriteError(HPGMNError):
    """A path cannot be written; ``reason`` is the operating system's message."""

    reason = ""


def write_error(path: Path, error: OSError) -> WriteError:
    """Return the user-facing error for a path that cannot be written.

    >>> print(write_error(Path("runs/a"), OSError(errno.ENOSPC, "No space left on device")))
    Cannot write runs/a (No space left on device). Free disk space, or choose another path.
    """
    reason, remedy = _reason_and_remedy(error)
    result = WriteError(f"Cannot write {path} ({reason}).", remedy)
    result.reason = reason
    return result


def cache_folder() -> Path:
    """Return the user's cache of datasets and statistics; it may not exist yet."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "hpgmn"


def describe_os_error(error: OSError) -> HPGMNError | None:
    """Return the user-facing error for an OSError about storage, None for any other."""
    if error.errno not in _STORAGE:
        return None
    reason, remedy = _reason_and_remedy(error)
    return HPGMNError(f"Cannot read or write {error.filename or 'a file'} ({reason}).", remedy)


def _reason_and_remedy(error: OSError) -> tuple[str, str]:
    if error.errno is None:  # NumPy gives no error number
        return str(error), "Check free disk space and permissions"
    remedies = dict.fromkeys(_DISK_FULL, "Free disk space, or choose another path")
    remedies[errno.ENOENT] = "Create its folder, or choose another path"
    return os.strerror(error.errno), remedies.get(error.errno, "Choose a writable path")


def check_format(what: object, version: object, newest: int) -> None:
    """Raise HPGMNError for a file of a newer format than this version of hpgmn reads.

    Args:
        what: the file, as the user knows it.
        version: the format recorded in the file; None for the first one, which recorded none.
        newest: the newest format that this version reads.

    >>> check_format("config.yaml", 2, 2)
    >>> check_format("config.yaml", 3, 2)
    Traceback (most recent call last):
      ...
    hpgmn.base.errors.HPGMNError: config.yaml was written by a newer hpgmn (format 3, this one \
reads up to 2). Update hpgmn (pip install -U hpgmn).
    """
    if version is None:
        return
    if not isinstance(version, int) or isinstance(version, bool):
        raise HPGMNError(
            f"{what} has the invalid format version {version!r}.", "Restore the original file."
        )
    if version > newest:
        raise HPGMNError(
            f"{what} was written by a newer hpgmn (format {version}, this one reads up to "
            f"{newest}).",
            "Update hpgmn (pip install -U hpgmn)",
        )


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON mapping with a checksum of itself.

    >>> verify_checksum(with_checksum({"score": 0.5}))
    {'score': 0.5}
    """
    from hpgmn.base.parsing import parse_json  # loads NumPy, which --help does without

    plain = {key: value for key, value in content.items() if key != CHECKSUM_KEY}
    as_read = parse_json(json.dumps(plain))  # numeric keys become strings
    return {**plain, CHECKSUM_KEY: zlib.crc32(json.dumps(as_read, sort_keys=True).encode())}


def verify_checksum(content: Any) -> dict[str, Any]:
    """Return a mapping without its checksum; ValueError if the content does not match it.

    A mapping without a checksum, as earlier versions wrote it, is accepted.
    """
    if not isinstance(content, dict):
        raise ValueError("it is not a mapping")
    if CHECKSUM_KEY in content and with_checksum(content)[CHECKSUM_KEY] != content[CHECKSUM_KEY]:
        raise ValueError("its checksum differs")
    return {key: value for key, value in content.items() if key != CHECKSUM_KEY}


def verify_run_checksum(content: Any) -> dict[str, Any]:
    """Verify the checksum of a file of a run, which only the first format may lack.

    >>> verify_run_checksum({"test_score": [0.5]})
    {'test_score': [0.5]}
    """
    plain = verify_checksum(content)
    if CHECKSUM_KEY not in content and plain.get("format") not in (None, 1):
        raise ValueError("its checksum is missing")
    return plain


def file_checksum(path: Path, skip: int = 0) -> int:
    """Return the CRC-32 of a file without its first ``skip`` bytes."""
    checksum = 0
    with path.open("rb") as file:
        file.seek(skip)
        while block := file.read(2**20):
            checksum = zlib.crc32(block, checksum)
    return checksum


def digest(*parts: Any) -> str:
    """Return the SHA-256 of texts and buffers one after the other."""
    result = hashlib.sha256()
    for part in parts:
        result.update(part.encode() if isinstance(part, str) else part)
    return result.hexdigest()


def json_digest(content: Any) -> str:
    """Return the SHA-256 of a JSON value, keys sorted."""
    return digest(json.dumps(content, sort_keys=True))


def array_digest(array: Any) -> str:
    """Return a digest of type, shape and bytes of an array or CSR matrix; "" for None."""
    if array is None:
        return ""
    result = hashlib.blake2b(str(array.shape).encode(), digest_size=20)
    is_sparse = hasattr(array, "indptr")
    for part in (array.indptr, array.indices, array.data) if is_sparse else (array,):
        result.update(f"{part.dtype.str}{part.shape}".encode())
        result.update(as_bytes(part).data)  # no copy
    return result.hexdigest()


def as_bytes(array: Any) -> Any:
    """Return the bytes of an array in C order, without a copy where possible."""
    import numpy as np  # not needed by --help

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def write_text(path: Path, text: str, *, fsync: bool = True) -> None:
    """Write a text file atomically; see :func:`atomic_write`."""
    write_bytes(path, text.encode("utf-8"), fsync=fsync)


def write_bytes(path: Path, content: bytes, *, fsync: bool = True) -> None:
    """Write a file atomically; see :func:`atomic_write`."""
    with atomic_write(path, fsync=fsync) as draft:
        draft.write_bytes(content)


@contextlib.contextmanager
def atomic_write(path: Path, *, fsync: bool = True) -> Iterator[Path]:
    """Yield the path of a draft, which replaces the file at the end or is removed after an error.

    Args:
        path: the target; its folder exists.
        fsync: whether to survive a power failure; a file with a checksum elsewhere need not.

    Raises:
        WriteError: the file cannot be written.
    """
    with draft_folder(path) as folder:
        draft = folder / path.name  # in a folder, for libraries that write temporary files
        yield draft
        if fsync:
            _fsync(draft)
        os.replace(draft, path)
        if fsync:
            _fsync(path.parent)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder, which replaces the target at the end or is removed after an error."""
    if path.is_symlink():
        path = path.resolve()
    with draft_folder(path) as draft:
        yield draft
        for member in sorted(draft.iterdir()):
            _fsync(member)
        _fsync(draft)
        _replace_folder(draft, path)
        _fsync(path.parent)


@contextlib.contextmanager
def draft_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside a target, removed at the end; OSErrors become a WriteError."""
    try:
        remove_stale_drafts(path.parent, path.name)
        draft = draft_path(path)
        draft.mkdir()
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise write_error(path, error) from None


def draft_path(path: Path) -> Path:
    """Return a new draft name beside a target."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}{DRAFT_SUFFIX}")


def is_draft(name: str) -> bool:
    """Return whether a name is that of a draft.

    >>> is_draft(".a.json.0123456789abcdef0123456789abcdef.unfinished")
    True
    >>> is_draft("book.unfinished")
    False
    """
    return _NAME.fullmatch(name) is not None


def remove_stale_drafts(
    folder: Path, name: str | None = None, *, older_than: float = STALE_SECONDS
) -> None:
    """Remove abandoned drafts from a folder.

    Args:
        name: only drafts of this target; None for all.
        older_than: seconds since the draft was last changed; 0 in a folder that is locked.
    """
    prefix = "." if name is None else f".{name}."
    with contextlib.suppress(OSError):  # repeated with the next draft
        for path in folder.iterdir():
            is_named_draft = path.name.startswith(prefix) and is_draft(path.name)
            is_folder = is_named_draft and path.is_dir() and not path.is_symlink()
            if is_folder and time.time() - _last_change(path) >= older_than:
                shutil.rmtree(path, ignore_errors=True)


def _last_change(folder: Path) -> float:
    """Return when a folder or a file in it was last written."""
    times = [folder.stat().st_mtime]
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # of a writer that has just finished
            times.append(path.lstat().st_mtime)
    return max(times)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems, for folders
            raise
    finally:
        os.close(descriptor)


def _replace_folder(draft: Path, path: Path) -> None:
    """Rename a folder to its target; an existing target takes the name of the draft."""
    try:
        os.rename(draft, path)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    if _exchange(draft, path):
        return
    # Two renames where the system has no exchange; a kill between them leaves the old folder under
    # a name that is not swept.
    old = draft_path(path).with_suffix(_OLD)
    os.rename(path, old)
    try:
        os.rename(draft, path)
    except OSError:
        os.rename(old, path)
        raise
    for name in os.listdir(path.parent):
        draft_name = f"{name.removesuffix(_OLD)}{DRAFT_SUFFIX}"
        if name.startswith(f".{path.name}.") and is_draft(draft_name):
            shutil.rmtree(path.with_name(name), ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names atomically; return False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    at_cwd, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    return rename is not None and rename(at_cwd, bytes(first), at_cwd, bytes(second), exchange) == 0


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create a folder and lock it; raise HPGMNError if another process holds the lock."""
    remedy = Remedy("Wait for it to finish") | "Choose another folder"
    with lock_file(folder / LOCK_FILE, HPGMNError(f"Another process is using {folder}.", remedy)):
        yield


@contextlib.contextmanager
def lock_file(path: Path, refusal: HPGMNError) -> Iterator[None]:
    """Hold a lock file, which ends with this process and is removed afterwards.

    Its folder is created; ``refusal`` is raised in a second process.
    """
    from filelock import FileLock, Timeout  # not needed by most commands

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, mode=0o666, timeout=0, fallback_to_soft=False)
        try:
            lock.acquire()
        except OSError as error:
            if isinstance(error, Timeout) or error.errno not in _NO_LOCKS:
                raise  # otherwise the file system has no locks: work without one
    except Timeout:
        raise refusal from None
    except OSError as error:
        raise write_error(path.parent, error) from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        lock.release()


_TENSOR_CHECKSUM = "checksum"  # in the metadata

MOST_TENSORS = 20_000
"""A file with more is refused: the time that safetensors takes grows faster than their number."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors and metadata (as JSON) into one file, atomically."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path) as draft:
        try:
            described = {**metadata, _TENSOR_CHECKSUM: _tensor_checksum(ready, metadata)}
            # One entry: the order of several is not deterministic in safetensors.
            draft.touch()
            mode = draft.stat().st_mode  # by the umask; safetensors makes files private
            save_file(ready, draft, metadata={"about": json.dumps(described)})
            draft.chmod(mode)
        except SafetensorError as error:  # such as a full disk
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(*((int(number[1]), "") if number else (str(error),))) from None


def read_tensors(
    path: Path, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file of :func:`write_tensors`; nothing is unpickled."""
    from safetensors import SafetensorError, safe_open

    from hpgmn.base.parsing import TooLargeError, parse_json

    try:
        _require_reasonable_size(path)
        with safe_open(str(path), framework="pt", device=str(device)) as file:
            header = file.metadata() or {}
            metadata = parse_json(header["about"])
            if not isinstance(metadata, dict) or len(header) > 1:
                raise ValueError("unknown metadata")
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
        check_format(path, metadata.get("format"), RUN_FORMAT)
        _verify_checksum(tensors, metadata)
        return tensors, metadata
    except FileNotFoundError:
        raise HPGMNError(
            f"The file {path} does not exist.", Remedy("Check the path") | "Train again"
        ) from None
    except PermissionError as error:
        raise HPGMNError(
            f"The file {path} cannot be read ({error.strerror}).", "Check its permissions"
        ) from None
    except TooLargeError as error:
        raise HPGMNError(
            f"The file {path} cannot be read: {error}.",
            Remedy("Free some memory") | "Use another machine",
        ) from None
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        reason = str(error) if isinstance(error, _ChangedError) else type(error).__name__
        raise damaged_file(path, f"is damaged or not an hpgmn file ({reason})") from None


RESTORE = Remedy("Restore it") | Remedy("Train again", option="overwrite", value=True)


def damaged_file(path: Path, fault: str) -> HPGMNError:
    """Return the error about a file of a training that cannot be used."""
    return HPGMNError(f"The file {path} {fault}.", RESTORE)


class _ChangedError(ValueError):
    """The checksum of a file differs."""


def _require_reasonable_size(path: Path) -> None:
    """Refuse a file that exceeds the memory, or holds too many tensors."""
    from hpgmn.base.parsing import TooLargeError, require_file, require_memory

    require_file(path)
    size = path.stat().st_size  # of a sparse file more than on disk
    require_memory(size)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        count = file.read(min(length, size)).count(b'"data_offsets"')
    if count > MOST_TENSORS:
        raise TooLargeError(f"it declares {count:,} tensors")


def _verify_checksum(tensors: Mapping[str, Tensor], metadata: dict[str, Any]) -> None:
    """Remove the checksum from the metadata and verify it; format 1 has none."""
    if _TENSOR_CHECKSUM not in metadata and metadata.get("format", 1) == 1:
        return
    if metadata.pop(_TENSOR_CHECKSUM, None) != _tensor_checksum(tensors, metadata):
        raise _ChangedError("its checksum differs")


def _tensor_checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> int:
    """Return a CRC-32 of tensors and metadata; takes about half a second per gigabyte."""
    import torch

    is_typed = metadata.get("format", 1) != 1
    checksum = zlib.crc32(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        kind = f" {tensor.dtype}" if is_typed else ""
        checksum = zlib.crc32(f"{name}{tuple(tensor.shape)}{kind}".encode(), checksum)
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        checksum = zlib.crc32(content.numpy().data, checksum)
    return checksum
