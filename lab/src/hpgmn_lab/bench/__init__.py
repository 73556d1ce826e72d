"""Benchmarks: measure in fresh processes, write a record, judge it by bars, show it.

A benchmark is a module with ``measure(call, …) -> record`` and ``tables(record)``; one that has
several benchmarks names them ``measure_NAME``. ``hpgmn_lab.bench.pictures`` draws some records and
``hpgmn_lab.bench.page`` shows all.
"""

from __future__ import annotations

import importlib
from typing import Any

BENCHMARKS = {
    "growth": "the cost of each stage as the graph grows, up to millions of nodes",
    "peers": "HP-GMN and other models on one graph: seconds to the same validation score",
    "forms": "diffusion as largest entries or as a sketch, against the exact matrix",
    "batches": "training in batches of rows, against all rows at once",
    "workers": "two workers against one on independent runs of one thread each",
    "shards": "a sharded graph: the cost of each kind of work, and of training on the shards",
    "deterministic": "the cost of bit-identical results on a GPU, by model",
    "serve": "hpgmn serve under load: latency, memory, and predictions after additions",
}
"""Every benchmark of ``hpgmn bench`` and what it measures."""

_MODULES = {"forms": "variants", "batches": "variants"}


def load_module(name: str) -> Any:
    """Import the module of a benchmark."""
    return importlib.import_module(f"hpgmn_lab.bench.{_MODULES.get(name, name)}")
