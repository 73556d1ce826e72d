"""Units of work: their memory on a graph that is larger, their records, a killed process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.graph import Graph
from hpgmn.graph.files import write_graph
from hpgmn.shards import shard
from hpgmn.shards.plan import Plan, Unit
from hpgmn.shards.units import record, run_unit, starts
from hpgmn.statistics import StatisticsSettings

SOURCE = Path(__file__).parents[2] / "src"
SETTINGS = StatisticsSettings(
    statistics=("attributes", "class_counts", "class_means", "diffusion"),
    neighbors="out",
    class_means_form="half",
    diffusion_form="sketch",
    diffusion_dim=64,
    teleport=0.6,
    diffusion_tolerance=0.1,
)

# Everything is imported and each kind of unit done once; then the process may take LIMIT more.
LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from hpgmn.shards import shard
from hpgmn.statistics import StatisticsSettings

graph, small, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
limit, memory = map(int, sys.argv[4:])
settings = StatisticsSettings(
    statistics=("attributes", "class_counts", "class_means", "diffusion"), neighbors="out",
    class_means_form="half", diffusion_form="sketch", diffusion_dim=64, teleport=0.6,
    diffusion_tolerance=0.1)
shard(small, out / "small", np.load(small + "/y.npy"), settings, ranges=2)
lines = Path("/proc/self/status").read_text().splitlines()
used = int(next(line for line in lines if line.startswith("VmSize")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + limit, used + limit))
try:
    np.array(np.load(graph + "/x.npy"))
except MemoryError:
    print("the attributes do not fit")
shard(graph, out / "shards", np.load(graph + "/y.npy"), settings, ranges=8, memory=memory)
print("done")
"""


@pytest.mark.slow
def test_a_task_holds_less_than_the_attributes(tmp_path, check_rows):
    random = np.random.default_rng(0)
    nodes, width = 120_000, 128  # 61 MB of attributes

    def write(count, name):
        graph = Graph(
            random.normal(size=(count, width)).astype(np.float32),
            random.integers(0, count, (2, 4 * count)),
            random.integers(0, 2, count),
        )
        write_graph(graph, tmp_path / name)
        return graph

    graph = write(nodes, "large.graph")
    write(100, "small.graph")
    done = subprocess.run(
        [
            *(sys.executable, "-c", LIMITED),
            *(str(tmp_path / "large.graph"), str(tmp_path / "small.graph"), str(tmp_path)),
            *(str(40 * 2**20), str(16 * 2**20)),
        ],
        env=os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "the attributes do not fit\ndone\n", done.stderr
    shards = shard(
        tmp_path / "large.graph", tmp_path / "shards", graph.y, SETTINGS, ranges=8
    ).shards  # found finished
    check_rows(shards, graph, graph.y, SETTINGS)


@pytest.mark.slow
def test_a_killed_process_leaves_what_it_has_finished(tmp_path, make_graph, check_rows):
    graph = make_graph(4000, 40_000, width=16)
    write_graph(graph, tmp_path / "made.graph")
    np.save(tmp_path / "labels.npy", graph.y)
    script = (
        "import sys, numpy as np\n"
        "from hpgmn.shards import shard\n"
        "from hpgmn.statistics import StatisticsSettings\n"
        "folder = sys.argv[1]\n"
        f"settings = {SETTINGS!r}\n"
        "shard(folder + '/made.graph', folder + '/shards', np.load(folder + '/labels.npy'), "
        "settings, ranges=8)\n"
    )
    # The fifth rows wait to be killed, so that the process cannot be done before it is.
    waits = (
        "import time\n"
        "from hpgmn.shards import rows, units\n"
        "def slow(folder, plan, unit):\n"
        "    if unit.part == 4:\n"
        "        time.sleep(600)\n"
        "    return rows.make_rows(folder, plan, unit)\n"
        "units.KINDS['rows'] = slow\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", waits + script, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )
    finished = tmp_path / "shards" / "work" / "done"
    begun_rows = tmp_path / "shards" / "work" / "starts"
    while process.poll() is None and not list(begun_rows.glob("rows-*-00004.*.json")):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = len(list(finished.glob("[!.]*.json")))
    begun = len(starts(tmp_path / "shards"))
    assert begun - before == 1
    place = tmp_path / "made.graph"
    done = shard(place, tmp_path / "shards", graph.y, SETTINGS, ranges=8, keep=True)
    assert 0 < done.reused == before < done.units
    assert done.starts == done.units + begun - before
    check_rows(done.shards, graph, graph.y, SETTINGS)


def test_a_record_tells_of_time_memory_and_files(tmp_path, make_graph):
    graph = make_graph()
    shard(graph, tmp_path, graph.y, SETTINGS, ranges=2, keep=True)
    plan = Plan.read(tmp_path / "plan.json")
    unit = Unit("rows", 1, "class_counts")
    said = record(tmp_path, plan, unit)
    assert said is not None
    assert said["seconds"] > 0
    assert said["peak_memory_mb"] > 1
    start, stop = plan.span(1)
    assert said["files"]["rows-00001/class_counts.npy"]["shape"] == [stop - start, 3]
    count = len(starts(tmp_path))
    run_unit(tmp_path, unit)  # done already
    assert len(starts(tmp_path)) == count
    [path] = (tmp_path / "work" / "starts").glob("rows-class_counts-00001.*")
    note = json.loads(path.read_text())
    assert note["process"] == os.getpid()


def test_a_full_disk_is_told(tmp_path, make_graph):
    graph = make_graph()

    def full(folder, plan, unit):
        raise OSError(28, "No space left on device")

    shard(graph, tmp_path, graph.y, SETTINGS, ranges=2, keep=True)
    (tmp_path / "work" / "done" / "nodes-00001.json").unlink()
    with pytest.raises(HPGMNError, match=r"No space left.*finished work is kept"):
        run_unit(tmp_path, Unit("nodes", 1), compute=full)
    assert record(tmp_path, Plan.read(tmp_path / "plan.json"), Unit("nodes", 1)) is None


def test_a_plan_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(HPGMNError, match=r"No such file.*run the command again"):
        run_unit(tmp_path, Unit("nodes", 0))
