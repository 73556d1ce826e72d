"""Generated graphs are made once for their parameters, and found again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.graph.files import read_graph
from hpgmn.graph.synthetic import trading_network
from hpgmn_lab.bench import graphs
from hpgmn_lab.bench.graphs import GraphSpec, check_spec, generated

SPEC = GraphSpec(nodes=300, degree=4.0, attributes=3, seed=2)


def test_the_folder_holds_the_trading_network_of_those_parameters(
    tmp_path: Path, in_this_process: Callable[..., list[str]]
) -> None:
    in_this_process(graphs)
    found = generated(SPEC, tmp_path)
    graph = read_graph(found["path"])
    expected, best = trading_network(
        300, num_classes=5, num_features=3, degree=4.0, fractions=(0.5, 0.2, 0.3), seed=2
    )
    assert graph.fingerprint == expected.fingerprint
    np.testing.assert_array_equal(graph.y, expected.y)
    assert graph.splits is not None
    assert graph.splits.train[:, 0].mean() == pytest.approx(0.5, abs=0.02)
    assert found["best_accuracy"] == best


def test_a_graph_is_made_again_only_if_its_parameters_differ(
    tmp_path: Path, in_this_process: Callable[..., list[str]]
) -> None:
    made = in_this_process(graphs)
    first = generated(SPEC, tmp_path)
    assert generated(SPEC, tmp_path) == first
    assert len(made) == 1
    generated(replace(SPEC, seed=3), tmp_path)
    assert len(made) == 2
    beside = tmp_path / f"{SPEC.name}.json"
    content = json.loads(beside.read_text())
    content["parameters"]["fractions"] = [0.6, 0.2, 0.2]  # made by another version
    beside.write_text(json.dumps(content))
    again = generated(SPEC, tmp_path)
    assert len(made) == 3
    assert again["parameters"] == first["parameters"]
    assert json.loads(beside.read_text())["parameters"] == first["parameters"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": 99}, r"--nodes must be at least 100 \(got 99\)"),
        ({"degree": 0.5}, r"--degree must be at least 1 \(got 0.5\)"),
        ({"attributes": 1}, r"--attributes must be at least 2 \(got 1\)"),
        ({"seed": -1}, r"--seed must be at least 0 \(got -1\)"),
    ],
)
def test_impossible_sizes_are_refused(changes: dict[str, float], message: str) -> None:
    check_spec(SPEC)
    with pytest.raises(SettingError, match=message):
        check_spec(replace(SPEC, **changes))  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_written_to_is_told(
    tmp_path: Path, in_this_process: Callable[..., list[str]]
) -> None:
    in_this_process(graphs)
    (tmp_path / "file").touch()
    with pytest.raises(HPGMNError, match=r"Choose another --graphs|choose a folder"):
        generated(SPEC, tmp_path / "file")
