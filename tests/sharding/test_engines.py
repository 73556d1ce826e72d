"""Units done by processes and by a Ray cluster of three nodes, one of which is killed."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpgmn.errors import HPGMNError
from hpgmn.sharding import LocalEngine, RayEngine, shard
from hpgmn.sharding.plan import Plan, Unit
from hpgmn.sharding.units import PLAN, compute, run_unit, starts
from hpgmn.statistics import StatisticsSettings

SETTINGS = StatisticsSettings(
    statistics=("attributes", "class_counts", "class_means", "diffusion"),
    neighbors="out",
    class_means_form="half",
    diffusion_form="sketch",
    diffusion_dim=16,
    diffusion_tolerance=0.1,
    teleport=0.5,
)


def known_labels(graph: Any) -> np.ndarray:
    return np.where(graph.splits.train[:, 0], graph.y, -1)


def test_processes_give_the_rows_of_one(
    tmp_path: Path, make_graph: Any, check_rows: Callable[..., None]
) -> None:
    graph = make_graph()
    told: list[tuple[str, int, int | None]] = []
    engine = LocalEngine(2)
    done = shard(
        *(graph, tmp_path, known_labels(graph), SETTINGS),
        ranges=3,
        engine=engine,
        progress=lambda *step: told.append(step),
    )
    engine.close()
    check_rows(done.shards, graph, known_labels(graph), SETTINGS)
    assert [step for step in told if step[0] == "Rows of class_counts"] == [
        ("Rows of class_counts", count, 3) for count in range(4)
    ]
    assert done.starts == done.units


def test_a_worker_that_ends_is_told(tmp_path: Path) -> None:
    with pytest.raises(HPGMNError, match="run the command again"):
        LocalEngine(2).run(tmp_path, [_Deadly("out", 0)], lambda done: None)


class _Deadly(Unit):
    """Ends the process that unpacks it."""

    def __reduce__(self) -> Any:
        return sys.exit, (3,)


def test_without_ray_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(HPGMNError, match=r"pip install 'hpgmn\[ray\]'"):
        RayEngine()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes, each with one place for a task; the first is the driver's."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    quick = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500}
    quick["health_check_failure_threshold"] = 3
    nodes = Cluster(initialize_head=True, head_node_args=node | {"_system_config": quick})
    try:
        nodes.add_node(**node)
        nodes.add_node(**node)
        nodes.wait_for_nodes()
        ray.init(nodes.address, log_to_driver=False, logging_level="ERROR")
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_lost_node_costs_what_ran_on_it(
    tmp_path: Path, cluster: Any, make_graph: Any, check_rows: Callable[..., None]
) -> None:
    import ray

    graph = make_graph()
    labels = known_labels(graph)
    lost = cluster.worker_nodes.copy().pop()
    doomed = lost.node_id

    def has_begun(folder: Path) -> bool:
        return any(
            note["by"] == doomed and note["unit"].startswith("rows-class_means")
            for note in starts(folder)
        )

    def slow(folder: Path, plan: Plan, unit: Unit) -> dict[str, Any]:
        """Class means wait until the node that will be lost has begun some; it ends none."""
        if unit.name == "class_means":
            if ray.get_runtime_context().get_node_id() == doomed:
                time.sleep(300)
            until = time.monotonic() + 120
            while not has_begun(folder) and time.monotonic() < until:
                time.sleep(0.02)
        return compute(folder, plan, unit)

    engine = RayEngine(work=partial(run_unit, compute=slow))

    def kill() -> None:
        while not has_begun(tmp_path):
            time.sleep(0.02)
        cluster.remove_node(lost, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    done = shard(graph, tmp_path, labels, SETTINGS, ranges=8, engine=engine, keep=True)
    killer.join(10)
    engine.close()
    assert not killer.is_alive()
    check_rows(done.shards, graph, labels, SETTINGS)

    plan = Plan.read(tmp_path / PLAN)
    units = [unit for stage in plan.stages() for unit in stage.units]
    notes = starts(tmp_path)
    finished = {_record_of(tmp_path, unit)["start"] for unit in units}
    unfinished = [note for note in notes if note["start"] not in finished]
    assert [note["by"] for note in unfinished] == [lost.node_id]
    assert done.starts == done.units + len(unfinished)
    assert len({note["by"] for note in notes}) == 3


def _record_of(folder: Path, unit: Unit) -> dict[str, Any]:
    path = folder / "work" / "done" / f"{unit.key}.json"
    said: dict[str, Any] = json.loads(path.read_text())
    return said


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")
def test_a_refusal_of_a_task_is_the_refusal(tmp_path: Path, cluster: Any, make_graph: Any) -> None:
    graph = make_graph()
    engine = RayEngine(memory=2**20)
    with pytest.raises(HPGMNError, match="Cut the graph into more ranges"):
        shard(
            *(graph, tmp_path, known_labels(graph), SETTINGS),
            ranges=2,
            memory=1000,
            engine=engine,
        )
