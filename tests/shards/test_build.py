"""Shards of whole graphs against the statistics of one process; restarts; refusals."""

import contextlib
import dataclasses
import json

import numpy as np
import pytest

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.files import lock_folder
from hpgmn.engines.processes import LocalEngine
from hpgmn.graph import Graph
from hpgmn.graph.files import write_graph
from hpgmn.graph.homophily import node_homophily
from hpgmn.shards import Shards, note_origin, shard
from hpgmn.statistics import StatisticsSettings

EVERY = StatisticsSettings(
    statistics=("attributes", "class_counts", "class_means", "diffusion", "adjacency"),
    neighbors="both",
    attributes_scaling="unit",
    class_means_form="half",
    class_means_dim=4,
    diffusion_form="topk",
    diffusion_topk=16,
    diffusion_dim=16,
    teleport=0.4,
    diffusion_tolerance=0.01,
)
SMALL = dataclasses.replace(
    EVERY, statistics=("class_counts", "diffusion"), neighbors="out", diffusion_form="sketch"
)


def train_labels(graph):
    assert graph.splits is not None
    return np.where(graph.splits.train[:, 0], graph.y, -1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ({}, {}),
        ({"weighted": True}, {"neighbors": "undirected", "class_counts_scaling": "fraction"}),
        ({"directed": False}, {"class_means_form": "dense", "attributes_scaling": "raw"}),
        ({"directed": False, "weighted": True}, {"neighbors": "in"}),
        ({"sparse": True}, {"class_means_form": "sparse", "attributes_scaling": "fraction"}),
        ({"sparse": True, "weighted": True}, {"neighbors": "undirected"}),
        ({}, {"class_means_form": "sketch", "class_means_scaling": "unit"}),
        ({"weighted": True}, {"class_means_form": "dense", "class_means_scaling": "unit"}),
        ({"sparse": True}, {"class_means_form": "sparse", "class_means_scaling": "unit"}),
        ({}, {"normalization": "row", "diffusion": "heat", "diffusion_self_entry": True}),
        ({}, {"normalization": "symmetric", "diffusion_self_loop": 1}),
        ({"weighted": True}, {"normalization": "symmetric"}),
    ],
)
def test_eight_ranges_are_one_process(tmp_path, make_graph, check_rows, kind, changes):
    graph = make_graph(**kind)
    settings = dataclasses.replace(EVERY, **changes)
    # Little memory: every range is several blocks.
    done = shard(graph, tmp_path, train_labels(graph), settings, ranges=8, memory=14_000)
    assert len(done.shards) == 8
    check_rows(done.shards, graph, train_labels(graph), settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ({"named": True}, {}),
        ({"directed": False, "weighted": True}, {"diffusion_scaling": "raw"}),
        ({}, {"diffusion_self_entry": True, "diffusion": "heat", "normalization": "symmetric"}),
        ({}, {"diffusion_self_loop": 1, "normalization": "row", "neighbors": "in"}),
        ({}, {"teleport": 0.99, "diffusion_tolerance": 0.1}),  # one round
    ],
)
def test_rounds_are_the_sketch(tmp_path, make_graph, check_rows, kind, changes):
    graph = make_graph(**kind)
    settings = dataclasses.replace(SMALL, **changes)
    done = shard(graph, tmp_path, train_labels(graph), settings, ranges=8, memory=14_000)
    check_rows(done.shards, graph, train_labels(graph), settings)


def test_compiled_means_are_compiled_in_ranges_too(tmp_path, make_graph, check_rows, monkeypatch):
    graph = make_graph(width=8)
    settings = dataclasses.replace(EVERY, statistics=("class_means",))
    monkeypatch.setattr("hpgmn.statistics.labelwise.COMPILED_FROM", graph.num_edges * 8 - 100)
    done = shard(graph, tmp_path, train_labels(graph), settings, ranges=3)
    check_rows(done.shards, graph, train_labels(graph), settings)


