"""What a run was made from and with, so that it can be had again: told where that has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy

from hpgmn.base.machine import hardware
from hpgmn.base.version import __version__
from hpgmn.graph import Graph

_BITS = "so the last bits may differ from those of the first run."
_CONTENTS = {
    "graph_content": "The graph {} is not what it was when the run of the config was trained: "
    "attributes, edges, labels or splits have changed. The results will differ.",
    "shards_content": "The row shards are not those of the run of the config: they were made "
    "otherwise, or from another graph. The results will differ.",
}


def graph_content(graph: Graph, splits: Sequence[int]) -> str:
    """A hash of all that a run reads of a graph: attributes, edges, labels and the splits."""
    digest = hashlib.sha256(graph.fingerprint.encode())
    digest.update("\0".join(graph.class_names).encode())
    digest.update(np.ascontiguousarray(graph.y, np.int64).data)
    for number in splits:
        split = graph.split(number)
        for mask in (split.train, split.val, split.test):
            digest.update(np.packbits(mask).data)
    return digest.hexdigest()


def made_with(graph: Graph, splits: Sequence[int], device: str) -> dict[str, Any]:
    """What the same bits depend on beside the specification, as ``config.yaml`` holds it."""
    return {"graph_content": graph_content(graph, splits), **surroundings(device)}


def surroundings(device: str) -> dict[str, Any]:
    """The versions and the machine that bits depend on."""
    own = hardware(device)
    return {
        "torch": str(own["torch"]),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": own["python"],
        "processor": own["processor"],
        "threads": own["threads"],
        **({"gpu": own["device"]} if device == "cuda" else {}),
    }


def changes(config: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What has changed since a run, in sentences: its graph, and what bits depend on.

    Args:
        config: the ``config.yaml`` of the run; one that does not say has not changed.
        now: what :func:`made_with` says today.
    """
    before: Mapping[str, Any] = config.get("made_with") or {}
    found = [
        words.format(config.get("graph"))
        for name, words in _CONTENTS.items()
        if name in before and name in now and before[name] != now[name]
    ]
    versions = {"hpgmn": (config.get("version"), __version__)}
    same = {name: value for name, value in now.items() if name not in (*_CONTENTS, "shards")}
    versions |= {name: (before.get(name), value) for name, value in same.items()}
    others = [
        f"{name} {was} (now {today})"
        for name, (was, today) in versions.items()
        if was is not None and was != today
    ]
    if others:
        found.append(f"The run of the config was trained with {', '.join(others)}, {_BITS}")
    return found
