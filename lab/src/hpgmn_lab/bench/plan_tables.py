"""The tables of ``docs/SCALE.md``: measured costs, and a plan for larger graphs made from them.

The rest of the page is written by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpgmn.statistics.settings import StatisticsSettings
from hpgmn_lab.bench.marked import with_parts
from hpgmn_lab.bench.ranges import KINDS
from hpgmn_lab.bench.records import Record, Table, machine_words, read_record
from hpgmn_lab.bench.scale import (
    Job,
    Machines,
    Plan,
    Stage,
    best_plan,
    formula_check,
    machines_for,
    topk_stages,
    training_stage,
    whole_hours,
)
from hpgmn_lab.bench.shards import disturbance, topk_table, training_table, unit_table

PAGE = "SCALE.md"
CPU_RECORD, GPU_RECORD = "shards.json", "shards-gpu.json"
"""In the folder of records; without that of a GPU there is no plan for GPU ranks."""

JOB, MACHINES = Job(100_000_000, 3_000_000_000), Machines()
SIZES = ((10_000_000, 300_000_000), (100_000_000, 3_000_000_000), (1_000_000_000, 30_000_000_000))
NIGHT = 10.0
"""Hours."""
GPUS = 1
"""Of each machine, where it has some."""


def filled(text: str, records: Path) -> str:
    """The page with its tables made anew.

    Args:
        text: the page.
        records: the folder of the records.
    """
    record = read_record(records / CPU_RECORD)
    path = records / GPU_RECORD
    gpu = read_record(path) if path.is_file() else None
    parts = {"measured": measured_part(record, gpu), "plan": plan_part(record, gpu)}
    return with_parts(text, PAGE, parts)


def measured_part(record: Record, gpu: Record | None) -> str:
    """What was measured, and how well formulas say what was read."""
    tables = [unit_table(record), topk_table(record), training_table(record)]
    tables += [] if gpu is None else [training_table(gpu)]
    tables.append(_check_table(record))
    found = record["statistics"]
    head = (
        f"{found['nodes']:,} nodes, {found['edges']:,} edges, F = {found['attributes']}, "
        f"C = {found['classes']}, d = {record['settings']['diffusion_dim']}, {record['ranges']} "
        f"ranges, M = {record['memory'] / 2**20:.0f} MiB; one thread. {machine_words(record)} "
        f"Other processes took at most {disturbance(record):.2f} cores meanwhile."
    )
    return "\n\n".join([head, *(table.markdown() for table in tables)])


def _check_table(record: Record) -> Table:
    rows = [
        [KINDS[kind], f"{measured / 1e6:,.0f}", f"{formula / 1e6:,.0f}"]
        for kind, (measured, formula) in formula_check(record).items()
    ]
    return Table(("bytes read by", "MB measured", "MB by the formula"), rows)


def plan_part(record: Record, gpu: Record | None) -> str:
    """The plan for the one graph, and how many machines others need."""
    plan = best_plan(record, JOB, MACHINES)
    training = training_stage(record, JOB, MACHINES)
    stages = [*plan.stages, training]
    slowest = max(stages, key=lambda stage: stage.hours)
    hours = sum(stage.hours for stage in stages)
    words = (
        f"**{hours:.1f} hours in all: {plan.hours:.1f} for the statistics, {training.hours:.1f} "
        f"for the training. The longest stage is “{slowest.name}” with {slowest.hours:.1f} hours, "
        f"most of them spent on {_SPENT[slowest.bound]}.** {_call(plan)} The rows take "
        f"{JOB.nodes * sum(JOB.row_bytes) / 1e9:,.0f} GB on disk."
    )
    total = ["sum", *_numbers(stages), f"{hours:.2f}"]
    table = Table(_COLUMNS, [*map(_row, stages), [*total[:5], "", total[-1]]])
    instead = Table(_COLUMNS, [_row(stage) for stage in _alternatives(record, gpu)])
    parts = [words, table.markdown(), "In the place of a stage above:", instead.markdown()]
    return "\n\n".join([*parts, _sizes_table(record).markdown()])


_COLUMNS = ("stage", "core hours", "GB read", "GB written", "GB shuffled", "bound by", "hours")
_SPENT = {"cores": "computing", "disk": "reading and writing", "messages": "messages"}


def _numbers(stages: list[Stage]) -> list[str]:
    return [
        f"{sum(stage.core_seconds for stage in stages) / 3600:.1f}",
        f"{sum(stage.bytes_read for stage in stages) / 1e9:,.0f}",
        f"{sum(stage.bytes_written for stage in stages) / 1e9:,.0f}",
        f"{sum(stage.bytes_shuffled for stage in stages) / 1e9:,.0f}",
    ]


def _row(stage: Stage) -> list[str]:
    return [stage.name, *_numbers([stage]), stage.bound, f"{stage.hours:.2f}"]


def _call(plan: Plan) -> str:
    """How `hpgmn shard` is called for a plan."""
    each = f"{plan.at_a_time} task{'s' * (plan.at_a_time > 1)} at a time on a machine"
    return f"`--ranges {plan.ranges} --memory {plan.memory // 2**30}`: {each}."


def _alternatives(record: Record, gpu: Record | None) -> list[Stage]:
    """A sketch with the defaults, top-k, GPU ranks."""
    usual = StatisticsSettings()
    other = replace(JOB, dim=usual.diffusion_dim, tolerance=usual.diffusion_tolerance)
    found = [best_plan(record, other, MACHINES).stages[-1]]
    for number, (_, stages) in enumerate(topk_stages(record, JOB, MACHINES)):
        found += stages[min(number, 1) :]  # T is joined once
    if gpu is not None:
        found.append(training_stage(gpu, JOB, replace(MACHINES, gpus=GPUS)))
    return found


def _sizes_table(record: Mapping[str, Any]) -> Table:
    rows = []
    for nodes, edges in SIZES:
        job = replace(JOB, nodes=nodes, edges=edges)
        count = machines_for(record, job, MACHINES, NIGHT)
        cells = [f"{nodes / 1e6:,.0f} million", f"{edges / 1e9:g} billion"]
        if count is None:
            rows.append([*cells, "–", "–", "–"])
            continue
        own = replace(MACHINES, count=count)
        plan = best_plan(record, job, own)
        slowest = max([*plan.stages, training_stage(record, job, own)], key=lambda one: one.hours)
        rows.append([*cells, f"{count}", f"{whole_hours(record, job, own):.1f}", slowest.name])
    columns = ("nodes", "edges", f"machines for {NIGHT:g} hours", "hours", "longest stage")
    return Table(columns, rows)