def test_labels_names_and_split_are_those_of_the_graph(tmp_path, make_graph):
    graph = make_graph(named=True)
    shards = shard(graph, tmp_path, graph.y, SMALL, ranges=4, split=1).shards
    assert [first for first, _ in shards.ranges] == [0, *(last for _, last in shards.ranges[:-1])]
    assert shards.ranges[-1][1] == graph.num_nodes
    assert graph.splits is not None

    def joined(read):
        return [value for part in range(4) for value in read(part).tolist()]

    assert joined(shards.y) == graph.y.tolist()
    assert joined(shards.node_ids) == [f"node {v}" for v in range(60)]
    for name in ("train", "val", "test"):
        mask = getattr(graph.splits, name)[:, 1]
        assert joined(lambda part, name=name: shards.mask(name, part)) == mask.tolist()


@pytest.mark.slow
def test_a_folder_gives_what_its_graph_gives(tmp_path, make_graph, check_rows):
    for kind in ({}, {"sparse": True, "weighted": True, "directed": False}):
        graph = make_graph(**kind)
        place = tmp_path / f"{len(kind)}.graph"
        write_graph(graph, place)
        settings = dataclasses.replace(EVERY, class_means_form="auto", diffusion_form="auto")
        done = shard(place, tmp_path / f"shards {len(kind)}", train_labels(graph), settings)
        form = "sparse" if kind else "half"
        assert done.shards.settings["class_means_form"] == form
        assert done.shards.settings["diffusion_form"] == "sketch"
        chosen = dataclasses.replace(settings, class_means_form=form, diffusion_form="sketch")
        check_rows(done.shards, graph, train_labels(graph), chosen)
        assert not (tmp_path / f"shards {len(kind)}" / "work").exists()


class Interrupted(Exception):
    pass


