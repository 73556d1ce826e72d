"""Pieces of HTML: bars in proportion, names as text."""

import re
from xml.etree import ElementTree

import pytest

from hpgmn.base.html import bars_svg, table_html

EVIL = "<script>alert(1)</script>\"'&"


def bars(svg):
    """(x, width) of each bar, and the texts."""
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    found = [(float(r.get("x")), float(r.get("width"))) for r in root.iter(f"{space}rect")]
    return found, [text.text for text in root.iter(f"{space}text")]


def test_bars_are_as_long_as_their_values():
    found, texts = bars(bars_svg({"a": 2.0, "b": 1.0, "c": 0.0}))
    widths = [width for _, width in found]
    assert widths[0] == pytest.approx(2 * widths[1])
    assert widths[2] == 0
    assert len({x for x, _ in found}) == 1
    assert texts == ["a", "2.00", "b", "1.00", "c", "0.00"]


def test_negative_bars_go_to_the_left_of_zero():
    [(first, width), (second, left)], _ = bars(bars_svg({"up": 1.0, "down": -3.0}))
    assert second + left == pytest.approx(first, abs=0.1)
    assert left == pytest.approx(3 * width, abs=0.3)


def test_missing_values_and_long_lists_are_left_out():
    assert bars_svg({"a": float("nan")}) == ""
    _, texts = bars(bars_svg({f"n{number}": 1.0 for number in range(100)} | {"a": float("nan")}))
    assert len(texts) == 2 * 12


def test_equal_zeros_are_drawn():
    found, _ = bars(bars_svg({"a": 0.0}))
    assert found[0][1] == 0


def test_names_are_text():
    svg = bars_svg({EVIL: 1.0}, title=EVIL)
    assert bars(svg)[1][0] == EVIL
    assert EVIL in ElementTree.fromstring(svg).get("aria-label")
    assert not re.search("<script", table_html(EVIL, [EVIL], [[EVIL]]))
