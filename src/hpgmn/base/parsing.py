"""Files that may come from anywhere, read within limits.

Nothing is unpickled, and what a file says of its sizes is held against the file and against free
memory before anything is allocated. A file that is refused raises ``ValueError`` with a few words
that say why; ``OSError`` where it cannot be read at all.

| what | limit |
| --- | --- |
| a config (YAML) | 256 KiB, 100,000 values with all references written out |
| a record (JSON) | 64 MiB |
| nesting | as deep as Python's stack allows, a few hundred levels |
| an array | what its file holds |
| the arrays of an archive, the tensors of a model | the free memory of the machine |
"""

from __future__ import annotations

import errno
import json
import math
import os
import tokenize
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import yaml

from hpgmn.base.machine import free_host_bytes

LARGEST_CONFIG = 2**18
"""Bytes of a YAML file."""

LARGEST_JSON = 64 * 2**20
"""Bytes of a JSON file."""

MOST_VALUES = 100_000
"""Values in a YAML file; one that is referred to counts each time."""

_LONGEST_NUMBER = 1000  # letters; Python's own limit is for decimal numbers alone
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_ENTRY = b"PK\x01\x02"  # how an entry of an archive's directory begins
_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what NumPy writes

Array = np.ndarray[Any, Any]


class TooLargeError(ValueError):
    """A file would take more memory than there is, or than any file of its kind should."""


def parse_json(text: str | bytes) -> Any:
    """What a JSON text says.

    >>> parse_json('{"nodes": 3}')
    {'nodes': 3}
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:
    """What a JSON file says."""
    return parse_json(json_bytes(path).decode("utf-8"))


def json_bytes(path: Path) -> bytes:
    """The bytes of a JSON file, for whoever needs a digest of them, too."""
    require_file(path)
    if path.stat().st_size > LARGEST_JSON:
        raise _larger(LARGEST_JSON)
    return path.read_bytes()


def read_config(path: Path) -> Any:
    """What a YAML file says; plain values only.

    Raises:
        yaml.YAMLError: it is not valid YAML, or asks for Python objects.
    """
    with path.open("rb") as file:  # a pipe will do
        text = file.read(LARGEST_CONFIG + 1)  # a device may have no end
    if len(text) > LARGEST_CONFIG:
        raise _larger(LARGEST_CONFIG)
    loader = yaml.SafeLoader(text.decode("utf-8"))
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _values(node, {}) > MOST_VALUES:
            raise TooLargeError(f"it holds more than {MOST_VALUES:,} values")
        return loader.construct_document(node)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    finally:
        loader.dispose()


def _values(node: Any, known: dict[int, int]) -> int:
    """How many values a node has with every reference written out."""
    if id(node) not in known:
        known[id(node)] = MOST_VALUES + 1  # met again on the way down: it holds itself
        if isinstance(node, yaml.ScalarNode):
            is_text = node.tag == "tag:yaml.org,2002:str"
            if not is_text and len(node.value) > _LONGEST_NUMBER:
                raise ValueError(f"a number has {len(node.value):,} digits")
            known[id(node)] = 1
        else:
            pairs = isinstance(node, yaml.MappingNode)
            if pairs:
                _refuse_repeated([key for key, _ in node.value])
            members = [one for pair in node.value for one in pair] if pairs else node.value
            known[id(node)] = 1 + sum(_values(member, known) for member in members)
    return known[id(node)]


def _refuse_repeated(keys: list[Any]) -> None:
    """Refuse a name that is given twice: which value is meant, nobody knows."""
    names = Counter(key.value for key in keys if isinstance(key, yaml.ScalarNode))
    for name, count in names.most_common(1):
        if count > 1:
            raise ValueError(f"'{name}' is there twice")


def read_array(path: Path, mapped: Literal["r", "c"] | None = None) -> Array:
    """The array in a ``.npy`` file.

    Args:
        path: the file.
        mapped: "r" maps it to be read, "c" so that writing changes a copy of the page; None reads
            it.
    """
    require_file(path)
    with path.open("rb") as file:
        needed = read_header(file, os.fstat(file.fileno()).st_size).size
        if mapped is None or not needed:  # nothing to map
            refuse_beyond_memory(needed)
            file.seek(0)
            return _array(file)
    array: Array = np.lib.format.open_memmap(path, mode=mapped)
    return array


class Header(NamedTuple):
    """What a ``.npy`` file says of its array."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    size: int
    """Bytes of all values."""


