"""Progress, log lines and signals: what the commands print with."""

import logging
import signal
import sys
import time

import pytest

from hpgmn.cli import console
from hpgmn.cli.console import set_up_logging, step_progress, stop_on_signal, training_progress
from hpgmn.training.replicas import Progress

STEP = Progress(batch=0, batches=2, stage="main", epoch=3, epochs=9, loss=0.5, val_score=0.75)
ROWS = Progress(0, 2, "diffusion", 1_024, 2_000, float("nan"), float("nan"))

logger = logging.getLogger("hpgmn.tests")


def test_warnings_are_one_line_each_whatever_their_length(capsys):
    set_up_logging()
    text = "word " * 60 + "[bold] 50 %"
    logger.warning(text)
    logger.info("told to nobody")
    assert capsys.readouterr().err == f"Warning: {text}\n"


def test_setting_up_twice_does_not_double_the_lines(capsys):
    set_up_logging()
    set_up_logging()
    logger.warning("once")
    assert capsys.readouterr().err == "Warning: once\n"


def test_without_a_terminal_progress_is_a_line_now_and_then(capsys, monkeypatch):
    with training_progress() as report:
        report("texas hpgmn", STEP)
    assert capsys.readouterr().err == ""  # too soon
    monkeypatch.setattr(console, "PLAIN_SECONDS", -1.0)
    with training_progress() as report:
        report("texas hpgmn", ROWS)
        report("texas hpgmn", STEP)
        report("texas hpgmn", STEP)
    line = "texas hpgmn: main (1 of 2): 3/9  loss 0.500  val 0.750\n"
    printed = capsys.readouterr()
    assert printed.err == "texas hpgmn: diffusion (1 of 2): 1,024/2,000\n" + line * 2
    assert printed.out == ""


def test_on_a_terminal_progress_is_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        console, "err", console.Console(stderr=True, force_terminal=True, width=120)
    )
    with training_progress() as report:
        report("texas hpgmn", ROWS)
        time.sleep(0.15)
        printed = capsys.readouterr()
        for part in ("texas hpgmn: diffusion (1 of 2)", "1,024/2,000"):
            assert part in printed.err
        assert "nan" not in printed.err
        report("texas hpgmn", STEP)
        time.sleep(0.15)
    printed = capsys.readouterr()
    assert printed.out == ""
    for part in ("texas hpgmn: main (1 of 2)", "3/9", "loss 0.500", "val 0.750"):
        assert part in printed.err


def test_without_a_terminal_steps_are_a_line_now_and_then(capsys, monkeypatch):
    with step_progress() as report:
        report("Reading", 1, 2)
        report("Writing", 0, None)
    assert capsys.readouterr().err == ""  # too soon
    monkeypatch.setattr(console, "SHORT_SECONDS", -1.0)
    with step_progress() as report:
        report("Reading", 1, 2)
        report("Counting", 1, None)
        report("Counting", 2, None)
        report("Writing", 0, None)
    assert capsys.readouterr().err == "Counting: 1\nWriting …\n"
    monkeypatch.setattr(console, "PLAIN_SECONDS", -1.0)
    with step_progress() as report:
        report("Reading", 1_000, 2_000)
        report("Reading", 2_000, 2_000)
    printed = capsys.readouterr()
    assert printed.err == "Reading: 1,000/2,000\nReading: 2,000/2,000\n"
    assert printed.out == ""


def test_on_a_terminal_steps_are_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        console, "err", console.Console(stderr=True, force_terminal=True, width=120)
    )
    with step_progress() as report:
        report("Reading the edges", 1_000, 2_000)
        time.sleep(0.15)
        report("Writing", 0, None)
        time.sleep(0.15)
    printed = capsys.readouterr()
    assert printed.out == ""
    for part in ("Reading the edges", "1,000/2,000", "Writing"):
        assert part in printed.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_to_stop_and_a_second_one_insists(number):
    before = signal.getsignal(number)
    with stop_on_signal() as asked:
        assert not asked()
        signal.raise_signal(number)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_the_handlers_come_back_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(RuntimeError, match="inside"), stop_on_signal():
        raise RuntimeError("inside")
    assert signal.getsignal(signal.SIGINT) is before
