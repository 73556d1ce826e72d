"""Node ranges: what is trained on, what the record says of rows and ranks."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hpgmn.shards.files import are_complete
from hpgmn_lab.bench import shards
from hpgmn_lab.bench.process import ProcessFailed

FEW = ["epochs=2", "hidden_dim=4", "num_patterns=3", "batch_size=32", "diffusion_dim=16"]


def measure(call):
    return shards.measure(call, nodes=300, degree=4.0, attributes=4, ranges=2, sample=10, set_=FEW)


@pytest.mark.slow
def test_statistics_and_training_are_measured(call, here, monkeypatch):
    original, trained = shards.train, []

    def train(folder, run, device, ranks=1):
        trained.append((folder.name, ranks))
        # one rank: two take long to start
        return original(folder, run, device) | {"ranks": ranks}

    monkeypatch.setattr(shards, "train", train)
    record = measure(call)
    assert here == ["graph", "shards"]
    assert trained == [("all", 1), ("fewer", 1), ("all", 2)]
    alone, fewer = record["training"]["alone"], record["training"]["fewer"]
    assert alone["train_rows"] == pytest.approx(150, abs=3)
    assert fewer["train_rows"] == pytest.approx(15, abs=2)
    assert alone["val_rows"] == fewer["val_rows"] == pytest.approx(60, abs=3)
    assert alone["steps"] == 5
    assert alone["epochs"] == 2
    assert 0 < alone["epoch_seconds"] < alone["seconds"]
    assert alone["parameters"] > 4 * 45  # a weight for each hidden unit and column
    assert record["statistics"]["nodes"] == 300
    assert record["settings"]["epochs"] == 2
    assert not (call.out / "shards").exists()
    assert len(shards.tables(record)) == 4


def test_one_gpu_has_no_two_ranks(call, monkeypatch, shards_record):
    alone = shards_record["training"]["alone"]

    def run_task(task, folder, **_):
        (Path(folder) / "work").mkdir(parents=True)
        (Path(folder) / "manifest.json").write_text('{"files": {}}')
        return shards_record["statistics"]

    monkeypatch.setattr(shards, "generate", lambda *_: {"path": "g"})
    monkeypatch.setattr(shards, "new_record", lambda *_, **__: dict(shards_record))
    monkeypatch.setattr(shards, "run_task", run_task)
    monkeypatch.setattr(shards, "train", lambda *_: alone | {"epoch_seconds": 0.1})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    record = measure(replace(call, device="cuda"))
    assert record["training"]["two"] == {"failed": "two ranks need two GPUs"}
    assert shards.communication_seconds(record["training"]) is None
    record["training"]["fewer"]["train_rows"] = 50  # as quick as all: no rate can be computed
    rows = dict(shards.training_table(record).rows)
    assert rows["s per epoch, two ranks"] == "two ranks need two GPUs"
    assert rows["train rows per second"] == "–"


def test_fewer_train_nodes_have_the_same_rows(tmp_path):
    folder = tmp_path / "all"
    (folder / "rows-00000").mkdir(parents=True)
    (folder / "manifest.json").write_text('{"files": {"rows-00000/y.npy": {"bytes": 1}}}')
    np.save(folder / "rows-00000" / "train.npy", np.arange(50) % 2 == 1)
    np.save(folder / "rows-00000" / "y.npy", np.arange(50))
    shards.thin_train_nodes(folder, tmp_path / "fewer")
    kept = np.load(tmp_path / "fewer" / "rows-00000" / "train.npy")
    assert np.flatnonzero(kept).tolist() == [1, 21, 41]
    assert np.load(tmp_path / "fewer" / "rows-00000" / "y.npy")[7] == 7
    files = json.loads((tmp_path / "fewer" / "manifest.json").read_text())["files"]
    assert files["rows-00000/y.npy"] == {"bytes": 1}
    own = {"rows-00000/train.npy": files["rows-00000/train.npy"]}
    assert are_complete(tmp_path / "fewer", own, checked=True)


@pytest.mark.slow
def test_a_training_that_fails_says_why(tmp_path):
    with pytest.raises(ProcessFailed, match=r"train-shards .* failed: .*shards"):
        shards.train(tmp_path / "none", tmp_path / "run", "cpu")


def test_what_a_record_says(shards_record):
    training = shards_record["training"]
    # 450 train rows more take 0.9 s more: 2 ms each, so that 200 validation rows have 0.2 s.
    assert shards.row_seconds(training) == pytest.approx((0.002, 0.001))
    assert shards.communication_seconds(training) == pytest.approx(0.01)
    work, unit, topk, trained = shards.tables(shards_record)
    assert work.rows[0] == ["edges by source", "8", "0.01", "0.02", "0", "0"]
    assert work.rows[7] == ["one round of the sketch", "8", "0.04", "0.08", "1", "0"]
    assert unit.rows[3] == ["attributes", "node", "2", "16", "16"]
    assert unit.rows[7] == ["one round of the sketch", "edge", "4", "60", "6"]
    assert topk.rows[1] == ["0.0001", "100", "0.10", "1000"]
    rows = dict(trained.rows)
    assert rows["ms of communication per step"] == "10.0"
    assert rows["train rows per second"] == "500"
    assert rows["validation rows per second"] == "1,000"
    assert rows["bytes of a node's rows"] == "104"  # 16 + 8 + 16 + 64
    assert rows["bytes reduced over ranks per step"] == "4,000"
