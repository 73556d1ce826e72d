"""The arithmetic of a plan for a large graph, from the measured costs of a smaller one.

Work that is the same for every edge or node is multiplied. Bytes read are not: a block of rows
reads the rows of all its neighbours, so they come from the number of blocks, which follows from
the memory of a task as in :mod:`hpgmn.shards`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpgmn.shards.files import GAP_BYTES
from hpgmn.shards.plan import EDGE_BYTES
from hpgmn.statistics.diffusion import coefficients
from hpgmn.statistics.push import worker_bytes
from hpgmn.statistics.settings import StatisticsSettings
from hpgmn_lab.bench.shards import cost_of, row_seconds, talk_seconds

USABLE = 7 / 8
"""The part of a machine's memory that tasks may hold."""
PAGE_BYTES = 4096
"""What a disk reads at least."""
ROUNDS_TOLERANCE = 0.01
"""Of the sketch of few columns, whose own error is larger."""


@dataclass(frozen=True)
class Job:
    """A graph, and what is done with it.

    Attributes:
        nodes: N.
        edges: E, in one direction.
        attributes: F, dense.
        classes: C.
        dim: d, the columns of the sketch.
        tolerance: of the sketch.
        train: the share of nodes that train.
        val: the share of nodes that validate.
        epochs: of the training.
        rank_batch: train nodes of a step for each rank.
    """

    nodes: int
    edges: int
    attributes: int = 128
    classes: int = 10
    dim: int = 64
    tolerance: float = ROUNDS_TOLERANCE
    train: float = 0.5
    val: float = 0.2
    epochs: int = 20
    rank_batch: int = 1024

    @property
    def rounds(self) -> int:
        """The terms of the series."""
        return len(coefficients("ppr", tolerance=self.tolerance))

    @property
    def columns(self) -> int:
        """What a node's rows have of them: attributes, counts, means and sketch."""
        return self.attributes + self.classes + self.classes * self.attributes + self.dim

    @property
    def row_bytes(self) -> tuple[int, ...]:
        """The bytes of a node's row in each file: attributes, counts, means (half), sketch."""
        attributes, classes = self.attributes, self.classes
        return 4 * attributes, 4 * classes, 2 * classes * attributes, 4 * self.dim


@dataclass(frozen=True)
class Machines:
    """A cluster.

    Attributes:
        count: how many machines.
        cores: of each.
        memory: bytes of each.
        disk: bytes in a second that each reads or writes.
        network: bytes in a second that each sends.
        gpus: of each.
    """

    count: int = 8
    cores: int = 16
    memory: int = 128 * 2**30
    disk: float = 2e9
    network: float = 1.25e9
    gpus: int = 0

    @property
    def usable(self) -> int:
        """Bytes of each that tasks may hold."""
        return int(USABLE * self.memory)


@dataclass(frozen=True)
class Stage:
    """A stage of the plan.

    Attributes:
        name: what is done.
        core_seconds: on one core.
        bytes_read: by all tasks.
        bytes_written: by all tasks.
        bytes_shuffled: that go from one machine to another beside what is read.
        at_a_time: tasks on a machine.
        machines: how many there are.
        disk: bytes in a second of each.
        waiting: seconds in which nobody works: messages.
        is_single: whether it is one task.
    """

    name: str
    core_seconds: float
    bytes_read: float
    bytes_written: float
    machines: int
    at_a_time: int
    disk: float
    bytes_shuffled: float = 0.0
    waiting: float = 0.0
    is_single: bool = False

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by what they are spent on."""
        places = 1 if self.is_single else self.machines
        tasks = 1 if self.is_single else self.machines * self.at_a_time
        return {
            "cores": self.core_seconds / tasks,
            "disk": (self.bytes_read + self.bytes_written) / (places * self.disk),
            "messages": self.waiting,
        }

    @property
    def hours(self) -> float:
        """Of computing, reading and writing, and waiting, one after the other."""
        return sum(self.parts.values()) / 3600

    @property
    def bound(self) -> str:
        """What most of the time is spent on."""
        return max(self.parts, key=lambda part: self.parts[part])


@dataclass(frozen=True)
class Plan:
    """The stages of one `hpgmn shard`, and how it is called.

    Attributes:
        stages: in order.
        ranges: ``--ranges``.
        memory: bytes of a task, ``--memory``.
        at_a_time: tasks on a machine.
    """

    stages: tuple[Stage, ...]
    ranges: int
    memory: int
    at_a_time: int

    @property
    def hours(self) -> float:
        """Of all stages."""
        return sum(stage.hours for stage in self.stages)


# Bytes.


def num_blocks(job: Job, ranges: int, memory: int, per_edge: int, per_row: int) -> int:
    """The blocks of all ranges, if these have as many edges and nodes each.

    >>> num_blocks(Job(100, 1000), 2, 3000, 10, 10)  # each range has 5000 + 500 bytes
    4
    """
    of_range = (job.edges * per_edge + job.nodes * per_row) / ranges
    return ranges * max(1, math.ceil(of_range / memory))


def rows_read(nodes: int, edges: float, size: int) -> float:
    """Rows that a block reads, if the ends of its edges are random.

    A row is asked for with the chance p = 1 - exp(-edges/N), and a gap to the next has g rows with
    the chance p·(1 - p)^(g-1). Gaps of at most :data:`GAP_BYTES` are read, too.

    Args:
        nodes: N.
        edges: of the block.
        size: bytes of a row.
    """
    chance = -math.expm1(-edges / nodes)
    longest = max(1, GAP_BYTES // size)
    longer = (1 - chance) ** longest  # the chance of a gap that is not read
    return nodes * (1 - (1 + longest * chance) * longer + chance * longer)


def neighbour_bytes(job: Job, blocks: int, size: int) -> float:
    """Bytes of rows that all blocks together read."""
    return blocks * rows_read(job.nodes, job.edges / blocks, size) * size


def means_blocks(job: Job, ranges: int, memory: int) -> int:
    """Blocks of the class means in half precision."""
    width = job.attributes
    per_row = 2 * job.classes * width + 16 * width
    return num_blocks(job, ranges, memory, EDGE_BYTES + 12 * width, per_row)


def means_bytes(job: Job, ranges: int, memory: int) -> float:
    """Bytes that class means read: edges, attributes and labels of neighbours."""
    blocks = means_blocks(job, ranges, memory)
    return 4 * job.edges + sum(
        neighbour_bytes(job, blocks, size) for size in (4 * job.attributes, 4)
    )


def round_blocks(job: Job, ranges: int, memory: int) -> int:
    """Blocks of a round of the sketch."""
    return num_blocks(job, ranges, memory, EDGE_BYTES + 8 * job.dim, 32 * job.dim + 256)


def round_bytes(job: Job, ranges: int, memory: int) -> float:
    """Bytes that a round reads: T, and neighbours' rows of the round before."""
    blocks = round_blocks(job, ranges, memory)
    return 8 * job.edges + neighbour_bytes(job, blocks, 4 * job.dim)


