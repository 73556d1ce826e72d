"""The registry of models and the settings shipped for them.

``models.yaml`` lists the models; each is imported on use. ``shipped/<model>.yaml`` has a section
``default`` for any graph and one for each dataset whose settings were searched, on validation
scores only. ``shipped/paper.yaml`` is a whole configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpgmn.base.errors import HPGMNError, Remedy, SettingError
from hpgmn.base.files import RUN_FORMAT, check_format
from hpgmn.base.parsing import load_yaml
from hpgmn.base.settings import read_yaml

if TYPE_CHECKING:
    from torch import nn

    from hpgmn.base.settings import FitSettings
    from hpgmn.models.stage import ModelEntry

_SHIPPED = Path(__file__).with_name("shipped")
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
    "threshold": (str, "a rule such as f1 or recall=0.8"),
    "tables": (dict, "a mapping"),
    "deterministic": (bool, "true or false"),
    "first_seed": (int, "a whole number"),
    "refit": (bool, "true or false"),
    "selection": (dict, "a mapping"),
    "conformal": (bool, "true or false"),
    "made_with": (dict, "a mapping"),
    "format": (int, "a whole number"),
    "version": (str, "a version"),
}


class Listing(NamedTuple):
    """An entry of ``models.yaml``: what is known of a model without importing it."""

    module: str
    summary: str
    citation: str


@cache
def listings() -> dict[str, Listing]:
    """Return every model's listing by name."""
    content = load_yaml(Path(__file__).with_name("models.yaml"))
    return {name: Listing(**listing) for name, listing in content.items()}


class _Models(Mapping[str, "ModelEntry"]):
    """Every model by name; a lookup imports the model's module."""

    def __getitem__(self, name: str) -> ModelEntry:
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(listings())

    def __len__(self) -> int:
        return len(listings())

    def __contains__(self, name: object) -> bool:
        return name in listings()


@cache
def _load(name: str) -> ModelEntry:
    listing = listings()[name]
    module, _, attribute = listing.module.partition(":")
    entry: ModelEntry = getattr(import_module(f"hpgmn.models.{module}"), attribute or "ENTRY")
    return replace(entry, summary=listing.summary, citation=listing.citation)


MODELS: Mapping[str, ModelEntry] = _Models()


def is_custom(name: str) -> bool:
    """Return whether a model's name is that of a user's class, ``package.module:Class``.

    >>> is_custom("my_model:TwoHop"), is_custom("gcn")
    (True, False)
    """
    return ":" in name


def find_model(name: str | type[nn.Module]) -> ModelEntry:
    """Return the model of that name, or the user's: a class, or ``package.module:Class``."""
    if isinstance(name, type):
        from hpgmn.models.custom import class_model

        return class_model(name)
    if is_custom(name):
        from hpgmn.models.custom import custom_model

        return custom_model(name)
    if name not in MODELS:
        error = HPGMNError.unknown("model", name, MODELS)
        assert error.remedy is not None
        raise HPGMNError(error.message, error.remedy | "Name your own as package.module:Class")
    return MODELS[name]


@cache
def _sections(model: str) -> dict[str, dict[str, Any]]:
    path = _SHIPPED / f"{model}.yaml"
    return read_yaml(path) if path.is_file() else {}


def settings_for(graph: str | None = None, model: str = "hpgmn") -> dict[str, Any]:
    """Return the shipped settings of a model for a dataset, or its defaults for any other graph.

    >>> settings_for("squirrel")["neighbors"]
    'out'
    """
    sections = _sections(model)
    section = sections.get(graph or "default", sections.get("default", {}))
    return dict(section or {})


def task_settings(
    kind: type[FitSettings], settings: Mapping[str, Any], *, is_regression: bool
) -> dict[str, Any]:
    """Return settings in which a regression reads the mean targets of neighbours by default."""
    info: Any = next((info for info in fields(kind) if info.name == "statistics"), None)
    if info is None or not is_regression or "statistics" in settings:
        return dict(settings)
    usual: tuple[str, ...] = info.default
    return {**settings, "statistics": (*usual, "target_means")}


def has_settings_for(graph: str, model: str = "hpgmn") -> bool:
    """Return whether settings were searched for this dataset."""
    return graph in _sections(model)


def read_config(source: str) -> dict[str, Any]:
    """Read a configuration: a shipped name, or a YAML file of settings or of a run folder."""
    if source in _CONFIGS:
        return read_yaml(_SHIPPED / f"{source}.yaml")
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
