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


def commands_table() -> str:
    """Every command with its arguments and options."""
    from typer.main import get_command

    from hpgmn.cli import COMMANDS, make_app

    own = [name for name, module in COMMANDS.items() if module != "lab"]
    parsers: Any = get_command(make_app(own))
    return "\n\n".join(_command(name, parsers.commands[name]) for name in own)


def _command(name: str, command: Any) -> str:
    words, rows = [f"hpgmn {name}"], []
    for parameter in command.params:
        keyword = parameter.name.upper().rstrip("_")
        value = parameter.metavar or re.sub(r"^COLUMN_.*", "COLUMN", keyword)
        if parameter.param_type_name == "argument":
            shown = value if parameter.required else f"[{value}]"
            words.append(shown)
        else:
            shown = " / ".join([*parameter.opts, *parameter.secondary_opts])
            shown += "" if parameter.is_flag else f" {value}"
        default = parameter.default
        is_silent = default is None or default is False or default == () or callable(default)
        known = "" if is_silent else _plain(default)
        rows.append((f"`{shown}`", known, " ".join((parameter.help or "").split())))
    about = " ".join(command.help.split("\n\n")[0].split())
    table = _table(("", "default", ""), rows)
    return f"## {name}\n\n`{' '.join(words)}`: {about}" + (f"\n\n{table}" if rows else "")


TABLES = {"commands": commands_table, "settings": settings_table, "models": models_table}


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
