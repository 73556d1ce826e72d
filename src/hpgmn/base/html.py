"""Small pieces of HTML that objects show in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

_MOST_BARS = 12
_LABEL, _BAR, _VALUE, _HEIGHT = 300, 220, 70, 20  # pixels
_COLOURS = ("#0072b2", "#d55e00")  # positive, negative; distinguishable with colour blindness


def bars_svg(values: Mapping[str, float], form: str = ".2f", title: str = "") -> str:
    """Draw the first few values as horizontal bars, with their names and a text alternative.

    >>> bars_svg({})
    ''
    """
    shown = {name: value for name, value in list(values.items())[:_MOST_BARS] if value == value}
    if not shown:
        return ""
    low, high = min(0.0, *shown.values()), max(0.0, *shown.values())
    scale = _BAR / ((high - low) or 1.0)
    zero = _LABEL - low * scale
    parts = []
    for row, (name, value) in enumerate(shown.items()):
        top, label = row * _HEIGHT, name if len(name) <= 46 else f"{name[:45]}…"
        left, width = zero + min(value, 0.0) * scale, abs(value) * scale
        parts.append(
            f'<text x="{_LABEL - 8}" y="{top + 14}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="{left:.1f}" y="{top + 3}" width="{width:.1f}" height="{_HEIGHT - 6}" '
            f'fill="{_COLOURS[value < 0]}"/>'
            f'<text x="{_LABEL + _BAR + 8}" y="{top + 14}">{value:{form}}</text>'
        )
    alt = "; ".join(f"{name} {value:{form}}" for name, value in shown.items())
    size = (_LABEL + _BAR + _VALUE, len(shown) * _HEIGHT)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
        f'viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{escape(f"{title}: {alt}")}" '
        f'font-family="sans-serif" font-size="12" fill="currentColor">{"".join(parts)}</svg>'
    )


def table_html(caption: str, head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Render a table.

    >>> table_html("<t>", ["a"], [["b"]])
    '<table><caption>&lt;t&gt;</caption><tr><th>a</th></tr><tr><td>b</td></tr></table>'
    """

    def line(cells: Sequence[object], tag: str) -> str:
        return "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells)

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><tr>{line(head, 'th')}</tr>{body}</table>"
