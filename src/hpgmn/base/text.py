"""Values and names as text."""

from __future__ import annotations

from typing import Any

_CONTROLS = dict.fromkeys(
    {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
    - {ord("\n"), ord("\t")},
    "\ufffd",
)
"""Control characters a terminal interprets, and those that change the direction of text."""


def without_controls(text: str) -> str:
    r"""Replace control characters, which names of nodes and files may contain.

    >>> without_controls("red: \x1b[31m")
    'red: \ufffd[31m'
    """
    return text.translate(_CONTROLS)


def setting_text(value: Any) -> str:
    """Format a value as ``--set`` takes it.

    >>> setting_text(["out", "in"]), setting_text(None), setting_text(0.1)
    ('out,in', 'none', '0.1')
    """
    if isinstance(value, list):
        return ",".join(value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)
