"""The laboratory's commands: forwarded where it is installed, an install line where it is not."""

import sys

import pytest


def test_bench_is_forwarded(hpgmn):
    answer = hpgmn("bench")
    assert answer.code == 0
    assert "growth" in answer.out


def test_options_are_left_to_the_laboratory(hpgmn):
    answer = hpgmn("bench", "growth", "--help")
    assert answer.code == 0
    assert "--nodes" in answer.out
    answer = hpgmn("reproduce", "--help")
    assert answer.code == 0
    assert "--quick" in answer.out


def test_a_usage_error_exits_with_code_2(hpgmn):
    answer = hpgmn("bench", "growth", "--nods", "3")
    assert answer.code == 2
    assert "--nods" in answer.err


@pytest.mark.parametrize("command", ["bench", "reproduce"])
def test_without_the_laboratory_the_install_line_is_printed(hpgmn, monkeypatch, command):
    class Hidden:
        @staticmethod
        def find_spec(name, *_):
            if name == "hpgmn_lab":
                raise ModuleNotFoundError(name=name)

    for name in [name for name in sys.modules if name.partition(".")[0] == "hpgmn_lab"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Hidden, *sys.meta_path])
    answer = hpgmn(command)
    assert answer.code == 2
    assert "pip install ./lab" in answer.err
    assert len(answer.err.splitlines()) == 1
