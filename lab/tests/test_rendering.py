"""Text in three formats: marks are rendered, everything else is escaped."""

import pytest

from hpgmn_lab.rendering import frame, html, latex, markdown, markdown_table

EVIL = "<script>x</script> | [a](javascript:b) \\ {c} 1 < 2"


def test_markdown_keeps_bold_and_code_and_escapes_the_rest():
    assert markdown("**84.9 ± 5.0** / `--set a_b=1` of class_means") == (
        "**84.9 ± 5.0** / `--set a_b=1` of class_means"
    )
    text = markdown(f"{EVIL}\nnext _line_")
    assert "<script" not in text
    assert "\\[a\\](javascript" in text
    assert "1 < 2 next \\_line\\_" in text


def test_cells_of_a_table_stay_cells():
    table = markdown_table(frame(("a|b", "c"), [(EVIL, "**1**")]))
    header, rule, row = table.splitlines()
    assert header == "| a\\|b | c |"
    assert rule == "| --- | --- |"
    assert len(row.replace("\\|", "").split("|")) == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50 % & a_b #1 $x {y}", "50 \\% \\& a\\_b \\#1 \\$x \\{y\\}"),
        ("\\ ~ ^", "\\textbackslash{} \\textasciitilde{} \\textasciicircum{}"),
        ("**1 ± 2** ↓ +3 – τ", "\\textbf{1 $\\pm$ 2} $\\downarrow$ $+$3 -- $\\tau$"),
        ("`hpgmn a_b`", "\\texttt{hpgmn a\\_b}"),
    ],
)
def test_latex(text, expected):
    assert latex(text) == expected


def test_html_escapes_before_it_marks():
    text = html(f"**{EVIL}** `<b>`")
    assert "<script" not in text
    assert text.startswith("<strong>&lt;script&gt;")
    assert text.endswith("<code>&lt;b&gt;</code>")
