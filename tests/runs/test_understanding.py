"""What a run records about graph and model for its report."""

import json
import logging
from dataclasses import replace

import pytest
import torch

from hpgmn.auditing import audit
from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import settings_dict
from hpgmn.explain import explain_model
from hpgmn.models import find_model
from hpgmn.runs import understanding as module
from hpgmn.runs.fit import train_folder
from hpgmn.runs.folder import prepare_folder
from hpgmn.runs.spec import RunSpec
from hpgmn.runs.understanding import computed, understand
from hpgmn.training.saved import SavedModel

SETTINGS = settings_dict(
    find_model("hpgmn").settings(epochs=3, estimator_epochs=3, hidden_dim=4, num_patterns=4)
)
SPEC = RunSpec("small", "hpgmn", SETTINGS, splits=(1, 0), seeds=2)


@pytest.fixture
def model(small_graph, tmp_path, monkeypatch):
    monkeypatch.setattr("hpgmn.explain.explorer.SECONDS", 0.1)
    return trained(SPEC, small_graph, tmp_path)


def trained(spec, graph, folder):
    prepare_folder(folder / "run", spec, resume=False, overwrite=False)
    train_folder(spec, graph, folder / "run")
    return SavedModel.read(folder / "run" / "model.safetensors")


def plain(content):
    return json.loads(json.dumps(content))


def test_everything_is_about_the_first_split(small_graph, model):
    steps: list[str] = []
    found = understand(SPEC, small_graph, model, steps.append)
    assert len(steps) == 3
    assert plain(found.audit) == plain(audit(small_graph, 1, training=False).as_dict())
    chosen = model.choose([r for r, one in enumerate(model.replicas) if one.split == 1])
    explained = plain(explain_model(chosen, small_graph).as_dict())
    overview = plain(found.overview)
    assert {name: overview[name] for name in explained} == explained
    assert (overview["split"], overview["seeds"], len(overview["map"]["nodes"])) == (1, 2, 18)

    explorer = found.explorer
    assert (explorer["split"], explorer["seeds"]) == (1, 2)
    mean, split = chosen.mean_probabilities(small_graph).numpy(), small_graph.split(1)
    for name, row in zip(explorer["ids"], explorer["nodes"], strict=True):
        assert row["probabilities"] == pytest.approx(mean[int(name)], abs=1e-5)
        assert getattr(split, row["role"])[int(name)]
        assert row["label"] == small_graph.y[int(name)]


def test_files_are_reproducible(small_graph, model, tmp_path):
    contents = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        understand(SPEC, small_graph, model).write(tmp_path / name)
        contents.append({path.name: path.read_text() for path in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1]
    assert set(contents[0]) == {"audit.json", "understanding.json", "explorer.json"}


def test_the_model_is_opened_once(small_graph, model, monkeypatch):
    calls = []
    original = module.open_replicas

    def count(*arguments):
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(module, "open_replicas", count)
    understand(SPEC, small_graph, model)
    assert len(calls) == 1


def test_large_graphs_are_left_out(small_graph, model, monkeypatch):
    monkeypatch.setattr(module, "LARGEST_AUDIT", 18 + small_graph.num_listed_edges - 1)
    monkeypatch.setattr(module, "LARGEST_OVERVIEW", 17)
    found = understand(SPEC, small_graph, model)
    assert "hpgmn audit" in found.audit["left_out"]
    assert "hpgmn explain" in found.overview["left_out"]
    assert found.explorer == {}


@pytest.mark.parametrize("name", ["audit", "model_overview", "explorer_data"])
@pytest.mark.parametrize("error", [HPGMNError("No numbers."), MemoryError()])
def test_what_cannot_be_computed_leaves_its_reason(
    small_graph, model, monkeypatch, caplog, name, error
):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(module, name, fail)
    with caplog.at_level(logging.WARNING):
        found = understand(SPEC, small_graph, model)
    left_out = {
        "audit": found.audit.get("left_out", ""),
        "model_overview": found.overview.get("left_out", ""),
        "explorer_data": "" if found.explorer else caplog.text,
    }
    reason = "No numbers." if isinstance(error, HPGMNError) else "memory"
    for part, text in left_out.items():
        assert (reason in text) == (part == name)


def test_lack_of_memory_is_recognised_by_what_torch_raises():
    def allocate():
        return {"size": torch.empty(2**60, dtype=torch.int8)}

    assert "memory" in computed(allocate, "count")["left_out"]

    def fail():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        computed(fail, "count")


def test_other_models_are_described_as_far_as_possible(small_graph, tmp_path):
    settings = settings_dict(find_model("mlp").settings(epochs=2))
    spec = replace(SPEC, model="mlp", settings=settings)
    found = understand(spec, small_graph, trained(spec, small_graph, tmp_path))
    overview = found.overview
    assert (overview["map"], list(overview["patterns"]), overview["statistics"]) == (None, [], {})
    assert overview["label_next"]
    assert found.explorer["nodes"]
