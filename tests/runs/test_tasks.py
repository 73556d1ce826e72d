"""Runs as tasks: the files of their folders come back."""

import dataclasses
import json
import logging
import os

import pytest

from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.models import find_model
from hpgmn.runs import tasks as run_tasks
from hpgmn.runs.fit import Monitor, fit_run
from hpgmn.runs.folder import prepare_folder
from hpgmn.runs.spec import RunSpec
from hpgmn.runs.tasks import train_on_engine, write_files


def specification(model, **settings):
    chosen = make_settings(find_model(model).settings, {"epochs": 3, **settings})
    return RunSpec("small", model, settings_dict(chosen), (0, 1))


def prepared(folder, spec, **options):
    prepare_folder(folder, spec, resume=False, overwrite=False, **options)
    return folder


def test_folders_hold_what_a_run_here_writes(small_graph, tmp_path, here_engine, lasting, caplog):
    specs = [specification("mlp"), specification("gcn")]
    runs = {prepared(tmp_path / "there" / spec.model, spec): spec for spec in specs}
    progress: list[tuple[str, int, int]] = []
    monitor = Monitor(lambda _, now: progress.append((now.stage, now.epoch, now.epochs)))
    earlier = logging.LogRecord("hpgmn", logging.WARNING, "", 0, "a column is %s", ("x",), None)
    assert not train_on_engine(here_engine(), runs, small_graph, [earlier], monitor)
    assert ("small mlp", 1, 2) in progress
    assert ("small gcn", 2, 2) in progress
    assert any(stage.startswith("small gcn: main ") for stage, _, _ in progress)
    for spec in specs:
        there, here = tmp_path / "there" / spec.model, tmp_path / "here" / spec.model
        metrics = fit_run(
            spec, small_graph, prepared(here, spec), warnings=["a column is x"]
        ).metrics
        names = {path.name for path in here.iterdir()}
        assert {path.name for path in there.iterdir()} == names | {"log.txt"}
        for name in names - {"metrics.json", "predictions.parquet"}:
            assert (there / name).read_bytes() == (here / name).read_bytes(), name
        found = json.loads((there / "metrics.json").read_text(encoding="utf-8"))
        assert lasting(found) == lasting(json.loads(json.dumps(metrics)))
        log = (there / "log.txt").read_text(encoding="utf-8")
        assert "a column is x" in log.split("\n")[0]
        assert "no edges" in log
    assert any("no edges" in record.message for record in caplog.records)


def test_an_edge_direction_is_selected_there(small_graph, tmp_path, here_engine):
    spec = dataclasses.replace(specification("gcn"), selection={"neighbors": ["out", "in"]})
    folder = prepared(tmp_path / "run", spec)
    assert not train_on_engine(here_engine(), {folder: spec}, small_graph, [], Monitor())
    selected = json.loads((folder / "metrics.json").read_text())["selected"]
    assert selected["neighbors"].keys() == {"out", "in"}


def test_failures_keep_their_remedy_and_the_other_runs_continue(small_graph, tmp_path, here_engine):
    wrong = dataclasses.replace(specification("gcn"), seeds=0)
    right = specification("mlp")
    runs = {prepared(tmp_path / "a", wrong): wrong, prepared(tmp_path / "b", right): right}
    failures = train_on_engine(here_engine(), runs, small_graph, [], Monitor())
    assert list(failures) == [tmp_path / "a"]
    remedy = failures[tmp_path / "a"].remedy
    assert remedy is not None
    assert remedy.option == "seeds"
    assert (tmp_path / "b" / "metrics.json").exists()
    assert not (tmp_path / "a" / "metrics.json").exists()


def test_a_bug_is_not_hidden(small_graph, tmp_path, here_engine, monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("bug")

    monkeypatch.setattr(run_tasks, "fit_spec", broken)
    spec = specification("mlp")
    runs = {prepared(tmp_path / "a", spec): spec}
    with pytest.raises(RuntimeError, match="A worker failed:\nTraceback"):
        train_on_engine(here_engine(), runs, small_graph, [], Monitor())


def test_metrics_come_last(tmp_path, monkeypatch):
    written: list[str] = []
    genuine = os.replace

    def replace(source, target):
        written.append(target.name)
        genuine(source, target)

    monkeypatch.setattr(os, "replace", replace)
    write_files(tmp_path, {"metrics.json": b"m", "a": b"1", "z": b"2"})
    assert written == ["a", "z", "metrics.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "metrics.json", "z"]
