"""What is said of files of another form; tests/reliability/test_old_files.py has every kind."""

from __future__ import annotations

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import sealed
from hpgmn.base.formats import refuse_newer, unsealed_of_run


@pytest.mark.parametrize("found", [None, 1, 2])
def test_forms_up_to_the_known_one_are_read(found: int | None) -> None:
    refuse_newer("a.yaml", found, 2)


def test_a_newer_form_asks_for_an_update() -> None:
    told = (
        r"^a\.yaml was written by a newer hpgmn \(format 3, this one reads up to 2\)\. "
        "Update hpgmn: pip install -U hpgmn$"
    )
    with pytest.raises(HPGMNError, match=told):
        refuse_newer("a.yaml", 3, 2)


@pytest.mark.parametrize("found", ["2", 2.5, True, [2]])
def test_what_is_no_version_is_damage(found: object) -> None:
    with pytest.raises(HPGMNError, match="damaged or not one of ours"):
        refuse_newer("a.yaml", found, 2)


@pytest.mark.parametrize("form", [{}, {"format": 1}, {"format": None}])
def test_files_of_the_first_form_may_have_no_checksum(form: dict[str, object]) -> None:
    assert unsealed_of_run({**form, "a": 1}) == {**form, "a": 1}
    assert unsealed_of_run(sealed({**form, "a": 1})) == {**form, "a": 1}


def test_a_later_form_has_a_checksum() -> None:
    assert unsealed_of_run(sealed({"format": 2, "a": 1})) == {"format": 2, "a": 1}
    with pytest.raises(ValueError, match="its checksum is missing"):
        unsealed_of_run({"format": 2, "a": 1})
    with pytest.raises(ValueError, match="its checksum differs"):
        unsealed_of_run({**sealed({"format": 2, "a": 1}), "a": 2})
    with pytest.raises(ValueError, match="no description"):
        unsealed_of_run([2])
