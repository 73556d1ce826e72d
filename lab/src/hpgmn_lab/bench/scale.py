"""The plan of docs/SCALE.md for a large graph, calculated from the measured costs of a smaller one.

Costs per edge and per node are multiplied. Bytes read are not: a block of rows reads the rows of
all its neighbours, so they follow from the number of blocks, and that from the memory of a task as
in :mod:`hpgmn.shards`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpgmn.shards.files import GAP_BYTES
from hpgmn.shards.plan import EDGE_BYTES
from hpgmn.statistics.diffusion import coefficients
from hpgmn.statistics.settings import StatisticsSettings
from hpgmn_lab.bench.records import Record, Table
from hpgmn_lab.bench.shard_costs import KINDS
from hpgmn_lab.bench.shards import communication_seconds, cost_of, row_seconds

USABLE_MEMORY = 7 / 8
PAGE_BYTES = 4096


@dataclass(frozen=True)
class Job:
    """A graph, its statistics and its training.

    Attributes:
        edges: in one direction.
        dim: columns of the sketch.
        train, val: shares of the nodes.
        rank_batch: train nodes per step and rank.
    """

    nodes: int
    edges: int
    attributes: int = 128
    classes: int = 10
    dim: int = 64
    tolerance: float = 0.01  # the error of a sketch of few columns is larger
    train: float = 0.5
    val: float = 0.2
    epochs: int = 20
    rank_batch: int = 1024

    @property
    def rounds(self) -> int:
        """Return the number of terms of the diffusion series."""
        return len(coefficients(StatisticsSettings(diffusion_tolerance=self.tolerance)))

    @property
    def columns(self) -> int:
        """Return the columns of a node's rows: attributes, counts, means and sketch."""
        return self.attributes + self.classes + self.classes * self.attributes + self.dim

    @property
    def row_bytes(self) -> tuple[int, ...]:
        """Return the bytes of a node's rows: attributes, counts, means (half), sketch."""
        attributes, classes = self.attributes, self.classes
        return 4 * attributes, 4 * classes, 2 * classes * attributes, 4 * self.dim


@dataclass(frozen=True)
class Machines:
    """A cluster of equal machines: bytes of memory, bytes per second of disk and network."""

    count: int = 8
    cores: int = 16
    memory: int = 128 * 2**30
    disk: float = 2e9
    network: float = 1.25e9

    @property
    def usable(self) -> int:
        """Return the bytes of each machine that tasks may hold."""
        return int(USABLE_MEMORY * self.memory)


@dataclass(frozen=True)
class PlanStage:
    """A stage of the plan.

    Attributes:
        core_seconds: on one core, of all tasks together, as are the bytes.
        at_a_time: concurrent tasks on a machine.
        bytes_shuffled: sent between machines in addition to what is read.
        waiting: seconds of communication.
    """

    name: str
    core_seconds: float
    bytes_read: float
    bytes_written: float
    machines: Machines
    at_a_time: int
    bytes_shuffled: float = 0.0
    waiting: float = 0.0

    @property
    def seconds(self) -> dict[str, float]:
        """Return seconds by what they are spent on."""
        count = self.machines.count
        return {
            "cores": self.core_seconds / (count * self.at_a_time),
            "disk": (self.bytes_read + self.bytes_written) / (count * self.machines.disk),
            "messages": self.waiting,
        }

    @property
    def hours(self) -> float:
        """Return the hours of computing, reading and writing, and waiting, without overlap."""
        return sum(self.seconds.values()) / 3600

    @property
    def bound(self) -> str:
        """Return what most of the time is spent on."""
        return max(self.seconds, key=lambda part: self.seconds[part])


@dataclass(frozen=True)
class ShardPlan:
    """The stages of one ``hpgmn shard`` and its options; ``memory`` is in bytes per task."""

    stages: tuple[PlanStage, ...]
    ranges: int
    memory: int
    at_a_time: int

    @property
    def hours(self) -> float:
        """Return the hours of all stages."""
        return sum(stage.hours for stage in self.stages)


JOB, MACHINES = Job(100_000_000, 3_000_000_000), Machines()
SIZES = ((10_000_000, 300_000_000), (100_000_000, 3_000_000_000), (1_000_000_000, 30_000_000_000))
NIGHT_HOURS = 10.0


# Bytes read.


def num_blocks(job: Job, ranges: int, memory: int, per_edge: int, per_row: int) -> int:
    """Return the blocks of all ranges, if these have equally many edges and nodes.

    >>> num_blocks(Job(100, 1000), 2, 3000, 10, 10)  # each range has 5000 + 500 bytes
    4
    """
    range_bytes = (job.edges * per_edge + job.nodes * per_row) / ranges
    return ranges * max(1, math.ceil(range_bytes / memory))


