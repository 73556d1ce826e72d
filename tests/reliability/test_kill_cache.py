"""A killed computation leaves no entry that is read as good; the next call has the same bits."""

import shutil

import numpy as np
import pytest

pytestmark = pytest.mark.soak

# Everything is worth keeping, and class means are computed into mapped files.
WORK = """
import json
import numpy as np
import torch
import hpgmn
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.statistics import LocalStatistics, cache
cache.MIN_SECONDS = -1.0
cache.MEMORY_SHARE = 1e-9
graph = hpgmn.trading_network(num_nodes=300, seed=3).graph
settings = HPGMNSettings(
    statistics=("class_means", "diffusion"), neighbors="undirected", batch_size=64,
    class_means_form="half",
)
built = LocalStatistics(graph).build(graph.y[None], graph.num_classes, [settings])
nodes = torch.arange(graph.num_nodes)
rows = {name: built[name].rows(nodes).numpy() for name in ("class_means", "diffusion")}
np.savez("found.npz", **rows)
"""


def test_a_killed_computation_leaves_nothing_that_is_read_as_good(soak, commands, tmp_path):
    cache, found = tmp_path / "cache", tmp_path / "found.npz"

    def compute(folder, moment=None):
        folder.mkdir(exist_ok=True)
        environment = {"HPGMN_CACHE": str(cache)}
        return commands(folder=folder, before=WORK, environment=environment, moment=moment)

    def rows(path):
        with np.load(path) as stored:
            return {name: stored[name].tobytes() for name in stored}

    answer = compute(tmp_path)
    assert answer.code == 0, answer.err
    expected = rows(found)
    assert len(list(cache.iterdir())) >= 2
    kills, wanted, entries = 0, soak.amount(short=6, long=50), set()
    for moment in answer.moments(17):
        ended = compute(tmp_path, moment)
        kills += ended.is_killed
        assert ended.is_killed or ended.code == 0, f"{moment}: {ended.err}"
        entries.add(len([path for path in cache.iterdir() if not path.name.startswith(".")]))
        found.unlink(missing_ok=True)
        after = compute(tmp_path)  # reads what there is, computes what is missing
        assert after.code == 0, f"after a kill {moment}: {after.err}"
        assert "damaged" not in after.err, f"after a kill {moment}"
        assert rows(found) == expected, f"after a kill {moment}"
        for path in cache.iterdir():
            if not path.name.startswith("."):
                shutil.rmtree(path)
        if kills == wanted:
            break
    assert len(entries) > 1  # kills before and after an entry was there
    soak.record(
        "kill-cache",
        "A killed computation leaves no entry that is read as good; the next has the same bits.",
        kills_survived=kills,
    )