def read_header(file: IO[bytes], size: int) -> Header:
    """The header of an array, held against its file.

    Args:
        file: at the beginning of a ``.npy`` file; left at the first value.
        size: bytes of that file.
    """
    try:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"version {version} of the format is not known")
        with warnings.catch_warnings(action="ignore"):  # written by Python 2, or damaged so
            shape, is_fortran, dtype = _HEADERS[version](file)
    except (tokenize.TokenError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise ValueError("its header is damaged") from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    count = math.prod(shape)  # of Python's numbers, which do not overflow
    if min(shape, default=1) < 0 or (count and not dtype.itemsize):
        raise ValueError(f"its header says shape {shape} of type {dtype}")
    if count * dtype.itemsize > size - file.tell():
        raise ValueError(f"it is cut short: its header says shape {shape} of type {dtype}")
    return Header(shape, is_fortran, dtype, count * dtype.itemsize)


def read_archive(path: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, Array], list[str]]:
    """Some arrays of a ``.npz`` file.

    Args:
        path: the file. Nothing in it is ever written to the disk, so the names in it are names.
        wanted: whether to read the array of that name.

    Returns:
        The arrays by name, and the names of everything else.
    """
    require_file(path)
    with path.open("rb") as file:
        try:
            return _archive(file, wanted)
        except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:
            # RuntimeError: a member is encrypted, or needs what this Python lacks.
            raise ValueError(str(error) or "a member is cut short") from None
        except UnicodeDecodeError:
            raise ValueError("a name in it is not text") from None


def _archive(file: IO[bytes], wanted: Callable[[str], bool]) -> tuple[dict[str, Array], list[str]]:
    with zipfile.ZipFile(file) as archive:
        members: dict[str, zipfile.ZipInfo] = {}
        others = []
        for member in archive.infolist():
            if _ENTRY in member.comment or _ENTRY in member.extra:  # a wrong length hides the next
                raise ValueError("its directory is damaged")
            name = member.filename.removesuffix(".npy")
            if name == member.filename or not wanted(name):
                with archive.open(member):  # refuses one that has another name in its own place
                    others.append(name)
                continue
            if name in members:
                raise ValueError(f"array '{name}' is in it twice")
            if member.compress_type not in _COMPRESSION:
                raise ValueError(f"array '{name}' is compressed in a way that NumPy does not use")
            members[name] = member
        total = 0
        for name, member in members.items():
            with archive.open(member) as content, _named(name):
                total += read_header(content, member.file_size).size
        refuse_beyond_memory(total)
        arrays = {}
        for name, member in members.items():
            with archive.open(member) as content, _named(name):
                arrays[name] = _array(content)
        return arrays, others


def _array(file: Any) -> Array:
    try:
        with warnings.catch_warnings(action="ignore"):
            return np.lib.format.read_array(file, allow_pickle=False)
    except MemoryError as error:  # of a process with a limit of its own
        raise TooLargeError(str(error)) from None


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Let a refusal say which array it is about."""
    try:
        yield
    except TooLargeError:
        raise
    except ValueError as error:
        raise ValueError(f"array '{name}': {error}") from None


def refuse_beyond_memory(size: int) -> None:
    """Refuse what the machine has no memory for.

    Args:
        size: bytes.
    """
    free = free_host_bytes()
    if size > free:
        raise TooLargeError(f"it takes {size / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free")


def _larger(limit: int) -> TooLargeError:
    return TooLargeError(f"it is larger than {limit // 2**10:,} KiB")


def require_file(path: Path) -> None:
    """Refuse devices and pipes, which may have no end or keep a reader waiting."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "Not a file")
