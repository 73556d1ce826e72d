"""What is said of files of another form; tests/reliability/test_old_files.py has every kind."""

from __future__ import annotations

import pytest

from hpgmn.errors import HPGMNError
from hpgmn.formats import refuse_newer


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
