"""Generated graphs are written once for their parameters."""

import json
from dataclasses import replace

import numpy as np
import pytest

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.graph.files import read_graph
from hpgmn.graph.synthetic import trading_network
from hpgmn_lab.bench.graphs import LARGE, GraphSpec, generate, large_settings

SPEC = GraphSpec(nodes=300, degree=4.0, attributes=3, seed=2)


@pytest.mark.usefixtures("here")
def test_the_folder_holds_the_trading_network_of_those_parameters(tmp_path):
    facts = generate(SPEC, tmp_path)
    graph = read_graph(facts["path"])
    expected, best = trading_network(
        300, num_classes=5, num_features=3, degree=4.0, fractions=(0.5, 0.2, 0.3), seed=2
    )
    assert graph.fingerprint == expected.fingerprint
    np.testing.assert_array_equal(graph.y, expected.y)
    assert graph.splits.train[:, 0].mean() == pytest.approx(0.5, abs=0.02)
    assert facts["best_accuracy"] == best


def test_a_graph_is_generated_again_only_if_its_parameters_differ(tmp_path, here):
    first = generate(SPEC, tmp_path)
    assert generate(SPEC, tmp_path) == first
    assert len(here) == 1
    generate(replace(SPEC, seed=3), tmp_path)
    assert len(here) == 2
    facts = tmp_path / f"{SPEC.name}.json"
    content = json.loads(facts.read_text())
    content["parameters"]["fractions"] = [0.6, 0.2, 0.2]  # another version's
    facts.write_text(json.dumps(content))
    assert generate(SPEC, tmp_path)["parameters"] == first["parameters"]
    assert len(here) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": 99}, r"--nodes must be at least 100 \(got 99\)"),
        ({"degree": 0.5}, r"--degree must be at least 1 \(got 0.5\)"),
        ({"attributes": 1}, "--attributes must be at least 2"),
        ({"seed": -1}, "--seed must be at least 0"),
    ],
)
def test_impossible_sizes_are_refused(changes, message):
    with pytest.raises(SettingError, match=message):
        replace(SPEC, **changes)


@pytest.mark.usefixtures("here")
def test_an_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(HPGMNError, match="Cannot write into the folder") as caught:
        generate(SPEC, tmp_path / "file")
    assert caught.value.remedy.option == "graphs"


def test_settings_for_large_graphs_are_valid_and_can_be_changed():
    assert large_settings({}).batch_size == LARGE["batch_size"]
    assert large_settings({"epochs": "3"}).epochs == 3
    with pytest.raises(SettingError, match="hiden_dim"):
        large_settings({"hiden_dim": 3})