def counts_bytes(job: Job, ranges: int, memory: int) -> float:
    """Bytes that class counts read: edges, and labels of neighbours."""
    blocks = num_blocks(job, ranges, memory, EDGE_BYTES + 8 + 8 * job.classes, 16 * job.classes)
    return 4 * job.edges + neighbour_bytes(job, blocks, 4)


# Statistics.


def num_ranges(job: Job, machines: Machines, memory: int) -> int:
    """Ranges that cutting can hold, a multiple of all cores so that each may train on some."""
    cores = machines.count * machines.cores
    return cores * math.ceil(EDGE_BYTES * job.edges / memory / cores)


def statistics_plan(
    record: Mapping[str, Any], job: Job, machines: Machines, at_a_time: int
) -> Plan:
    """The statistics with so many tasks at a time on a machine.

    Args:
        record: of ``hpgmn bench shards``.
        job: the graph.
        machines: the cluster.
        at_a_time: tasks on a machine, which share its memory.
    """
    memory = machines.usable // at_a_time
    ranges = num_ranges(job, machines, memory)
    measured = record["statistics"]

    def stage(
        name: str,
        kinds: Sequence[str],
        read: float | None = None,
        written: float | None = None,
        times: float = 1.0,
    ) -> Stage:
        """As much for an edge as was measured, ``times`` that; bytes likewise if not given."""
        costs = [cost_of(record, kind) for kind in kinds]
        share = job.edges / measured["edges"]
        if read is None:
            read = share * sum(cost["bytes_read"] for cost in costs)
        if written is None:
            written = share * sum(cost["bytes_written"] for cost in costs)
        seconds = times * share * sum(cost["cpu_seconds"] for cost in costs)
        return Stage(name, seconds, read, written, machines.count, at_a_time, machines.disk)

    attributes, counts, means, sketch = job.row_bytes
    wider = job.attributes / measured["attributes"]
    broader = job.dim / record["settings"]["diffusion_dim"]
    rounds = job.rounds
    copied = 2 * (attributes + 11) * job.nodes  # read and written: attributes, label, split
    stages = (
        replace(
            stage("edges by source and by target", ("out", "in")),
            bytes_shuffled=8 * job.edges,
        ),
        Stage("attributes, labels, splits copied", 0.0, copied / 2, copied / 2, machines.count,
              at_a_time, machines.disk),
        stage("class counts", ("class_counts",), counts_bytes(job, ranges, memory),
              counts * job.nodes),
        stage("class means, half precision", ("class_means",), means_bytes(job, ranges, memory),
              means * job.nodes, wider),
        stage("transition matrix", ("transition",)),
        stage(
            f"sketch, d = {job.dim}, {rounds} rounds",
            ("round",),
            (rounds - 1) * round_bytes(job, ranges, memory) + 8 * job.edges,
            rounds * sketch * job.nodes,
            rounds * broader,
        ),
    )  # fmt: skip
    return Plan(stages, ranges, memory, at_a_time)