class Stopping(LocalEngine):
    """Stops after so many units."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def run(self, next_task, *arguments, **options):
        def next_until():
            if self.left == 0:
                raise Interrupted
            self.left -= 1
            return next_task()

        super().run(next_until, *arguments, **options)


@pytest.mark.parametrize("after", [1, 5, 13, 22, 27, 35])
def test_finished_units_are_not_done_again(tmp_path, make_graph, check_rows, after):
    graph = make_graph()
    labels = train_labels(graph)
    with pytest.raises(Interrupted):
        shard(graph, tmp_path, labels, SMALL, ranges=4, engine=Stopping(after))
    with pytest.raises(HPGMNError, match="has no finished shards"):
        Shards(tmp_path)
    done = shard(graph, tmp_path, labels, SMALL, ranges=4, keep=True)
    assert (done.reused, done.starts) == (after, done.units)
    check_rows(done.shards, graph, labels, SMALL)
    again = shard(graph, tmp_path, labels, SMALL, ranges=4, keep=True)
    assert (again.reused, again.starts) == (done.units, done.units)


class Elsewhere(LocalEngine):
    """Runs tasks in another working directory, as a cluster does."""

    def __init__(self, place):
        super().__init__()
        self.place = place

    def run(self, *arguments, **options):
        with contextlib.chdir(self.place):
            super().run(*arguments, **options)


def test_tasks_find_the_folder_from_anywhere(tmp_path, make_graph, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    graph = make_graph()
    engine = Elsewhere(tmp_path / "other")
    done = shard(graph, "shards", graph.y, SMALL, ranges=2, engine=engine)
    assert done.shards.folder == tmp_path / "shards"


def test_two_in_one_folder_are_refused(tmp_path, make_graph):
    """The first would remove the work of the second when it ends."""
    graph = make_graph()
    with lock_folder(tmp_path), pytest.raises(HPGMNError, match=r"Another process is using"):
        shard(graph, tmp_path, graph.y, SMALL, ranges=2)
    (tmp_path / "file").touch()
    with pytest.raises(HPGMNError) as caught:
        shard(graph, tmp_path / "file", graph.y, SMALL, ranges=2)
    assert str(caught.value) == (
        f"Cannot write {tmp_path / 'file'} (File exists). Choose a writable path."
    )
    assert not (tmp_path / "plan.json").exists()
    with pytest.raises(HPGMNError, match=r"contains other files"):
        shard(graph, tmp_path, graph.y, SMALL, ranges=2)
    (tmp_path / "file").unlink()
    shard(graph, tmp_path, graph.y, SMALL, ranges=2)


def test_a_damaged_round_is_made_anew(tmp_path, make_graph, check_rows):
    """The round before it is gone, so the chain begins anew: the next would read nonsense."""
    graph = make_graph()
    labels = train_labels(graph)
    with pytest.raises(Interrupted):  # in the third round
        shard(graph, tmp_path, labels, SMALL, ranges=4, engine=Stopping(4 * 7 + 1))
    (last,) = (tmp_path / "work").glob("diffusion-*/00001.npy")
    content = bytearray(last.read_bytes())
    content[-1] ^= 1
    last.write_bytes(content)
    done = shard(graph, tmp_path, labels, SMALL, ranges=4, keep=True)
    check_rows(done.shards, graph, labels, SMALL)


def test_a_graph_folder_may_be_renamed(tmp_path, make_graph):
    graph = make_graph()
    write_graph(graph, tmp_path / "one.graph")
    first = shard(tmp_path / "one.graph", tmp_path / "shards", graph.y, SMALL, ranges=2)
    (tmp_path / "one.graph").rename(tmp_path / "two.graph")
    again = shard(tmp_path / "two.graph", tmp_path / "shards", graph.y, SMALL, ranges=2)
    assert (first.reused, again.reused) == (0, again.units)


def test_a_graph_folder_that_was_changed_is_refused(tmp_path, make_graph):
    graph = make_graph()
    write_graph(graph, tmp_path / "one.graph")
    victim = tmp_path / "one.graph" / "edges_indices.npy"
    content = bytearray(victim.read_bytes())
    content[-8] ^= 1  # still a node
    victim.write_bytes(content)
    with pytest.raises(HPGMNError, match=r"edges_indices\.npy was changed since it was written"):
        shard(tmp_path / "one.graph", tmp_path / "shards", graph.y, SMALL, ranges=2)
    assert not (tmp_path / "shards" / "manifest.json").exists()


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "unknown"])
def test_damaged_files_are_made_anew(tmp_path, make_graph, check_rows, damage):
    graph = make_graph()
    labels = train_labels(graph)
    settings = dataclasses.replace(SMALL, statistics=("class_counts", "adjacency"))
    with pytest.raises(Interrupted):
        shard(graph, tmp_path, labels, settings, ranges=4, engine=Stopping(14))
    victim = tmp_path / "rows-00001" / "class_counts.npy"
    content = bytearray(victim.read_bytes())
    if damage == "cut":
        victim.write_bytes(content[:-1])
    elif damage == "changed":
        content[-1] ^= 1
        victim.write_bytes(content)
    elif damage == "gone":
        victim.unlink()
    else:
        (tmp_path / "work" / "done" / "rows-class_counts-00001.json").write_text("{")
    done = shard(graph, tmp_path, labels, settings, ranges=4, keep=True)
    assert (done.reused, done.starts) == (13, done.units + 1)
    check_rows(done.shards, graph, labels, settings)


def test_other_work_in_the_folder_is_refused(tmp_path, make_graph):
    graph = make_graph()
    shard(graph, tmp_path, graph.y, SMALL, ranges=2)
    before = (tmp_path / "manifest.json").read_text()
    for other, named in (
        ({"labels": np.zeros(60, int)}, "labels"),
        ({"ranges": 3}, "ranges"),
        ({"split": 1}, "split"),
        ({"graph": make_graph(weighted=True)}, "graph, is_weighted"),
        ({"settings": dataclasses.replace(SMALL, diffusion_dim=32)}, "settings"),
    ):
        given = {"graph": graph, "labels": graph.y, "settings": SMALL, "ranges": 2} | other
        with pytest.raises(HPGMNError, match=rf"other inputs \({named}\)"):
            shard(folder=tmp_path, **given)
    assert (tmp_path / "manifest.json").read_text() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.zeros(5, int)}, "one label for each node"),
        ({"labels": np.full(60, 3)}, "numbers of the 3 classes"),
        ({"split": 2}, r"split must be 0 to 1 on this graph \(got 2\)"),
        ({"ranges": 61}, "between 1 range and one for each node, 60"),
        ({"settings": dataclasses.replace(SMALL, soft_counts=True)}, "soft_counts=False"),
        ({"settings": dataclasses.replace(SMALL, diffusion_form="dense")}, "auto, sketch, topk"),
        (
            {"settings": dataclasses.replace(SMALL, statistics=("neighbor_attributes",))},
            "which neighbor_attributes would need",
        ),
        (
            {"settings": dataclasses.replace(SMALL, statistics=("hops", "message_passing"))},
            "which hops, message_passing would need",
        ),
        ({"memory": 500}, "Cut the graph into more ranges"),
        ({"memory": 3_000, "ranges": 60}, "node with most neighbours"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path, make_graph, changes, message):
    graph = make_graph()
    given = {"graph": graph, "labels": graph.y, "settings": SMALL, "ranges": 2} | changes
    with pytest.raises((HPGMNError, SettingError), match=message):
        shard(folder=tmp_path, **given)


def test_a_graph_without_splits_or_classes(tmp_path):
    bare = Graph(np.eye(4), [[0, 1], [1, 2]], [0, 1, -1, -1])
    shards = shard(bare, tmp_path / "bare", bare.y, SMALL, ranges=2).shards
    with pytest.raises(HPGMNError, match="has no split"):
        shards.mask("train", 0)
    assert json.loads((tmp_path / "bare" / "manifest.json").read_text())["split"] is None
    with pytest.raises(HPGMNError, match="no classes"):
        shard(Graph(np.eye(4), [[0], [1]]), tmp_path / "none", np.full(4, -1), SMALL, ranges=2)


def test_the_manifest_says_where_the_graph_is(tmp_path, make_graph, monkeypatch):
    graph = make_graph()
    unknown = {"fingerprint": "", "num_edges": None, "homophily": None, "preparation": None}
    known = unknown | {
        "fingerprint": graph.fingerprint,
        "num_edges": graph.num_edges,
        "homophily": node_homophily(graph),
    }
    write_graph(graph, tmp_path / "made.graph")
    write_graph(graph, tmp_path / "made.npz")
    for number, (given, source, expected) in enumerate(
        [
            (graph, None, known),
            (tmp_path / "made.graph", str(tmp_path / "made.graph"), unknown),  # never read whole
            (tmp_path / "made.npz", str(tmp_path / "made.npz"), known),
        ]
    ):
        out = tmp_path / f"shards {number}"
        about = shard(given, out, graph.y, SMALL, ranges=2).shards.about
        assert {key: about[key] for key in ["source", *expected]} == {"source": source, **expected}
        noted = note_origin(out, "name", graph)
        assert noted.about == about | known | {"source": "name"}
        assert (noted.source, noted.fingerprint) == ("name", graph.fingerprint)
        again = shard(given, out, graph.y, SMALL, ranges=2)
        assert (again.reused, again.shards.source) == (again.units, "name")
    monkeypatch.setattr("hpgmn.shards.build.COUNTED_EDGES", 10)
    assert note_origin(out, "name", graph).about["num_edges"] is None


def test_edge_types_must_be_merged(tmp_path, make_graph, typed):
    graph = typed(make_graph())
    write_graph(graph, tmp_path / "one.graph")
    for source in (graph, tmp_path / "one.graph"):
        with pytest.raises(SettingError, match="row shards read all edges") as caught:
            shard(source, tmp_path / "shards", graph.y, SMALL, ranges=2)
        assert (caught.value.remedy.setting, caught.value.remedy.value) == ("edge_types", "merged")
    merged = dataclasses.replace(SMALL, edge_types="merged")
    shard(tmp_path / "one.graph", tmp_path / "shards", graph.y, merged, ranges=2)
