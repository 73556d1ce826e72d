"""What training reads of shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from hpgmn.errors import HPGMNError
from hpgmn.sharding import Shards, shard
from hpgmn.statistics import StatisticsSettings

SETTINGS = StatisticsSettings(statistics=("attributes", "class_counts"), neighbors="out")


def test_the_manifest_describes_the_files(tmp_path: Path, make_graph: Any) -> None:
    graph = make_graph(sparse=True)
    shard(graph, tmp_path, graph.y, SETTINGS, ranges=3)
    shards = Shards(tmp_path)
    assert (shards.num_nodes, shards.num_features, len(shards)) == (60, 5, 3)
    assert shards.class_names == ("a", "b", "c")
    assert shards.settings["neighbors"] == "out"
    said = json.loads((tmp_path / "manifest.json").read_text())
    for name, about in said["files"].items():
        assert (tmp_path / name).stat().st_size == about["bytes"]
    assert {name.split("/")[1] for name in said["files"]} == {
        *("attributes.npz", "class_counts.npy", "y.npy", "node_ids.npy"),
        *("train.npy", "val.npy", "test.npy"),
    }
    assert sp.issparse(shards.statistic("attributes", 0))
    assert shards.statistic("class_counts", 2).shape == (60 - shards.ranges[2][0], 3)
    np.testing.assert_array_equal(shards.node_ids(1), np.arange(*shards.ranges[1]))


def test_what_is_not_finished_or_of_another_version_is_refused(
    tmp_path: Path, make_graph: Any
) -> None:
    with pytest.raises(HPGMNError, match="holds no finished shards"):
        Shards(tmp_path)
    graph = make_graph()
    shard(graph, tmp_path, graph.y, SETTINGS, ranges=2)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 0'))
    with pytest.raises(HPGMNError, match="another version"):
        Shards(tmp_path)
