"""Errors: one family, remedies as data, and the nearest name."""

import pickle

import pytest

from hpgmn.base import errors
from hpgmn.base.errors import (
    DataNotFoundError,
    GraphError,
    HPGMNError,
    Remedy,
    SettingError,
    format_setting,
    nearest,
    without_controls,
)


@pytest.mark.parametrize("kind", [GraphError, SettingError, DataNotFoundError])
def test_one_except_clause_catches_every_error_and_the_message_stays(kind):
    with pytest.raises(HPGMNError, match=r"^what was wrong$") as caught:
        raise kind("what was wrong")
    assert type(caught.value) is kind
    assert caught.value.remedy is None


def test_every_error_of_the_module_is_of_the_family():
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type)
        and value.__module__ == errors.__name__
        and issubclass(value, BaseException)
    ]
    assert len(classes) >= 4
    assert all(issubclass(kind, HPGMNError) for kind in classes)
    assert not any(issubclass(kind, ValueError | KeyError) for kind in classes)


@pytest.mark.parametrize(
    ("remedy", "python", "cli"),
    [
        (Remedy("Do it."), "Do it.", "Do it."),
        (Remedy("Pick", option="out"), "Pick (out=...).", "Pick (--out)."),
        (Remedy("Pick", option="weight", value=""), 'Pick (weight="").', "Pick (--weight '')."),
        (Remedy("Cut", option="num_bins", value=3), "Cut (num_bins=3).", "Cut (--num-bins 3)."),
        (Remedy("Ask", option="resume", value=True), "Ask (resume=True).", "Ask (--resume)."),
        (
            Remedy("Skip it", option="report", value=False),
            "Skip it (report=False).",
            "Skip it (--no-report).",
        ),
        (
            Remedy("Mirror", option="directed", value=False, flag="undirected"),
            "Mirror (directed=False).",
            "Mirror (--undirected).",
        ),
        (
            Remedy("Omit", option="drop", value=["a b", "c"]),
            'Omit (drop=["a b", "c"]).',
            "Omit (--drop 'a b' --drop c).",
        ),
        (
            Remedy("Split", option="split_by", value=("time", "day")),
            'Split (split_by=("time", "day")).',
            "Split (--split-by time day).",
        ),
        (
            Remedy("Use", setting="statistics", value=("class_counts", "attributes")),
            'Use (statistics=("class_counts", "attributes")).',
            "Use (--set statistics=class_counts,attributes).",
        ),
        (
            Remedy("Use", setting="symmetric", value=True),
            "Use (symmetric=True).",
            "Use (--set symmetric=true).",
        ),
        (
            Remedy("List them", command="settings"),
            "List them (`hpgmn settings`).",
            "List them (`hpgmn settings`).",
        ),
    ],
)
def test_a_remedy_is_a_keyword_in_python_and_an_option_on_the_command_line(remedy, python, cli):
    assert str(remedy) == python
    assert remedy.render(cli=True) == cli


def test_alternatives_are_joined_and_start_in_lower_case():
    remedy = Remedy("Resume it", option="resume", value=True) | Remedy("Replace it") | "GPU it"
    assert remedy.render(cli=True) == "Resume it (--resume), replace it, or GPU it."
    assert len(remedy.alternatives) == 2


def test_an_error_keeps_type_message_and_remedy_across_processes():
    error = GraphError("too few rows.", Remedy("Add a row", option="rows", value=1))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is GraphError
    assert (copy.message, copy.remedy) == (error.message, error.remedy)
    assert str(copy) == "too few rows. Add a row (rows=1)."


def test_a_prefix_keeps_type_and_remedy():
    error = SettingError("lr is negative.", "Use a positive number.").prefixed("mlp: ")
    assert isinstance(error, SettingError)
    assert str(error) == "mlp: lr is negative. Use a positive number."


def test_a_long_message_keeps_the_remedy():
    assert str(HPGMNError("x" * 5000, "Shorten it")).endswith("x Shorten it.")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chamelon", "chameleon"),
        ("CHAMELEON", "chameleon"),
        ("texsa", "texas"),
        ("chameleon_filtered", "chameleon-filtered"),
        ("zzz", None),
        ("", None),
    ],
)
def test_nearest_is_the_most_similar_choice(name, expected):
    assert nearest(name, ["texas", "chameleon", "chameleon-filtered"]) == expected


def test_nearest_of_nothing_is_nothing():
    assert nearest("texas", []) is None


def test_an_unknown_name_lists_the_choices_and_proposes_the_nearest():
    error = SettingError.unknown("dataset", "texsa", iter(["texas", "squirrel"]))
    assert isinstance(error, SettingError)
    assert error.remedy is not None
    assert error.remedy.value == "texas"
    assert str(error) == (
        "Unknown dataset 'texsa'. Did you mean 'texas'? Choose from: texas, squirrel."
    )


def test_an_unknown_name_proposes_nothing_where_nothing_is_similar():
    error = HPGMNError.unknown("metric", "f1", ["accuracy", "roc_auc"])
    assert error.remedy is not None
    assert error.remedy.value is None
    assert str(error) == "Unknown metric 'f1'. Choose from: accuracy, roc_auc."


def test_tabs_and_line_breaks_stay():
    assert without_controls("a\tb\nc") == "a\tb\nc"


def test_direction_marks_are_replaced():
    assert without_controls("safe\u202egpj.exe") == "safe\ufffdgpj.exe"


def test_booleans_are_lower_case():
    assert format_setting(True) == "true"
