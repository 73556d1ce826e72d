from __future__ import annotations

import pytest

from hpgmn.report.page import page, panel, table, text, tiles

EVIL = "<script>alert('1')</script> & \"so\""


def test_text_cannot_become_markup() -> None:
    assert text(EVIL) == "&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt; &amp; &quot;so&quot;"


@pytest.mark.parametrize(
    "markup",
    [
        page(EVIL, "", "", [("a", EVIL, "")]),
        table(EVIL, [EVIL, EVIL], [[EVIL, EVIL]]),
        tiles([(EVIL, EVIL, EVIL)]),
        panel("<svg></svg>", wide=EVIL),
    ],
)
def test_every_piece_escapes_what_it_is_given(markup: str) -> None:
    assert "<script" not in markup
    assert '"so"' not in markup
    assert text(EVIL) in markup


def test_page_asks_for_nothing_from_outside() -> None:
    whole = page("t", "", "", [])
    assert "default-src 'none'" in whole
    for word in ("http:", "https:", "//", "@import", "url(", "<link", "<script", "src="):
        assert word not in whole


def test_only_the_script_of_a_page_may_run() -> None:
    # sha256 of "1", from another tool: printf 1 | openssl dgst -sha256 -binary | base64
    digest = "a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s="
    whole = page("t", "", "", [], script="1")
    assert f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'\"" in whole
    assert whole.count("<script>1</script>") == whole.count("<script") == 1


def test_page_knows_dark_mode_and_phones() -> None:
    whole = page("t", "", "", [])
    assert "@media (prefers-color-scheme: dark)" in whole
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in whole
    assert '<html lang="en">' in whole


def test_table_heads_rows_and_columns() -> None:
    markup = table("cap", ["a", "b", "c"], [["1", "2", "3"], ["4", "5", "6"]], foot=True)
    assert "<caption>cap</caption>" in markup
    assert markup.count('scope="col"') == 3
    assert markup.count('scope="row"') == 2
    assert '<tfoot><tr><th scope="row">4</th><td>5</td><td>6</td></tr></tfoot>' in markup


def test_cells_of_a_table_may_have_markup_of_their_own() -> None:
    shown = table("c", ["a", "b"], [[1, 2]], show=lambda number: f"<b>{number}</b>")
    assert '<th scope="row"><b>1</b></th><td><b>2</b></td>' in shown
