"""Commands are watched: none unpickles anything, starts a shell or opens a connection.

Python tells its audit hooks of each name that a pickle asks for, each process that is started and
each connection. What is watched is one process: engines with several workers (``--workers``, Ray,
torchrun) send tasks from one of our own processes to another as pickles, never read from a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "src"

WATCHED = """
import json, sys
seen = []
NAMES = ("pickle.find_class", "marshal.load", "os.system", "subprocess.Popen", "socket.connect")

def watch(event, arguments):
    if event in NAMES and not (event == "socket.connect" and isinstance(arguments[1], str)):
        seen.append([event, str(arguments)])

from hpgmn.cli import main
sys.addaudithook(watch)
codes = [main(command) for command in json.loads(sys.argv[1])]
loaded = sorted(name for name in sys.modules if name.split(".")[0] == "torch_geometric")
print(json.dumps([codes, seen, loaded]))
"""


def watched(folder: Path, *commands: list[str], code: str = WATCHED) -> list[Any]:
    """Exit codes, what was seen, and what of PyG was loaded."""
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


SETTINGS = ["--set", "hidden_dim=4", "--set", "num_patterns=3", "--set", "epochs=3"]
SETTINGS += ["--set", "estimator_epochs=3", "--set", "statistics=attributes,class_counts"]


@pytest.mark.soak
def test_no_command_unpickles_starts_a_shell_or_loads_pyg(
    tmp_path: Path, small_graph: Any, soak: Any
) -> None:
    from hpgmn.datasets import write_graph

    write_graph(small_graph, tmp_path / "small.npz")
    write_graph(small_graph, tmp_path / "small.graph")
    commands = [
        ["train", "small.npz", "--splits", "0", *SETTINGS, "--out", "run"],
        ["predict", "run", "--out", "found.csv"],
        ["evaluate", "run"],
        ["datasets"],
    ]
    if soak.is_long:
        commands += [
            ["explain", "run", "--node", "1"],
            ["audit", "small.graph"],
            ["statistics", "small.npz", "--out", "statistics.npz"],
            ["tune", "small.npz", "--splits", "0", "--trials", "2", "--study", "s.db", *SETTINGS],
            ["shard", "small.graph", "--out", "shards", "--ranges", "2"],
            ["train-shards", "shards", "--out", "run-shards", "--set", "epochs=2"],
            ["convert", "tables", "--out", "again.graph"],
            ["models"],
        ]
        (tmp_path / "tables").mkdir()
        (tmp_path / "tables" / "nodes.csv").write_text("id,label,v\na,x,1\nb,y,2\n")
        (tmp_path / "tables" / "edges.csv").write_text("source,target\na,b\n")
    codes, seen, loaded = watched(tmp_path, *commands)
    assert codes == [0] * len(commands)
    assert loaded == []
    # Python itself asks the system for the name of the processor.
    assert [one for one in seen if "['uname', '-p']" not in one[1]] == []
    soak.record(
        "no-pickles",
        "No command unpickles anything or loads PyTorch Geometric.",
        commands_watched=len(commands),
    )


def test_the_watch_sees_a_pickle(tmp_path: Path) -> None:
    """So that the test above can fail."""
    code = WATCHED.replace(
        "codes = ",
        "import collections, pickle\npickle.loads(pickle.dumps(collections.Counter()))\ncodes = ",
    )
    codes, seen, _ = watched(tmp_path, code=code)
    assert codes == []
    assert [event for event, _ in seen] == ["pickle.find_class"]
