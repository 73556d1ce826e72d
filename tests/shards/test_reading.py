"""What training reads of shards."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from hpgmn.base import parsing
from hpgmn.base.errors import HPGMNError
from hpgmn.shards import Shards, shard
from hpgmn.statistics import StatisticsSettings

SETTINGS = StatisticsSettings(statistics=("attributes", "class_counts"), neighbors="out")


def test_the_manifest_describes_the_files(tmp_path, make_graph):
    graph = make_graph(sparse=True)
    shard(graph, tmp_path, graph.y, SETTINGS, ranges=3)
    shards = Shards(tmp_path)
    assert (shards.num_nodes, shards.num_features, len(shards)) == (60, 5, 3)
    assert shards.class_names == ("a", "b", "c")
    assert shards.settings["neighbors"] == "out"
    assert (shards.name, shards.split, shards.source) == ("made", 0, None)
    assert shards.fingerprint == graph.fingerprint
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


def test_what_is_not_finished_or_of_another_version_is_refused(tmp_path, make_graph):
    with pytest.raises(HPGMNError, match="has no finished shards"):
        Shards(tmp_path)
    graph = make_graph()
    shard(graph, tmp_path, graph.y, SETTINGS, ranges=2)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 0'))
    with pytest.raises(HPGMNError, match="another version"):
        Shards(tmp_path)


@pytest.fixture
def folder(tmp_path, make_graph):
    """The 60 nodes of a graph in five ranges."""
    graph = make_graph(sparse=True)
    shard(graph, tmp_path, graph.y, SETTINGS, ranges=5)
    return tmp_path


def change(folder, **content):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | content))
    return folder


def test_other_manifests_have_other_identities(folder):
    before = Shards(folder).identity
    assert Shards(folder).identity == before
    assert Shards(change(folder, split=1)).identity != before


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_every_rank_has_ranges_and_every_range_one_rank(folder, size):
    shares = Shards(folder).shares(size)
    assert len(shares) == size
    assert [number for share in shares for number in share] == [0, 1, 2, 3, 4]
    assert all(len(share) for share in shares)


def test_ranks_have_about_as_many_nodes_each(folder):
    shards = Shards(change(folder, ranges=[(0, 35), (35, 36), (36, 40), (40, 60)]))
    assert shards.shares(2) == [range(0, 1), range(1, 4)]
    late = Shards(change(folder, ranges=[(0, 1), (1, 2), (2, 3), (3, 60)]))
    assert late.shares(3) == [range(0, 2), range(2, 3), range(3, 4)]
    with pytest.raises(HPGMNError, match="have 4 ranges of nodes, too few for 5 ranks"):
        late.shares(5)


@pytest.mark.parametrize("named", [True, False])
def test_nodes_have_names_or_positions(tmp_path, make_graph, named):
    graph = make_graph(named=named)
    shards = shard(graph, tmp_path, graph.y, SETTINGS, ranges=3).shards
    assert shards.has_names is named
    first, last = shards.ranges[2]
    expected = [*range(shards.ranges[0][1]), *range(first, last)]
    word = "node " if named else ""
    assert shards.names([0, 2]).tolist() == [f"{word}{node}" for node in expected]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"ranges": None}, "TypeError"),
        ({"statistics": {"attributes": {}}}, "KeyError"),
        ({"statistics": 3}, r"manifest\.json is missing, damaged"),
        ({"ranges": [[0, 9], [10, 60]]}, "its ranges are not all nodes in order"),
        ({"num_nodes": 61}, "its ranges are not all nodes in order"),
    ],
)
def test_a_wrong_manifest_is_refused(folder, content, message):
    with pytest.raises(HPGMNError, match=message):
        Shards(change(folder, **content))


def test_a_manifest_that_is_no_json_is_refused(folder):
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(HPGMNError, match=r"manifest\.json is missing, damaged"):
        Shards(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(HPGMNError, match="Recreate the shards with `hpgmn shard`"):
        Shards(folder)


def test_a_manifest_beyond_all_measure_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(parsing, "LARGEST_JSON", 100)
    with pytest.raises(HPGMNError, match=r"manifest\.json is missing, damaged .*it is larger"):
        Shards(folder)


@pytest.mark.slow
def test_a_pipe_is_no_manifest(tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    script = "import sys; from hpgmn.shards import Shards; Shards(sys.argv[1])"
    words = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert "has no finished shards" in done.stderr


def test_wrong_rows_are_refused(folder):
    shards = Shards(folder)
    np.save(folder / "rows-00000" / "y.npy", np.zeros(4))
    with pytest.raises(HPGMNError, match=rf"shape \(4,\) for {shards.ranges[0][1]} nodes"):
        shards.y(0)
    for content in (b"", b"nothing"):
        (folder / "rows-00000" / "y.npy").write_bytes(content)
        with pytest.raises(HPGMNError, match=r"y.npy is missing, damaged .*magic string"):
            shards.y(0)
    (folder / "rows-00001" / "class_counts.npy").unlink()
    with pytest.raises(HPGMNError, match=r"class_counts.npy is missing, damaged .*No such file"):
        shards.statistic("class_counts", 1)
    nodes = shards.ranges[2][1] - shards.ranges[2][0]
    np.save(folder / "rows-00002" / "class_counts.npy", np.zeros((nodes, 4), np.float32))
    with pytest.raises(HPGMNError, match=rf"shape \({nodes}, 4\) instead of \({nodes}, 3\)"):
        shards.statistic("class_counts", 2)
    path = folder / "rows-00003" / "attributes.npz"
    for content in (b"nothing", path.read_bytes()[:200]):
        path.write_bytes(content)
        with pytest.raises(HPGMNError, match=r"attributes.npz is missing, damaged"):
            shards.statistic("attributes", 3)


@pytest.mark.parametrize("name", ["class_counts.npy", "attributes.npz", "train.npy"])
def test_spoiled_content_is_found_by_its_checksum(folder, make_graph, name):
    shards = Shards(folder)
    shards.check()
    path = folder / "rows-00003" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    shards.check([0, 1, 2, 4])
    for parts in (None, [2, 3]):
        with pytest.raises(HPGMNError, match=f"{name} is missing, damaged .*checksum differs"):
            shards.check(parts)
    graph = make_graph(sparse=True)
    with pytest.raises(HPGMNError, match="Recreate the shards with `hpgmn shard`, in a new folder"):
        shard(graph, folder, graph.y, SETTINGS, ranges=5)
