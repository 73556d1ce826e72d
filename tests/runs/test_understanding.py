"""The files about graph and model that a run leaves for its report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hpgmn.auditing import audit
from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import settings_dict
from hpgmn.explain import explain_model
from hpgmn.graph import Graph
from hpgmn.models import find_model
from hpgmn.runs import understanding
from hpgmn.runs.fit import train_folder
from hpgmn.runs.folder import prepare_folder
from hpgmn.runs.spec import RunSpec
from hpgmn.runs.understanding import audited, made, understood, write_understanding
from hpgmn.training.saved import SavedModel

SETTINGS = settings_dict(
    find_model("hpgmn").settings(epochs=3, estimator_epochs=3, hidden_dim=4, num_patterns=4)
)
SPEC = RunSpec("small", "hpgmn", SETTINGS, splits=(1, 0), seeds=2)


@pytest.fixture
def trained(small_graph: Graph, tmp_path: Path) -> Path:
    prepare_folder(tmp_path / "run", SPEC, resume=False, overwrite=False)
    train_folder(SPEC, small_graph, tmp_path / "run")
    return tmp_path / "run"


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_both_files_are_about_the_first_split(small_graph: Graph, trained: Path) -> None:
    steps: list[str] = []
    write_understanding(SPEC, small_graph, trained, lambda what, done, total: steps.append(what))
    assert steps == ["Audit of the graph", "What the model has learned"]
    expected = audit(small_graph, 1, training=False).as_dict()
    assert read(trained / "audit.json") == json.loads(json.dumps(expected))
    found = read(trained / "understanding.json")
    saved = SavedModel.read(trained / "model.safetensors")
    first = [place for place, one in enumerate(saved.replicas) if one.split == 1]
    said = json.loads(json.dumps(explain_model(saved.choose(first), small_graph).as_dict()))
    assert {name: found[name] for name in said} == said
    assert (found["split"], found["seeds"], len(found["map"]["nodes"])) == (1, 2, 18)


def test_the_same_run_gives_the_same_files(small_graph: Graph, trained: Path) -> None:
    pages = []
    for _ in range(2):
        write_understanding(SPEC, small_graph, trained)
        pages.append(
            [(trained / f"{name}.json").read_bytes() for name in ("audit", "understanding")]
        )
    assert pages[0] == pages[1]


def test_large_graphs_are_left_out(
    small_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(understanding, "LARGEST_AUDIT", 18 + small_graph.num_listed_edges - 1)
    monkeypatch.setattr(understanding, "LARGEST_OVERVIEW", 17)
    assert "`hpgmn audit small --no-training`" in audited(SPEC, small_graph)["left_out"]
    assert f"`hpgmn explain {tmp_path}`" in understood(SPEC, small_graph, tmp_path)["left_out"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (HPGMNError("No numbers."), "No numbers."),
        (MemoryError(), "There was too little memory left to describe the model."),
        (torch.OutOfMemoryError(), "There was too little memory left to describe the model."),
    ],
)
def test_a_model_that_cannot_be_described_leaves_its_reason(
    small_graph: Graph,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    words: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(understanding, "model_overview", fail)
    assert understood(SPEC, small_graph, trained) == {"left_out": words}


def test_an_audit_that_cannot_be_made_leaves_its_reason(
    small_graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(understanding, "audit", fail)
    reason = "There was too little memory left to audit the graph."
    assert audited(SPEC, small_graph) == {"left_out": reason}


def test_want_of_memory_is_known_by_what_torch_raises() -> None:
    def allocate() -> dict[str, Any]:
        return {"size": torch.empty(2**60, dtype=torch.int8)}

    with pytest.raises(RuntimeError):
        allocate()
    reason = "There was too little memory left to count."
    assert made(allocate, "count") == {"left_out": reason}


def test_other_errors_are_not_hidden() -> None:
    def fail() -> dict[str, Any]:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        made(fail, "count")


def test_other_models_are_described_as_far_as_they_can(small_graph: Graph, tmp_path: Path) -> None:
    settings = settings_dict(find_model("mlp").settings(epochs=2))
    spec = replace(SPEC, model="mlp", settings=settings)
    prepare_folder(tmp_path, spec, resume=False, overwrite=True)
    train_folder(spec, small_graph, tmp_path)
    found = understood(spec, small_graph, tmp_path)
    assert (found["map"], list(found["patterns"]), found["statistics"]) == (None, [], {})
    assert found["label_next"]
