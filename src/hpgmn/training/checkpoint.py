"""Tensors and the state of a training as one safetensors file, written atomically."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import RUN_FORMAT, atomic_write, check_format
from hpgmn.base.parsing import TooLargeError, parse_json, require_file, require_memory
from hpgmn.models.stage import Parameters
from hpgmn.training.state import HISTORY, StageState, TrainState

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


def write_state(path: Path, state: TrainState, identity: str) -> None:
    """Save a training state; ``identity`` identifies the training that may resume it."""
    tensors: dict[str, Tensor] = {}
    for stage, parameters in state.done.items():
        tensors |= {f"done/{stage}/{name}": value for name, value in parameters.items()}
        tensors[f"best_score/{stage}"] = state.best_score[stage]
        tensors[f"best_loss/{stage}"] = state.best_loss[stage]
        tensors[f"best_epoch/{stage}"] = state.best_epoch[stage]
        tensors |= {f"history/{stage}/{key}": rows for key, rows in state.history[stage].items()}
    metadata: dict[str, Any] = {
        "format": RUN_FORMAT,
        "identity": identity,
        "stages": list(state.done),
        "seconds": state.seconds,
        "current": None,
    }
    current = state.current
    if current is not None:
        for part in ("parameters", "first", "second", "best"):
            values: Parameters = getattr(current, part)
            tensors |= {f"current/{part}/{name}": value for name, value in values.items()}
        for part in ("best_score", "best_loss", "best_epoch", "overflowed"):
            tensors[f"current/{part}"] = getattr(current, part)
        for key, rows in current.history.items():
            tensors[f"current/history/{key}"] = torch.stack(rows)
        metadata["current"] = {"name": current.name, "epoch": current.epoch, "live": current.live}
    write_tensors(path, tensors, metadata)


def require_identity(stored: object, identity: str, folder: Path) -> None:
    """Refuse to resume another training than the requested one."""
    if stored != identity:
        raise HPGMNError(
            f"{folder.parent} was started with other settings, graph, splits, seeds or code.",
            Remedy("Restore what has changed and resume", option="resume", value=True)
            | Remedy("Start again", option="overwrite", value=True),
        )


def read_seconds(path: Path) -> float:
    """Return the seconds that a saved training has taken so far."""
    with _report_damage(path):
        return sum(_seconds_in(read_tensors(path)[1]).values())


def read_state(path: Path, identity: str, device: torch.device | str = "cpu") -> TrainState:
    """Read a training state to resume; refuse that of another training."""
    tensors, metadata = read_tensors(path, device)
    require_identity(metadata.get("identity"), identity, path.parent)

    def below(prefix: str) -> Parameters:
        return {
            name.removeprefix(prefix): value
            for name, value in tensors.items()
            if name.startswith(prefix)
        }

    with _report_damage(path):
        state = TrainState(seconds=_seconds_in(metadata))
        for stage in metadata["stages"]:
            state.done[stage] = below(f"done/{stage}/")
            state.best_score[stage] = tensors[f"best_score/{stage}"]
            state.best_loss[stage] = tensors[f"best_loss/{stage}"]
            state.best_epoch[stage] = tensors[f"best_epoch/{stage}"]
            state.history[stage] = {key: tensors[f"history/{stage}/{key}"].cpu() for key in HISTORY}
        if metadata["current"] is not None:
            if metadata.get("format", 1) == 1:  # did not record it
                unknown = torch.zeros_like(tensors["current/best_epoch"], dtype=torch.bool)
                tensors.setdefault("current/overflowed", unknown)
            state.current = StageState(
                **metadata["current"],
                parameters=below("current/parameters/"),
                first=below("current/first/"),
                second=below("current/second/"),
                best=below("current/best/"),
                best_score=tensors["current/best_score"],
                best_loss=tensors["current/best_loss"],
                best_epoch=tensors["current/best_epoch"],
                overflowed=tensors["current/overflowed"],
                history={key: list(tensors[f"current/history/{key}"]) for key in HISTORY},
            )
            _check_current(state.current)
        return state


@contextmanager
def _report_damage(path: Path) -> Iterator[None]:
    """Raise the error of a damaged file for an inconsistent state."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise damaged_file(path, f"{type(error).__name__}: {error}") from None


def _seconds_in(metadata: Mapping[str, Any]) -> dict[str, float]:
    seconds: dict[str, float] = metadata["seconds"]
    if not {"statistics", "training"} <= set(seconds):
        raise ValueError("missing seconds of statistics and training")
    if not all(math.isfinite(value) and value >= 0 for value in seconds.values()):
        raise ValueError("invalid seconds")
    return seconds


def _check_current(current: StageState) -> None:
    """Refuse a stage whose parts do not agree in replicas and epochs."""
    live, replicas = current.live, len(current.best_score)
    if not isinstance(current.name, str) or type(current.epoch) is not int:
        raise ValueError("missing name or epoch of the stage")
    if live != sorted(set(live)) or not set(live) <= set(range(replicas)):
        raise ValueError(f"replicas {live} of {replicas}")
    if set(current.best) != set(current.parameters) or set(current.first) != set(current.second):
        raise ValueError("parameters lack best values or moments")
    if any(len(rows) != current.epoch for rows in current.history.values()):
        raise ValueError(f"the history is not of {current.epoch} epochs")
    sizes = {len(value) for value in (*current.parameters.values(), *current.second.values())}
    if sizes != {len(live)}:
        raise ValueError(f"the parameters are not of replicas {live}")
