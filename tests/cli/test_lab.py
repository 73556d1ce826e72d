"""The commands of the laboratory, which the product forwards."""

import sys

import pytest

from hpgmn.cli import main


@pytest.mark.parametrize("command", ["reproduce", "bench"])
def test_missing_laboratory_names_the_install_line(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "hpgmn_lab"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hpgmn_lab", None)
    assert main([command]) == 2
    assert "pip install ./lab" in capsys.readouterr().err


def test_bench_lists_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    assert "growth" in capsys.readouterr().out
