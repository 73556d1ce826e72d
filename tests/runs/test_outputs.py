"""The files of a training: metrics, predictions, history."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import RUN_FORMAT, write_tensors
from hpgmn.graph import Split
from hpgmn.models.stage import Replica
from hpgmn.runs.outputs import (
    NodeTable,
    read_metrics,
    read_pseudo_labels,
    read_used_ids,
    refuse_other_graph,
    roles,
    write_history,
    write_metrics,
)


def test_metrics_that_were_changed_are_refused(tmp_path):
    path = tmp_path / "metrics.json"
    write_metrics(path, {"format": RUN_FORMAT, "test_score": [0.25], 3: "a number as key"})
    assert read_metrics(path) == {
        "format": RUN_FORMAT,
        "test_score": [0.25],
        "3": "a number as key",
    }
    path.write_text(path.read_text().replace("0.25", "0.75"))
    with pytest.raises(HPGMNError, match=r"metrics\.json is damaged: its checksum differs\."):
        read_metrics(path)
    path.write_text('{"test_score": [0.5]}')  # of an earlier version
    assert read_metrics(path) == {"test_score": [0.5]}
    path.write_text(json.dumps({"format": RUN_FORMAT + 1}))
    with pytest.raises(HPGMNError, match="written by a newer hpgmn"):
        read_metrics(path)
    path.write_text("[]")
    with pytest.raises(HPGMNError, match="one JSON object expected"):
        read_metrics(path)
    with pytest.raises(HPGMNError, match=r"cannot be read \(No such file"):
        read_metrics(tmp_path / "none.json")


def test_every_node_has_its_row():
    about = NodeTable(
        np.array([4, 5]),
        np.array(["d", "e"]),
        np.array(["train", "unlabelled"], dtype=object),
        np.array([1, -1]),
        ("no", "yes"),
    )
    chances = np.array([[0.25, 0.75], [0.5, 0.5]])
    table = about.with_predictions(Replica(2, 1, None), np.array([1, 0]), chances)
    shared = {"split": 2, "seed": 1}
    assert table.to_pylist() == [
        shared
        | {"node": 4, "node_id": "d", "role": "train", "label": "yes", "prediction": "yes"}
        | {"probability_no": 0.25, "probability_yes": 0.75},
        shared
        | {"node": 5, "node_id": "e", "role": "unlabelled", "label": None, "prediction": "no"}
        | {"probability_no": 0.5, "probability_yes": 0.5},
    ]


@pytest.fixture
def predictions(tmp_path):
    """Four nodes, two splits and two seeds, written in two parts with the last nodes first."""
    path = tmp_path / "predictions.parquet"
    chances = np.full((2, 2), 0.5)
    tables = []
    for start, names in ((2, ["val", "train"]), (0, ["train", "unlabelled"])):
        nodes = np.arange(start, start + 2)
        about = NodeTable(
            nodes, nodes.astype(str), np.array(names), np.array([1, 1]), ("no", "yes")
        )
        for split, seed, guess in ((0, 0, [0, 0]), (0, 1, [1, 1]), (1, 0, [1, 0])):
            tables.append(
                about.with_predictions(Replica(split, seed, None), np.array(guess), chances)
            )
    pq.write_table(pa.concat_tables(tables), path)
    return path


def test_used_nodes_are_those_of_train_and_validation(predictions):
    assert read_used_ids(predictions) == {0: ["2", "3", "0"], 1: ["2", "3", "0"]}


def test_used_nodes_do_not_depend_on_what_the_end_of_the_file_says_of_them(predictions):
    """The least and largest word of a column are kept there, without a checksum."""
    expected, content = read_used_ids(predictions), predictions.read_bytes()
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    assert content[end:].count(b"val") > 0
    predictions.write_bytes(content[:end] + content[end:].replace(b"val", b"tra"))
    assert read_used_ids(predictions) == expected


def test_guesses_are_the_first_seed_s_and_train_nodes_keep_their_class(predictions):
    assert read_pseudo_labels(predictions, ["no", "yes"], 0).tolist() == [1, 0, 0, 1]
    assert read_pseudo_labels(predictions, ["no", "yes"], 1).tolist() == [1, 0, 1, 1]
    assert read_pseudo_labels(predictions, ["yes", "no"], 1).tolist() == [0, 1, 0, 0]


def test_predictions_of_something_else_are_refused(predictions, tmp_path):
    with pytest.raises(HPGMNError, match=r"no predictions for split 7"):
        read_pseudo_labels(predictions, ["no", "yes"], 7)
    with pytest.raises(HPGMNError, match="names classes that the graph does not have"):
        read_pseudo_labels(predictions, ["no", "maybe"], 0)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(HPGMNError, match="not a Parquet file"):
        read_pseudo_labels(tmp_path / "bad.parquet", ["no", "yes"], 0)


def test_a_run_on_another_graph_is_refused(tmp_path):
    metrics = tmp_path / "metrics.json"
    with pytest.raises(HPGMNError, match="not the folder of a finished run"):
        refuse_other_graph(metrics, 3, None)
    metrics.write_text('{"graph_summary": {"num_nodes": 3}}')
    for trained, own, is_other in (("a", "a", False), ("", "a", False), ("a", "b", True)):
        tensors = {"one": torch.zeros(1)}
        write_tensors(tmp_path / "model.safetensors", tensors, {"fingerprint": trained})
        refuse_other_graph(metrics, 3, None)  # a graph that was not read
        with pytest.raises(HPGMNError, match=r"another graph \(3 nodes instead of 4\)"):
            refuse_other_graph(metrics, 4, own)
        if is_other:
            with pytest.raises(HPGMNError, match=r"another graph\. Choose a run on this one"):
                refuse_other_graph(metrics, 3, own)
        else:
            refuse_other_graph(metrics, 3, own)


def test_roles_are_names():
    split = Split(*(np.array(part, bool) for part in ([1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0])))
    assert roles(split).tolist() == ["train", "val", "test", "unlabelled"]


def test_history_holds_neither_nan_nor_infinity(tmp_path):
    inf, nan = float("inf"), float("nan")
    history = {
        "loss": torch.tensor([[1.0, 0.5], [nan, 0.25], [2.0, nan]]),
        "val_loss": torch.tensor([[inf, 0.5], [nan, nan], [1.0, nan]]),
        "val_score": torch.tensor([[0.5, 0.5], [0.5, 0.5], [1.0, nan]]),
    }
    replicas = [Replica(0, 0, None), Replica(3, 0, None)]
    write_history(tmp_path / "history.jsonl", replicas, {"main": history})

    def refuse(constant):
        raise AssertionError(constant)

    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    keys = ("split", "epoch", "loss", "val_loss", "val_score")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        (0, 1, 1.0, None, 0.5),
        (0, 3, 2.0, 1.0, 1.0),
        (3, 1, 0.5, 0.5, 0.5),
        (3, 2, 0.25, None, 0.5),
    ]
