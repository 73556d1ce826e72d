"""Callbacks of a training, and what an interrupted one reports."""

import math

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.runs.monitor import InterruptedRunError, Monitor, interruptible, make_monitor
from hpgmn.training.replicas import Progress


def test_missing_callbacks_do_nothing():
    monitor = make_monitor(None, None, None)
    monitor.note("a remark")
    monitor.step("a step", 1, 2)
    assert not monitor.should_stop()


def test_remarks_are_passed_on_and_logged(caplog):
    remarks: list[str] = []
    caplog.set_level("INFO", "hpgmn")
    make_monitor(None, remarks.append, None).note("a remark")
    assert remarks == ["a remark"] == caplog.messages


def test_steps_are_progress_without_scores():
    seen: list[tuple[str, Progress]] = []
    monitor = make_monitor(lambda task, now: seen.append((task, now)), None, None)
    monitor.step("Report")
    monitor.step("Reading", 3, 10)
    assert [(task, now.stage, now.epoch, now.epochs) for task, now in seen] == [
        ("", "Report", 0, 0),
        ("", "Reading", 3, 10),
    ]
    assert all(math.isnan(now.val_score) for _, now in seen)


def test_a_step_stops_on_request():
    with pytest.raises(KeyboardInterrupt):
        make_monitor(None, None, lambda: True).step("Report")


def test_an_interrupt_names_the_folder_to_continue(tmp_path):
    with pytest.raises(KeyboardInterrupt) as early, interruptible(tmp_path, Monitor()):
        raise KeyboardInterrupt
    assert not isinstance(early.value, InterruptedRunError)  # nothing is there to continue
    (tmp_path / "config.yaml").write_text("")
    refused = pytest.raises(InterruptedRunError, match="resume=True")
    with refused as stopped, interruptible(tmp_path, Monitor()):
        raise KeyboardInterrupt
    assert stopped.value.folder == tmp_path


def test_a_failed_replacement_reports_the_backup(tmp_path):
    remarks: list[str] = []
    (tmp_path / ".replaced").mkdir()
    for name in (None, "metrics.json"):  # a finished run needs no backup
        if name is not None:
            (tmp_path / name).write_text("")
        with pytest.raises(HPGMNError), interruptible(tmp_path, Monitor(notify=remarks.append)):
            raise HPGMNError("It broke.")
    [remark] = remarks
    assert str(tmp_path / ".replaced") in remark
