"""Pieces of HTML that objects show in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

_MOST_BARS = 12
_WIDEST = 220  # pixels
_COLOURS = ("#0072b2", "#d55e00")  # positive, negative; distinguishable with colour blindness


def table_html(caption: str, rows: Iterable[Sequence[object]], head: Sequence[object] = ()) -> str:
    """Render a table whose rows begin with their name.

    >>> table_html("<t>", [["a", 3]])
    '<table><caption>&lt;t&gt;</caption><tr><th scope="row">a</th><td>3</td></tr></table>'
    """
    columns = "".join(f'<th scope="col">{escape(str(cell))}</th>' for cell in head)
    lines = [f"<tr>{columns}</tr>"] if head else []
    for name, *cells in rows:
        values = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
        lines.append(f'<tr><th scope="row">{escape(str(name))}</th>{values}</tr>')
    return f"<table><caption>{escape(caption)}</caption>{''.join(lines)}</table>"


def bars_html(caption: str, values: Mapping[str, float], form: str = ".2f") -> str:
    """Render the first few values as bars beside their names.

    >>> bars_html("t", {})
    ''
    """
    shown = {name: value for name, value in list(values.items())[:_MOST_BARS] if value == value}
    if not shown:
        return ""
    largest = max(map(abs, shown.values())) or 1.0
    lines = [
        f'<tr><th scope="row">{escape(name)}</th>'
        f'<td><div style="width:{_WIDEST * abs(value) / largest:.0f}px;height:1em;'
        f'background:{_COLOURS[value < 0]}"></div></td><td>{value:{form}}</td></tr>'
        for name, value in shown.items()
    ]
    return f"<table><caption>{escape(caption)}</caption>{''.join(lines)}</table>"
