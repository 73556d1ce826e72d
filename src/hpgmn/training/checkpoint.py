"""Tensors and metadata in one safetensors file, written atomically, with a checksum."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import RUN_FORMAT, atomic_write, check_format
from hpgmn.base.parsing import TooLargeError, parse_json, require_file, require_memory

_CHECKSUM = "checksum"

MOST_TENSORS = 20_000
"""A file with more is refused: the time that safetensors takes grows faster than their number."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors and metadata (as JSON) into one file, atomically."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path) as draft:
        try:
            described = {**metadata, _CHECKSUM: _checksum(ready, metadata)}
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
        raise damaged_file(path, reason) from None


def damaged_file(path: Path, reason: str) -> HPGMNError:
    """Return the error for a file that is damaged or was not written by this package."""
    return HPGMNError(
        f"The file {path} is damaged or not an hpgmn file ({reason}).",
        Remedy("Restore it") | Remedy("Train again", option="overwrite", value=True),
    )


class _ChangedError(ValueError):
    """The checksum of a file differs."""


def _require_reasonable_size(path: Path) -> None:
    """Refuse a file that exceeds the memory, or holds too many tensors."""
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
    if _CHECKSUM not in metadata and metadata.get("format", 1) == 1:
        return
    if metadata.pop(_CHECKSUM, None) != _checksum(tensors, metadata):
        raise _ChangedError("its checksum differs")


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> int:
    """Return a CRC-32 of tensors and metadata; takes about half a second per gigabyte."""
    is_typed = metadata.get("format", 1) != 1
    checksum = zlib.crc32(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        kind = f" {tensor.dtype}" if is_typed else ""
        checksum = zlib.crc32(f"{name}{tuple(tensor.shape)}{kind}".encode(), checksum)
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        checksum = zlib.crc32(content.numpy().data, checksum)
    return checksum
