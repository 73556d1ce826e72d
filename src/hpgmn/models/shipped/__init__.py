"""Settings that come with the package: one file per model, one section per graph.

``<model>.yaml`` holds a section ``default`` for a graph nobody has seen and one section for each
dataset whose settings were searched (on validation only). ``paper.yaml`` and its like are whole
configurations for ``--config``.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from hpgmn.base.errors import SettingError, unknown_name
from hpgmn.base.files import RUN_FORMAT, check_format
from hpgmn.base.settings import read_yaml

_CONFIGS = ("paper",)

# What a config file may hold: the kind of value, and the kind in words.
_ENTRIES: dict[str, tuple[type, str]] = {
    "model": (str, "a model's name"),
    "settings": (dict, "a mapping of settings to values"),
    "graph": (str, "a graph's name"),
    "protocol": (str, "a protocol's name"),
    "metric": (str, "a metric's name"),
    "positive": (str, "a class's name"),
    "splits": (list, "a list of split numbers"),
    "seeds": (int, "a whole number"),
    "device": (str, "a device's name"),
    "calibrate": (bool, "true or false"),
    "tables": (dict, "a mapping"),
    "deterministic": (bool, "true or false"),
    "made_with": (dict, "a mapping"),
    "format": (int, "a whole number"),
    "version": (str, "a version"),
}


def _file(name: str) -> Path:
    path = Path(str(resources.files("hpgmn.models.shipped"))) / f"{name}.yaml"
    return path


@cache
def _sections(model: str) -> dict[str, dict[str, Any]]:
    path = _file(model)
    return read_yaml(path) if path.is_file() else {}


def settings_for(graph: str | None = None, model: str = "hpgmn") -> dict[str, Any]:
    """The shipped settings of a model for a dataset, or its default for any other graph.

    Args:
        graph: a dataset's name; None or an unknown one gives the default.
        model: the model's name.

    >>> settings_for("squirrel")["neighbors"]
    'out'
    """
    sections = _sections(model)
    chosen = sections.get(graph or "default", sections.get("default", {}))
    return dict(chosen or {})


def has_settings_for(graph: str, model: str = "hpgmn") -> bool:
    """Whether settings were searched for this dataset."""
    return graph in _sections(model)


def read_config(source: str) -> dict[str, Any]:
    """A configuration by shipped name, or from a YAML file: model and settings.

    A file may be the ``config.yaml`` of a run folder, or hold settings alone.
    """
    if source in _CONFIGS:
        return read_yaml(_file(source))
    path = Path(source).expanduser()
    if not path.exists():
        if path.suffix in (".yaml", ".yml"):
            raise SettingError(f"The config file {path} does not exist. Check the path.")
        message = unknown_name("config", source, _CONFIGS)
        raise SettingError(f"{message} Or give the path of a YAML file.")
    try:
        content = read_yaml(path)
    except SettingError as error:
        raise SettingError(f"{error} Write lines such as 'lr: 0.01'.") from None
    check_format(f"The config file {path}", content.get("format"), RUN_FORMAT)
    return _checked(path, content if "settings" in content else {"settings": content})


def wanted_instead(name: str, value: Any) -> str | None:
    """What an entry of a config must be, where it is not; None where it is right, or unknown."""
    if value is None or name not in _ENTRIES:
        return None
    kind, meaning = _ENTRIES[name]
    is_right = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
    if name == "splits" and is_right:
        is_right = bool(value) and all(type(number) is int for number in value)
    return None if is_right else meaning


def _checked(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """A configuration whose every entry is known and of the right kind; empty ones left out."""
    for name, value in content.items():
        if name not in _ENTRIES:
            message = unknown_name("entry", str(name), _ENTRIES)
            raise SettingError(f"The config file {path} cannot be used: {message}")
        wanted = wanted_instead(name, value)
        if wanted is not None:
            raise SettingError(
                f"In the config file {path}, '{name}' must be {wanted} (got {value!r})."
            )
    settings = content["settings"] or {}
    for name in settings:
        if not isinstance(name, str):
            raise SettingError(
                f"In the config file {path}, {name!r} is no setting. See `hpgmn settings`."
            )
    present = {name: value for name, value in content.items() if value is not None}
    return present | {"settings": settings}
