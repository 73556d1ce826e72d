"""Settings: frozen dataclasses whose fields carry their help and allowed values.

The command line, YAML files, ``hpgmn settings`` and Python keywords are all derived from them.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from hpgmn.base.errors import Remedy, SettingError
from hpgmn.base.parsing import load_yaml

_LARGEST_WHOLE = 2**31 - 1


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    low: float | None = None,
    high: float | None = None,
    open_high: bool = False,
    per_replica: bool = False,
) -> Any:
    """Return a dataclass field with help, limits and whether replicas may differ in it.

    Args:
        help: one sentence, shown by ``hpgmn settings``.
        choices: allowed names (for a tuple field: allowed members).
        open_high: whether ``high`` itself is excluded.
        per_replica: whether replicas of one batch may have different values.
    """
    metadata = {"help": help, "choices": choices, "low": low, "high": high}
    metadata |= {"open_high": open_high, "per_replica": per_replica}
    return field(default=default, metadata=metadata)


def dropout_setting(default: float, help: str) -> Any:
    """Return a :func:`setting` for a dropout probability, per replica."""
    return setting(default, help, low=0.0, high=1.0, open_high=True, per_replica=True)


def share_setting(default: float, help: str) -> Any:
    """Return a :func:`setting` for a number from 0 to 1, per replica."""
    return setting(default, help, low=0.0, high=1.0, per_replica=True)


def rate_setting(default: float, help: str) -> Any:
    """Return a :func:`setting` for a rate or weight of at least 0, per replica."""
    return setting(default, help, low=0.0, per_replica=True)


def inherited_setting(parent: type, name: str, default: Any) -> Any:
    """Return a setting of a parent class with another default."""
    metadata = next(info.metadata for info in dataclasses.fields(parent) if info.name == name)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """Settings of every model."""

    lr: float = rate_setting(0.01, "learning rate")
    epochs: int = setting(300, "maximum number of epochs", low=1)
    patience: int = setting(
        100, "stop after this number of epochs without a better validation score; 0: never", low=0
    )
    class_weights: str = setting(
        "none",
        "weights of the classes in the loss: none, or inverse to their frequency (balanced)",
        choices=("none", "balanced"),
    )
    regression_loss: str = setting(
        "squared",
        "loss on standardised targets of a regression: squared, or huber, which limits outliers",
        choices=("squared", "huber"),
    )


@dataclass(frozen=True, kw_only=True)
class TrainSettings(FitSettings):
    """Settings of training by gradients."""

    lr: float = rate_setting(0.01, "learning rate of Adam")
    weight_decay: float = rate_setting(5e-5, "weight decay (L2, added to the gradient)")
    dropout: float = dropout_setting(0.2, "dropout inside the network")
    precision: str = setting(
        "float32",
        "products on a GPU: float32, TF32 (10 mantissa bits), or bfloat16 (7 bits) in training",
        choices=("float32", "tf32", "bfloat16"),
    )
    consistency_weight: float = rate_setting(
        0.0, "weight of the consistency loss between noisy passes over all nodes; 0: off"
    )
    consistency_warmup: int = setting(
        0, "epochs over which the weight of the consistency loss grows from 0", low=0
    )
    consistency_passes: int = setting(
        2, "noisy passes per step when consistency_weight is above 0", low=2
    )
    consistency_temperature: float = setting(
        0.3, "temperature of the passes' mean prediction: lower is sharper", low=0.05, high=1.0
    )


@dataclass(frozen=True, kw_only=True)
class BatchSettings(TrainSettings):
    """Settings of models that can be trained in mini-batches."""

    batch_size: int = setting(0, "train nodes per step; 0: all of them", low=0)

    def __post_init__(self) -> None:
        """Raise SettingError for settings that exclude mini-batches."""
        if self.batch_size and self.consistency_weight:
            raise SettingError(
                "The consistency loss reads all nodes, which mini-batches exclude.",
                Remedy("Train without batches", setting="batch_size", value=0)
                | Remedy("Train without that loss", setting="consistency_weight", value=0),
            )


AnySettings = TypeVar("AnySettings", bound=FitSettings)


def type_name(hint: Any) -> str:
    """Return the type of a setting as ``hpgmn settings`` prints it."""
    if typing.get_origin(hint) is tuple:
        return "list of names"
    if typing.get_origin(hint) is types.UnionType:
        return f"{type_name(typing.get_args(hint)[0])} or none"
    names = {int: "whole number", float: "number", bool: "true or false", str: "name"}
    return names[hint]


def allowed_values(info: dataclasses.Field[Any]) -> str:
    """Return the allowed values of a setting as text."""
    meta = info.metadata
    if meta["choices"]:
        return ", ".join(meta["choices"])
    low, high = meta["low"], meta["high"]
    if low is not None and high is not None:
        return f"{low:g} to {'below ' if meta['open_high'] else ''}{high:g}"
    if low is not None:
        return f"at least {low:g}"
    return "–"


def _refusal(name: str, expected: str, value: Any) -> SettingError:
    return SettingError(f"Setting '{name}' takes {expected} (got {value!r}).")


def _number(name: str, value: Any, kind: type) -> Any:
    try:
        number = float("" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        raise _refusal(name, "a number", value) from None
    if not math.isfinite(number):
        raise _refusal(name, "a finite number", value)
    if kind is not int:
        return number
    if number != int(number):
        raise _refusal(name, "a whole number", value)
    if abs(number) > _LARGEST_WHOLE:
        raise _refusal(name, f"a whole number of at most {_LARGEST_WHOLE:,}", value)
    return int(number)


def _boolean(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "on": True, "1": True}
    words |= {"false": False, "no": False, "off": False, "0": False}
    if str(value).lower() in words:
        return words[str(value).lower()]
    raise _refusal(name, "true or false", value)


def _parse_value(info: dataclasses.Field[Any], hint: Any, value: Any) -> Any:
    """Convert a value to the type of its field; raise SettingError if it is not allowed."""
    name, meta = info.name, info.metadata
    if typing.get_origin(hint) is types.UnionType:  # X | None
        if value is None or str(value).lower() == "none":
            return None
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, str | list | tuple):
            raise _refusal(name, "a list of names", value)
        members = list(value)
        if isinstance(value, str):
            members = [part.strip() for part in value.split(",") if part.strip()]
        for member in members:
            if member not in meta["choices"]:
                raise SettingError.unknown(f"value for '{name}':", member, meta["choices"])
        if not members or len(set(members)) != len(members):
            raise _refusal(name, "distinct names, at least one", value)
        return tuple(choice for choice in meta["choices"] if choice in members)
    if hint is bool:
        return _boolean(name, value)
    if hint is str:
        if not meta["choices"]:  # any name is allowed
            return str(value)
        if value not in meta["choices"]:
            raise SettingError.unknown(f"value for '{name}':", str(value), meta["choices"])
        return value
    number = _number(name, value, hint)
    low, high = meta["low"], meta["high"]
    too_high = high is not None and (number >= high if meta["open_high"] else number > high)
    if (low is not None and number < low) or too_high:
        raise SettingError(f"Setting '{name}' must be {allowed_values(info)} (got {number:g}).")
    return number


def make_settings(cls: type[AnySettings], values: Mapping[str, Any]) -> AnySettings:
    """Create settings from a mapping whose names and values are checked; strings are parsed.

    >>> make_settings(TrainSettings, {"lr": "0.05"}).lr
    0.05
    """
    fields = {info.name: info for info in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    for name in values:
        if name not in fields:
            raise SettingError.unknown("setting", name, sorted(fields))
    checked = {
        name: _parse_value(fields[name], hints[name], value) for name, value in values.items()
    }
    return cls(**checked)


def describe_settings(cls: type[FitSettings]) -> list[dict[str, Any]]:
    """Return name, type, default, allowed values and help of every setting of a class."""
    hints = typing.get_type_hints(cls)
    return [
        {
            "name": info.name,
            "type": type_name(hints[info.name]),
            "default": to_plain(info.default),
            "allowed": allowed_values(info),
            "help": info.metadata["help"],
        }
        for info in dataclasses.fields(cls)
    ]


def to_plain(value: Any) -> Any:
    """Convert a value for YAML and JSON (tuples become lists)."""
    return list(value) if isinstance(value, tuple) else value


def settings_dict(settings: FitSettings) -> dict[str, Any]:
    """Return settings as a dictionary for YAML or JSON."""
    return {
        info.name: to_plain(getattr(settings, info.name)) for info in dataclasses.fields(settings)
    }


def settings_names(cls: type[FitSettings]) -> frozenset[str]:
    """Return the names of all settings of a class."""
    return frozenset(info.name for info in dataclasses.fields(cls))


def per_replica_names(cls: type[FitSettings]) -> frozenset[str]:
    """Return the names of the settings in which replicas of one batch may differ."""
    return frozenset(info.name for info in dataclasses.fields(cls) if info.metadata["per_replica"])


def parse_assignments(pairs: list[str]) -> dict[str, str]:
    """Parse settings of the form ``key=value``.

    >>> parse_assignments(["lr=0.1", "gate=false"])
    {'lr': '0.1', 'gate': 'false'}
    """
    values: dict[str, str] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name.strip():
            raise SettingError(
                f"A setting takes the form key=value (got '{pair}').",
                Remedy("Give a name and a value", setting="lr", value=0.01),
            )
        values[name.strip()] = value.strip()
    return values


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping; raise SettingError with the file and the line."""
    try:
        content = load_yaml(path)
    except UnicodeDecodeError:
        raise SettingError(
            f"The config file {path} is not UTF-8 text.", "Save it with the encoding UTF-8."
        ) from None
    except OSError as error:
        raise SettingError(
            f"Cannot read the config file {path} ({error.strerror or error}).", "Check the path."
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        raise SettingError(
            f"The config file {path} is not valid YAML{line}.", "Correct it."
        ) from None
    except (ValueError, OverflowError) as error:
        raise SettingError(
            f"The config file {path} cannot be used ({error}).", "Keep to 'name: value' lines."
        ) from None
    if not isinstance(content, dict):
        raise SettingError(
            f"The config file {path} must hold 'name: value' lines (got {type(content).__name__})."
        )
    return content
