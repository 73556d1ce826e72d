"""Text of values and names; the doctests hold the rest."""

from hpgmn.base.text import format_setting, without_controls


def test_tabs_and_line_breaks_stay():
    assert without_controls("a\tb\nc") == "a\tb\nc"


def test_direction_marks_are_replaced():
    assert without_controls("safe\u202egpj.exe") == "safe\ufffdgpj.exe"


def test_booleans_are_lower_case():
    assert format_setting(True) == "true"
