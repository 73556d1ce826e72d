"""Downloads through PyTorch Geometric's own classes, in a process of their own.

Some of PyG's readers unpickle what they fetch. That happens in a child process
(``python -m hpgmn.graph.download NAME TARGET``), which writes a graph file of plain arrays;
this process reads nothing but that file, and compares it with what is known of the dataset.
"""

from __future__ import annotations

import importlib
import logging
import socket
import subprocess
import sys
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import WriteError, atomic_write, cache_folder
from hpgmn.graph.datasets import Dataset, bring_the_file, known_dataset
from hpgmn.graph.files import read_graph, write_graph
from hpgmn.graph.graph import Array, Graph, Splits
from hpgmn.graph.https import https_only

logger = logging.getLogger(__name__)

_NO_NETWORK = 3  # the child's exit status when the source could not be reached
_TIMEOUT_SECONDS = 60  # PyG sets none and would wait for ever
_MERGED_EDGES = {"actor": 30019}  # distinct edges, where the source lists some of them twice
_SPARSE_BELOW = 0.2  # share of non-zero attributes under which a graph file keeps them as CSR


def download(name: str) -> Path:
    """Fetch a known dataset into the user's cache, as a graph file.

    Nothing half-written stays behind: the work is done in the folder of a draft, and the finished
    file is moved to its place.

    Args:
        name: a name in ``DATASETS``.

    Returns:
        The graph file, ``<cache>/hpgmn/<name>.npz``.
    """
    dataset = known_dataset(name)
    if dataset.download is None:
        raise HPGMNError(f"'{name}' cannot be downloaded through PyG: {bring_the_file(name)}.")
    place = cache_folder() / f"{name}.npz"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(place) as draft:
            try:
                status, last_line = _run_child([name, str(draft)])
            except OSError as error:
                raise _failure(name, str(error.strerror or error)) from None
            if status == _NO_NETWORK:
                raise HPGMNError(
                    f"No connection to the source of '{name}' ({last_line}): check the network "
                    f"and try again, or {bring_the_file(name)}."
                )
            if status != 0:
                raise _failure(name, last_line)
            try:
                _refuse_other_sizes(read_graph(draft), dataset)  # the child may say anything
            except HPGMNError as error:
                raise _failure(name, str(error).rstrip(".")) from None
    except (OSError, WriteError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise HPGMNError(
            f"The download of '{name}' cannot be kept in '{place.parent}' ({reason}): set "
            "XDG_CACHE_HOME to a folder that you may write to and that has room."
        ) from None
    return place


def _failure(name: str, reason: str) -> HPGMNError:
    return HPGMNError(
        f"The download of '{name}' failed ({reason}): try again, or {bring_the_file(name)}."
    )


def _run_child(arguments: Sequence[str]) -> tuple[int, str]:
    """Run this module as a program; its exit status and the last line it said."""
    # The package imports this module before the child runs it as a program: runpy warns of that.
    quiet = ("-W", "ignore::RuntimeWarning:runpy")
    command = [sys.executable, *quiet, "-m", "hpgmn.graph.download", *arguments]
    last_line = "no message"
    with subprocess.Popen(  # this Python, a module of ours, a known name, a path  # nosec B603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as child:
        try:
            for line in child.stderr or ():
                if line.strip():
                    last_line = line.strip()
                    logger.info("%s", last_line)
        except BaseException:  # an interrupt included: leave no child behind
            child.kill()
            raise
    return child.returncode, last_line


def _fetch(dataset: Dataset, folder: Path) -> Graph:
    """The dataset through PyG's class, which downloads into the folder and reads it."""
    how = dataset.download
    assert how is not None
    make = getattr(importlib.import_module("torch_geometric.datasets"), how.dataset_class)

    def data(**changes: object) -> Any:
        return make(str(folder), **{**how.arguments, **changes})[0]

    families = {family: data(**changes) for family, changes in how.families.items()}
    return _graph(dataset, data(), families)


def _graph(dataset: Dataset, data: Any, families: Mapping[str, Any]) -> Graph:
    """PyG's object as our graph, with the direction and the splits that the dataset has."""
    how = dataset.download
    assert how is not None
    x = data.x.numpy()
    y = data.y.numpy().reshape(-1).astype(np.int64)
    if how.unlabels_empty:
        y[~x.any(axis=1)] = -1
    further = {family: _splits(twin, y) for family, twin in families.items()}
    graph = Graph(
        sp.csr_array(x) if np.count_nonzero(x) < _SPARSE_BELOW * x.size else x,
        data.edge_index.numpy(),
        y,
        directed=how.directed,
        name=dataset.name,
        alternative_splits={family: found for family, found in further.items() if found},
    )
    splits = _splits(data, y)
    return graph if splits is None else graph.with_splits(splits)


def _splits(data: Any, y: Array) -> Splits | None:
    """The splits that PyG stores, without the nodes whose label is unknown."""
    if getattr(data, "train_mask", None) is None:
        return None
    masks = [
        getattr(data, f"{part}_mask").numpy().astype(bool).reshape(y.shape[0], -1)
        & (y >= 0)[:, None]
        for part in ("train", "val", "test")
    ]
    return Splits(*masks)


def _refuse_other_sizes(graph: Graph, dataset: Dataset) -> None:
    """Compare what arrived with what is known, so that a changed source is noticed.

    PyG merges repeats and lists undirected edges twice, so edges may be counted in either way.
    """
    pairs = graph.edge_index if graph.directed else np.sort(graph.edge_index, axis=0)
    distinct = np.unique(pairs[0] * graph.num_nodes + pairs[1]).size
    listed = graph.edge_index.shape[1]
    expected = (dataset.num_nodes, dataset.num_features, dataset.num_classes)
    arrived = (graph.num_nodes, graph.num_features, graph.num_classes)
    known_edges = {dataset.num_edges, _MERGED_EDGES.get(dataset.name, dataset.num_edges)}
    if arrived != expected or not known_edges & {listed, distinct}:
        raise HPGMNError(
            f"its source has changed: {dataset.num_nodes} nodes, {dataset.num_edges} edges, "
            f"{dataset.num_features} attributes and {dataset.num_classes} classes were expected, "
            f"but {graph.num_nodes}, {listed}, {graph.num_features} and {graph.num_classes} arrived"
        )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_network_trouble(error: BaseException) -> bool:
    """Whether the source could not be reached, rather than answered something unexpected."""
    chain = list(_chain(error))
    if any(isinstance(link, urllib.error.HTTPError | HPGMNError) for link in chain):
        return False
    unreachable = (urllib.error.URLError, ConnectionError, TimeoutError, socket.gaierror)
    return any(
        isinstance(link, unreachable) or type(link).__name__.startswith("ClientConnect")
        for link in chain
    )


def main(arguments: Sequence[str]) -> int:
    """The child: fetch a dataset and write its graph file.

    Args:
        arguments: the dataset's name and the file to write; raw files go beside that.

    Returns:
        The exit status: 0 done, 3 no network, 1 anything else. The last line on standard error
        says why.
    """
    name, target = arguments
    dataset = known_dataset(name)
    socket.setdefaulttimeout(_TIMEOUT_SECONDS)
    https_only()
    try:
        graph = _fetch(dataset, Path(target).parent / "raw")
        _refuse_other_sizes(graph, dataset)
        write_graph(graph, target)
    except Exception as error:  # the parent shows one line, whatever went wrong
        reason = " ".join(str(error).split()) or type(error).__name__
        sys.stderr.write(f"\n{reason.strip('<>')}\n")
        return _NO_NETWORK if _is_network_trouble(error) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
