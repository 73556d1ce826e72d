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

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import check_format, digest
from hpgmn.base.parsing import parse_json, read_archive, read_array, read_json_bytes
from hpgmn.graph import Array
from hpgmn.shards.files import are_complete
from hpgmn.shards.plan import FORMAT
from hpgmn.shards.rows import rows_file

MANIFEST = "manifest.json"
"""Name of the manifest, which is written last."""

ESTIMATOR_FILE = "estimator.safetensors"
"""The label estimator behind the rows, if any; a model needs it for other graphs."""


class Shards:
    """Row shards written by ``hpgmn shard``.

    Attributes:
        about: the whole manifest.
        identity: a digest of it.
        num_edges: None if they were too many to count without duplicates; so is ``homophily``.
        ranges: the first node of each range and the one after the last.
        split: the number of the marked split; None if the graph has none.
        settings: of the statistics, with resolved forms.
        statistics: for each name its ``width``, ``dtype`` and whether it ``is_sparse``.
        source: a dataset's name or a path; None for a graph in memory.
        fingerprint: of the graph; empty if it was never read whole.
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
        """Set attributes from the manifest."""
        check_format(f"The shards in {self.folder}", about["format"], FORMAT)
        if about["format"] != FORMAT:
            raise HPGMNError(
                f"The shards in {self.folder} are of another version of hpgmn.",
                "Recreate them with `hpgmn shard`, in a new folder.",
            )
        self.about = about
        self.name = str(about["graph"])
        self.num_nodes = int(about["num_nodes"])
        self.num_features = int(about["num_features"])
        self.num_edges: int | None = about["num_edges"]
        self.homophily: float | None = about["homophily"]
        self.ranges = [(int(first), int(last)) for first, last in about["ranges"]]
        self.class_names = tuple(str(name) for name in about["class_names"])
        self.num_classes = len(self.class_names)
        self.preparation: dict[str, Any] | None = about["preparation"]
        self.split: int | None = about["split"]
        self.settings: dict[str, Any] = dict(about["settings"])
        self.statistics: dict[str, dict[str, Any]] = dict(about["statistics"])
        self._widths = {name: int(facts["width"]) for name, facts in self.statistics.items()}
        self.source: str | None = about["source"]
        self.fingerprint = str(about["fingerprint"])

    def __len__(self) -> int:
        return len(self.ranges)

    def check(self, parts: Sequence[int] | None = None) -> None:
        """Raise HPGMNError for files whose checksum differs.

        Args:
            parts: the ranges to read; None for all.
        """
        chosen = range(len(self)) if parts is None else parts
        folders = tuple(rows_file(part, "") for part in chosen)
        for name, facts in self.about["files"].items():
            is_chosen = name.startswith(folders)
            if is_chosen and not are_complete(self.folder, {name: facts}, checked=True):
                raise _damaged(self.folder / name, "its checksum differs")

    def shares(self, size: int) -> list[range]:
        """Return the consecutive ranges of each rank, with about equally many nodes."""
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
            # Leave a range for every later rank.
            cuts.append(min(max(nearest, cuts[-1] + 1), len(self) - (size - rank)))
        return [range(*ends) for ends in zip(cuts, [*cuts[1:], len(self)], strict=True)]

    def statistic(self, name: str, part: int) -> Any:
        """Return the rows of a statistic: a mapped array, or a CSR array if it is sparse."""
        is_sparse = self.statistics[name]["is_sparse"]
        path = self.folder / rows_file(part, f"{name}.{'npz' if is_sparse else 'npy'}")
        rows = self._sparse(path) if is_sparse else self._array(part, name)
        first, last = self.ranges[part]
        expected = (last - first, self._widths[name])
        if rows.shape != expected:
            raise _damaged(path, f"shape {rows.shape} instead of {expected}")
        return rows

    def y(self, part: int) -> Array:
        """Return the class of each node of a range, -1 if unknown."""
        return self._array(part, "y")

    def node_ids(self, part: int) -> Array:
        """Return the names of a range's nodes, or their positions."""
        return self._array(part, "node_ids")

    @property
    def has_names(self) -> bool:
        """Whether nodes have names other than their positions."""
        return self.node_ids(0).dtype.kind == "U"

    def names(self, parts: Sequence[int]) -> Array:
        """Return the names or positions of the nodes of some ranges as strings."""
        return np.concatenate([self.node_ids(part).astype(str) for part in parts])

    def mask(self, name: str, part: int) -> Array:
        """Return which nodes of a range are in "train", "val" or "test" of the split."""
        if self.split is None:
            raise HPGMNError(
                f"The graph of the shards in {self.folder} has no split.",
                "Add splits and recreate the shards with `hpgmn shard`.",
            )
        return self._array(part, name)

    def _array(self, part: int, name: str) -> Array:
        path = self.folder / rows_file(part, f"{name}.npy")
        try:
            array = np.asarray(read_array(path, mapped="r"))
        except OSError as error:
            raise _damaged(path, error.strerror or "cannot be read") from None
        except ValueError as error:
            raise _damaged(path, str(error)) from None
        first, last = self.ranges[part]
        if array.shape[:1] != (last - first,):
            raise _damaged(path, f"shape {array.shape} for {last - first} nodes")
        return array

    def _sparse(self, path: Path) -> sp.csr_array:
        needed = ("indptr", "indices", "data", "shape")
        try:
            arrays, _ = read_archive(path, lambda name: name in needed)
            indptr, indices, data, shape = (arrays[name] for name in needed)
            rows = sp.csr_array((data, indices, indptr), shape=tuple(shape.tolist()))
            rows.check_format()  # SciPy reads out of bounds otherwise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _damaged(path, str(error)) from None
        return rows


def _damaged(path: Path, fault: str) -> HPGMNError:
    return HPGMNError(
        f"The file {path} is missing, damaged or not of hpgmn ({fault}).",
        "Recreate the shards with `hpgmn shard`, in a new folder.",
    )
