"""A download leaves the unpickling to another process, and believes only what it can check."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

SOURCE = Path(__file__).parents[2] / "src"

PARENT = """
import importlib, json, sys
seen = []
child = importlib.import_module("hpgmn.graph.download")
popen, program = child.subprocess.Popen, sys.argv[1]

def instead(command, **options):
    assert command[-4:-2] == ["-m", "hpgmn.graph.download"] and "shell" not in options
    return popen([sys.executable, "-c", program, *command[-2:]], **options)

child.subprocess.Popen = instead
sys.addaudithook(lambda event, a: seen.append(str(a)) if event == "pickle.find_class" else None)
try:
    said = str(child.download("texas"))
except child.HPGMNError as error:
    said = f"Error: {error}"
loaded = sorted({name.split(".")[0] for name in sys.modules} & {"torch_geometric", "torch"})
print(json.dumps([said, seen, loaded]))
"""


def parent(cache, program):
    """What ``download`` says, the names it unpickled, and the packages it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PARENT, program],
        env=os.environ | {"PYTHONPATH": str(SOURCE), "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_the_parent_unpickles_nothing_and_loads_no_pyg(tmp_path):
    from hpgmn.graph import Graph
    from hpgmn.graph.files import write_graph

    ends = np.arange(325) % 183
    edges = np.stack([ends, (ends + 1 + np.arange(325) // 183) % 183])
    graph = Graph(np.ones((183, 1703)), edges, np.arange(183) % 5)
    write_graph(graph, tmp_path / "made.npz")
    program = f"import shutil, sys; shutil.copy({str(tmp_path / 'made.npz')!r}, sys.argv[2])"
    place = tmp_path / "hpgmn" / "texas.npz"
    assert parent(tmp_path, program) == [str(place), [], []]
    assert place.is_file()


def test_a_child_that_turned_bad_hands_over_nothing(tmp_path):
    """What was unpickled may have taken the child over: its file is read like any other."""
    trap = tmp_path / "sprung"
    program = f"""
import numpy, sys
class Trap:
    def __reduce__(self):
        return open, ({str(trap)!r}, "w")
with open(sys.argv[2], "wb") as file:
    numpy.savez(file, x=numpy.array([Trap()], dtype=object), directed=True)
"""
    said, seen, loaded = parent(tmp_path, program)
    assert said.startswith("Error: The download of 'texas' failed (")
    assert "array 'x' holds pickled Python objects, which are never loaded" in said
    assert "texas.npz" in said
    assert "HPGMN_DATA" in said
    assert (seen, loaded) == ([], [])
    assert not trap.exists()
    assert list((tmp_path / "hpgmn").iterdir()) == []
