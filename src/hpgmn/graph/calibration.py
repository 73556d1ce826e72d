"""Validation nodes that are reserved for conformal prediction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpgmn.base.randomness import text_keys
from hpgmn.graph.edges import Array
from hpgmn.graph.graph import Split


def reserve_calibration(split: Split, number: int, node_ids: Array | None) -> Split:
    """Reserve half of the validation nodes of a split for conformal prediction.

    A hash of the split's number and the node's id (or position) chooses them, whatever their labels
    are; they take no part in training or selection.
    """
    nodes = np.flatnonzero(split.val)
    names = nodes.astype(np.str_) if node_ids is None else node_ids[nodes]
    keys = text_keys(np.char.add(f"calibration {number} ", names)).numpy()
    order = np.argsort(keys, kind="stable")
    calibration = np.zeros_like(split.val)
    calibration[nodes[order[: len(nodes) // 2]]] = True
    return replace(split, val=split.val & ~calibration, calibration=calibration)
