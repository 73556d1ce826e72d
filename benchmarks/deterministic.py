"""What ``--deterministic`` costs here: seconds with and without, and whether bits repeat.

PYTHONPATH=src python benchmarks/deterministic.py
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before cuBLAS is first used

import torch

from hpgmn.config import make_settings
from hpgmn.datasets.synthetic import trading_network
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.stage import Replica
from hpgmn.training.repeatable import repeatable
from hpgmn.training.replicas import Fitted, fit_replicas


def trained(
    graph: Graph, name: str, epochs: int, device: str, is_asked: bool
) -> tuple[float, Fitted]:
    """Seconds and result of ten replicas, one for each split."""
    cls = MODELS[name].settings
    names = {info.name for info in dataclasses.fields(cls)}
    values: dict[str, Any] = {one: epochs for one in names if one.endswith("epochs")}
    settings = make_settings(cls, values | {one: 0 for one in names if one.endswith("patience")})
    replicas = [Replica(number, 0, settings) for number in range(10)]
    masks = [(graph.split(one.split).train, graph.split(one.split).val) for one in replicas]
    started = time.perf_counter()
    with repeatable(is_asked, device):
        fitted = fit_replicas(graph, MODELS[name], replicas, masks, device=device)
    return time.perf_counter() - started, fitted


def are_same(one: Fitted, other: Fitted) -> bool:
    """Whether two trainings ended with the same bits."""
    return torch.equal(one.logits, other.logits) and all(
        torch.equal(value, other.done[stage][key])
        for stage, parameters in one.done.items()
        for key, value in parameters.items()
    )


def row(graph: Graph, name: str, epochs: int, device: str) -> str:
    """A line of the table; the faster of two trainings counts."""
    found = {asked: [trained(graph, name, epochs, device, asked) for _ in "12"] for asked in (0, 1)}
    usual, ordered = (min(seconds for seconds, _ in found[asked]) for asked in (0, 1))
    repeats = ["yes" if are_same(*(one for _, one in found[asked])) else "no" for asked in (0, 1)]
    return (
        f"| {name} | {usual:.2f} | {ordered:.2f} | {ordered / usual:.2f} | {' | '.join(repeats)} |"
    )


def main(words: Sequence[str] | None = None) -> None:
    """Print the table, model by model, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seconds", type=float, default=70.0, help="no model begins later")
    asked = parser.parse_args(words)
    graph = trading_network(num_nodes=asked.nodes, seed=0).graph
    where = torch.cuda.get_device_name() if asked.device == "cuda" else "CPU"
    print(f"{where}, torch {torch.__version__}, {graph}, 10 replicas, {asked.epochs} epochs")
    print("| model | seconds | --deterministic | ratio | bits repeat | --deterministic |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    started = time.perf_counter()
    trained(graph, "mlp", 5, asked.device, False)  # libraries set themselves up
    left = []
    for name in asked.models.split(","):
        if time.perf_counter() - started > asked.seconds:
            left.append(name)
            continue
        try:
            print(row(graph, name, asked.epochs, asked.device), flush=True)
        except RuntimeError as error:  # an operation that has no order: to be seen, not hidden
            print(f"| {name} | {str(error).splitlines()[0]} |", flush=True)
    if left:
        print(f"No time was left for {', '.join(left)}.")


if __name__ == "__main__":
    main()
