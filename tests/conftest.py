"""Row shards of small graphs, and processes that torchrun starts."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hpgmn as package
from hpgmn.base.files import write_tensors
from hpgmn.base.settings import make_settings
from hpgmn.models.hpgmn import ENTRY, estimator_logits, pseudo_labels
from hpgmn.models.stage import Replica, logits, make_task
from hpgmn.shards import ESTIMATOR_FILE, shard
from hpgmn.shards.files import write_array
from hpgmn.training.trainer import train

SOURCE = Path(package.__file__).parents[1]

Writer = Callable[..., Path]


def write_shards(folder, graph, settings, *, split=0, ranges=4, estimator=None, labels=None):
    """The row shards of a graph.

    Without labels neighbours are counted by the classes of the train nodes alone.
    """
    if labels is None:
        labels = np.where(graph.split(split).train, graph.y, -1)
    chosen = make_settings(ENTRY.settings, settings)
    shard(graph, folder, labels, chosen, ranges=ranges, split=split)
    if estimator is not None:
        write_tensors(folder / ESTIMATOR_FILE, estimator, {})
    return folder


def write_as_trained(folder, graph, settings, *, split=0, ranges=4):
    """Shards with the pseudo labels of one process's training; also that training's state."""
    chosen = make_settings(ENTRY.settings, settings)
    own = graph.split(split)
    task = make_task(graph, [Replica(split, 0, chosen)], [(own.train, own.val)], "cpu")
    state = train(task, ENTRY)
    guesses = estimator_logits(task, state.done["estimator"])
    write_shards(
        folder,
        graph,
        settings,
        split=split,
        ranges=ranges,
        estimator=state.done["estimator"],
        labels=pseudo_labels(guesses, task.train_labels)[0],
    )
    return folder, (state, logits(task, ENTRY, state.done))


def torchrun(ranks, *words, timeout=120, expect=0):
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


def environment():
    before = os.environ.get("PYTHONPATH", "")
    return os.environ | {
        "PYTHONPATH": f"{SOURCE}{os.pathsep}{before}",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.fixture
def shards_writer():
    """Writes row shards; see :func:`write_shards`."""
    return write_shards


@pytest.fixture
def rewrite():
    """Replaces a file of row shards, as if they had been made with that content."""

    def written(folder, name, array):
        path = folder / "manifest.json"
        about = json.loads(path.read_text())
        about["files"][name] = write_array(folder / name, array)
        path.write_text(json.dumps(about))

    return written


@pytest.fixture
def trained_writer():
    """Writes row shards and trains on the graph in one process."""
    return write_as_trained


@pytest.fixture
def several():
    """Runs something under torchrun."""
    return torchrun
