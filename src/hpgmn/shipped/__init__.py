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

from hpgmn.config import read_yaml
from hpgmn.errors import SettingError, unknown_name

_CONFIGS = ("paper",)


def _file(name: str) -> Path:
    path = Path(str(resources.files("hpgmn.shipped"))) / f"{name}.yaml"
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
    if not path.exists() and path.suffix not in (".yaml", ".yml"):
        message = unknown_name("config", source, _CONFIGS)
        raise SettingError(f"{message} Or give the path of a YAML file.")
    content = read_yaml(path)
    return content if "settings" in content else {"settings": content}
