"""Folders of rows of small graphs, and processes that torchrun starts."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import hpgmn as package
from hpgmn.config import make_settings, settings_dict
from hpgmn.graph import Graph
from hpgmn.models.hpgmn import ENTRY
from hpgmn.models.label_estimator import estimator_logits, pseudo_labels
from hpgmn.models.stage import Replica, make_task
from hpgmn.statistics import LocalStatistics, statistic_names
from hpgmn.statistics.operators import SparseRows
from hpgmn.training.checkpoint import write_tensors
from hpgmn.training.trainer import logits, train

SOURCE = Path(package.__file__).parents[1]

Writer = Callable[..., Path]


def write_rows(
    folder: Path,
    graph: Graph,
    settings: Mapping[str, Any],
    *,
    split: int = 0,
    parts: int = 4,
    estimator: Mapping[str, torch.Tensor] | None = None,
    labels: np.ndarray | None = None,
) -> Path:
    """A graph's statistics, in the columns and values of one process, cut into ranges of nodes.

    Without labels the pseudo labels are the classes of the train nodes alone, -1 elsewhere.
    """
    chosen = make_settings(ENTRY.settings, settings)
    own = graph.split(split)
    if labels is None:
        labels = np.where(own.train, graph.y, -1)
    built = LocalStatistics(graph).build(labels[None], graph.num_classes, [chosen])
    every = torch.arange(graph.num_nodes)
    cuts = np.linspace(0, graph.num_nodes, parts + 1).astype(int)
    about = {}
    for name in statistic_names(chosen):
        matrix = built[name].rows(every).numpy()
        is_sparse = isinstance(built[name], SparseRows)
        about[name] = {"width": matrix.shape[1], "is_sparse": is_sparse}
        for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
            place = folder / f"rows-{number:05d}"
            place.mkdir(parents=True, exist_ok=True)
            if is_sparse:
                sp.save_npz(place / f"{name}.npz", sp.csr_array(matrix[start:stop]))
            else:
                np.save(place / f"{name}.npy", matrix[start:stop])
    arrays = {"y": graph.y, "train": own.train, "val": own.val, "test": own.test}
    if graph.node_ids is not None:
        arrays["node_ids"] = graph.node_ids
    for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
        for name, values in arrays.items():
            np.save(folder / f"rows-{number:05d}" / f"{name}.npy", values[start:stop])
    if estimator is not None:
        write_tensors(folder / "estimator.safetensors", estimator, {})
    manifest = {
        "num_nodes": graph.num_nodes,
        "ranges": [[int(a), int(b)] for a, b in itertools.pairwise(cuts)],
        "class_names": list(graph.class_names),
        "statistics": about,
        "settings": settings_dict(chosen),
        "graph": graph.name,
        "fingerprint": graph.fingerprint,
        "num_features": graph.num_features,
        "split": split,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def write_as_trained(
    folder: Path, graph: Graph, settings: Mapping[str, Any], *, split: int = 0, parts: int = 4
) -> tuple[Path, Any]:
    """Rows with the pseudo labels of one process's training; also that training's state."""
    chosen = make_settings(ENTRY.settings, settings)
    own = graph.split(split)
    task = make_task(graph, [Replica(split, 0, chosen)], [(own.train, own.val)], "cpu")
    state = train(task, ENTRY)
    guesses = estimator_logits(task, state.done["estimator"])
    labels = pseudo_labels(guesses, task.train_labels)[0]
    write_rows(
        folder,
        graph,
        settings,
        split=split,
        parts=parts,
        estimator=state.done["estimator"],
        labels=labels,
    )
    return folder, (state, logits(task, ENTRY, state.done))


def torchrun(
    ranks: int, *words: str, timeout: float = 120, expect: int | None = 0
) -> subprocess.CompletedProcess[str]:
    """Run a module or a program of Python as several processes on this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*command, "--standalone", *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert expect is None or done.returncode == expect, done.stderr
    return done


def environment() -> dict[str, str]:
    before = os.environ.get("PYTHONPATH", "")
    return os.environ | {
        "PYTHONPATH": f"{SOURCE}{os.pathsep}{before}",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.fixture
def rows_writer() -> Writer:
    """Writes a folder of rows; see :func:`write_rows`."""
    return write_rows


@pytest.fixture
def trained_writer() -> Callable[..., tuple[Path, Any]]:
    """Writes a folder of rows and trains on the graph in one process."""
    return write_as_trained


@pytest.fixture
def several() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs something under torchrun."""
    return torchrun
