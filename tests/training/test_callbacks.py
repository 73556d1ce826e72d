"""Recorded curves equal the history of the run, while it runs and after it was resumed."""

import csv
import json
import sys
from collections import defaultdict

import pytest

import hpgmn
from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.training.callbacks import CSVHistory, TensorBoard
from hpgmn.training.replicas import Progress

SHORT = {
    "epochs": 5,
    "estimator_epochs": 3,
    "hidden_dim": 4,
    "num_patterns": 3,
    "statistics": ("attributes", "class_counts"),
}
VALUES = ("loss", "val_loss", "val_score")


def trained(graph, folder, **options):
    chosen = {"model": "hpgmn", "settings": SHORT, "splits": (1, 0), "seeds": 2}
    return hpgmn.train(graph, out=folder / "run", report=False, **(chosen | options))


def history(folder):
    """Stage, member, split, seed and epoch → the values in ``history.jsonl``."""
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return {
        (r.get("member", ""), r["split"], r["seed"], r["stage"], r["epoch"]): [
            r[name] for name in VALUES
        ]
        for r in lines
    }


def recorded(folder):
    """The same from the event files."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = defaultdict(dict)
    for path in {file.parent for file in folder.rglob("events.out*")}:
        events = accumulator.EventAccumulator(str(path)).Reload()
        split, seed = (int(part[len(word) :]) for part, word in named(path.name))
        member = "" if path.parent == folder else path.parent.name
        for tag in events.Tags()["scalars"]:
            stage, value = tag.split("/")
            for event in events.Scalars(tag):
                found[member, split, seed, stage, event.step][value] = event.value
    return {key: [values[name] for name in VALUES] for key, values in found.items()}


def named(run):
    return zip(run.split("-"), ("split", "seed"), strict=True)


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    keys = [
        (r["member"], int(r["split"]), int(r["seed"]), r["stage"], int(r["epoch"])) for r in rows
    ]
    assert len(set(keys)) == len(keys)
    return {
        key: [float(row[name] or "nan") for name in VALUES]
        for key, row in zip(keys, rows, strict=True)
    }


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key] == pytest.approx(values, rel=1e-6)


def test_curves_are_those_of_the_history(small_graph, tmp_path):
    called: list[Progress] = []
    recorders = [TensorBoard(tmp_path / "logs"), CSVHistory(tmp_path / "new" / "curves.csv")]
    run = trained(small_graph, tmp_path, callbacks=[*recorders, called.append])
    expected = history(run.folder)
    assert len(expected) == 4 * (5 + 3)
    assert_equal(recorded(tmp_path / "logs"), expected)
    assert_equal(rows_of(tmp_path / "new" / "curves.csv"), expected)
    assert [(now.stage, now.epoch) for now in called] == [
        *(("estimator", epoch) for epoch in (1, 2, 3)),
        *(("main", epoch) for epoch in (1, 2, 3, 4, 5)),
    ]
    lines = (run.folder / "history.jsonl").read_text().splitlines()
    assert run.history == [json.loads(line) for line in lines]
    assert run.history == hpgmn.open_run(run.folder).history


def test_events_are_on_disk_after_each_epoch(small_graph, tmp_path):
    pytest.importorskip("tensorboard")
    sizes: list[tuple[int, int]] = []

    def look(now):
        points = recorded(tmp_path / "logs")
        sizes.append((now.epoch, len(points)))

    trained(
        small_graph, tmp_path, splits=0, seeds=1, callbacks=[TensorBoard(tmp_path / "logs"), look]
    )
    assert [count for _, count in sizes] == list(range(1, 9))


def test_members_of_a_pool_have_folders_of_their_own(small_graph, tmp_path):
    run = hpgmn.train(
        small_graph,
        ensemble=True,
        members=["boosting", "hpgmn-out-light"],
        settings={"epochs": 4},
        splits=0,
        out=tmp_path / "run",
        report=False,
        callbacks=[TensorBoard(tmp_path / "logs"), CSVHistory(tmp_path / "curves.csv")],
    )
    expected = history(run.folder)  # of the members with weight
    for found in (recorded(tmp_path / "logs"), rows_of(tmp_path / "curves.csv")):
        assert {key[0] for key in found} == {"boosting", "hpgmn-out-light"}
        kept = {key: values for key, values in found.items() if key in expected}
        assert_equal(kept, expected)


def test_a_second_training_is_recorded_apart(small_graph, tmp_path):
    path = tmp_path / "curves.csv"
    run = trained(small_graph, tmp_path, refit=True, splits=0, callbacks=[CSVHistory(path)])
    found = rows_of(path)
    refitted = {key[1:]: values for key, values in sorted(history(run.folder).items())}
    assert {key[0] for key in found} == {"", "hpgmn-refit"}
    again = {key[1:]: values for key, values in sorted(found.items()) if key[0]}
    assert again.keys() == refitted.keys()
    losses = [values[0] for values in refitted.values()]
    assert [values[0] for values in again.values()] == pytest.approx(losses)


def test_a_resumed_training_continues_the_curves(small_graph, tmp_path):
    path, logs = tmp_path / "curves.csv", tmp_path / "logs"
    epochs: list[int] = []

    def stops():
        return len(epochs) == 5

    first = [TensorBoard(logs), CSVHistory(path), lambda now: epochs.append(now.epoch)]
    with pytest.raises(KeyboardInterrupt):
        trained(small_graph, tmp_path, callbacks=first, should_stop=stops)
    assert len(rows_of(path)) == 4 * 5
    later = [TensorBoard(logs), CSVHistory(path, append=True)]
    run = trained(small_graph, tmp_path, callbacks=later, resume=True)
    assert_equal(rows_of(path), history(run.folder))
    assert_equal(recorded(logs), history(run.folder))
    CSVHistory(path)(Progress(0, 1, "main", 1, 1, 0.5, 0.5))
    assert rows_of(path) == {}  # a new training replaces the file


def test_callbacks_need_this_machine(small_graph, tmp_path):
    class Cluster:
        pass

    with pytest.raises(SettingError, match="engine"):
        trained(small_graph, tmp_path, callbacks=[print], engine=Cluster())


def test_an_error_of_a_callback_ends_the_training(small_graph, tmp_path):
    def fail(now):
        raise RuntimeError("full")

    with pytest.raises(RuntimeError, match="full"):
        trained(small_graph, tmp_path, callbacks=[fail])


def test_a_missing_package_gives_the_install_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(HPGMNError) as caught:
        TensorBoard(tmp_path)
    assert "pip install 'hpgmn[tensorboard]'" in str(caught.value)
