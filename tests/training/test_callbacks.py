"""Callbacks see every epoch, and TensorBoard shows the means of the run's history."""

import json
import pickle
import sys
from collections import defaultdict

import numpy as np
import pytest

import hpgmn
from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.training.callbacks import TensorBoard
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
    """Member, stage and epoch → the mean values in ``history.jsonl``."""
    found = defaultdict(list)
    for line in (folder / "history.jsonl").read_text().splitlines():
        row = json.loads(line)
        key = (row.get("member", "model"), row["stage"], row["epoch"])
        found[key].append([row[name] for name in VALUES])
    return {key: np.mean(values, axis=0) for key, values in found.items()}


def recorded(folder):
    """The same from the event files."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = defaultdict(dict)
    for path in {file.parent for file in folder.rglob("events.out*")}:
        events = accumulator.EventAccumulator(str(path)).Reload()
        for tag in events.Tags()["scalars"]:
            stage, value = tag.split("/")
            for event in events.Scalars(tag):
                found[path.name, stage, event.step][value] = event.value
    return {
        key: [values[name] for name in VALUES if name in values] for key, values in found.items()
    }


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key] == pytest.approx(values, rel=1e-5)


def test_curves_are_those_of_the_history(small_graph, tmp_path):
    called: list[Progress] = []
    run = trained(small_graph, tmp_path, callbacks=[TensorBoard(tmp_path / "logs"), called.append])
    assert_equal(recorded(tmp_path / "logs"), history(run.folder))
    assert [(now.stage, now.epoch) for now in called] == [
        *(("estimator", epoch) for epoch in (1, 2, 3)),
        *(("main", epoch) for epoch in (1, 2, 3, 4, 5)),
    ]
    lines = (run.folder / "history.jsonl").read_text().splitlines()
    assert run.history == [json.loads(line) for line in lines]
    assert run.history == hpgmn.open_run(run.folder).history


def test_events_are_on_disk_after_each_epoch(small_graph, tmp_path):
    pytest.importorskip("tensorboard")
    sizes: list[int] = []

    def look(now):
        sizes.append(len(recorded(tmp_path / "logs")))

    trained(
        small_graph, tmp_path, splits=0, seeds=1, callbacks=[TensorBoard(tmp_path / "logs"), look]
    )
    assert sizes == list(range(1, 9))


def test_members_of_a_pool_have_folders_of_their_own(small_graph, tmp_path):
    run = hpgmn.train(
        small_graph,
        ensemble=True,
        members=["boosting", "hpgmn-out-light"],
        settings={"epochs": 4},
        splits=0,
        out=tmp_path / "run",
        report=False,
        callbacks=[TensorBoard(tmp_path / "logs")],
    )
    expected, found = history(run.folder), recorded(tmp_path / "logs")
    assert {key[0] for key in found} == {"boosting", "hpgmn-out-light"}
    # The history has the members with weight.
    assert_equal({key: values for key, values in found.items() if key in expected}, expected)


def test_a_second_training_is_recorded_apart(small_graph, tmp_path):
    trained(small_graph, tmp_path, refit=True, splits=0, callbacks=[TensorBoard(tmp_path / "logs")])
    found = recorded(tmp_path / "logs")
    assert {key[0] for key in found} == {"model", "hpgmn-refit"}
    epochs = {key[1:] for key in found if key[0] == "hpgmn-refit"}
    assert epochs
    assert epochs <= {key[1:] for key in found if key[0] == "model"}


def test_a_resumed_training_continues_the_curves(small_graph, tmp_path):
    logs, epochs = tmp_path / "logs", list[int]()
    first = [TensorBoard(logs), lambda now: epochs.append(now.epoch)]
    with pytest.raises(KeyboardInterrupt):
        trained(small_graph, tmp_path, callbacks=first, should_stop=lambda: len(epochs) == 5)
    assert len(recorded(logs)) == 5
    run = trained(small_graph, tmp_path, callbacks=[TensorBoard(logs)], resume=True)
    assert_equal(recorded(logs), history(run.folder))
    plain = trained(small_graph, tmp_path / "plain")
    assert plain.history == run.history  # callbacks and the interruption change nothing


def test_a_used_recorder_can_be_pickled(tmp_path):
    pytest.importorskip("tensorboard")
    recorder = TensorBoard(tmp_path)
    recorder(Progress(0, 1, "main", 1, 9, 0.5, 0.5))
    pickle.loads(pickle.dumps(recorder))(Progress(0, 1, "main", 2, 9, 0.25, 0.5))
    losses = {key[-1]: values for key, values in recorded(tmp_path).items()}
    assert losses == {1: [0.5], 2: [0.25]}


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
