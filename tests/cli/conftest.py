"""The commands as a user types them: through ``main``, in a folder of their own."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:  # imported late, as in the conftest above
    pass

SETTINGS = {
    "hidden_dim": 6,
    "num_patterns": 5,
    "estimator_hidden": 6,
    "epochs": 6,
    "patience": 0,
    "estimator_epochs": 4,
    "estimator_patience": 0,
    "neighbors": "undirected",
    "statistics": "attributes,class_counts,class_means,diffusion",
}


Tiny = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def quick_pages(monkeypatch):
    """Few nodes of a page have their neighbours taken away: tests train often."""
    monkeypatch.setattr("hpgmn.explain.explorer.SECONDS", 0.1)


def assignments(**changes):
    values = SETTINGS | changes
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture
def tiny():
    """Gives tiny settings, some of them changed, as repeated ``--set`` options."""
    return assignments


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    return tmp_path_factory.mktemp("shelf")


@pytest.fixture
def trained(small_graph, shelf):
    """A finished run of splits 1 and 0 with two seeds each, made once; read it only."""
    from hpgmn.cli import main
    from hpgmn.graph.files import write_graph

    run = shelf / "run"
    if not run.exists():
        write_graph(small_graph, shelf / "small.npz")
        options = ["--splits", "1,0", "--seeds", "2", "--device", "cpu", "--out", str(run)]
        assert main(["train", str(shelf / "small.npz"), *assignments(), *options]) == 0
    return run


@pytest.fixture
def own_run(trained, tmp_path):
    """A copy of the finished run that may be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "own"))


@pytest.fixture
def stop_after(monkeypatch):
    """Interrupt the next trainings after so many epochs, or let them run (None)."""

    def limit(epochs):
        @contextmanager
        def stop_on_signal():
            left = epochs

            def asked():
                nonlocal left
                if left is None or not any(Path().glob("**/state")):  # no epoch of a run yet
                    return False
                left -= 1
                return left <= 0

            yield asked

        monkeypatch.setattr("hpgmn.cli.console.stop_on_signal", stop_on_signal)

    return limit


def arrays_of(graph):
    """The arrays of a graph file, to be spoilt before they are written."""
    assert graph.splits is not None
    return {
        "x": graph.x,
        "edge_index": graph.edge_index,
        "directed": np.asarray(graph.directed),
        "y": graph.y,
        **{f"{part}_mask": getattr(graph.splits, part) for part in ("train", "val", "test")},
    }


WriteArrays = Callable[..., Path]


@pytest.fixture
def write_arrays(small_graph, tmp_path):
    """Writes the small graph's file with some arrays changed; None leaves one out."""

    def write(**changes):
        path = tmp_path / "graph.npz"
        arrays: Mapping[str, Any] = arrays_of(small_graph) | changes
        np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
        return path

    return write


@pytest.fixture
def contents():
    """Gives every file below a folder with its bytes, folders with None."""

    def read(folder):
        return {
            str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in sorted(folder.rglob("*"))
        }

    return read
