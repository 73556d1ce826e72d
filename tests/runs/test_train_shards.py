"""A requested training on row shards, from Python: run, refused, finished, resumed."""

from contextlib import contextmanager
from typing import Any

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.runs.train_shards import ShardTraining

SETTINGS = {
    "hidden_dim": 4,
    "num_patterns": 3,
    "epochs": 2,
    "batch_size": 4,
    "statistics": ("attributes", "class_counts"),
}


def test_a_training_runs_once_and_only_lacks_its_report(tmp_path, small_graph, shards_writer):
    shards = shards_writer(tmp_path / "shards", small_graph, SETTINGS, ranges=2)
    reports: list[Any] = []

    @contextmanager
    def watch(*_):
        yield reports.append

    def requested(resume=False):
        options = {"settings": {"lr": 0.02}, "metric": "macro_f1"}
        return ShardTraining(
            shards, tmp_path / "run", options, {}, resume=resume, overwrite=False, watch=watch
        )

    metrics = requested().run("cpu")
    assert metrics is not None
    assert metrics["metric"] == "macro_f1"
    assert metrics["config"]["settings"]["lr"] == 0.02
    assert [progress.epoch for progress in reports] == [1, 2]
    with pytest.raises(HPGMNError, match="exists"):
        requested().run("cpu")
    assert requested(resume=True).run("cpu") == metrics
    assert len(reports) == 2  # nothing is trained again
    with pytest.raises(HPGMNError, match="ranks"):
        requested().spec("cpu", 9)
