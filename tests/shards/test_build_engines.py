"""Shards made by processes and by a Ray cluster of three nodes, one of which is killed."""

import dataclasses
import json
import threading
import time
from typing import Any

import numpy as np
import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.engines import TaskResult
from hpgmn.engines.processes import LocalEngine
from hpgmn.engines.ray import RayEngine
from hpgmn.shards import shard
from hpgmn.shards.plan import Plan
from hpgmn.shards.units import PLAN, compute, run_unit, starts
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


def known_labels(graph):
    return np.where(graph.splits.train[:, 0], graph.y, -1)


@pytest.mark.slow
def test_processes_give_the_rows_of_one(tmp_path, make_graph, check_rows):
    graph = make_graph()
    told: list[tuple[str, int, int | None]] = []
    done = shard(
        *(graph, tmp_path, known_labels(graph), SETTINGS),
        ranges=3,
        engine=LocalEngine(2),
        progress=lambda *step: told.append(step),
    )
    check_rows(done.shards, graph, known_labels(graph), SETTINGS)
    assert [step for step in told if step[0] == "Rows of class_counts"] == [
        ("Rows of class_counts", count, 3) for count in range(4)
    ]
    assert done.starts == done.units


class Failing:
    """An engine whose first task ends badly."""

    workers, is_local = 1, True

    def __init__(self, **end):
        self.end = end

    def run(self, next_task, told, **options):
        task = next_task()
        assert task is not None
        told(TaskResult(task.name, **self.end))


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ({"reason": "Gone.", "is_lost": True}, "Gone. Run it again: finished work is kept."),
        ({"reason": "Too large."}, "Too large."),
        ({"reason": "Bug.", "trace": "Traceback …"}, "A worker failed:\nTraceback …"),
    ],
)
def test_a_task_that_ends_badly_ends_the_work(tmp_path, make_graph, end, words):
    graph = make_graph()
    with pytest.raises((HPGMNError, RuntimeError)) as error:
        shard(graph, tmp_path, known_labels(graph), SETTINGS, engine=Failing(**end))
    assert str(error.value) == words
    assert isinstance(error.value, HPGMNError) is ("trace" not in end)


class Slowed:
    """An engine whose tasks run a function of their own."""

    def __init__(self, engine, function):
        self.engine, self.function = engine, function
        self.workers, self.is_local = engine.workers, engine.is_local

    def run(self, next_task, told, **options):
        def slowed():
            task = next_task()
            return task and dataclasses.replace(task, function=self.function)

        self.engine.run(slowed, told, **options)


@pytest.fixture(scope="module")
def cluster(ray_cluster):
    """Three nodes, each with one place for a task; the first is that of this process."""
    for _ in range(2):
        ray_cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    return ray_cluster


@pytest.mark.ray
def test_a_lost_node_costs_what_ran_on_it(tmp_path, cluster, make_graph, check_rows):
    import ray

    graph = make_graph()
    labels = known_labels(graph)
    lost = sorted(cluster.worker_nodes, key=lambda node: node.node_id)[0]
    doomed = lost.node_id

    def has_begun(folder):
        return any(
            note["by"] == doomed and note["unit"].startswith("rows-class_means")
            for note in starts(folder)
        )

    def slow(folder, plan, unit):
        """Class means wait until the node that will be lost has begun some; it ends none."""
        if unit.name == "class_means":
            if ray.get_runtime_context().get_node_id() == doomed:
                time.sleep(300)
            until = time.monotonic() + 120
            while not has_begun(folder) and time.monotonic() < until:
                time.sleep(0.02)
        return compute(folder, plan, unit)

    def slow_unit(argument, shared, line):
        run_unit(*argument, line.node, compute=slow)

    def kill():
        while not has_begun(tmp_path):
            time.sleep(0.02)
        cluster.remove_node(lost, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    engine = Slowed(RayEngine(ray), slow_unit)
    done = shard(graph, tmp_path, labels, SETTINGS, ranges=8, engine=engine, keep=True)
    killer.join(10)
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


def _record_of(folder, unit):
    path = folder / "work" / "done" / f"{unit.key}.json"
    said: dict[str, Any] = json.loads(path.read_text())
    return said


@pytest.mark.ray
def test_a_refusal_of_a_task_is_the_refusal(tmp_path, cluster, make_graph):
    graph = make_graph()
    import ray

    engine = RayEngine(ray)
    with pytest.raises(HPGMNError, match="Cut the graph into more ranges"):
        shard(
            *(graph, tmp_path, known_labels(graph), SETTINGS), ranges=2, memory=1000, engine=engine
        )


@pytest.mark.ray
def test_a_task_that_no_machine_has_room_for_is_refused(tmp_path, cluster, make_graph):
    import ray

    graph = make_graph()
    words = r"1024\.0 GiB\. .*memory="
    with pytest.raises(HPGMNError, match=words):
        shard(
            *(graph, tmp_path, known_labels(graph), SETTINGS),
            ranges=2,
            memory=2**40,
            engine=RayEngine(ray),
        )
