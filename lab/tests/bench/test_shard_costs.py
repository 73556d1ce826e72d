"""The engine of sharding: every unit counted once, bytes as they lie on the disk."""

import numpy as np
import pytest

from hpgmn.shards.plan import Unit
from hpgmn.statistics.push import largest_of_range
from hpgmn_lab.bench import graphs, shard_costs
from hpgmn_lab.bench.shard_costs import CostEngine, kind_of, measure_statistics
from hpgmn_lab.bench.shards import SETTINGS


def test_every_kind_of_work_is_counted(tmp_path, monkeypatch):
    made = graphs.write_generated(
        {"nodes": 300, "degree": 5.0, "attributes": 6, "seed": 0}, str(tmp_path)
    )
    pushed = []

    def noted(matrix, span, settings, **options):
        pushed.append((span, settings.diffusion_threshold))
        return largest_of_range(matrix, span, settings, **options)

    monkeypatch.setattr(shard_costs, "largest_of_range", noted)
    folder = tmp_path / "shards"
    found = measure_statistics(made["path"], str(folder), SETTINGS, 3, 2**24, [1e-2, 1e-3], 40)
    assert (found["nodes"], found["attributes"], found["classes"]) == (300, 6, 5)
    costs = found["costs"]
    assert set(costs) == set(shard_costs.KINDS)
    rounds = found["rounds"]
    assert rounds == 3
    tasks = {kind: cost["tasks"] for kind, cost in costs.items()}
    assert tasks == dict.fromkeys(shard_costs.KINDS, 3) | {"round": 6, "join": 1}
    # Attributes are copied; the edges of a range are its indices, of which each unit reads all.
    written = [path.stat().st_size for path in folder.glob("rows-*/attributes.npy")]
    assert costs["attributes"]["bytes_written"] == sum(written)
    assert costs["attributes"]["bytes_read"] == 300 * 6 * 4
    means = [path.stat().st_size for path in folder.glob("rows-*/class_means.npy")]
    assert costs["class_means"]["bytes_written"] == sum(means)
    joined = folder / "work" / "transition-out"
    sizes = [path.stat().st_size for path in joined.glob("*.npy")]
    assert costs["join"]["bytes_written"] == sum(sizes)
    entries = len(np.load(joined / "indices.npy"))
    assert costs["join"]["bytes_read"] == pytest.approx(8 * entries + 4 * 300, abs=16)
    assert min(cost["cpu_seconds"] for cost in costs.values()) > 0
    assert [one["rows"] for one in found["topk"]] == [40, 4]
    assert pushed == [((150, 151), 1e-2), ((150, 190), 1e-2), ((150, 154), 1e-3)]
    assert found["statistics"]["class_means"]["width"] == 30


def test_the_first_round_is_not_counted():
    assert kind_of(Unit("round", 0, "diffusion", 0)) is None
    engine, done = CostEngine(), []
    engine.add(None, lambda: done.append(1), lambda: 1)
    assert done == [1]
    assert engine.costs == {}
    for size in (2, 3):
        engine.add("round", lambda: None, lambda size=size: size)
    assert engine.costs["round"]["bytes_written"] == 5
    assert engine.costs["round"]["tasks"] == 2
