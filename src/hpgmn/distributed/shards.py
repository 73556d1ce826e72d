"""A folder of rows: the statistics of a graph's nodes, cut into ranges of nodes.

``manifest.json`` says what there is; ``rows-00000`` and so on hold one range each: a statistic as
``NAME.npy`` (dense rows) or ``NAME.npz`` (SciPy CSR), the classes ``y.npy`` (-1 where unknown), the
masks ``train.npy``, ``val.npy``, ``test.npy``, and ``node_ids.npy`` where nodes have names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from hpgmn.errors import HPGMNError
from hpgmn.graph import Array, Split
from hpgmn.sparse import SparseMatrix, moved
from hpgmn.statistics.operators import DenseRows, SparseRows, Statistic

MANIFEST_FILE = "manifest.json"
ESTIMATOR_FILE = "estimator.safetensors"
"""The label estimator behind the rows, where it is known; a model needs it for other graphs."""


@dataclass(frozen=True)
class Manifest:
    """What a folder of rows holds.

    Attributes:
        folder: the folder.
        num_nodes: N.
        ranges: the first node of each range and the one after its last.
        class_names: C of them.
        widths: the columns of each statistic, by name.
        settings: settings of HP-GMN that the statistics were made with.
        name: the graph's name.
        source: where the graph itself is, if that is known.
        fingerprint: that of the graph, if it is known.
        num_features: F, if it is known.
        split: the number of the split whose masks these are.
        identity: a digest of the manifest.
    """

    folder: Path
    num_nodes: int
    ranges: tuple[tuple[int, int], ...]
    class_names: tuple[str, ...]
    widths: Mapping[str, int]
    settings: Mapping[str, Any]
    name: str
    source: str | None = None
    fingerprint: str = ""
    num_features: int = 0
    split: int = 0
    identity: str = field(default="", compare=False)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a folder."""
        path = folder / MANIFEST_FILE
        try:
            text = path.read_bytes()
        except OSError:
            raise HPGMNError(
                f"{folder} is not a folder of rows: it has no {MANIFEST_FILE}. Give the folder "
                "that holds the statistics of a graph in ranges of nodes."
            ) from None
        try:
            content = json.loads(text)
            found = cls(
                folder=folder,
                num_nodes=int(content["num_nodes"]),
                ranges=tuple((int(start), int(stop)) for start, stop in content["ranges"]),
                class_names=tuple(str(name) for name in content["class_names"]),
                widths={
                    str(name): int(about["width"]) for name, about in content["statistics"].items()
                },
                settings=dict(content.get("settings") or {}),
                name=str(content.get("graph") or folder.resolve().name),
                source=content.get("source"),
                fingerprint=str(content.get("fingerprint") or ""),
                num_features=int(content.get("num_features") or 0),
                split=int(content.get("split") or 0),
                identity=hashlib.sha256(text).hexdigest(),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(path, repr(error)) from None
        ends = [0, *(stop for _, stop in found.ranges)]
        if [start for start, _ in found.ranges] != ends[:-1] or ends[-1] != found.num_nodes:
            raise _damaged(path, "its ranges are not all nodes in order")
        return found

    def shares(self, size: int) -> list[range]:
        """The numbers of the ranges of each rank: neighbours, with about as many nodes each."""
        if len(self.ranges) < size:
            raise HPGMNError(
                f"{self.folder} has {len(self.ranges)} ranges of nodes, too few for {size} ranks. "
                "Start fewer ranks, or cut the graph into more ranges."
            )
        cuts = [0]
        for rank in range(1, size):
            stops = np.array([stop for _, stop in self.ranges])
            nearest = int(np.abs(stops - self.num_nodes * rank / size).argmin()) + 1
            # Every rank has a range, this one and those after it.
            cuts.append(min(max(nearest, cuts[-1] + 1), len(self.ranges) - (size - rank)))
        return [range(*ends) for ends in zip(cuts, [*cuts[1:], len(self.ranges)], strict=True)]

    def path(self, number: int) -> Path:
        """The folder of a range."""
        return self.folder / f"rows-{number:05d}"

    def array(self, number: int, name: str) -> Array:
        """An array of a range, mapped."""
        path = self.path(number) / f"{name}.npy"
        start, stop = self.ranges[number]
        try:
            found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise _damaged(path, str(error)) from None
        if len(found) != stop - start:
            raise _damaged(path, f"{len(found)} rows for {stop - start} nodes")
        return found

    @property
    def has_names(self) -> bool:
        """Whether nodes have names, other than their numbers."""
        has_file = (self.path(0) / "node_ids.npy").exists()
        return has_file and self.array(0, "node_ids").dtype.kind == "U"

    def names(self, numbers: Sequence[int]) -> Array:
        """The names of the nodes of some ranges; their numbers where they have no names."""
        parts = [
            self.array(number, "node_ids").astype(str)
            if (self.path(number) / "node_ids.npy").exists()
            else np.arange(*self.ranges[number]).astype(str)
            for number in numbers
        ]
        return np.concatenate(parts)

    def block(self, number: int, name: str) -> Array | sp.csr_array:
        """A statistic of a range: mapped where it is dense, read where it is sparse."""
        path = self.path(number) / f"{name}.npz"
        start, stop = self.ranges[number]
        if not path.exists():
            found = self.array(number, name)
        else:
            try:
                found = sp.csr_array(sp.load_npz(path))
            except (OSError, ValueError, KeyError) as error:
                raise _damaged(path, str(error)) from None
        if found.shape != (stop - start, self.widths[name]):
            expected = f"({stop - start}, {self.widths[name]})"
            raise _damaged(path, f"{name} has shape {found.shape} instead of {expected}")
        return found


def _damaged(path: Path, fault: str) -> HPGMNError:
    return HPGMNError(
        f"The file {path} is missing, damaged or not one of ours ({fault}). Write the rows again."
    )


class Rows:
    """The nodes of one rank.

    Args:
        manifest: of the folder.
        numbers: the ranges of this rank, neighbours.
    """

    def __init__(self, manifest: Manifest, numbers: range) -> None:
        self.manifest = manifest
        self.numbers = numbers
        self.first = manifest.ranges[numbers[0]][0]
        self.last = manifest.ranges[numbers[-1]][1]
        self.y = self._joined("y").astype(np.int64)
        masks = (self._joined(part).astype(bool) for part in ("train", "val", "test"))
        self.split = Split(*masks)

    def _joined(self, name: str) -> Array:
        return np.concatenate([self.manifest.array(number, name) for number in self.numbers])

    def __len__(self) -> int:
        return self.last - self.first

    def statistic(self, name: str, device: torch.device) -> ShardedRows:
        """A statistic of these nodes."""
        blocks = [self.manifest.block(number, name) for number in self.numbers]
        return ShardedRows(blocks, device)


class ShardedRows(Statistic):
    """Rows of a statistic in several blocks, dense or sparse; the same for all replicas.

    Args:
        blocks: one below the other; dense ones may be mapped files.
        device: where products happen.
    """

    def __init__(self, blocks: Sequence[Array | sp.csr_array], device: torch.device) -> None:
        self.blocks = list(blocks)
        self.device = device
        self.width = int(blocks[0].shape[1])
        self.starts = np.cumsum([0, *(block.shape[0] for block in blocks)])

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        if nodes is None:
            nodes = torch.arange(int(self.starts[-1])).expand(weight.shape[0], -1)
        return self.some(nodes).times(weight, None, columns)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        own = self.some(nodes.unsqueeze(0))
        return own.rows(torch.arange(nodes.shape[0], device=self.device))

    @override
    def some(self, nodes: Tensor) -> Statistic:
        """The statistic of some nodes, which are one list for all replicas."""
        wanted = nodes[0].cpu().numpy()
        of_block = np.searchsorted(self.starts, wanted, side="right") - 1
        places = [np.flatnonzero(of_block == number) for number in range(len(self.blocks))]
        parts = [
            block[wanted[own] - start]
            for block, own, start in zip(self.blocks, places, self.starts[:-1], strict=True)
        ]
        back = np.concatenate(places).argsort()
        if any(sp.issparse(block) for block in self.blocks):
            return SparseRows(SparseMatrix(_stacked(parts, back), self.device).ready())
        return DenseRows(moved(torch.from_numpy(np.concatenate(parts)[back]), self.device))


def _stacked(parts: Sequence[Array | sp.csr_array], order: Array) -> sp.csr_array:
    """Blocks below each other, their rows in another order, as products want them."""
    joined = sp.csr_array(sp.vstack([sp.csr_array(part) for part in parts], format="csr"))[order]
    joined.sort_indices()
    return sp.csr_array(
        (
            joined.data.astype(np.float32),
            joined.indices.astype(np.int32),
            joined.indptr.astype(np.int32),
        ),
        shape=joined.shape,
    )