def best_plan(record: Mapping[str, Any], job: Job, machines: Machines) -> Plan:
    """The plan whose number of tasks at a time, a power of two, takes the fewest hours."""
    tasks = [2**power for power in range(machines.cores.bit_length())]
    plans = [
        statistics_plan(record, job, machines, number)
        for number in tasks
        if number <= machines.cores
    ]
    return min(plans, key=lambda plan: plan.hours)


def topk_stages(
    record: Mapping[str, Any], job: Job, machines: Machines
) -> list[tuple[float, tuple[Stage, Stage]]]:
    """Top-k in the place of a sketch: for each threshold T joined, and rows pushed.

    Without an entry where T and the arrays of a task do not fit a machine.
    """
    usual = StatisticsSettings()
    matrix = 8 * job.edges + 8 * job.nodes
    ranges = num_ranges(job, machines, machines.usable // machines.cores)
    task = worker_bytes(job.nodes, usual.diffusion)
    task += 24 * usual.diffusion_topk * job.nodes // ranges
    at_a_time = min(machines.cores, (machines.usable - matrix) // task)
    if at_a_time < 1:
        return []
    share = job.edges / record["statistics"]["edges"]
    join = Stage(
        "transition matrix joined",
        share * cost_of(record, "join")["cpu_seconds"],
        matrix,
        matrix,
        machines.count,
        1,
        machines.disk,
        is_single=True,
    )
    found = []
    for topk in record["statistics"]["topk"]:
        push = Stage(
            f"top-k, threshold {topk['threshold']:g}",
            job.nodes * topk["cpu_seconds"] / topk["rows"],
            machines.count * matrix,  # every machine maps all of it
            8 * usual.diffusion_topk * job.nodes,
            machines.count,
            at_a_time,
            machines.disk,
        )
        found.append((topk["threshold"], (join, push)))
    return found


# Training.


def training_stage(record: Mapping[str, Any], job: Job, machines: Machines) -> Stage:
    """Training on rows by one rank for each core, or for each GPU where the record is of one.

    Args:
        record: of ``hpgmn bench shards``; its device is that of the ranks.
        job: the graph.
        machines: the cluster.
    """
    on_gpu = record["device_kind"] == "cuda"
    per_machine = machines.gpus if on_gpu else machines.cores
    ranks = machines.count * per_machine
    known = record["statistics"]["statistics"]
    wider = job.columns / sum(about["width"] for about in known.values())
    of_train, of_val = row_seconds(record["training"])
    epoch = wider * job.nodes * (job.train * of_train + job.val * of_val)
    steps = job.epochs * math.ceil(job.train * job.nodes / (ranks * job.rank_batch))
    size = 4 * parameters(record, job)
    sent = 2 * size * (machines.count - 1) / machines.count  # of each machine, in a ring
    talk = (talk_seconds(record["training"]) or 0.0) * math.log2(max(2, ranks))
    name = f"training, {job.epochs} epochs, {ranks} {'GPU' if on_gpu else 'CPU'} ranks"
    return Stage(
        name,
        job.epochs * epoch,
        training_bytes(job, machines),
        0.0,
        machines.count,
        per_machine,
        machines.disk,
        bytes_shuffled=steps * sent * machines.count,
        waiting=steps * (talk + sent / machines.network),
    )


def parameters(record: Mapping[str, Any], job: Job) -> int:
    """Those of the model: every further column has a weight for each hidden unit."""
    known = record["statistics"]["statistics"]
    more = job.columns - sum(about["width"] for about in known.values())
    return int(record["training"]["alone"]["parameters"] + more * record["settings"]["hidden_dim"])


def training_bytes(job: Job, machines: Machines) -> float:
    """Bytes that training reads: rows once if the machines' memory holds them, else every epoch.

    Rows are read in any order, so each costs a page more than it has bytes, in each file.
    """
    every = job.nodes * sum(job.row_bytes)
    if every <= machines.count * machines.usable:
        return float(every)
    pages = sum(size + PAGE_BYTES for size in job.row_bytes)
    return job.epochs * (job.train + job.val) * job.nodes * pages


# All of it.


def whole_hours(record: Mapping[str, Any], job: Job, machines: Machines) -> float:
    """From the graph folder to the trained model."""
    return best_plan(record, job, machines).hours + training_stage(record, job, machines).hours


def machines_for(
    record: Mapping[str, Any], job: Job, machines: Machines, hours: float, most: int = 1024
) -> int | None:
    """The fewest machines that are done within so many hours; None where no number is."""
    for count in range(1, most + 1):
        if whole_hours(record, job, replace(machines, count=count)) <= hours:
            return count
    return None


def formula_check(record: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Bytes read as measured and as the formulas have them, for the measured graph."""
    found, settings = record["statistics"], record["settings"]
    job = Job(
        found["nodes"],
        found["edges"],
        found["attributes"],
        found["classes"],
        settings["diffusion_dim"],
    )
    ranges, memory = record["ranges"], record["memory"]
    formulas = {
        "class_counts": counts_bytes(job, ranges, memory),
        "class_means": means_bytes(job, ranges, memory),
        "round": round_bytes(job, ranges, memory),
    }
    return {kind: (cost_of(record, kind)["bytes_read"], value) for kind, value in formulas.items()}
