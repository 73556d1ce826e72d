"""Read files from untrusted sources within limits.

Nothing is unpickled, and sizes declared in a file are checked against the file and free memory
before anything is allocated. A rejected file raises ``ValueError`` with a short reason, an
unreadable one ``OSError``. Limits: YAML 256 KiB, JSON 64 MiB, arrays and tensors free memory.
"""

from __future__ import annotations

import errno
import io
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

from hpgmn.base.errors import format_bytes
from hpgmn.base.machine import free_host_bytes

LARGEST_CONFIG = 2**18
"""Most bytes of a YAML file."""

LARGEST_JSON = 64 * 2**20
"""Most bytes of a JSON file."""

_LONGEST_NUMBER = 1000  # characters; Python limits decimal numbers only
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_ENTRY = b"PK\x01\x02"  # how an entry of an archive's directory begins
_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what NumPy writes

Array = np.ndarray[Any, Any]


class TooLargeError(ValueError):
    """A file exceeds free memory or the limit of its kind."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON text.

    >>> parse_json('{"nodes": 3}')
    {'nodes': 3}
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return parse_json(read_json_bytes(path).decode("utf-8"))


def read_json_bytes(path: Path) -> bytes:
    """Read the bytes of a JSON file within the size limit."""
    require_file(path)
    if path.stat().st_size > LARGEST_JSON:
        raise _too_large(LARGEST_JSON)
    return path.read_bytes()


class _YamlLoader(yaml.SafeLoader):
    """A SafeLoader that refuses duplicate keys, nested aliases and very long numbers."""

    _anchored = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if self._anchored and isinstance(event, yaml.AliasEvent):
            raise ValueError("an alias is used inside an anchored value")  # exponential expansion
        is_anchor = not isinstance(event, yaml.AliasEvent) and event.anchor is not None
        self._anchored += is_anchor
        try:
            return super().compose_node(parent, index)
        finally:
            self._anchored -= is_anchor

    def compose_scalar_node(self, anchor: Any) -> Any:
        node = super().compose_scalar_node(anchor)
        if node.tag != "tag:yaml.org,2002:str" and len(node.value) > _LONGEST_NUMBER:
            raise ValueError(f"a number has {len(node.value):,} digits")
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for name, count in keys.most_common(1):
            if count > 1:
                raise ValueError(f"'{name}' is given twice")
        return node


def load_yaml(path: Path) -> Any:
    """Read a YAML file of plain values.

    Raises:
        yaml.YAMLError: it is not valid YAML, or contains Python objects.
    """
    with path.open("rb") as file:  # may be a pipe
        text = file.read(LARGEST_CONFIG + 1)  # a device may be endless
    if len(text) > LARGEST_CONFIG:
        raise _too_large(LARGEST_CONFIG)
    loader = _YamlLoader(text.decode("utf-8"))
    try:
        return loader.get_single_data()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    finally:
        loader.dispose()


def read_array(path: Path, mapped: Literal["r", "c"] | None = None) -> Array:
    """Read the array of a ``.npy`` file.

    Args:
        mapped: "r" maps it read-only, "c" copy-on-write; None reads it into memory.
    """
    require_file(path)
    with path.open("rb") as file:
        needed = read_npy_header(file, os.fstat(file.fileno()).st_size).size
        if mapped is None or not needed:  # nothing to map
            require_memory(needed)
            file.seek(0)
            return _array(file)
    array: Array = np.lib.format.open_memmap(path, mode=mapped)
    return array


class NpyHeader(NamedTuple):
    """The header of a ``.npy`` file."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    size: int
    """Bytes of all values."""


def read_npy_header(file: IO[bytes], size: int) -> NpyHeader:
    """Read the header of an array and check it against the size of its file.

    Args:
        file: at the beginning of a ``.npy`` file; left at the first value.
        size: bytes of that file.
    """
    try:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"format version {version} is unknown")
        with warnings.catch_warnings(action="ignore"):  # written by Python 2, or damaged so
            shape, is_fortran, dtype = _HEADERS[version](file)
    except (tokenize.TokenError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise ValueError("its header is damaged") from None
    if dtype.hasobject:
        raise ValueError("it contains Python objects")
    count = math.prod(shape)  # Python integers do not overflow
    if min(shape, default=1) < 0 or (count and not dtype.itemsize):
        raise ValueError(f"its header declares shape {shape} of type {dtype}")
    if count * dtype.itemsize > size - file.tell():
        raise ValueError(f"it is cut short: its header declares shape {shape} of type {dtype}")
    return NpyHeader(shape, is_fortran, dtype, count * dtype.itemsize)


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of a ``.npy`` file of an array in C order."""
    written = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    about = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(written, about)
    return written.getvalue()


def read_archive(
    path: Path, is_requested: Callable[[str], bool]
) -> tuple[dict[str, Array], list[str]]:
    """Read the requested arrays of a ``.npz`` file; return them and the names of all others."""
    require_file(path)
    with path.open("rb") as file:
        try:
            return _archive(file, is_requested)
        except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:
            # RuntimeError: encrypted, or a compression that this Python lacks.
            raise ValueError(str(error) or "a member is cut short") from None
        except UnicodeDecodeError:
            raise ValueError("a member name is not UTF-8") from None


def _archive(
    file: IO[bytes], is_requested: Callable[[str], bool]
) -> tuple[dict[str, Array], list[str]]:
    with zipfile.ZipFile(file) as archive:
        members: dict[str, zipfile.ZipInfo] = {}
        others = []
        for member in archive.infolist():
            if _ENTRY in member.comment or _ENTRY in member.extra:  # a wrong length hides the next
                raise ValueError("its directory is damaged")
            name = member.filename.removesuffix(".npy")
            if name == member.filename or not is_requested(name):
                with archive.open(member):  # checks the name in its local header
                    others.append(name)
                continue
            if name in members:
                raise ValueError(f"array '{name}' occurs twice")
            if member.compress_type not in _COMPRESSION:
                raise ValueError(f"array '{name}' has a compression that NumPy does not write")
            members[name] = member
        total = 0
        for name, member in members.items():
            with archive.open(member) as content, _named(name):
                total += read_npy_header(content, member.file_size).size
        require_memory(total)
        arrays = {}
        for name, member in members.items():
            with archive.open(member) as content, _named(name):
                arrays[name] = _array(content)
        return arrays, others


def _array(file: Any) -> Array:
    try:
        with warnings.catch_warnings(action="ignore"):
            return np.lib.format.read_array(file, allow_pickle=False)
    except MemoryError as error:  # process memory limit
        raise TooLargeError(str(error)) from None


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Prefix errors with the name of the array."""
    try:
        yield
    except TooLargeError:
        raise
    except ValueError as error:
        raise ValueError(f"array '{name}': {error}") from None


def require_memory(size: int) -> None:
    """Raise TooLargeError if the machine has less than ``size`` bytes of free memory."""
    free = free_host_bytes()
    if size > free:
        raise TooLargeError(f"it takes {format_bytes(size)}, and {format_bytes(free)} are free")


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"it is larger than {limit // 2**10:,} KiB")


def require_file(path: Path) -> None:
    """Raise OSError for devices and pipes, which may be endless or block the reader."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "Not a file")
