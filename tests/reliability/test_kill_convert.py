"""A conversion that is killed leaves the old graph, the new one, or none: never half of one."""

import itertools
import os
import shutil
from typing import Any

import numpy as np
import pytest

import hpgmn as package
from hpgmn.base.files import DRAFT_SUFFIX

pytestmark = pytest.mark.soak

NODES = 3000
PARTS = ("train", "val", "test")
Content = dict[str, Any]


def write_tables(folder, seed):
    """Tables that have nothing in common with those of another seed."""
    random = np.random.default_rng(seed)
    folder.mkdir()
    names = [f"{'nm'[seed]}{number}" for number in range(NODES)]
    x = random.random((NODES, 6)).round(4)
    part = random.choice(PARTS, NODES)
    rows = [
        f"{name},{'abcd'[seed + number % (2 + seed)]},{part[number]}," + ",".join(map(str, one))
        for number, (name, one) in enumerate(zip(names, x, strict=True))
    ]
    head = "id,label,split," + ",".join(f"{'xy'[seed]}{number}" for number in range(6))
    (folder / "nodes.csv").write_text("\n".join([head, *rows]) + "\n")
    edges = [
        f"{names[one]},{names[other]},{weight}"
        for one, other, weight in random.integers(1, NODES, size=(8000, 3))
    ]
    (folder / "edges.csv").write_text("\n".join(["source,target,weight", *edges]) + "\n")


def content(path):
    """Every array of a graph, read whole and checked; None where there is none."""
    if not path.exists():
        return None
    graph = package.read_graph(path)
    assert graph.splits is not None
    arrays = {
        "x": graph.x,
        "edge_index": graph.edge_index,
        "edge_weight": graph.edge_weight,
        "y": graph.y,
        "node_ids": graph.node_ids,
        "class_names": graph.class_names,
        "feature_names": graph.feature_names,
        **{part: getattr(graph.splits, part) for part in PARTS},
    }
    assert not graph.has_sparse_attributes
    return {name: np.asarray(array).tolist() for name, array in arrays.items()}


def expected_in(folder):
    """What the tables say."""
    nodes = [line.split(",") for line in (folder / "nodes.csv").read_text().splitlines()]
    edges = [line.split(",") for line in (folder / "edges.csv").read_text().splitlines()]
    head, *rows = nodes
    place = {row[0]: number for number, row in enumerate(rows)}
    classes = sorted({row[1] for row in rows})
    return {
        "x": np.array([row[3:] for row in rows]).astype(np.float32).tolist(),
        "edge_index": [[place[row[end]] for row in edges[1:]] for end in (0, 1)],
        "edge_weight": [float(row[2]) for row in edges[1:]],
        "y": [classes.index(row[1]) for row in rows],
        "node_ids": list(place),
        "class_names": classes,
        "feature_names": head[3:],
        **{part: [[row[2] == part] for row in rows] for part in PARTS},
    }


def moves_in(answer):
    """The touches at which something is about to be moved to its place."""
    return [
        number for number, (event, _) in enumerate(answer.seen, start=1) if event == "os.rename"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.npz", "out.graph"])
def test_a_killed_conversion_leaves_no_half_graph(soak, commands, tmp_path, name):
    for number, source in enumerate(("old", "new")):
        write_tables(tmp_path / source, number)
    words = {source: ("convert", source, "--out", name, "--overwrite") for source in ("old", "new")}
    known = {}
    for source, own in words.items():
        answer = commands(*own, folder=tmp_path)
        assert answer.code == 0, answer.err
        known[source] = expected_in(tmp_path / source)
        assert content(tmp_path / name) == known[source]
    assert all(known["old"][part] != known["new"][part] for part in known["old"])
    kills, bare, before = 0, 0, known["new"]
    wanted = soak.amount(short=6, long=50)
    last_move = commands.at(touch=moves_in(answer)[-1])
    for number, moment in enumerate(itertools.chain([last_move], answer.moments(13))):
        source = ("old", "new")[number // 2 % 2]
        if number % 2:  # there is no graph yet
            _remove(tmp_path / name)
            before = None
        ended = commands(*words[source], folder=tmp_path, moment=moment)
        assert ended.is_killed or ended.code == 0, f"{moment}: {ended.err}"
        kills += ended.is_killed
        bare += ended.is_killed and before is None
        left = content(tmp_path / name)
        is_same = left == before if ended.is_killed else False
        assert is_same or left == known[source], f"killed {moment}"
        before = left
        if kills == wanted:
            break
    assert bare > 0
    make_drafts_old(tmp_path)
    assert commands(*words["new"], folder=tmp_path).code == 0
    assert content(tmp_path / name) == known["new"]
    assert {path.name for path in tmp_path.iterdir()} == {"old", "new", name}  # no draft is left
    soak.record(
        f"kill-convert-{name.partition('.')[2]}",
        f"A conversion to {name.partition('.')[2]} that is killed leaves what was there before or "
        "the new graph.",
        kills_survived=kills,
        without_a_graph_before=bare,
    )


def make_drafts_old(folder):
    """Date the drafts of killed processes back, so that the next command may remove them."""
    for draft in folder.glob(f".*{DRAFT_SUFFIX}"):
        for path in (*draft.iterdir(), draft):
            os.utime(path, (0, 0))


def _remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def test_an_existing_graph_is_replaced_only_when_asked(commands, tmp_path):
    write_tables(tmp_path / "old", 0)
    for name in ("out.npz", "out.graph"):
        assert commands("convert", "old", "--out", name, folder=tmp_path).code == 0
        before = content(tmp_path / name)
        refused = commands("convert", "old", "--out", name, folder=tmp_path)
        assert refused.code == 2
        assert name in refused.err
        assert "--overwrite" in refused.err
        assert content(tmp_path / name) == before
