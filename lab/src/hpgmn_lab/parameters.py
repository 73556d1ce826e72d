"""Write ``hpgmn/estimators/parameters.py``: the settings of all models as typed keywords.

python -m hpgmn_lab.parameters
"""

from __future__ import annotations

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any

import hpgmn
from hpgmn.base.files import write_text
from hpgmn.models import MODELS

PATH = Path(hpgmn.__file__).parent / "estimators" / "parameters.py"

_HEAD = '''\
"""The keywords of the estimators; ``python -m hpgmn_lab.parameters`` writes this file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from hpgmn.training.replicas import Progress


@dataclass(kw_only=True, eq=False, repr=False)
class CommonParameters:
    """Parameters with any model; the docstrings of the estimators describe them."""

    graph: Any = None
    model: str | type[nn.Module] = "hpgmn"
    seed: int = 0
    device: str = "cpu"
    metric: str | None = None
    positive: str | int | None = None
    calibrate: bool = True
    validation_fraction: float = 0.2
    callbacks: Sequence[Callable[[Progress], object]] | None = None
    settings: Mapping[str, Any] | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class Parameters(CommonParameters):
    """The settings of all models; None is the default of the chosen one."""

'''


def _type_text(hint: Any) -> str:
    if typing.get_origin(hint) is types.UnionType:  # X | None
        hint = typing.get_args(hint)[0]
    return "Sequence[str]" if typing.get_origin(hint) is tuple else str(hint.__name__)


def parameters_text() -> str:
    """Return the content of the file."""
    kinds: dict[str, str] = {}
    for name in MODELS:
        hints = typing.get_type_hints(MODELS[name].settings)
        for info in dataclasses.fields(MODELS[name].settings):
            kind = _type_text(hints[info.name])
            if kinds.setdefault(info.name, kind) != kind:
                raise TypeError(f"setting '{info.name}' is {kinds[info.name]} and {kind}")
            if f"\n    {info.name}:" in _HEAD:
                raise TypeError(f"setting '{info.name}' has the name of another parameter")
    lines = (f"    {name}: {kind} | None = None\n" for name, kind in sorted(kinds.items()))
    return _HEAD + "".join(lines)


if __name__ == "__main__":
    write_text(PATH, parameters_text())
