"""What the user says about columns: types, keywords, and the same on the command line."""

from dataclasses import fields

import pytest

from hpgmn.base.errors import SettingError
from hpgmn.tables.options import ColumnOptions, Columns, check_column_options, column_option


def test_every_choice_of_columns_has_a_keyword():
    assert [info.name for info in fields(Columns)] == list(ColumnOptions.__annotations__)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop": "age"}, r"drop takes a list of names\. Pass \['age'\]"),
        ({"attributes": 3}, r"attributes takes a list of names \(got 3\)"),
        ({"categories": [1]}, r"categories takes a list of names \(got \[1\]\)"),
        ({"id": 7}, r"id takes a column name \(got 7\)"),
        ({"split_by": ["time"]}, "split_by takes two words"),
        ({"directed": "yes"}, "directed takes true or false"),
    ],
)
def test_options_of_other_types_are_refused(options, message):
    with pytest.raises(SettingError, match=message):
        Columns(**options)


def test_options_are_written_as_on_the_command_line():
    options = {"categories": ["a", "b c"], "split_by": ["time", "day"], "weight": ""}
    written = [column_option(*item) for item in options.items()]
    assert written == ["--category a --category 'b c'", "--split-by time day", "--weight ''"]


def test_unknown_options_are_refused():
    with pytest.raises(SettingError, match=r"'edge_dorp'.*edge_drop"):
        check_column_options({"edge_dorp": ["x"]})
