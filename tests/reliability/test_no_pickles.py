"""Commands are watched: none unpickles anything, starts a shell or opens a connection.

Python tells its audit hooks of each name that a pickle asks for, each process that is started and
each connection. Every Python process that a command starts is watched, too, from its first moment
on. Not watched are engines with several workers (``--workers``, Ray, torchrun): they send tasks
from one of our own processes to another as pickles, never read from a file.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

WATCH = """
import json, os, sys
NAMES = ("pickle.find_class", "marshal.load", "os.system", "subprocess.Popen", "socket.connect")

def watch(event, arguments):
    if event in NAMES and not (event == "socket.connect" and isinstance(arguments[1], str)):
        with open(os.environ["HPGMN_WATCHED"], "a", encoding="utf-8") as file:
            file.write(json.dumps([event, str(arguments)]) + "\\n")

sys.addaudithook(watch)
"""
"""What Python runs before anything else, as ``sitecustomize``."""

COMMANDS = """
import json, sys
from hpgmn.cli import main
from hpgmn_lab import paper
paper.TABLE_2 = {name: paper.TABLE_2[name] for name in ("gcn", "hpgmn")}  # four cells a graph
codes = [main(command) for command in json.loads(sys.argv[1])]
loaded = sorted(name for name in sys.modules if name.split(".")[0] == "torch_geometric")
print(json.dumps([codes, loaded]))
"""
PICKLE = "import collections, pickle; pickle.loads(pickle.dumps(collections.Counter()))\n"


def watched(folder, *commands, code=COMMANDS):
    """Exit codes, what was seen, and what of PyG was loaded."""
    (folder / "watch").mkdir()
    (folder / "watch" / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    seen = folder / "seen.txt"
    places = {
        "PYTHONPATH": f"{folder / 'watch'}{os.pathsep}{SOURCE}",
        "HPGMN_WATCHED": str(seen),
        "HPGMN_DATA": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)],
        cwd=folder,
        env=os.environ | places | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    codes, loaded = json.loads(done.stdout.splitlines()[-1])
    lines = seen.read_text(encoding="utf-8").splitlines() if seen.exists() else []
    return codes, [json.loads(line) for line in lines], loaded


def is_expected(event, arguments):
    """Python itself asks for the name of the processor, matplotlib once for the fonts.

    And a benchmark measures in fresh processes.
    """
    known = [
        "['uname', '-p']",
        "['fc-list', ",
        f"['{sys.executable}', '-m', 'hpgmn_lab.bench.process'",
    ]
    return event == "subprocess.Popen" and any(words in arguments for words in known)


BENCH = ["--epochs", "2", "--set", "estimator_epochs=1", "--device", "cpu", "--out", "growth"]
SETTINGS = ["--set", "hidden_dim=4", "--set", "num_patterns=3", "--set", "epochs=3"]
SETTINGS += ["--set", "estimator_epochs=3", "--set", "statistics=attributes,class_counts"]


@pytest.mark.slow
@pytest.mark.soak
def test_no_command_unpickles_starts_a_shell_or_loads_pyg(tmp_path, small_graph, soak):
    from hpgmn.graph.files import write_graph

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
            ["demo", "--nodes", "200", "--out", "demo"],
            ["reproduce", "table2", "--quick", "--device", "cpu", "--out", "reproduced"],
            ["bench", "growth", "--nodes", "300", "--degree", "3", "--attributes", "4", *BENCH],
        ]
        for name in ("texas", "cora"):
            write_graph(small_graph, tmp_path / f"{name}.npz")
        (tmp_path / "tables").mkdir()
        (tmp_path / "tables" / "nodes.csv").write_text("id,label,v\na,x,1\nb,y,2\n")
        (tmp_path / "tables" / "edges.csv").write_text("source,target\na,b\n")
    codes, seen, loaded = watched(tmp_path, *commands)
    assert codes == [0] * len(commands)
    assert loaded == []
    assert [one for one in seen if not is_expected(*one)] == []
    soak.record(
        "no-pickles",
        "No command unpickles anything or loads PyTorch Geometric.",
        commands_watched=len(commands),
    )


@pytest.mark.parametrize("where", ["here", "in a process of its own"])
def test_the_watch_sees_a_pickle(tmp_path, where):
    """So that the test above can fail."""
    started = f"import subprocess; subprocess.run([sys.executable, '-c', {PICKLE!r}])\n"
    code = f"import sys\n{PICKLE if where == 'here' else started}{COMMANDS}"
    codes, seen, _ = watched(tmp_path, code=code)
    assert codes == []
    wanted = ["pickle.find_class"] if where == "here" else ["subprocess.Popen", "pickle.find_class"]
    assert [event for event, _ in seen] == wanted
    assert not is_expected(*seen[0])