def rows_read(nodes: int, edges: float, size: int) -> float:
    """Return the rows of ``size`` bytes that a block of edges with random ends reads.

    A row is needed with probability p = 1 - exp(-edges/N); a gap to the next has g rows with
    probability p·(1 - p)^(g-1). Gaps of at most :data:`GAP_BYTES` are read, too.
    """
    needed = -math.expm1(-edges / nodes)
    longest = max(1, GAP_BYTES // size)
    longer = (1 - needed) ** longest  # the probability of a gap that is skipped
    return nodes * (1 - (1 + longest * needed) * longer + needed * longer)


def bytes_read(job: Job, kind: str, ranges: int, memory: int) -> float:
    """Return the bytes that a kind of work reads: edges, and rows of neighbours."""
    width, classes, dim = job.attributes, job.classes, job.dim
    per_edge, per_row, edge_size, row_sizes = {
        "class_counts": (8 + 8 * classes, 16 * classes, 4, [4]),  # labels
        "class_means": (12 * width, (2 * classes + 16) * width, 4, [4 * width, 4]),
        "round": (8 * dim, 32 * dim + 256, 8, [4 * dim]),  # T, and rows of the previous round
    }[kind]
    blocks = num_blocks(job, ranges, memory, EDGE_BYTES + per_edge, per_row)
    return edge_size * job.edges + sum(
        blocks * rows_read(job.nodes, job.edges / blocks, size) * size for size in row_sizes
    )


def training_bytes(job: Job, machines: Machines) -> float:
    """Return the bytes that training reads: rows once if memory holds them, else every epoch.

    Rows are read in random order, so each costs one more page in each file.
    """
    all_rows = job.nodes * sum(job.row_bytes)
    if all_rows <= machines.count * machines.usable:
        return float(all_rows)
    pages = sum(size + PAGE_BYTES for size in job.row_bytes)
    return job.epochs * (job.train + job.val) * job.nodes * pages


# Stages.


def num_ranges(job: Job, machines: Machines, memory: int) -> int:
    """Return the ranges that cutting can hold, a multiple of all cores so that each trains."""
    cores = machines.count * machines.cores
    return cores * math.ceil(EDGE_BYTES * job.edges / memory / cores)


def statistics_plan(
    record: Mapping[str, Any], job: Job, machines: Machines, at_a_time: int
) -> ShardPlan:
    """Plan the statistics with so many tasks on a machine, which share its memory."""
    memory = machines.usable // at_a_time
    ranges = num_ranges(job, machines, memory)
    measured = record["statistics"]
    share = job.edges / measured["edges"]

    def edges_stage(name: str, *kinds: str) -> PlanStage:
        """Scale the measured seconds and bytes by edges."""
        seconds, read, written = (
            share * sum(cost_of(record, kind)[key] for kind in kinds)
            for key in ("cpu_seconds", "bytes_read", "bytes_written")
        )
        return PlanStage(name, seconds, read, written, machines, at_a_time)

    def rows_stage(name: str, kind: str, row_bytes: int, times: float = 1.0) -> PlanStage:
        """Scale the measured seconds by edges and ``times``; calculate the bytes."""
        seconds = times * (share * cost_of(record, kind)["cpu_seconds"])
        read, written = bytes_read(job, kind, ranges, memory), row_bytes * job.nodes
        return PlanStage(name, seconds, read, written, machines, at_a_time)

    attributes, counts, means, sketch = job.row_bytes
    rounds = job.rounds
    copied = (attributes + 11) * job.nodes  # attributes, label, split
    wider = job.attributes / measured["attributes"]
    longer = rounds * job.dim / record["settings"]["diffusion_dim"]
    cut = edges_stage("edges by source and by target", "out", "in")
    sketched = f"sketch, d = {job.dim}, {rounds} rounds"
    last = rows_stage(sketched, "round", rounds * sketch, longer)  # reads of one round only
    stages = (
        replace(cut, bytes_shuffled=8 * job.edges),
        PlanStage("attributes, labels, splits copied", 0.0, copied, copied, machines, at_a_time),
        rows_stage("class counts", "class_counts", counts),
        rows_stage("class means, half precision", "class_means", means, wider),
        edges_stage("transition matrix", "transition"),
        replace(last, bytes_read=(rounds - 1) * last.bytes_read + 8 * job.edges),
    )
    return ShardPlan(stages, ranges, memory, at_a_time)


def best_plan(record: Mapping[str, Any], job: Job, machines: Machines) -> ShardPlan:
    """Return the plan whose number of concurrent tasks, a power of two, takes the fewest hours."""
    numbers = [2**power for power in range(machines.cores.bit_length())]
    plans = [statistics_plan(record, job, machines, number) for number in numbers]
    return min(plans, key=lambda plan: plan.hours)


def training_stage(record: Mapping[str, Any], job: Job, machines: Machines) -> PlanStage:
    """Plan the training with one rank per core."""
    ranks = machines.count * machines.cores
    wider = job.columns / _measured_columns(record)
    train_row, val_row = row_seconds(record["training"])
    epoch = wider * job.nodes * (job.train * train_row + job.val * val_row)
    steps = job.epochs * math.ceil(job.train * job.nodes / (ranks * job.rank_batch))
    size = 4 * num_parameters(record, job)
    sent = 2 * size * (machines.count - 1) / machines.count  # by each machine, in a ring
    latency = (communication_seconds(record["training"]) or 0.0) * math.log2(max(2, ranks))
    return PlanStage(
        f"training, {job.epochs} epochs, {ranks} CPU ranks",
        job.epochs * epoch,
        training_bytes(job, machines),
        0.0,
        machines,
        machines.cores,
        bytes_shuffled=steps * sent * machines.count,
        waiting=steps * (latency + sent / machines.network),
    )


def num_parameters(record: Mapping[str, Any], job: Job) -> int:
    """Return the parameters of the model: each column has a weight for each hidden unit."""
    more = job.columns - _measured_columns(record)
    return int(record["training"]["alone"]["parameters"] + more * record["settings"]["hidden_dim"])


def _measured_columns(record: Mapping[str, Any]) -> int:
    return sum(facts["width"] for facts in record["statistics"]["statistics"].values())


def total_hours(record: Mapping[str, Any], job: Job, machines: Machines) -> float:
    """Return the hours from the graph folder to the trained model."""
    return best_plan(record, job, machines).hours + training_stage(record, job, machines).hours


def machines_for(
    record: Mapping[str, Any], job: Job, machines: Machines, hours: float, most: int = 1024
) -> int | None:
    """Return the fewest machines that finish within so many hours; None if no number does."""
    for count in range(1, most + 1):
        if total_hours(record, job, replace(machines, count=count)) <= hours:
            return count
    return None


# Tables.


def formula_table(record: Mapping[str, Any]) -> Table:
    """Compare the measured bytes read with the formulas, for the measured graph."""
    facts = record["statistics"]
    names = ("nodes", "edges", "attributes", "classes")
    job = Job(**{name: facts[name] for name in names}, dim=record["settings"]["diffusion_dim"])
    ranges, memory = record["ranges"], record["memory"]
    rows = []
    for kind in ("class_counts", "class_means", "round"):
        sizes = cost_of(record, kind)["bytes_read"], bytes_read(job, kind, ranges, memory)
        rows.append([KINDS[kind], *(f"{size / 1e6:,.0f}" for size in sizes)])
    return Table(("bytes read by", "MB measured", "MB by the formula"), rows)


def stages_table(stages: Sequence[PlanStage]) -> Table:
    """Return a row for each stage, and their sum."""

    def numbers(stages: Sequence[PlanStage]) -> list[str]:
        gigabytes = [
            sum(getattr(stage, name) for stage in stages) / 1e9
            for name in ("bytes_read", "bytes_written", "bytes_shuffled")
        ]
        hours = sum(stage.core_seconds for stage in stages) / 3600
        return [f"{hours:.1f}", *(f"{value:,.0f}" for value in gigabytes)]

    rows = [[stage.name, *numbers([stage]), stage.bound, f"{stage.hours:.2f}"] for stage in stages]
    rows.append(["sum", *numbers(stages), "", f"{sum(stage.hours for stage in stages):.2f}"])
    columns = ("stage", "core hours", "GB read", "GB written", "GB shuffled", "bound by", "hours")
    return Table(columns, rows)


def sizes_table(record: Mapping[str, Any]) -> Table:
    """Return how many machines graphs of several sizes need for one night."""
    rows = []
    for nodes, edges in SIZES:
        job = replace(JOB, nodes=nodes, edges=edges)
        count = machines_for(record, job, MACHINES, NIGHT_HOURS)
        cells = [f"{nodes / 1e6:,.0f} million", f"{edges / 1e9:g} billion"]
        if count is None:
            rows.append([*cells, "–", "–", "–"])
            continue
        machines = replace(MACHINES, count=count)
        stages = [*best_plan(record, job, machines).stages, training_stage(record, job, machines)]
        hours = f"{sum(stage.hours for stage in stages):.1f}"
        rows.append([*cells, f"{count}", hours, max(stages, key=lambda stage: stage.hours).name])
    columns = ("nodes", "edges", f"machines for {NIGHT_HOURS:g} hours", "hours", "longest stage")
    return Table(columns, rows)


def plan_facts(record: Record) -> dict[str, Any]:
    """Return what the template of the plan shows."""
    plan, training = best_plan(record, JOB, MACHINES), training_stage(record, JOB, MACHINES)
    stages = [*plan.stages, training]
    return {
        "plan": plan,
        "training": training,
        "hours": sum(stage.hours for stage in stages),
        "longest": max(stages, key=lambda stage: stage.hours),
        "row_gigabytes": JOB.nodes * sum(JOB.row_bytes) / 1e9,
        "stages": stages_table(stages),
        "sizes": sizes_table(record),
    }
