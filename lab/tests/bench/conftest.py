"""Records written by hand, and tasks that run in the process of the test."""

import importlib

import pytest

from hpgmn_lab.bench import deterministic, graphs, growth, peers, shards, workers
from hpgmn_lab.bench.process import TASKS
from hpgmn_lab.bench.records import Call

HEAD = {
    "command": "hpgmn bench NAME --device cpu",
    "version": "9.9",
    "date": "2026-01-02",
    "device_kind": "cpu",
    "processor": "a processor",
    "threads": 2,
    "device": "cpu",
    "torch": "3",
    "python": "3.99",
    "seeds": [0],
    "settings": {"lr": 0.5},
}
"""The common fields of :func:`hpgmn_lab.bench.records.new_record`."""


def yardstick_row(**changes):
    """A graph of the whole result, 30 times faster than the yardstick."""
    return {
        "yardstick_seconds": 3000.0,
        "yardstick_per_epoch": 1.0,
        "yardstick_per_epoch_at_our_sizes": 0.25,
        "yardstick_accuracy": [60.0, 2.0],
        "ours_seconds": 100.0,
        "ours_accuracy": [78.0, 1.0],
        "ours_per_epoch_alone": 0.125,
        "ours_per_epoch_together": 0.0625,
        "ours_epochs": 150.0,
        "hidden": 64,
        "patterns": 50,
        "cores_taken_by_others": 0.02,
    } | changes


@pytest.fixture
def compare_record():
    """As lab/benchmarks/compare.py wrote it before records had a common head."""
    equal = {
        "yardstick_per_epoch": 0.6,
        "ours_per_epoch": 0.2,
        "yardstick_memory": 600 * 2**20,
        "ours_memory": 240 * 2**20,
        "cores_taken_by_others": 0.07,
    }
    return {
        "machine": "a machine",
        "threads": 2,
        "torch": "2",
        "version": "0",
        "date": "2026-01-01",
        "repeats": 4,
        "whole_result": {"texas": yardstick_row(ours_seconds=400.0), "squirrel": yardstick_row()},
        "equal_sizes": {"diffusion": equal, "adjacency": equal},
    }


def growth_size(nodes, seconds, memory, **changes):
    """A size of ten edges per node; training takes all but 5 s of the time."""
    stages = {"open": 1.0, "estimator": 2.0, "statistics": 1.5, "prediction": 0.5}
    return {
        "nodes": nodes,
        "best_accuracy": 0.97,
        "edges": 10 * nodes,
        "startup_seconds": 3.0,
        "seconds": stages | {"training": seconds - 5},
        "peak_bytes": 2**30 + memory,
        "level_bytes": 2**30,
        "device_peak_bytes": None,
        "cores_taken_by_others": 0.05,
        "val_accuracy": 0.9512,
        "test_accuracy": 0.9487,
    } | changes


@pytest.fixture
def growth_record():
    """100,000 nodes in 15 s, 1,000,000 in 240 s: 1.6 times as much per edge, less memory."""
    sizes = [growth_size(100_000, 15.0, 2**29), growth_size(1_000_000, 240.0, 4 * 2**30)]
    return HEAD | {"benchmark": "growth", "sizes": sizes}


def peer(test, curve, **changes):
    """A model that was measured: one trial of two epochs of one second each."""
    trial = {
        "val_accuracy": curve[-1][1] if curve else None,
        "preparation_seconds": curve[0][0] - 1 if curve else None,
        "epoch_seconds": 1.0 if curve else None,
        "epochs_trained": len(curve),
        "epochs": 2,
        "is_finished": len(curve) == 2,
    }
    return {
        "trials": [trial],
        "chosen": 0,
        "curve": [list(point) for point in curve],
        "test_accuracy": test,
        "peak_bytes": 2**30,
        "device_peak_bytes": None,
        "cores_taken_by_others": 0.02,
    } | changes


@pytest.fixture
def peers_record():
    """HP-GMN has 92 % after 4 s and 95 % after 5 s; gcn is slower, linkx better, one was cut."""
    models = {
        "hpgmn": peer(0.94, [(4.0, 0.92), (5.0, 0.95)]),
        "gcn": peer(0.50, [(5.0, 0.40), (6.0, 0.60)]),
        "linkx": peer(0.948, [(2.0, 0.93), (3.0, 0.96)]),
        "appnp": {"failed": "Out of memory while training appnp."},
        "pyg-gcn": peer(None, [(2.0, 0.93)]),
    }
    settings = {"trials": {name: [{"lr": 0.1}] for name in models}}
    return HEAD | {"benchmark": "peers", "models": models, "settings": settings}


def side(*scores, lr=0.02):
    """Runs on two splits that took nine seconds."""
    return {
        "test_score": list(scores),
        "seconds": 9.0,
        "settings": {"lr": lr, "diffusion_dropout": 0.6},
    }


ABOUT = {"splits": [0, 1], "test_per_train": 0.5}


@pytest.fixture
def forms_record():
    """topk is half a point better, the sketch a point worse on every split."""
    runs = {"dense": side(0.70, 0.72), "topk": side(0.71, 0.72), "sketch": side(0.69, 0.71)}
    words = ("with self entries", "without")
    error = {
        "topk": dict(zip(words, (0.185, 0.3), strict=True)),
        "sketch": dict(zip(words, (0.41, 0.19), strict=True)),
    }
    graphs = {"squirrel": ABOUT | {"runs": runs}}
    return HEAD | {"benchmark": "forms", "errors": {"texas": error}, "graphs": graphs}


