"""Options of several values."""

import pytest

from hpgmn.base.errors import SettingError
from hpgmn_lab.bench.options import changes, integers, numbers, split_numbers


def test_lists_of_numbers():
    assert integers("--nodes", "10,20") == [10, 20]
    assert numbers("--dropouts", "0.6,0") == [0.6, 0.0]
    assert split_numbers("all") is None
    assert split_numbers("0,3") == [0, 3]
    assert changes(["lr=0.1"])["lr"] in (0.1, "0.1")
    assert changes(None) == {}


@pytest.mark.parametrize(("parse", "text"), [(integers, "1.5"), (numbers, "x"), (numbers, "")])
def test_other_text_is_refused(parse, text):
    with pytest.raises(SettingError, match="--option takes"):
        parse("--option", text)
