"""The ensembles of a reproduction: groups of seeds, records, and what they must not read."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hpgmn as package
from hpgmn.models.stage import Replica
from hpgmn.runs.fit import TrainedMember
from hpgmn.runs.portfolio import Member
from hpgmn.training.replicas import Fitted
from hpgmn_lab.reproduction import ensembles
from hpgmn_lab.reproduction.ensembles import GROUPS, PoolPlan, pool_record
from hpgmn_lab.results.ensembles import read_pools

SHORT = {"epochs": 3, "hidden_dim": 4}
MEMBERS = (Member("first", "mlp", SHORT), Member("second", "gcn", SHORT | {"neighbors": "out"}))


@pytest.fixture
def one_split(small_graph):
    return small_graph.with_splits(small_graph.splits[:1])


@pytest.fixture
def data(small_graph, one_split, tmp_path, monkeypatch):
    """The small graph as texas, with two splits, and as cora, with one; two short members."""
    folder = tmp_path / "data"
    folder.mkdir()
    package.write_graph(small_graph, folder / "texas.npz")
    package.write_graph(one_split, folder / "cora.npz")
    monkeypatch.setenv("HPGMN_DATA", str(folder))
    monkeypatch.setattr(ensembles, "selected_members", lambda *arguments: (MEMBERS, None))
    return folder


def predictions(graph, right):
    """Return logits that are right on the masked nodes and wrong elsewhere."""
    classes = np.where(right, graph.y, (graph.y + 1) % graph.num_classes)
    return 5.0 * torch.eye(graph.num_classes)[torch.from_numpy(classes)]


def trained(graph, spec, member, masks):
    """Return a member whose replicas, one per seed of split 0, are right on the given masks."""
    logits = torch.stack([predictions(graph, mask) for mask in masks])
    val = torch.tensor([float(mask[graph.split(0).val].mean()) for mask in masks])
    replicas = [Replica(0, seed, None) for seed in range(len(masks))]
    fitted = Fitted(replicas, {}, logits, val, 1 - val, {}, {}, {})
    calibration = np.zeros((len(masks), 3, graph.num_classes))
    calibration[:, 0] = 1.0
    model = SimpleNamespace(calibration=calibration, choose=lambda places: model)
    return TrainedMember(member, replace(spec, model=member.model), fitted, model, 1.0)


def test_each_group_of_seeds_selects_and_scores_alone(one_split):
    plan = PoolPlan("cora", seeds=1)
    spec, split = plan.spec(one_split, "cpu"), one_split.split(0)
    assert spec.seeds == GROUPS
    everywhere, nowhere = np.ones(18, bool), np.zeros(18, bool)
    val_only = nowhere | split.val  # selected where the other member is wrong on validation nodes
    pool = [
        trained(one_split, spec, MEMBERS[0], [everywhere, nowhere, everywhere, nowhere, nowhere]),
        trained(one_split, spec, MEMBERS[1], [nowhere, val_only, nowhere, val_only, everywhere]),
    ]
    record = pool_record(plan, spec, one_split, pool)
    assert record["val_score"] == [1.0] * 5
    assert record["test_score"] == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert [member["weight"] for member in record["members"]] == pytest.approx([0.4, 0.6])
    assert record["members"][0]["test_score"] == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert record["members"][1]["test_score"] == [0.0, 0.0, 0.0, 0.0, 1.0]


def test_weights_do_not_depend_on_test_labels(one_split):
    plan = PoolPlan("cora", seeds=2)
    spec, split = plan.spec(one_split, "cpu"), one_split.split(0)
    random = np.random.default_rng(1)
    masks = random.random((2, 2 * GROUPS, 18)) < 0.6
    y = one_split.y.copy()
    y[split.test] = (y[split.test] + 1) % 3
    other = one_split.with_splits(one_split.splits)
    other.y = y
    first, second = (
        pool_record(
            plan,
            spec,
            graph,
            [trained(one_split, spec, *row) for row in zip(MEMBERS, masks, strict=True)],
        )
        for graph in (one_split, other)
    )
    assert first["test_score"] != second["test_score"]
    for key in ("weight", "val_score"):
        assert [row[key] for row in first["members"]] == [row[key] for row in second["members"]]


def test_a_record_per_graph_that_the_page_reads_and_a_repetition_keeps(hpgmn, data):
    words = ("reproduce", "ensembles", "--graphs", "texas,cora", "--device", "cpu", "--seeds", "1")
    answer = hpgmn(*words, "--out", "out", "--json")
    assert answer.code == 0, answer.err
    means = json.loads(answer.out)
    cora, texas = sorted(read_pools(Path("out/ensembles.jsonl")), key=lambda pool: pool.graph)
    assert (texas.record["splits"], texas.record["groups"]) == ([0, 1], 1)
    assert (cora.record["splits"], cora.record["groups"]) == ([0], GROUPS)
    for pool in (cora, texas):
        assert [member["name"] for member in pool.record["members"]] == ["first", "second"]
        assert means[pool.graph]["ensembles"]["mean"] == pytest.approx(
            np.mean(pool.record["test_score"])
        )
        assert means[pool.graph]["single"]["member"] == pool.members[0]["name"]
    assert not list(Path("out/work").iterdir())
    before = Path("out/ensembles.jsonl").read_bytes()
    answer = hpgmn(*words, "--out", "out")
    assert "2 of 2 cora" in answer.err
    assert answer.err.count("already finished") == 2
    assert Path("out/ensembles.jsonl").read_bytes() == before


def test_other_members_or_seeds_are_trained_anew(hpgmn, data, monkeypatch):
    words = ("reproduce", "single", "--graphs", "texas", "--device", "cpu", "--out", "out")
    assert "already" not in hpgmn(*words, "--seeds", "1").err
    assert "already" not in hpgmn(*words, "--seeds", "2").err
    monkeypatch.setattr(ensembles, "selected_members", lambda *arguments: (MEMBERS[:1], None))
    answer = hpgmn(*words, "--seeds", "2")
    assert "already" not in answer.err
    [pool] = read_pools(Path("out/ensembles.jsonl"))
    assert [member["weight"] for member in pool.record["members"]] == [1.0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ensembles", "--graphs", "texsa"), "Unknown graph 'texsa'. Did you mean 'texas'?"),
        (("single", "--seeds", "0"), "Seeds must be 1 to"),
        (("ensembles", "--device", "gpu"), "Unknown device 'gpu'."),
    ],
)
def test_user_errors_are_one_line(hpgmn, words, message):
    answer = hpgmn("reproduce", *words)
    assert answer.code == 2
    assert answer.err.startswith(f"Error: {message}")
    assert len(answer.err.splitlines()) == 1


def test_it_needs_nothing_beyond_training(data):
    missing = ("pandas", "psutil", "optuna", "plotly", "ray", "duckdb", "fsspec")
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
from hpgmn.cli import main
sys.argv[1:] = ["reproduce", "ensembles", "--graphs", "nowhere"]
sys.exit(main())
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert answer.stderr.startswith("Error: Unknown graph 'nowhere'.")
