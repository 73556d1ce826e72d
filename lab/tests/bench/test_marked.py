"""What stands between two markers is replaced, and nothing else."""

from __future__ import annotations

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn_lab.bench.marked import with_parts

PAGE = """by hand
<!-- one: begin -->
of before
<!-- one: end -->
\\1 by hand
<!-- two: begin --><!-- two: end -->
"""


def test_parts_are_replaced_as_they_are() -> None:
    text = with_parts(PAGE, "PAGE.md", {"one": "a \\1 | b", "two": "c"})
    assert text == (
        "by hand\n<!-- one: begin -->\n\na \\1 | b\n\n<!-- one: end -->\n\\1 by hand\n"
        "<!-- two: begin -->\n\nc\n\n<!-- two: end -->\n"
    )
    assert with_parts(text, "PAGE.md", {"one": "a \\1 | b"}) == text


def test_a_page_without_the_markers_is_refused() -> None:
    with pytest.raises(HPGMNError, match=r"PAGE\.md lacks the lines '<!-- three: begin -->' and"):
        with_parts(PAGE, "PAGE.md", {"three": ""})
