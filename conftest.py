"""What all tests share: real graphs, a small graph, seeded hypothesis, one thread per worker."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import numpy as np
import pytest

if TYPE_CHECKING:  # imported late below, so that coverage sees every line of the package run
    from hpgmn.graph import Graph
    from hpgmn.training.replicas import Fitted
    from hpgmn.training.saved import SavedModel

DATA_VARIABLE = "HPGMN_DATA"
SOAK_VARIABLE = "HPGMN_SOAK"
"""Names the .jsonl file for the figures of a long run; unset, tests run in their short form."""
NO_DATA = f"{DATA_VARIABLE} is not set"

hypothesis.settings.register_profile(
    "hpgmn",
    deadline=None,
    derandomize=True,
    max_examples=50,
    # Says how busy the machine is, not whether the code is right.
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("hpgmn")


def pytest_configure(config: pytest.Config) -> None:
    """Give the test run a cache and a temporary folder of its own."""
    # For the processes that tests start, too: none writes into the user's own cache, or takes turns
    # with those of another run. Pytest and Ray, whose sockets have short names, stay as they were.
    usual = tempfile.gettempdir()
    own = tempfile.TemporaryDirectory(prefix="hpgmn-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(own.cleanup)
    os.environ["HPGMN_CACHE"] = str(Path(own.name) / "cache")
    Path(own.name, "cache").mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = own.name
    for name in ("PYTEST_DEBUG_TEMPROOT", "RAY_TMPDIR"):
        os.environ.setdefault(name, usual)
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist: the workers share the cores
        os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
        import torch

        torch.set_num_threads(1)


def pytest_sessionstart() -> None:
    """Stop at once if the folder of graphs is named wrongly, rather than skip half the tests."""
    folder = os.environ.get(DATA_VARIABLE)
    if not folder:
        return
    if not Path(folder).is_dir():
        raise pytest.UsageError(
            f"{DATA_VARIABLE} names {folder}, which is not a folder. "
            "Set it to the folder of graph files, or unset it to skip the tests that need them."
        )
    if not any(Path(folder).glob("*.npz")):
        raise pytest.UsageError(
            f"{DATA_VARIABLE} names {folder}, which holds no .npz graph file. "
            "Set it to the folder of graph files, or unset it to skip the tests that need them."
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how many tests were skipped for lack of the benchmark graphs."""
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(NO_DATA in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.section("real graphs")
        terminalreporter.write_line(
            f"{count} test{'s' if count > 1 else ''} skipped for lack of the real graphs. "
            f"To run {'them' if count > 1 else 'it'}, set {DATA_VARIABLE} to the folder of "
            ".npz graph files."
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A long run is of the tests that have a long form, and of these alone."""
    if os.environ.get(SOAK_VARIABLE):
        config.hook.pytest_deselected(items=[item for item in items if not _is_soaked(item)])
        items[:] = [item for item in items if _is_soaked(item)]


def pytest_collection_finish() -> None:
    """Spare the collector what lives until the end: every run that a test makes calls it twice."""
    gc.collect()
    gc.freeze()


def _is_soaked(item: pytest.Item) -> bool:
    return item.get_closest_marker("soak") is not None


class Soak:
    """The form in which a test runs, and what a long run leaves behind.

    Args:
        path: the .jsonl file of a long run's records; None in the short form.
        test: the name of the test, as pytest writes it.
    """

    def __init__(self, path: Path | None, test: str) -> None:
        self.is_long = path is not None
        self._path, self._test, self._began = path, test, time.monotonic()

    def amount(self, short: int, long: int) -> int:
        """How many times, in this form."""
        return long if self.is_long else short

    def record(self, name: str, promise: str, **figures: float) -> None:
        """Keep the figures of a long run for docs/RELIABILITY.md; does nothing in the short form.

        Args:
            name: of the record.
            promise: what was held, one sentence.
            figures: what was counted; ``kills_survived=50`` is shown as "50 kills survived".
        """
        if self._path is None:
            return
        from hpgmn_lab.bench.page import append_soak_record

        seconds = time.monotonic() - self._began
        append_soak_record(self._path, name, promise, self._test, seconds, figures)


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> Soak:
    """Return the requested form, short or long, which records the figures of a long run."""
    path = os.environ.get(SOAK_VARIABLE)
    return Soak(Path(path).resolve() if path else None, request.node.nodeid)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command sets the package's logger up; other tests see it as a library's."""
    yield
    logger = logging.getLogger("hpgmn")
    logger.setLevel(logging.NOTSET)
    logger.handlers.clear()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real graph files; without ``HPGMN_DATA`` the test is skipped."""
    folder = os.environ.get(DATA_VARIABLE)
    if not folder:
        pytest.skip(NO_DATA)
    return Path(folder).resolve()


@pytest.fixture
def small_graph() -> Graph:
    """18 nodes of 3 classes, directed and heterophilous, with two splits of 6, 6 and 6 nodes.

    Node v has class v % 3 and three out-neighbours, mostly of the next class; 5 dense attributes
    tell the classes apart. It has what real graphs have: a self-loop (node 3), a repeated edge
    (node 4) and a node without any edge (node 17). Every class is in every part of both splits.
    """
    from hpgmn.graph import Graph

    num_nodes, num_classes, num_features = 18, 3, 5
    random = np.random.default_rng(0)
    y = np.arange(num_nodes) % num_classes
    x = random.normal(size=(num_nodes, num_features)) * 0.3 + 2 * np.eye(num_features)[y]
    connected = np.arange(num_nodes - 1)
    edges = [(3, 3)]
    for center in connected:
        next_class = connected[y[connected] == (y[center] + 1) % num_classes]
        others = connected[connected != center]
        edges += [(center, neighbor) for neighbor in random.choice(next_class, 2, replace=False)]
        edges.append((center, random.choice(others)))
    edges.append(next(edge for edge in edges if edge[0] == 4))
    role = np.empty((num_nodes, 2), np.int64)  # 0 train, 1 val, 2 test
    for split in range(2):
        for label in range(num_classes):
            role[random.permutation(np.flatnonzero(y == label)), split] = [0, 0, 1, 1, 2, 2]
    return Graph(
        x,
        np.array(edges).T,
        y,
        train_mask=role == 0,
        val_mask=role == 1,
        test_mask=role == 2,
        name="small",
    )


@pytest.fixture(scope="session")
def typed() -> Callable[[Graph], Graph]:
    """Give the edges of a graph three types in turn."""
    from hpgmn.graph import Graph

    def with_types(graph: Graph) -> Graph:
        found = Graph(
            graph.x,
            graph.edge_index,
            graph.y,
            edge_weight=graph.edge_weight,
            edge_type=np.arange(graph.num_listed_edges) % 3,
            edge_type_names=["card", "cash", "wire"],
            directed=graph.directed,
            node_ids=graph.node_ids,
            class_names=graph.class_names,
            name=graph.name,
        )
        return found if graph.splits is None else found.with_splits(graph.splits)

    return with_types


@pytest.fixture
def small_members(small_graph: Graph) -> dict[str, tuple[SavedModel, Fitted]]:
    """HP-GMN, an MLP and LINKX, trained for a few epochs on splits 1 and 0 with two seeds each."""
    from hpgmn.base.settings import make_settings
    from hpgmn.models import MODELS
    from hpgmn.models.stage import Replica
    from hpgmn.training.replicas import fit_replicas
    from hpgmn.training.saved import SavedModel

    short = {"hidden_dim": 4, "epochs": 3}
    kinds = {
        "memory": ("hpgmn", short | {"estimator_epochs": 3, "num_patterns": 3}),
        "a/b": ("mlp", short),
        "linkx": ("linkx", short),
    }
    members = {}
    for name, (model, values) in kinds.items():
        settings = make_settings(MODELS[model].settings, values)
        replicas = [Replica(split, seed, settings) for split in (1, 0) for seed in (0, 1)]
        splits = [small_graph.split(replica.split) for replica in replicas]
        train, val = [split.train for split in splits], [split.val for split in splits]
        masks = list(zip(train, val, strict=True))
        fitted = fit_replicas(small_graph, MODELS[model], replicas, masks)
        saved = SavedModel.of(MODELS[model], fitted, small_graph, train, val)
        saved.release()
        members[name] = (saved, fitted)
    return members


def _ring(nodes: int, *, both_ways: bool = False, splits: int = 4, val: int = 3) -> Graph:
    """A ring of nodes with so many validation nodes in each split."""
    from hpgmn.graph import Graph

    following = (np.arange(nodes) + 1) % nodes
    edges = np.stack([np.arange(nodes), following])
    if both_ways:
        edges = np.concatenate([edges, edges[::-1]], axis=1)
    train, held = np.zeros((nodes, splits), bool), np.zeros((nodes, splits), bool)
    train[:4], held[4 : 4 + val] = True, True
    return Graph(
        np.eye(2, dtype=np.float32)[np.arange(nodes) % 2],
        edges,
        np.arange(nodes) % 2,
        train_mask=train,
        val_mask=held,
        test_mask=~(train | held),
        directed=True,
    )


@pytest.fixture
def ring() -> Callable[..., Graph]:
    """Makes rings of nodes."""
    return _ring


@dataclass(frozen=True)
class Answer:
    """The exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Answer]


@pytest.fixture
def hpgmn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run ``hpgmn …`` in ``tmp_path``."""
    from hpgmn.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    return run


@pytest.fixture
def graph_file(small_graph: Graph, tmp_path: Path) -> Path:
    """Write the small graph to a file."""
    from hpgmn.graph.files import write_graph

    path = tmp_path / "small.npz"
    write_graph(small_graph, path)
    return path


PASSING = (
    *("seconds", "seconds_statistics", "seconds_training", "peak_memory_mb", "created"),
    "crc32",  # of all of it, these included
)


def _lasting(content: Any) -> Any:
    """A record without times, memory and dates."""
    if isinstance(content, dict):
        return {key: _lasting(own) for key, own in content.items() if key not in PASSING}
    return [_lasting(own) for own in content] if isinstance(content, list) else content


@pytest.fixture
def lasting() -> Callable[[Any], Any]:
    """Takes times, memory and dates out of a record."""
    return _lasting


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window; without one the test is skipped."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"No browser: none of {', '.join(names)} is installed.")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """A simulated Ray cluster of one node with one core, to which a test may add others."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    pytest.importorskip("ray", reason="Ray is not installed")
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def here_engine() -> type[Any]:
    """An engine that runs tasks in this process, one after the other; some get lost."""
    from hpgmn.base.errors import HPGMNError
    from hpgmn.engines import Share, Task, TaskResult

    class Here:
        """An engine that runs tasks in this process, one after the other; some get lost."""

        share, node = Share(1, 0.5), ""
        workers, is_local = 1, False

        def __init__(self, lost: tuple[str, ...] = ()) -> None:
            self.losses, self.begun, self.options = list(lost), [], {}

        def run(
            self,
            next_task: Callable[[], Task | None],
            on_result: Callable[[TaskResult], None],
            *,
            on_message: Callable[[str, Any], Any] = lambda name, message: None,
            should_stop: Callable[[], bool] = lambda: False,
            **options: Any,
        ) -> None:
            self.options = options
            while (task := next_task()) is not None:
                if should_stop():
                    raise KeyboardInterrupt
                self.begun.append(task)
                self.name, self.on_message = task.name, on_message
                if task.name in self.losses:
                    on_result(TaskResult(task.name, reason="Gone.", is_lost=True))
                    continue
                try:
                    value = task.function(task.argument, task.shared, self)
                except HPGMNError as error:
                    on_result(TaskResult(task.name, reason=str(error)))
                except ZeroDivisionError as error:
                    on_result(TaskResult(task.name, reason=str(error), trace="Traceback …"))
                else:
                    on_result(TaskResult(task.name, value))

        def request(self, message: Any) -> Any:
            return self.on_message(self.name, message)

        send = request

        def should_stop(self) -> bool:
            return False

    return Here
