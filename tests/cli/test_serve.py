"""``hpgmn serve``: options and their refusals; the service itself is in ``tests/service``."""

import importlib.util
import socket
from contextlib import closing

import pytest

import hpgmn
from hpgmn.cli import main
from hpgmn.service.journal import JOURNAL_FILE, Journal


@pytest.fixture
def served(monkeypatch):
    """The options with which the service would start."""
    found = []
    monkeypatch.setattr("hpgmn.service.server.serve", lambda options, say: found.append(options))
    monkeypatch.delenv("HPGMN_TOKEN", raising=False)
    return found


def test_options_reach_the_service(served, monkeypatch):
    assert main(["serve", "run"]) == 0
    monkeypatch.setenv("HPGMN_TOKEN", "from-environment")
    options = ["--port", "9", "--read-only", "--workers", "3", "--timeout", "2"]
    assert main(["serve", "run", *options, "--max-body", "5"]) == 0
    first, second = served
    assert (first.host, first.token) == ("127.0.0.1", None)
    assert (second.port, second.read_only, second.workers) == (9, True, 3)
    assert (second.max_body, second.timeout) == (5, 2)
    assert second.token == "from-environment"
    assert "from-environment" not in repr(second)


def test_an_empty_variable_is_no_token(served, monkeypatch, capsys):
    monkeypatch.setenv("HPGMN_TOKEN", "")
    assert main(["serve", "run"]) == 2
    assert "HPGMN_TOKEN" in capsys.readouterr().err


def test_an_open_service_without_a_token_is_warned_of(served, capsys):
    assert main(["serve", "run", "--host", "0.0.0.0"]) == 0
    assert "0.0.0.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (["--workers", "2"], "--read-only"),
        (["--workers", "0"], "--workers"),
        (["--timeout", "0"], "--timeout"),
        (["--max-body", "0"], "--max-body"),
        (["--port", "70000"], "--port"),
        (["--host", "999.0.0.1", "--port", "0"], "--host"),
    ],
)
def test_impossible_options_are_refused(own_run, capsys, options, remedy, monkeypatch):
    monkeypatch.delenv("HPGMN_TOKEN", raising=False)
    assert main(["serve", str(own_run), *options]) == 2
    assert remedy in capsys.readouterr().err


def test_a_port_in_use_and_a_journal_in_use_are_refused_in_one_line(own_run, capsys, monkeypatch):
    monkeypatch.delenv("HPGMN_TOKEN", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert main(["serve", str(own_run), "--port", port]) == 2
    line = capsys.readouterr().err
    assert port in line
    assert "--port" in line
    with closing(Journal(hpgmn.open_run(own_run))):
        assert main(["serve", str(own_run), "--port", "0"]) == 2
    line = capsys.readouterr().err
    assert JOURNAL_FILE in line.replace("\n", "")
    assert "--read-only" in line


def test_a_missing_extra_gives_the_line_to_install(own_run, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "uvicorn" else find(name, *a)
    )
    assert main(["serve", str(own_run)]) == 2
    assert "pip install 'hpgmn[serve]'" in capsys.readouterr().err