@pytest.fixture
def batches_record():
    """A point worse both times: by chance on squirrel, on every split on pubmed."""
    graphs = {
        "squirrel": {"all at once": side(0.70, 0.72), "in batches": side(0.67, 0.73, lr=0.01)},
        "pubmed": {"all at once": side(0.70, 0.72), "in batches": side(0.69, 0.71, lr=0.01)},
    }
    return HEAD | {
        "benchmark": "batches",
        "batch_size": 64,
        "graphs": {name: ABOUT | {"runs": runs} for name, runs in graphs.items()},
    }


@pytest.fixture
def workers_record():
    """Two workers were 1.5, 2 and 1.75 times as fast as one."""
    repeats = [
        {
            side: {"seconds": seconds, "cores_taken_by_others": taken}
            for side, seconds, taken in (("1", one, 0.04), ("2", two, None))
        }
        for one, two in ((60.0, 40.0), (60.0, 30.0), (70.0, 40.0))
    ]
    own = {"engine": "local", "runs": 8, "cores": 2, "repeats": repeats}
    return HEAD | {"benchmark": "workers"} | own


@pytest.fixture
def deterministic_record():
    """gcn takes 1.5 and 2 times as long, mlp as long as without; bits of gcn need the switch."""

    def measured(gcn, gcn_bits):
        models = {"mlp": {"seconds": 1.0, "bits": "m"}, "gcn": {"seconds": gcn, "bits": gcn_bits}}
        return {"models": models, "cores_taken_by_others": 0.03}

    repeats = [
        {"usual": measured(2.0, "a"), "ordered": measured(3.0, "c")},
        {"usual": measured(2.0, "b"), "ordered": measured(5.0, "c")},
    ]
    settings = {"nodes": 2000, "epochs": 200, "patience": 0, "splits": 10}
    own = {"models": ["mlp", "gcn"], "repeats": repeats, "settings": settings}
    return HEAD | {"benchmark": "deterministic"} | own


def shards_cost(cpu, read, written):
    """What eight tasks took."""
    return {
        "tasks": 8,
        "cpu_seconds": cpu,
        "seconds": 2 * cpu,
        "bytes_read": read,
        "bytes_written": written,
    }


@pytest.fixture
def shards_record():
    """1,000 nodes and 10,000 edges, F = 4, C = 2, d = 16, three rounds; a µs for most edges."""
    kinds = {
        "out": shards_cost(0.01, 40_000, 130_000),
        "in": shards_cost(0.02, 80_000, 50_000),
        "nodes": shards_cost(0.001, 10_000, 11_000),
        "attributes": shards_cost(0.002, 16_000, 16_000),
        "class_counts": shards_cost(0.01, 72_000, 8_000),
        "class_means": shards_cost(0.04, 188_000, 16_000),
        "transition": shards_cost(0.01, 80_000, 90_000),
        "round": shards_cost(0.08, 1_200_000, 128_000) | {"tasks": 16},  # two of them
        "join": shards_cost(0.001, 80_000, 88_000) | {"tasks": 1},
    }
    widths = {"attributes": 4, "class_counts": 2, "class_means": 8, "diffusion": 16}
    found = {
        "nodes": 1_000,
        "edges": 10_000,
        "attributes": 4,
        "classes": 2,
        "rounds": 3,
        "costs": kinds,
        "topk": [
            {"rows": 100, "threshold": 1e-3, "cpu_seconds": 0.01},
            {"rows": 100, "threshold": 1e-4, "cpu_seconds": 0.1},
        ],
        "statistics": {
            name: {"width": width, "dtype": "float16" if name == "class_means" else "float32"}
            for name, width in widths.items()
        },
        "cores_taken_by_others": 0.03,
    }
    run = {
        "epoch_seconds": 1.2,
        "train_rows": 500,
        "val_rows": 200,
        "batch_size": 50,
        "steps": 10,
        "parameters": 1_000,
        "peak_bytes": 400_000_000,
        "cores_taken_by_others": 0.02,
    }
    training = {
        "alone": run,
        "fewer": run | {"train_rows": 50, "steps": 1, "epoch_seconds": 0.3},
        "two": run | {"epoch_seconds": 0.7},
    }
    return HEAD | {
        "benchmark": "shards",
        "settings": {"diffusion_dim": 16, "hidden_dim": 8},
        "ranges": 8,
        "memory": 2**20,
        "statistics": found,
        "training": training,
    }


@pytest.fixture
def serve_record():
    """All bars are reached but that of new nodes."""

    def part(p99):
        return {"requests": 600, "errors": 0, "p50_ms": 1.0, "p99_ms": p99, "max_ms": 2 * p99}

    both = {"known": part(15.0), "new": part(70.0)}
    loads = {"known": {"known": part(5.0)}, "new": {"new": part(61.5)}, "both": both}
    run = {
        "loads": loads,
        "growth_bytes": 10_000_000,
        "memory_bytes": 10**9,
        "added": 1000,
        "seconds_of_additions": 2.5,
        "difference": 5e-6,
        "cores_taken_by_others": 0.04,
    }
    sizes = {"nodes": 5000, "edges": 20_000, "seconds": 6.0, "rates": {"known": 100.0, "new": 20.0}}
    return HEAD | {"benchmark": "serve"} | sizes | {"runs": {"single": run}}


@pytest.fixture
def here(monkeypatch):
    """Run tasks in this process rather than in fresh ones; returns the list of tasks run."""
    done = []

    def run_task(task, *, timeout=None, threads=None, **arguments):
        done.append(task)
        module, function = TASKS[task]
        return getattr(importlib.import_module(f"hpgmn_lab.bench.{module}"), function)(**arguments)

    for module in (deterministic, graphs, growth, peers, shards, workers):
        monkeypatch.setattr(module, "run_task", run_task)
    return done


@pytest.fixture
def call(tmp_path):
    return Call("hpgmn bench NAME", "cpu", tmp_path / "out")
