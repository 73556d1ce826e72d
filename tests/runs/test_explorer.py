"""``explorer.json`` of a run folder: whose answers and labels, and what cannot be made."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import hpgmn.runs.explorer as module
from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import settings_dict
from hpgmn.graph import Graph
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.runs.explorer import write_explorer
from hpgmn.runs.fit import train_folder
from hpgmn.runs.folder import EXPLORER_FILE, prepare_folder
from hpgmn.runs.spec import RunSpec
from hpgmn.training.checkpoint import read_tensors, write_tensors
from hpgmn.training.saved import SavedModel

TINY = HPGMNSettings(
    hidden_dim=4, num_patterns=3, estimator_hidden=4, estimator_epochs=3, epochs=4, patience=0
)
SPEC = RunSpec("small", "hpgmn", settings_dict(TINY), splits=(1, 0), seeds=2)


@pytest.fixture
def folder(small_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("hpgmn.explain.dossier.SECONDS", 0.1)
    prepare_folder(tmp_path / "run", SPEC, resume=False, overwrite=False)
    train_folder(SPEC, small_graph, tmp_path / "run")
    return tmp_path / "run"


def test_the_seeds_of_the_first_split_answer(small_graph: Graph, folder: Path) -> None:
    write_explorer(SPEC, small_graph, folder)
    content: dict[str, Any] = json.loads((folder / EXPLORER_FILE).read_text(encoding="utf-8"))
    assert (content["split"], content["seeds"]) == (1, 2)
    saved = SavedModel.read(folder / "model.safetensors")
    mean = saved.choose([0, 1]).mean_probabilities(small_graph).numpy()
    split = small_graph.split(1)
    for name, row in zip(content["ids"], content["nodes"], strict=True):
        assert row["probabilities"] == pytest.approx(mean[int(name)], abs=1e-5)
        assert getattr(split, row["role"])[int(name)]
        assert row["label"] == small_graph.y[int(name)]


def test_roles_and_labels_are_those_the_run_has_written(small_graph: Graph, folder: Path) -> None:
    path = folder / "predictions.parquet"
    table = pq.read_table(path)
    shuffled = table.take(np.random.default_rng(0).permutation(table.num_rows))
    empty = shuffled["label"].to_pylist()
    empty = [
        None if node == 3 else label
        for node, label in zip(shuffled["node"].to_pylist(), empty, strict=True)
    ]
    place = shuffled.column_names.index("label")
    pq.write_table(shuffled.set_column(place, "label", [empty]), path)
    write_explorer(SPEC, small_graph, folder)
    content: dict[str, Any] = json.loads((folder / EXPLORER_FILE).read_text(encoding="utf-8"))
    labels = {int(v): row["label"] for v, row in zip(content["ids"], content["nodes"], strict=True)}
    expected = {v: None if v == 3 else int(label) for v, label in enumerate(small_graph.y)}
    assert labels == expected


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.cuda.OutOfMemoryError("full"), "too little memory left to explain its nodes."),
        (MemoryError(), "too little memory left to explain its nodes."),
        (HPGMNError("No numbers."), "The page has no node explorer. No numbers."),
    ],
)
def test_a_finished_run_goes_without_what_cannot_be_made(
    small_graph: Graph,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    words: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(module, "dossier", fail)
    with caplog.at_level(logging.WARNING):
        write_explorer(SPEC, small_graph, folder)
    assert words in caplog.text
    assert not (folder / EXPLORER_FILE).exists()


def test_a_model_of_no_numbers_has_no_explorer(
    small_graph: Graph, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "model.safetensors"
    tensors, about = read_tensors(path)
    spoilt = {name: value * torch.nan if "/" in name else value for name, value in tensors.items()}
    write_tensors(path, spoilt, about)
    with caplog.at_level(logging.WARNING):
        write_explorer(SPEC, small_graph, folder)
    assert "no node explorer. The file" in caplog.text
    assert "is not finite" in caplog.text
    assert not (folder / EXPLORER_FILE).exists()
