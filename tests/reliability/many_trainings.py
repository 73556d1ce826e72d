"""Trainings in one process, and what they leave behind.

``python many_trainings.py NUMBER``; the last line is what there was after a third of the trainings
and at the end, as JSON.
"""

import gc
import json
import os
import sys
import threading
from pathlib import Path

import torch

from hpgmn.base.machine import reset_peak_memory
from hpgmn.base.settings import make_settings
from hpgmn.estimators.classifier import HPGMNClassifier
from hpgmn.graph import Graph
from hpgmn.graph.synthetic import trading_network
from hpgmn.models import find_model
from hpgmn.models.stage import Replica
from hpgmn.training.replicas import fit_replicas

QUICK = {"epochs": 2, "estimator_epochs": 2, "hidden_dim": 4, "num_patterns": 3}


def state_of_process():
    """What a leak would let grow."""
    reset_peak_memory("cpu")
    lines = Path("/proc/self/status").read_text().splitlines()
    resident = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))
    objects = gc.get_objects()
    return {
        "resident_mb": resident,
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "tensors": sum(issubclass(type(one), torch.Tensor) for one in objects),
        "graphs": sum(issubclass(type(one), Graph) for one in objects),
        "objects": len(objects),
    }


def train_one_of_each(graph, number):
    """A training by each of three ways in; returns how many there were."""
    split = graph.split(0)
    for name in ("hpgmn", "fsgnn"):
        entry = find_model(name)
        known = {"epochs": 2, "hidden_dim": 4}
        settings = make_settings(entry.settings, QUICK if name == "hpgmn" else known)
        fit_replicas(graph, entry, [Replica(0, number, settings)], [(split.train, split.val)])
    model = HPGMNClassifier(seed=number, **QUICK).fit(graph, split=0)
    assert model.predict(graph).shape == (graph.num_nodes,)
    return 3


def trainings(wanted):
    """Train on graphs that come and go, as in a service; half of the times on the same one."""
    kept = trading_network(num_nodes=150, seed=0).graph
    done = number = 0
    middle: dict[str, float] = {}
    while done < wanted:
        number += 1
        graph = kept if number % 2 else trading_network(num_nodes=150, seed=number).graph
        done += train_one_of_each(graph, number)
        del graph
        if not middle and done >= wanted // 3:
            middle = state_of_process()
    return {"middle": middle, "end": state_of_process(), "done": {"trainings": done}}


if __name__ == "__main__":
    print(json.dumps(trainings(int(sys.argv[1]))))
