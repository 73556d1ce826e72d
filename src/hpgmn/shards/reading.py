"""Row shards as training reads them.

| file | holds |
| --- | --- |
| ``manifest.json`` | ``num_nodes``, ``ranges``, ``class_names``, ``statistics``, ``settings``, … |
| ``rows-00000/STATISTIC.npy`` | dense rows of the first range's nodes, half or single precision |
| ``rows-00000/STATISTIC.npz`` | sparse rows, CSR as SciPy saves it |
| ``rows-00000/y.npy``, ``node_ids.npy`` | class of each node (-1 unknown); name or position |
| ``rows-00000/train.npy``, ``val.npy``, ``test.npy`` | the split, booleans; none without a split |
| ``estimator.safetensors`` | the label estimator, where the labels behind the rows are its own |
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from hpgmn.base.digests import digest
from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import check_format
from hpgmn.base.parsing import parse_json, read_archive, read_array, read_json_bytes
from hpgmn.graph import Array
from hpgmn.shards.files import are_whole
from hpgmn.shards.plan import FORMAT
from hpgmn.shards.rows import rows_file

MANIFEST = "manifest.json"
"""What shards hold; it is written last, so that they are complete where it is."""

ESTIMATOR_FILE = "estimator.safetensors"
"""The label estimator behind the rows, where there is one; a model needs it for other graphs."""


class Shards:
    """The rows of a graph's nodes in ranges.

    Args:
        folder: what ``hpgmn shard`` has written.

    Attributes:
        folder: the folder.
        about: the whole manifest.
        identity: a digest of it.
        name: the graph's name.
        num_nodes: N.
        num_features: F.
        ranges: the first node of each range and the one after the last.
        class_names: C names.
        split: the number of the split that is marked; None: the graph has none.
        settings: those that the statistics were made with, forms settled.
        statistics: for each name its ``width``, ``dtype`` and whether it ``is_sparse``.
        source: where the graph is, a dataset's name or a path; None: it was in memory.
        fingerprint: the graph's; empty where it was never read whole.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        path = self.folder / MANIFEST
        try:
            text = read_json_bytes(path)
        except ValueError as error:
            raise _damaged(path, str(error)) from None
        except OSError:
            raise HPGMNError(
                f"{self.folder} has no finished shards.",
                Remedy("Create or resume them", command="shard"),
            ) from None
        self.identity = digest(text)
        try:
            self._describe(parse_json(text))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(path, repr(error)) from None
        ends = [0, *(last for _, last in self.ranges)]
        if [first for first, _ in self.ranges] != ends[:-1] or ends[-1] != self.num_nodes:
            raise _damaged(path, "its ranges are not all nodes in order")

    def _describe(self, about: dict[str, Any]) -> None:
        """Take what the manifest says."""
        check_format(f"The shards in {self.folder}", about["format"], FORMAT)
        if about["format"] != FORMAT:
            raise HPGMNError(
                f"The shards in {self.folder} are of another version of hpgmn. Make them again "
                "with `hpgmn shard`, in a new folder."
            )
        self.about = about
        self.name = str(about["graph"])
        self.num_nodes = int(about["num_nodes"])
        self.num_features = int(about["num_features"])
        self.ranges = [(int(first), int(last)) for first, last in about["ranges"]]
        self.class_names = tuple(str(name) for name in about["class_names"])
        self.split: int | None = about["split"]
        self.settings: dict[str, Any] = dict(about["settings"])
        self.statistics: dict[str, dict[str, Any]] = dict(about["statistics"])
        self._widths = {name: int(said["width"]) for name, said in self.statistics.items()}
        self.source: str | None = about["source"]
        self.fingerprint = str(about["fingerprint"])

    def __len__(self) -> int:
        return len(self.ranges)

    def check(self, parts: Sequence[int] | None = None) -> None:
        """Refuse files whose content is not what was written: a disk may have spoiled it.

        Args:
            parts: whose files are read; None for all.
        """
        chosen = range(len(self)) if parts is None else parts
        folders = tuple(rows_file(part, "") for part in chosen)
        for name, said in self.about["files"].items():
            is_own = name.startswith(folders)
            if is_own and not are_whole(self.folder, {name: said}, checked=True):
                raise _damaged(self.folder / name, "its checksum is another")

    def shares(self, size: int) -> list[range]:
        """The numbers of the ranges of each rank: neighbours, with about as many nodes each."""
        if len(self) < size:
            raise HPGMNError(
                f"The shards in {self.folder} have {len(self)} ranges of nodes, too few for {size} "
                "ranks.",
                Remedy("Cut the graph into more", command="shard", option="ranges")
                | "Start fewer ranks",
            )
        cuts = [0]
        for rank in range(1, size):
            stops = np.array([stop for _, stop in self.ranges])
            nearest = int(np.abs(stops - self.num_nodes * rank / size).argmin()) + 1
            # Every rank has a range, this one and those after it.
            cuts.append(min(max(nearest, cuts[-1] + 1), len(self) - (size - rank)))
        return [range(*ends) for ends in zip(cuts, [*cuts[1:], len(self)], strict=True)]

    def statistic(self, name: str, part: int) -> Any:
        """The rows of a statistic: a mapped array, or a CSR array where it is sparse."""
        is_sparse = self.statistics[name]["is_sparse"]
        path = self.folder / rows_file(part, f"{name}.{'npz' if is_sparse else 'npy'}")
        found = self._sparse(path) if is_sparse else self._array(part, name)
        first, last = self.ranges[part]
        expected = (last - first, self._widths[name])
        if found.shape != expected:
            raise _damaged(path, f"shape {found.shape} instead of {expected}")
        return found

    def y(self, part: int) -> Array:
        """The class of each node of a range, -1 where unknown."""
        return self._array(part, "y")

    def node_ids(self, part: int) -> Array:
        """The names of a range's nodes, or their positions where they have none."""
        return self._array(part, "node_ids")

    @property
    def has_names(self) -> bool:
        """Whether nodes have names, other than their positions."""
        return self.node_ids(0).dtype.kind == "U"

    def names(self, parts: Sequence[int]) -> Array:
        """The names of the nodes of some ranges as words; their positions where they have none."""
        return np.concatenate([self.node_ids(part).astype(str) for part in parts])

    def mask(self, name: str, part: int) -> Array:
        """Which nodes of a range are of the split's part "train", "val" or "test"."""
        if self.split is None:
            raise HPGMNError(
                f"The graph of the shards in {self.folder} has no split. Give it splits and make "
                "them again with `hpgmn shard`."
            )
        return self._array(part, name)

    def _array(self, part: int, name: str) -> Array:
        path = self.folder / rows_file(part, f"{name}.npy")
        try:
            found = np.asarray(read_array(path, mapped="r"))
        except OSError as error:
            raise _damaged(path, error.strerror or "cannot be read") from None
        except ValueError as error:
            raise _damaged(path, str(error)) from None
        first, last = self.ranges[part]
        if found.shape[:1] != (last - first,):
            raise _damaged(path, f"shape {found.shape} for {last - first} nodes")
        return found

    def _sparse(self, path: Path) -> sp.csr_array:
        needed = ("indptr", "indices", "data", "shape")
        try:
            arrays, _ = read_archive(path, lambda name: name in needed)
            indptr, indices, data, shape = (arrays[name] for name in needed)
            rows = sp.csr_array((data, indices, indptr), shape=tuple(shape.tolist()))
            rows.check_format()  # SciPy would read wherever a wrong entry leads
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _damaged(path, str(error)) from None
        return rows


def _damaged(path: Path, fault: str) -> HPGMNError:
    return HPGMNError(
        f"The file {path} is missing, damaged or not one of ours ({fault}). Make the shards again "
        "with `hpgmn shard`, in a new folder."
    )
