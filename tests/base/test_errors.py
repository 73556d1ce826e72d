"""Errors: one family, and sentences that name the nearest choice."""

from __future__ import annotations

import pytest

from hpgmn.base import errors
from hpgmn.base.errors import (
    DataNotFoundError,
    GraphError,
    HPGMNError,
    SettingError,
    nearest,
    unknown_name,
)


@pytest.mark.parametrize("kind", [GraphError, SettingError, DataNotFoundError])
def test_one_except_clause_catches_every_error_and_the_message_stays(
    kind: type[HPGMNError],
) -> None:
    with pytest.raises(HPGMNError, match=r"^what was wrong$") as caught:
        raise kind("what was wrong")
    assert type(caught.value) is kind


def test_every_error_of_the_module_is_of_the_family() -> None:
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert len(classes) >= 4
    assert all(issubclass(one, HPGMNError) for one in classes)
    assert not any(issubclass(one, ValueError | KeyError) for one in classes)


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
def test_nearest_is_the_choice_most_alike(name: str, expected: str | None) -> None:
    assert nearest(name, ["texas", "chameleon", "chameleon-filtered"]) == expected


def test_nearest_of_nothing_is_nothing() -> None:
    assert nearest("texas", []) is None


def test_unknown_name_says_what_it_was_the_nearest_and_all_of_them() -> None:
    assert unknown_name("dataset", "texsa", ["texas", "squirrel"]) == (
        "Unknown dataset 'texsa'. Did you mean 'texas'? Choose from: texas, squirrel."
    )


def test_unknown_name_proposes_nothing_where_nothing_is_alike() -> None:
    assert unknown_name("metric", "f1", ["accuracy", "roc_auc"]) == (
        "Unknown metric 'f1'. Choose from: accuracy, roc_auc."
    )


def test_choices_may_be_read_only_once() -> None:
    assert unknown_name("model", "mpl", iter(["mlp", "gcn"])) == (
        "Unknown model 'mpl'. Did you mean 'mlp'? Choose from: mlp, gcn."
    )
