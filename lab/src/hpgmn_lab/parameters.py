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
from hpgmn.estimators.parameters import CommonParameters
from hpgmn.models import MODELS

PATH = Path(hpgmn.__file__).parent / "estimators" / "parameters.py"

MARK = '    """The settings of all models; None is the default of the chosen one."""\n\n'
"""Ends the part of the file that is written by hand."""


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
            if info.name in CommonParameters.__dataclass_fields__:
                raise TypeError(f"setting '{info.name}' has the name of another parameter")
    lines = (f"    {name}: {kind} | None = None\n" for name, kind in sorted(kinds.items()))
    return PATH.read_text(encoding="utf-8").partition(MARK)[0] + MARK + "".join(lines)


if __name__ == "__main__":
    write_text(PATH, parameters_text())
