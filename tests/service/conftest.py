"""A tiny trained run, apps that serve it, and the real command."""

import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import hpgmn

SOURCE = Path(hpgmn.__file__).parents[1]
TINY = {
    "epochs": 8,
    "estimator_epochs": 6,
    "hidden_dim": 6,
    "num_patterns": 3,
    "statistics": ("attributes", "class_counts", "class_means"),
}


def tables(num_nodes=60, seed=0):
    random = np.random.default_rng(seed)
    nodes = {
        "id": [f"n{k}" for k in range(num_nodes)],
        "age": random.normal(40, 10, num_nodes).round(2).tolist(),
        "kind": random.choice(["bank", "firm", "shop"], num_nodes).tolist(),
        "label": [("yes", "no", None)[k % 3] for k in range(num_nodes)],
    }
    ends = random.integers(num_nodes, size=(2, 4 * num_nodes))
    edges = {
        "source": [f"n{k}" for k in ends[0]],
        "target": [f"n{k}" for k in ends[1]],
        "amount": random.exponential(100, 4 * num_nodes).round(2).tolist(),
    }
    return nodes, edges


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory):
    graph = hpgmn.from_tables(*tables(), name="tiny")
    graph = graph.with_splits(hpgmn.random_splits(graph))
    folder = tmp_path_factory.mktemp("service") / "run"
    options = {"model": "hpgmn", "settings": TINY, "splits": [0], "report": False}
    hpgmn.train(graph, out=folder, **options)
    return folder


@pytest.fixture
def run_folder(trained_folder, tmp_path):
    """A copy of the run, with a journal of its own."""
    return Path(shutil.copytree(trained_folder, tmp_path / "run"))


@pytest.fixture
def new_node():
    def make(name, **changes):
        return {"id": name, "age": 33.5, "kind": "firm"} | changes

    return make


@pytest.fixture
def new_edge():
    def make(source, target, amount=10.0):
        return {"source": source, "target": target, "amount": amount}

    return make


@pytest.fixture
def expected(trained_folder):
    """Predictions of the run on the graph built at once, by ``Run.predict``: id → probabilities."""

    def predict(nodes=(), edges=()):
        run = hpgmn.open_run(trained_folder)
        graph = run.graph
        if nodes or edges:
            columns = {name: [row[name] for row in nodes] for name in ("id", "age", "kind")}
            ends = {k: [row[k] for row in edges] for k in ("source", "target", "amount")}
            if not nodes:  # tables need a row: a node apart
                columns = {"id": ["apart"], "age": [1.0], "kind": ["firm"]}
            graph = hpgmn.from_tables(columns, ends, onto=graph, name="larger")
        found = run.predict(graph)
        return dict(zip(found.node_ids.tolist(), found.probabilities.tolist(), strict=True))

    return predict


@pytest.fixture
def open_client(run_folder):
    """Opens an app on the run in this process, loaded."""
    with warnings.catch_warnings(action="ignore"):  # it prefers another client library
        from starlette.testclient import TestClient

    from hpgmn.runs.run import open_run
    from hpgmn.service.app import make_app
    from hpgmn.service.journal import Journal
    from hpgmn.service.state import ServedRun

    @contextmanager
    def open_it(is_writable=True, **options):
        run = open_run(run_folder)
        served = ServedRun(run, Journal(run, is_writable=is_writable))
        with TestClient(make_app(served, **options), raise_server_exceptions=True) as client:
            client.served = served
            yield client

    return open_it


@pytest.fixture
def client(open_client):
    with open_client() as one:
        yield one


@contextmanager
def running(folder, *options, expect=0, environment=()):
    """Run the real command until it is ready; yield its address and process, then stop it."""
    env = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"} | dict(environment)
    command = [sys.executable, "-m", "hpgmn", "serve", str(folder), "--port", "0", *options]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            lines = []
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line)
                if found := re.search(r"at (http://\S+?)(,|$)", line):
                    break
            else:
                raise AssertionError(f"exit {process.wait()}: {''.join(lines)}")
            yield found[1], process
            process.send_signal(signal.SIGTERM)
            rest = process.communicate(timeout=60)[1]
            assert expect is None or process.returncode == expect, rest
            assert "Traceback" not in rest
        finally:
            process.kill()


@pytest.fixture
def start_service():
    """Starts ``hpgmn serve``; see :func:`running`."""
    return running


@pytest.fixture
def refused():
    """Gives the one line with which ``hpgmn serve`` refuses to start."""

    def run(folder, *options, **environment):
        env = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"} | environment
        command = [sys.executable, "-m", "hpgmn", "serve", str(folder), *options]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 2, done.stderr
        [line] = done.stderr.splitlines()
        return line

    return run
