"""A conversion that is killed leaves the old graph, the new one, or none: never half of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpgmn as package

pytestmark = pytest.mark.soak

NODES = 3000


def write_tables(folder: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    folder.mkdir()
    names = [f"n{number}" for number in range(NODES)]
    x = random.random((NODES, 6)).round(4)
    rows = [
        f"{name},{'ab'[number % 2]}," + ",".join(map(str, x[number]))
        for number, name in enumerate(names)
    ]
    head = "id,label," + ",".join(f"x{number}" for number in range(6))
    (folder / "nodes.csv").write_text("\n".join([head, *rows]) + "\n")
    ends = random.integers(NODES, size=(8000, 2))
    edges = [f"n{one},n{other}" for one, other in ends]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")


def fingerprint(path: Path) -> str:
    """Of a graph that can be read; "" where there is none."""
    return package.read_graph(path).fingerprint if path.exists() else ""


@pytest.mark.parametrize("name", ["out.npz", "out.graph"])
def test_a_killed_conversion_leaves_no_half_graph(
    soak: Any, commands: Any, moments_in: Any, tmp_path: Path, name: str
) -> None:
    for number, source in enumerate(("old", "new")):
        write_tables(tmp_path / source, number)
    words = {source: ("convert", source, "--out", name, "--overwrite") for source in ("old", "new")}
    known = {}
    for source, own in words.items():
        answer = commands(*own, folder=tmp_path)
        assert answer.code == 0, answer.err
        known[source] = fingerprint(tmp_path / name)
    assert len(set(known.values())) == 2
    kills, found = 0, []
    wanted = soak.amount(short=6, long=50)
    for number, moment in enumerate(moments_in(13, answer)):
        source = ("old", "new")[number % 2]
        ended = commands(*words[source], folder=tmp_path, moment=moment)
        assert ended.code in (0, -9), f"{moment}: {ended.err}"
        kills += ended.code == -9
        left = fingerprint(tmp_path / name)  # reads all of it, and checks it
        assert left in known.values(), f"killed {moment}"
        if ended.code == 0:
            assert left == known[source], f"{moment}"
        found.append(left)
        if kills == wanted:
            break
    assert commands(*words["new"], folder=tmp_path).code == 0
    assert fingerprint(tmp_path / name) == known["new"]
    assert {path.name for path in tmp_path.iterdir()} == {"old", "new", name}  # no draft is left
    soak.record(
        f"kill-convert-{name.partition('.')[2]}",
        f"A conversion to {name.partition('.')[2]} that is killed leaves the old graph or the new.",
        kills_survived=kills,
    )


def test_an_existing_graph_is_replaced_only_when_asked(commands: Any, tmp_path: Path) -> None:
    write_tables(tmp_path / "old", 0)
    for name in ("out.npz", "out.graph"):
        assert commands("convert", "old", "--out", name, folder=tmp_path).code == 0
        before = fingerprint(tmp_path / name)
        refused = commands("convert", "old", "--out", name, folder=tmp_path)
        assert refused.code == 2
        assert f"{name} exists. Replace it with --overwrite, or choose another" in refused.err
        assert fingerprint(tmp_path / name) == before
