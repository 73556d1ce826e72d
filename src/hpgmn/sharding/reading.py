"""Row shards as training reads them.

| file | holds |
| --- | --- |
| ``manifest.json`` | ``num_nodes``, ``ranges``, ``class_names``, ``statistics``, ``settings``, … |
| ``rows-00000/STATISTIC.npy`` | dense rows of the first range's nodes, half or single precision |
| ``rows-00000/STATISTIC.npz`` | sparse rows, CSR as SciPy saves it |
| ``rows-00000/y.npy``, ``node_ids.npy`` | class of each node (-1 unknown); name or position |
| ``rows-00000/train.npy``, ``val.npy``, ``test.npy`` | the split, booleans; none without a split |
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from hpgmn.errors import HPGMNError
from hpgmn.graph import Array
from hpgmn.sharding.plan import FORMAT
from hpgmn.sharding.rows import rows_file

MANIFEST = "manifest.json"
"""What shards hold; it is written last, so that they are complete where it is."""


class Shards:
    """The rows of a graph's nodes in ranges.

    Args:
        folder: what ``hpgmn shard`` has written.

    Attributes:
        num_nodes: N.
        num_features: F.
        ranges: the first node of each range and the one after the last.
        class_names: C names.
        settings: those that the statistics were made with, forms settled.
        statistics: for each name its ``width``, ``dtype`` and whether it ``is_sparse``.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            about = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise HPGMNError(
                f"{self.folder} holds no finished shards. Make them, or go on making them, with "
                f"`hpgmn shard GRAPH --out {self.folder}`."
            ) from None
        if about["format"] != FORMAT:
            raise HPGMNError(
                f"The shards in {self.folder} are of another version of hpgmn. Make them again "
                "with `hpgmn shard`, in a new folder."
            )
        self.about: dict[str, Any] = about
        self.num_nodes: int = about["num_nodes"]
        self.num_features: int = about["num_features"]
        self.ranges = [(int(first), int(last)) for first, last in about["ranges"]]
        self.class_names = tuple(about["class_names"])
        self.settings: dict[str, Any] = about["settings"]
        self.statistics: dict[str, dict[str, Any]] = about["statistics"]

    def __len__(self) -> int:
        return len(self.ranges)

    def statistic(self, name: str, part: int) -> Any:
        """The rows of a statistic: a mapped array, or a CSR array where it is sparse."""
        if self.statistics[name]["is_sparse"]:
            path = self.folder / rows_file(part, f"{name}.npz")
            return sp.csr_array(sp.load_npz(path))
        return self._array(part, name)

    def y(self, part: int) -> Array:
        """The class of each node of a range, -1 where unknown."""
        return self._array(part, "y")

    def node_ids(self, part: int) -> Array:
        """The names of a range's nodes, or their positions where they have none."""
        return self._array(part, "node_ids")

    def mask(self, name: str, part: int) -> Array:
        """Which nodes of a range are of the split's part "train", "val" or "test"."""
        if self.about["split"] is None:
            raise HPGMNError(
                f"The graph of the shards in {self.folder} has no split. Give it splits and make "
                "them again."
            )
        return self._array(part, name)

    def _array(self, part: int, name: str) -> Array:
        path = self.folder / rows_file(part, f"{name}.npy")
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
