"""Pieces of HTML: bars in proportion, names as text."""

import re
from html import unescape

import pytest

from hpgmn.base.html import bars_html, table_html

EVIL = "<script>alert(1)</script>\"'&"


def bars(html):
    """The width and colour of each bar, and the texts beside it."""
    styles = re.findall(r'style="width:(\d+)px;height:1em;background:(.*?)"', html)
    texts = re.findall(r'<th scope="row">(.*?)</th>|<td>([^<]+)</td>', html)
    return [(int(width), colour) for width, colour in styles], ["".join(pair) for pair in texts]


def test_bars_are_as_long_as_their_values():
    found, texts = bars(bars_html("t", {"a": 2.0, "b": -1.0, "c": 0.0}))
    widths = [width for width, _ in found]
    assert widths == [2 * widths[1], widths[1], 0]
    assert found[0][1] == found[2][1] != found[1][1]  # negative ones have a colour of their own
    assert texts == ["a", "2.00", "b", "-1.00", "c", "0.00"]


def test_missing_values_and_long_lists_are_left_out():
    assert bars_html("t", {"a": float("nan")}) == ""
    found, _ = bars(bars_html("t", {f"n{number}": 1.0 for number in range(100)}))
    assert len(found) == 12
    assert bars(bars_html("t", {"a": 0.0}))[0][0][0] == 0


@pytest.mark.parametrize(
    "html", [table_html(EVIL, [[EVIL, EVIL]], [EVIL]), bars_html(EVIL, {EVIL: 1.0})]
)
def test_names_are_text(html):
    assert "<script" not in html
    assert EVIL in unescape(html)
