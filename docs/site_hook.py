"""Tables of the documentation that are generated from the code.

mkdocs calls the functions that start with ``on_`` (``hooks`` in mkdocs.yml).
"""

from __future__ import annotations

import re
from typing import Any

_TABLE_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in tables and keep "86.8 ± 5.3" in one line."""
    text = re.sub(r"<!-- table: (\w+) -->", lambda mark: TABLES[mark[1]](), markdown)
    return _TABLE_ROW.sub(lambda row: row[0].replace(" ± ", "\u00a0±\u00a0"), text)


def settings_table() -> str:
    """Every setting of HP-GMN with its default."""
    from hpgmn.base.settings import describe_settings
    from hpgmn.models import find_model

    rows = [
        (f"`{row['name']}`", _plain(row["default"]), row["allowed"], row["help"])
        for row in describe_settings(find_model("hpgmn").settings)
    ]
    return _table(("key", "default", "allowed", "meaning"), rows)


def models_table() -> str:
    """Every model with its citation."""
    from hpgmn.models import MODELS

    rows = [(f"`{one.name}`", one.summary, one.citation) for one in MODELS.values()]
    return _table(("name", "description", "source"), rows)


TABLES = {"settings": settings_table, "models": models_table}


def _plain(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    cells = [header, ("---",) * len(header), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells
    )
