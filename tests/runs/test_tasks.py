"""Runs as tasks: the files of their folders come back."""

import dataclasses
import json
import logging
import os

import pytest

from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.models import find_model
from hpgmn.runs import tasks as run_tasks
from hpgmn.runs.fit import fit_run
from hpgmn.runs.folder import PORTFOLIO_FILE, prepare_folder
from hpgmn.runs.spec import RunSpec
from hpgmn.runs.tasks import run_on, write_files


def specification(model, **settings):
    chosen = make_settings(find_model(model).settings, {"epochs": 3, **settings})
    return RunSpec("small", model, settings_dict(chosen), (0, 1))


def prepared(folder, spec, **options):
    prepare_folder(folder, spec, resume=False, overwrite=False, **options)
    return folder


def test_folders_hold_what_a_run_here_writes(small_graph, tmp_path, here_engine, lasting, caplog):
    specs = [specification("mlp"), specification("gcn")]
    runs = {prepared(tmp_path / "there" / spec.model, spec): spec for spec in specs}
    told, progress = [], []
    earlier = logging.LogRecord("hpgmn", logging.WARNING, "", 0, "a column is %s", ("x",), None)
    run_on(
        here_engine(),
        runs,
        small_graph,
        ended=lambda folder, reason: told.append((folder, reason)),
        report=lambda folder, now: progress.append((folder.name, now.stage)),
        earlier=[earlier],
    )
    assert told == [(folder, "") for folder in runs]
    assert {("mlp", "main"), ("gcn", "main")} <= set(progress)
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


def test_a_choice_goes_along(small_graph, tmp_path, here_engine):
    spec = specification("mlp")
    folder = prepared(tmp_path / "run", spec, choice={"chosen": "best"})
    run_on(here_engine(), {folder: spec}, small_graph)
    assert json.loads((folder / "metrics.json").read_text())["portfolio"] == {"chosen": "best"}
    assert json.loads((folder / PORTFOLIO_FILE).read_text()) == {"chosen": "best"}


def test_failures_are_told_and_the_others_go_on(small_graph, tmp_path, here_engine):
    wrong = dataclasses.replace(specification("gcn"), seeds=0)
    right = specification("mlp")
    runs = {prepared(tmp_path / "a", wrong): wrong, prepared(tmp_path / "b", right): right}
    told = {}
    run_on(here_engine(), runs, small_graph, ended=lambda folder, why: told.update({folder: why}))
    assert told == {
        tmp_path / "a": "At least 1 seed is required (got 0). Choose 1 or more (seeds=...).",
        tmp_path / "b": "",
    }
    assert not (tmp_path / "a" / "metrics.json").exists()


def test_a_bug_is_not_hidden(small_graph, tmp_path, here_engine, monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("bug")

    monkeypatch.setattr(run_tasks, "fit_run", broken)
    spec = specification("mlp")
    with pytest.raises(RuntimeError, match="A worker failed:\nTraceback"):
        run_on(here_engine(), {prepared(tmp_path / "a", spec): spec}, small_graph)


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
