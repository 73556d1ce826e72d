"""Settings shipped with the package, and config files.

``<model>.yaml`` has a section ``default`` for any graph and one for each dataset whose settings
were searched, on validation scores only. ``paper.yaml`` is a whole configuration.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from hpgmn.base.errors import Remedy, SettingError
from hpgmn.base.files import RUN_FORMAT, check_format
from hpgmn.base.settings import read_yaml

_FOLDER = Path(__file__).parent
_CONFIGS = ("paper",)

# The entries of a config file: their type, and its description.
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


@cache
def _sections(model: str) -> dict[str, dict[str, Any]]:
    path = _FOLDER / f"{model}.yaml"
    return read_yaml(path) if path.is_file() else {}


def settings_for(graph: str | None = None, model: str = "hpgmn") -> dict[str, Any]:
    """Return the shipped settings of a model for a dataset, or its defaults for any other graph.

    >>> settings_for("squirrel")["neighbors"]
    'out'
    """
    sections = _sections(model)
    section = sections.get(graph or "default", sections.get("default", {}))
    return dict(section or {})


def has_settings_for(graph: str, model: str = "hpgmn") -> bool:
    """Return whether settings were searched for this dataset."""
    return graph in _sections(model)


def read_config(source: str) -> dict[str, Any]:
    """Read a configuration: a shipped name, or a YAML file of settings or of a run folder."""
    if source in _CONFIGS:
        return read_yaml(_FOLDER / f"{source}.yaml")
    path = Path(source).expanduser()
    if not path.exists():
        if path.suffix in (".yaml", ".yml"):
            raise SettingError(f"The config file {path} does not exist.", "Check the path")
        error = SettingError.unknown("config", source, _CONFIGS)
        assert error.remedy is not None
        raise SettingError(error.message, error.remedy | "Give the path of a YAML file")
    try:
        content = read_yaml(path)
    except SettingError as error:
        raise SettingError(str(error), "Write lines such as 'lr: 0.01'") from None
    check_format(f"The config file {path}", content.get("format"), RUN_FORMAT)
    return _validate(path, content if "settings" in content else {"settings": content})


def entry_mismatch(name: str, value: Any) -> str | None:
    """Describe what a config entry must be, or return None if its value is valid or unknown."""
    if value is None or name not in _ENTRIES:
        return None
    type_, description = _ENTRIES[name]
    is_valid = isinstance(value, type_) and isinstance(value, bool) == (type_ is bool)
    if name == "splits" and is_valid:
        is_valid = bool(value) and all(type(number) is int for number in value)
    return None if is_valid else description


def _validate(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Check that every entry is known and of the right type; drop empty ones."""
    for name, value in content.items():
        if name not in _ENTRIES:
            raise SettingError.unknown("entry", str(name), _ENTRIES).prefixed(
                f"The config file {path} is not valid: "
            )
        expected = entry_mismatch(name, value)
        if expected is not None:
            raise SettingError(
                f"In the config file {path}, '{name}' must be {expected} (got {value!r})."
            )
    settings = content["settings"] or {}
    for name in settings:
        if not isinstance(name, str):
            raise SettingError(
                f"In the config file {path}, {name!r} is not the name of a setting.",
                Remedy("List the settings", command="settings"),
            )
    present = {name: value for name, value in content.items() if value is not None}
    return present | {"settings": settings}
