"""The generated keywords of the estimators."""

from hpgmn_lab.parameters import PATH, parameters_text


def test_the_checked_in_file_is_what_the_generator_writes():
    message = "run python -m hpgmn_lab.parameters"
    assert PATH.read_text(encoding="utf-8") == parameters_text(), message
