"""Download datasets by PyTorch Geometric's classes in a child process.

Some of PyG's readers unpickle what they fetch. That happens in the child
(``python -m hpgmn.graph.download NAME TARGET``), over https only; it writes a graph file of plain
arrays, which this process compares with the known sizes.
"""

from __future__ import annotations

import importlib
import logging
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import numpy as np
import scipy.sparse as sp

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import WriteError, atomic_write, cache_folder
from hpgmn.graph.datasets import Dataset, known_dataset, supply_file
from hpgmn.graph.edges import Array
from hpgmn.graph.files import read_graph, write_graph
from hpgmn.graph.graph import PARTS, Graph, Splits

logger = logging.getLogger(__name__)

_NO_NETWORK = 3  # the child's exit status when the source could not be reached
_TIMEOUT_SECONDS = 60  # PyG sets none and would wait forever
_SPARSE_BELOW = 0.2  # the share of non-zero attributes below which they are stored as CSR


def download(name: str) -> Path:
    """Fetch a known dataset into the user's cache as ``<cache>/hpgmn/<name>.npz``."""
    dataset = known_dataset(name)
    if dataset.download is None:
        raise HPGMNError(f"'{name}' cannot be downloaded through PyG.", supply_file(name))
    path = cache_folder() / f"{name}.npz"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            try:
                status, last_line = _run_child([name, str(draft)])
            except OSError as error:
                raise _failure(name, str(error.strerror or error)) from None
            if status == _NO_NETWORK:
                raise HPGMNError(
                    f"No connection to the source of '{name}' ({last_line}).",
                    Remedy("Check the network and try again") | supply_file(name),
                )
            if status != 0:
                raise _failure(name, last_line)
            try:
                _check_sizes(read_graph(draft), dataset)  # do not trust the child process
            except HPGMNError as error:
                raise _failure(name, error.message.rstrip(".")) from None
    except (OSError, WriteError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise HPGMNError(
            f"The download of '{name}' cannot be written to '{path.parent}' ({reason}).",
            "Set XDG_CACHE_HOME to a writable folder with free space",
        ) from None
    return path


def _failure(name: str, reason: str) -> HPGMNError:
    message = f"The download of '{name}' failed ({reason})."
    return HPGMNError(message, Remedy("Try again") | supply_file(name))


def _run_child(arguments: Sequence[str]) -> tuple[int, str]:
    """Run this module as a program; return its exit status and its last line."""
    # runpy warns if the package has imported the module that it runs.
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
    """Download a dataset into a folder and read it by PyG's class."""
    assert dataset.download is not None
    recipe = dataset.download
    make = getattr(importlib.import_module("torch_geometric.datasets"), recipe.dataset_class)
    families = {
        family: make(str(folder), **{**recipe.arguments, **changes})[0]
        for family, changes in recipe.families.items()
    }
    return _graph(dataset, make(str(folder), **recipe.arguments)[0], families)


def _graph(dataset: Dataset, data: Any, families: Mapping[str, Any]) -> Graph:
    """Convert PyG's object, with the direction and the splits of the dataset."""
    assert dataset.download is not None
    x = data.x.numpy()
    y = data.y.numpy().reshape(-1).astype(np.int64)
    if dataset.download.unlabels_empty:
        y[~x.any(axis=1)] = -1
    further = {family: _splits(twin, y) for family, twin in families.items()}
    graph = Graph(
        sp.csr_array(x) if np.count_nonzero(x) < _SPARSE_BELOW * x.size else x,
        data.edge_index.numpy(),
        y,
        directed=dataset.download.directed,
        name=dataset.name,
        alternative_splits={family: splits for family, splits in further.items() if splits},
    )
    splits = _splits(data, y)
    return graph if splits is None else graph.with_splits(splits)


def _splits(data: Any, y: Array) -> Splits | None:
    """Return the splits that PyG stores, without unlabelled nodes."""
    if getattr(data, "train_mask", None) is None:
        return None
    masks = (getattr(data, f"{part}_mask").numpy().astype(bool) for part in PARTS)
    return Splits(*(mask.reshape(y.shape[0], -1) & (y >= 0)[:, None] for mask in masks))


def _check_sizes(graph: Graph, dataset: Dataset) -> None:
    """Refuse sizes other than the known ones: the source has changed.

    PyG merges repeats and lists undirected edges twice, so edges may be counted in either way.
    """
    pairs = graph.edge_index if graph.directed else np.sort(graph.edge_index, axis=0)
    distinct = np.unique(pairs[0] * graph.num_nodes + pairs[1]).size
    listed = graph.edge_index.shape[1]
    expected = (dataset.num_nodes, dataset.num_features, dataset.num_classes)
    received = (graph.num_nodes, graph.num_features, graph.num_classes)
    known_edges = {dataset.num_edges, dataset.download and dataset.download.merged_edges}
    if received != expected or not known_edges & {listed, distinct}:
        raise HPGMNError(
            f"its source has changed: expected {dataset.num_nodes} nodes, {dataset.num_edges} "
            f"edges, {dataset.num_features} attributes and {dataset.num_classes} classes, received "
            f"{graph.num_nodes}, {listed}, {graph.num_features} and {graph.num_classes}"
        )


def _is_network_trouble(error: BaseException) -> bool:
    """Whether the source could not be reached."""
    chain = [error]
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    if any(isinstance(link, urllib.error.HTTPError | HPGMNError) for link in chain):
        return False
    unreachable = (urllib.error.URLError, ConnectionError, TimeoutError, socket.gaierror)
    return any(
        isinstance(link, unreachable) or type(link).__name__.startswith("ClientConnect")
        for link in chain
    )


def allow_https_only() -> None:
    """Restrict urllib and fsspec in this process to https, redirects included.

    PyG fetches by urllib without checking certificates, and by fsspec; both follow any redirect.
    """
    opener = urllib.request.build_opener(_Redirects)

    def urlopen(url: Any, data: Any = None, timeout: float | None = None, **_: Any) -> Any:
        refuse_plain(url if isinstance(url, str) else url.full_url)
        options = {} if timeout is None else {"timeout": timeout}
        return opener.open(url, data, **options)

    urllib.request.urlopen = urlopen
    try:
        import fsspec
    except ImportError:  # PyG does not use it then
        return
    for protocol in ("http", "https"):
        fsspec.config.conf.setdefault(protocol, {})["get_client"] = client


def refuse_plain(url: str) -> None:
    """Refuse any URL but https.

    >>> refuse_plain("https://example.org/texas.zip")
    """
    if urlsplit(url).scheme.lower() != "https":
        raise HPGMNError(f"{url} is not an https address.", "Use https")


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        refuse_plain(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


async def client(**options: Any) -> Any:
    """Return an aiohttp session for fsspec that refuses any URL but https."""
    import aiohttp

    async def check_request(session: Any, context: Any, request: Any) -> None:
        refuse_plain(str(request.url))

    async def check_redirect(session: Any, context: Any, request: Any) -> None:
        headers = request.response.headers
        refuse_plain(urljoin(str(request.url), headers.get("Location") or headers.get("URI") or ""))

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(check_request)
    trace.on_request_redirect.append(check_redirect)
    return aiohttp.ClientSession(trace_configs=[trace], **options)


def main(arguments: Sequence[str]) -> int:
    """Fetch a dataset and write its graph file, in the child process.

    Arguments are the dataset's name and the file to write; raw files are stored beside it. The exit
    status is 0, 3 without a network, else 1; the last line on standard error is the reason.
    """
    name, target = arguments
    dataset = known_dataset(name)
    socket.setdefaulttimeout(_TIMEOUT_SECONDS)
    allow_https_only()
    try:
        graph = _fetch(dataset, Path(target).parent / "raw")
        _check_sizes(graph, dataset)
        write_graph(graph, target)
    except Exception as error:  # the parent prints one line
        reason = " ".join(str(error).split()) or type(error).__name__
        sys.stderr.write(f"\n{reason.strip('<>')}\n")
        return _NO_NETWORK if _is_network_trouble(error) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
