"""Downloads: the child process, its conversion of PyG's objects, https only, and errors."""

import asyncio
import errno
import inspect
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from hpgmn.base.errors import GraphError, HPGMNError
from hpgmn.graph import Graph
from hpgmn.graph import download as child
from hpgmn.graph.datasets import DATASETS, Dataset, Download, load
from hpgmn.graph.download import allow_https_only, client, download, refuse_plain
from hpgmn.graph.files import read_graph, write_graph


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv("HPGMN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hpgmn"


@pytest.fixture
def child_program(tmp_path, monkeypatch):
    """Let a few lines of Python stand for the child; they see NAME and TARGET as sys.argv."""
    popen = subprocess.Popen

    def use(code):
        def instead(command, **options):
            assert command[0] == sys.executable
            assert command[-4:-2] == ["-m", "hpgmn.graph.download"]
            return popen([sys.executable, "-c", code, *command[-2:]], **options)

        monkeypatch.setattr(subprocess, "Popen", instead)

    return use


def as_large_as_texas(nodes=183, edges=325, features=1703, classes=5):
    ends = np.arange(edges) % nodes
    pairs = np.stack([ends, (ends + 1 + np.arange(edges) // nodes) % nodes])
    return Graph(np.ones((nodes, features)), pairs, np.arange(nodes) % classes)


def copies(path, graph):
    """A child that hands a finished graph file over."""
    write_graph(graph, path)
    return f"import shutil, sys; shutil.copy({str(path)!r}, sys.argv[2])"


def small_data(**changes):
    """What a PyG dataset holds, on six nodes; node 5 has no attributes."""
    x = torch.zeros(6, 10)
    x[:5, :1] = 1.0
    masks = {
        "train_mask": torch.tensor([1, 1, 0, 0, 0, 0], dtype=torch.bool),
        "val_mask": torch.tensor([0, 0, 1, 1, 0, 0], dtype=torch.bool),
        "test_mask": torch.tensor([0, 0, 0, 0, 1, 1], dtype=torch.bool),
    }
    edges = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    y = torch.tensor([0, 1, 0, 1, 0, 1])
    return SimpleNamespace(**{"x": x, "edge_index": edges, "y": y, **masks} | changes)


def small_dataset(num_edges=4, **how):
    options = {"directed": True} | how
    spec = Download("Fake", {"name": "Small"}, **options)
    return Dataset("small", 6, num_edges, 10, 2, "accuracy", "a test", download=spec)


@pytest.fixture
def fake_pyg(monkeypatch):
    """A ``torch_geometric.datasets`` with one class; returns the calls it gets."""
    calls = []

    class Fake:
        def __init__(self, root, **arguments):
            calls.append((root, arguments))
            self.is_geom = arguments.get("split") == "geom-gcn"

        def __getitem__(self, index):
            assert index == 0
            if not self.is_geom:
                return small_data()
            ten = {
                f"{part}_mask": torch.zeros(6, 10, dtype=torch.bool)
                for part in ("train", "val", "test")
            }
            ten["train_mask"][0] = True
            ten["test_mask"][5] = True
            return small_data(**ten)

    module = ModuleType("torch_geometric.datasets")
    module.Fake = Fake
    monkeypatch.setitem(sys.modules, "torch_geometric.datasets", module)
    return calls


def test_child_writes_what_pyg_gives(tmp_path, monkeypatch, fake_pyg):
    monkeypatch.setitem(DATASETS, "small", small_dataset())
    target = tmp_path / "small.npz"
    assert child.main(["small", str(target)]) == 0
    assert fake_pyg == [(str(tmp_path / "raw"), {"name": "Small"})]
    graph = read_graph(target)
    assert graph.directed
    assert graph.has_sparse_attributes
    assert graph.edge_index.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    assert graph.y.tolist() == [0, 1, 0, 1, 0, 1]
    assert graph.split(0).test.tolist() == [False, False, False, False, True, True]


def test_child_keeps_both_families_and_unlabels_what_has_no_attributes(fake_pyg, tmp_path):
    dataset = small_dataset(
        directed=False, families={"geom": {"split": "geom-gcn"}}, unlabels_empty=True
    )
    graph = child._fetch(dataset, tmp_path)
    assert [arguments for _, arguments in fake_pyg] == [
        {"name": "Small", "split": "geom-gcn"},
        {"name": "Small"},
    ]
    assert not graph.directed
    assert graph.y.tolist() == [0, 1, 0, 1, 0, -1]
    assert graph.split(0).test.tolist() == [False, False, False, False, True, False]
    geom = graph.alternative_splits["geom"]
    assert geom.train.sum(axis=1).tolist() == [10, 0, 0, 0, 0, 0]
    assert not geom.test.any()


def test_graph_without_masks_has_no_splits():
    data = small_data(train_mask=None, x=torch.ones(6, 10), y=torch.arange(6)[:, None] % 2)
    graph = child._graph(small_dataset(), data, {})
    assert graph.splits is None
    assert not graph.has_sparse_attributes
    assert graph.y.tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(("num_edges", "directed"), [(4, True), (2, False), (4, False)])
def test_edges_may_be_counted_as_listed_or_as_distinct(num_edges, directed):
    dataset = small_dataset(num_edges, directed=directed)
    child._check_sizes(child._graph(dataset, small_data(), {}), dataset)


@pytest.mark.parametrize(
    "changes",
    [
        {"edge_index": torch.tensor([[0, 1, 2], [1, 0, 3]])},
        {"x": torch.ones(6, 9)},
        {"y": torch.tensor([0, 1, 2, 1, 0, 1])},
    ],
)
def test_a_changed_source_is_noticed(tmp_path, monkeypatch, capsys, changes):
    monkeypatch.setitem(DATASETS, "small", small_dataset())
    changed = child._graph(small_dataset(), small_data(**changes), {})
    monkeypatch.setattr(child, "_fetch", lambda dataset, folder: changed)
    assert child.main(["small", str(tmp_path / "small.npz")]) == 1
    assert "its source has changed: expected 6 nodes, 4 edges" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (urllib.error.URLError("Name or service not known"), 3),
        (TimeoutError("timed out"), 3),
        (ConnectionResetError("reset"), 3),
        (type("ClientConnectorError", (OSError,), {})("Cannot connect"), 3),
        (urllib.error.HTTPError("http://x", 404, "Not Found", None, None), 1),
        (GraphError("x holds nan"), 1),
        (RuntimeError("two\nlines"), 1),
    ],
)
def test_child_says_why_in_its_last_line(tmp_path, monkeypatch, capsys, error, status):
    def fail(dataset, folder):
        raise error

    monkeypatch.setattr(child, "_fetch", fail)
    assert child.main(["texas", str(tmp_path / "texas.npz")]) == status
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line == " ".join(str(error).split()).strip("<>")


def test_finished_file_is_kept_in_the_cache(cache, tmp_path, child_program):
    child_program(copies(tmp_path / "made.npz", as_large_as_texas()))
    cache.mkdir(parents=True, exist_ok=True)
    left = cache / f".texas.npz.{'7' * 32}.unfinished"  # by a download that was killed
    left.mkdir()
    (left / "raw.zip").write_text("half")
    for path in (left / "raw.zip", left):
        os.utime(path, (0, 0))
    assert download("texas") == cache / "texas.npz"
    assert load("texas").num_nodes == 183
    assert [path.name for path in cache.iterdir()] == ["texas.npz"]


@pytest.mark.parametrize("changes", [{"nodes": 182}, {"classes": 6}])
def test_a_child_that_hands_over_another_graph_is_not_believed(
    cache, tmp_path, child_program, changes
):
    write_graph(Graph([[1.0]], []), cache / "texas.npz")
    child_program(copies(tmp_path / "made.npz", as_large_as_texas(**changes)))
    with pytest.raises(HPGMNError) as caught:
        download("texas")
    assert "failed (its source has changed: expected 183 nodes, 325 edges" in str(caught.value)
    assert caught.value.remedy is not None
    assert [path.name for path in cache.iterdir()] == ["texas.npz"]
    assert read_graph(cache / "texas.npz").num_nodes == 1


def test_the_child_fetches_over_https_alone(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(urllib.request, "urlopen", urllib.request.urlopen)  # as before afterwards

    def fetch(dataset, folder):
        urllib.request.urlopen("http://127.0.0.1:9/texas.zip", context=ssl.create_default_context())
        raise AssertionError("It was opened.")

    monkeypatch.setattr(child, "_fetch", fetch)
    assert child.main(["texas", str(tmp_path / "texas.npz")]) == 1
    assert "http://127.0.0.1:9/texas.zip is not an https address" in capsys.readouterr().err


def test_failure_is_one_sentence_and_leaves_nothing(cache, child_program):
    child_program(
        "import pathlib, sys; pathlib.Path(sys.argv[2]).write_text('half'); "
        "sys.exit('Traceback of the child\\n\\nHTTP Error 404: Not Found\\n')"
    )
    with pytest.raises(HPGMNError) as caught:
        download("texas")
    assert caught.value.message == "The download of 'texas' failed (HTTP Error 404: Not Found)."
    assert caught.value.remedy is not None
    assert list(cache.iterdir()) == []


def test_killed_child_leaves_nothing(cache, child_program):
    child_program("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(HPGMNError, match=r"The download of 'texas' failed \(no message\)"):
        download("texas")
    assert list(cache.iterdir()) == []


def test_a_bad_file_of_the_child_is_not_kept(cache, child_program):
    child_program("import pathlib, sys; pathlib.Path(sys.argv[2]).write_text('not a graph')")
    with pytest.raises(HPGMNError, match=r"failed \(.*it is not a \.npz file"):
        download("texas")
    assert list(cache.iterdir()) == []


def test_old_file_survives_a_failed_download(cache, child_program):
    write_graph(Graph([[1.0]], []), cache / "texas.npz")
    child_program("import sys; sys.exit('no')")
    with pytest.raises(HPGMNError, match="failed"):
        download("texas")
    assert read_graph(cache / "texas.npz").num_nodes == 1


def test_what_pyg_lacks_is_refused(cache):
    with pytest.raises(HPGMNError, match=r"cannot be downloaded through PyG\. Put pokec\.npz"):
        download("pokec")
    assert not cache.exists()


def test_unknown_name_is_refused():
    with pytest.raises(HPGMNError, match=r"Unknown dataset 'texs'\. Did you mean 'texas'\?"):
        download("texs")


def test_unwritable_cache_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(HPGMNError, match=r"cannot be written to .* Set XDG_CACHE_HOME"):
        download("texas")


def test_a_full_cache_and_a_child_that_cannot_start_are_refused(cache, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    def refused(*_, **__):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr("hpgmn.base.files.draft_path", full)
        with pytest.raises(HPGMNError) as caught:
            download("texas")
    assert f"cannot be written to '{cache}' (No space left on device)" in str(caught.value)
    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(HPGMNError, match=r"'texas' failed \(Resource temporarily unavailable"):
        download("texas")


@pytest.mark.slow
def test_without_a_network_it_says_so_and_what_to_do(cache, monkeypatch):
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # no server listens there
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    source = Path(child.__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", str(source))
    with pytest.raises(HPGMNError) as caught:
        download("texas")
    assert caught.value.message.startswith("No connection to the source of 'texas' (urlopen error ")
    assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == []


@pytest.mark.slow
def test_pyg_has_every_class_with_these_arguments():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG uses what torch has deprecated
        pyg = pytest.importorskip("torch_geometric.datasets")
    for dataset in DATASETS.values():
        if dataset.download is not None:
            how = dataset.download
            signature = inspect.signature(getattr(pyg, how.dataset_class))
            for changes in ({}, *how.families.values()):
                signature.bind("folder", **{**how.arguments, **changes})


class Answer(SimpleNamespace):
    """What a server says, as urllib's handlers take it."""

    def __init__(self, code, **headers):
        self.headers = {name.lower(): value for name, value in headers.items()}
        super().__init__(code=code, status=code, msg="", read=lambda *_: b"", close=lambda: None)

    def info(self):
        return self.headers


@pytest.fixture
def network(monkeypatch):
    """Only https from here on; answers by address, and what was asked and how is noted."""
    import fsspec

    monkeypatch.setattr(urllib.request, "urlopen", urllib.request.urlopen)  # as before afterwards
    monkeypatch.setattr(fsspec.config, "conf", {})
    said = {"asked": [], "contexts": []}

    def https_open(handler, request):
        said["asked"].append(request.full_url)
        said["contexts"].append(handler._context)
        return said[request.full_url]

    monkeypatch.setattr(urllib.request.HTTPSHandler, "https_open", https_open)
    allow_https_only()
    return said


@pytest.mark.parametrize(
    "url",
    ["http://example.org/a", "ftp://example.org/a", "file:///etc/passwd", "data:,x", "/etc/passwd"],
)
def test_no_other_address_is_opened(network, url):
    with pytest.raises(HPGMNError, match="is not an https address"):
        urllib.request.urlopen(url if ":" in url else f"file://{url}")
    with pytest.raises(HPGMNError, match="is not an https address"):
        refuse_plain(url)
    assert network["asked"] == []


def test_a_request_is_looked_at_like_an_address(network):
    with pytest.raises(HPGMNError, match="is not an https address"):
        urllib.request.urlopen(urllib.request.Request("http://example.org/a"), timeout=5)


def test_certificates_are_checked_even_where_the_caller_wants_none(network):
    network["https://example.org/a"] = answer = Answer(200)
    unverified = ssl._create_unverified_context()  # as PyG calls it
    assert urllib.request.urlopen("https://example.org/a", context=unverified) is answer
    [context] = network["contexts"]
    assert context is not unverified
    assert context is None or context.verify_mode == ssl.CERT_REQUIRED  # None: urllib's, checked
    assert ssl._create_default_https_context().verify_mode == ssl.CERT_REQUIRED


def test_redirects_lead_to_https_alone(network):
    network["https://example.org/a"] = Answer(302, Location="https://example.org/b")
    network["https://example.org/b"] = Answer(302, Location="http://example.org/c")
    with pytest.raises(HPGMNError, match=r"http://example\.org/c is not an https address"):
        urllib.request.urlopen("https://example.org/a")
    assert network["asked"] == ["https://example.org/a", "https://example.org/b"]


def test_fsspec_takes_the_same_rule(network):
    import fsspec

    for protocol in ("http", "https"):
        system = fsspec.filesystem(protocol, skip_instance_cache=True)
        assert system.get_client is client
        with pytest.raises(HPGMNError, match=r"http://127\.0\.0\.1:9/a is not an https address"):
            system.cat("http://127.0.0.1:9/a")


@pytest.mark.parametrize(
    ("location", "is_refused"),
    [("http://example.org/b", True), ("/b", False), ("https://other.org/b", False), ("//x/b", 0)],
)
def test_aiohttp_follows_redirects_to_https_alone(location, is_refused):
    async def ask():
        async with await client() as session:
            [trace] = session.trace_configs
            response = SimpleNamespace(headers={"Location": location})
            about = SimpleNamespace(url="https://example.org/a", response=response)
            [redirected] = trace.on_request_redirect
            await redirected(session, None, about)

    if is_refused:
        with pytest.raises(HPGMNError, match=r"http://example\.org/b is not an https address"):
            asyncio.run(ask())
    else:
        asyncio.run(ask())
