"""A training's whole state as one safetensors file, written atomically."""

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

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import RUN_FORMAT, atomic_write, check_format
from hpgmn.base.parsing import TooLargeError, parse_json, require_file, require_memory
from hpgmn.models.stage import Parameters
from hpgmn.training.state import HISTORY, StageState, TrainState

_CHECKSUM = "checksum"

MOST_TENSORS = 20_000
"""A file of more is refused: safetensors takes longer and longer for each."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Tensors and a JSON description in one file; a crash leaves the old file or the new one."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path) as draft:
        try:
            said = {**about, _CHECKSUM: _checksum(ready, about)}
            # One entry: safetensors writes several in any order, and files would differ.
            draft.touch()
            mode = draft.stat().st_mode  # as of any new file; safetensors lets nobody else read
            save_file(ready, draft, metadata={"about": json.dumps(said)})
            draft.chmod(mode)
        except SafetensorError as error:  # a full disk, for one
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(*((int(number[1]), "") if number else (str(error),))) from None


def read_tensors(
    path: Path, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What :func:`write_tensors` wrote; nothing is unpickled."""
    try:
        _refuse_too_much(path)
        with safe_open(str(path), framework="pt", device=str(device)) as file:
            said = file.metadata() or {}
            about = parse_json(said["about"])
            if not isinstance(about, dict) or len(said) > 1:
                raise ValueError("no description of ours")
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
        check_format(path, about.get("format"), RUN_FORMAT)
        _refuse_changed(tensors, about)
        return tensors, about
    except FileNotFoundError:
        raise HPGMNError(
            f"The file {path} does not exist. Check the path, or train again."
        ) from None
    except PermissionError as error:
        raise HPGMNError(
            f"The file {path} cannot be read ({error.strerror}). See that you may read it."
        ) from None
    except TooLargeError as error:
        raise HPGMNError(
            f"The file {path} cannot be read: {error}. Free some memory, or use another machine."
        ) from None
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        reason = str(error) if isinstance(error, _ChangedError) else type(error).__name__
        raise _damaged(path, reason) from None


def _damaged(path: Path, reason: str) -> HPGMNError:
    return HPGMNError(
        f"The file {path} is damaged or not one of ours ({reason}). "
        "Restore it, or train again with --overwrite."
    )


class _ChangedError(ValueError):
    """A file is not what was written."""


def _refuse_too_much(path: Path) -> None:
    """Refuse what would take more memory than there is, or hours to go through."""
    require_file(path)
    size = path.stat().st_size  # a hole in a file takes no room on a disk
    require_memory(size)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        count = file.read(min(length, size)).count(b'"data_offsets"')
    if count > MOST_TENSORS:
        raise TooLargeError(f"it says that it holds {count:,} tensors")


def _refuse_changed(tensors: Mapping[str, Tensor], about: dict[str, Any]) -> None:
    """Take the checksum out of a description, and refuse a file that has another.

    States of the first format have none.
    """
    if _CHECKSUM not in about and about.get("format", 1) == 1:
        return
    if about.pop(_CHECKSUM, None) != _checksum(tensors, about):
        raise _ChangedError("its checksum differs")


def _checksum(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> int:
    """Changes with any bit of what a file holds; takes about half a second for each gigabyte."""
    is_typed = about.get("format", 1) != 1
    found = zlib.crc32(json.dumps(about, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        kind = f" {tensor.dtype}" if is_typed else ""
        found = zlib.crc32(f"{name}{tuple(tensor.shape)}{kind}".encode(), found)
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found = zlib.crc32(content.numpy().data, found)
    return found


def write_state(path: Path, state: TrainState, identity: str) -> None:
    """Save a training state; ``identity`` names what is trained, so that no other continues it."""
    tensors: dict[str, Tensor] = {}
    for stage, parameters in state.done.items():
        tensors |= {f"done/{stage}/{name}": value for name, value in parameters.items()}
        tensors[f"best_score/{stage}"] = state.best_score[stage]
        tensors[f"best_loss/{stage}"] = state.best_loss[stage]
        tensors[f"best_epoch/{stage}"] = state.best_epoch[stage]
        tensors |= {f"history/{stage}/{key}": rows for key, rows in state.history[stage].items()}
    about: dict[str, Any] = {
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
        about["current"] = {
            "name": current.name,
            "epoch": current.epoch,
            "live": current.live,
        }
    write_tensors(path, tensors, about)


def refuse_other(kept: object, identity: str, folder: Path) -> None:
    """Refuse to continue a training that is not the one asked for."""
    if kept != identity:
        raise HPGMNError(
            f"{folder.parent} was started with other settings, graph, splits, seeds or code. "
            "Restore what has changed and repeat the first command with --resume, or start anew "
            "with --overwrite."
        )


def read_seconds(path: Path) -> float:
    """How long the training had taken whose state is in a file."""
    with _told_as_damage(path):
        return sum(_seconds_in(read_tensors(path)[1]).values())


def read_state(path: Path, identity: str, device: torch.device | str = "cpu") -> TrainState:
    """A training state, ready to be continued; refused where it belongs to another training."""
    tensors, about = read_tensors(path, device)
    refuse_other(about.get("identity"), identity, path.parent)

    def below(prefix: str) -> Parameters:
        return {
            name.removeprefix(prefix): value
            for name, value in tensors.items()
            if name.startswith(prefix)
        }

    with _told_as_damage(path):
        state = TrainState(seconds=_seconds_in(about))
        for stage in about["stages"]:
            state.done[stage] = below(f"done/{stage}/")
            state.best_score[stage] = tensors[f"best_score/{stage}"]
            state.best_loss[stage] = tensors[f"best_loss/{stage}"]
            state.best_epoch[stage] = tensors[f"best_epoch/{stage}"]
            state.history[stage] = {key: tensors[f"history/{stage}/{key}"].cpu() for key in HISTORY}
        if about["current"] is not None:
            if about.get("format", 1) == 1:  # which did not look
                unknown = torch.zeros_like(tensors["current/best_epoch"], dtype=torch.bool)
                tensors.setdefault("current/overflowed", unknown)
            state.current = StageState(
                **about["current"],
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
def _told_as_damage(path: Path) -> Iterator[None]:
    """Say of a state that does not go together that its file is damaged."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from None


def _seconds_in(about: Mapping[str, Any]) -> dict[str, float]:
    seconds: dict[str, float] = about["seconds"]
    if not {"statistics", "training"} <= set(seconds):
        raise ValueError("no seconds of statistics and training")
    if not all(math.isfinite(value) and value >= 0 for value in seconds.values()):
        raise ValueError("seconds that are none")
    return seconds


def _check_current(current: StageState) -> None:
    """Refuse a stage under way whose parts are not of the same replicas and epochs."""
    live, replicas = current.live, len(current.best_score)
    if not isinstance(current.name, str) or type(current.epoch) is not int:
        raise ValueError("no name and epoch of a stage")
    if live != sorted(set(live)) or not set(live) <= set(range(replicas)):
        raise ValueError(f"replicas {live} of {replicas}")
    if set(current.best) != set(current.parameters) or set(current.first) != set(current.second):
        raise ValueError("parameters without their best values or moments")
    if any(len(rows) != current.epoch for rows in current.history.values()):
        raise ValueError(f"another history than of {current.epoch} epochs")
    sizes = {len(value) for value in (*current.parameters.values(), *current.second.values())}
    if sizes != {len(live)}:
        raise ValueError(f"parameters of other replicas than {live}")
