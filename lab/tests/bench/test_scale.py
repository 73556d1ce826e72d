"""The arithmetic of the plan, against numbers counted by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hpgmn.shards.files import GAP_BYTES
from hpgmn_lab.bench import scale
from hpgmn_lab.bench.scale import Job, Machines, PlanStage

MIB = 2**20
JOB = Job(2_000, 20_000, attributes=8, classes=2, dim=32, epochs=2, rank_batch=25)
TWO = Machines(count=2, cores=4, memory=8 * MIB, disk=1e6, network=1e5)


def test_rounds_and_rows_of_a_job():
    assert Job(1, 1).rounds == math.ceil(math.log(0.01) / math.log(0.85)) == 29
    assert Job(1, 1, tolerance=1e-6).rounds == 86
    assert JOB.columns == 8 + 2 + 16 + 32
    assert JOB.row_bytes == (32, 8, 32, 128)


def test_a_stage_takes_as_long_as_its_parts():
    machines = Machines(count=2, disk=1e3)
    stage = PlanStage("s", 7200.0, 3e6, 1e6, machines, at_a_time=4, waiting=100.0)
    assert stage.seconds == {"cores": 900.0, "disk": 2000.0, "messages": 100.0}
    assert stage.hours == pytest.approx(3000 / 3600)
    assert stage.bound == "disk"


def test_blocks_fill_the_memory():
    # Each of two ranges has 10,000 edges of 160 bytes and 1,000 rows of 160.
    assert scale.num_blocks(JOB, 2, 1_760_000, 160, 160) == 2
    assert scale.num_blocks(JOB, 2, 1_759_999, 160, 160) == 4


def rows_read_slowly(nodes, edges, size):
    """Random ends of edges; gaps of at most GAP_BYTES are read, as ``RowFile.take`` does it."""
    found = []
    for seed in range(20):
        places = np.unique(np.random.default_rng(seed).integers(0, nodes, edges))
        gaps = np.diff(places)
        found.append(1 + np.where(gaps <= GAP_BYTES // size, gaps, 1).sum())
    return float(np.mean(found))


@pytest.mark.parametrize(
    ("nodes", "edges", "size"),
    [
        (5_000, 50_000, 256),  # nearly all rows are needed
        (5_000, 500, 256),  # a tenth: gaps are short, all are read
        (20_000, 200, 256),  # gaps of 100 rows, of which up to 64 are read
        (20_000, 2_000, 8192),  # long rows: up to two are read
        (20_000, 50, 20_000),  # no gap is
    ],
)
def test_rows_read_are_those_of_random_edges(nodes, edges, size):
    slow = rows_read_slowly(nodes, edges, size)
    assert scale.rows_read(nodes, edges, size) == pytest.approx(slow, rel=0.06)


def test_bytes_read_by_the_kinds_of_work():
    # Blocks of all edges of a range, 10,000, ask for 99.3 % of the nodes, and read all.
    memory = 8_000_000
    rows = 2 * 2_000 * (1 - math.exp(-5))
    assert scale.bytes_read(JOB, "class_means", 2, memory) == pytest.approx(
        80_000 + rows * (32 + 4), rel=0.01
    )
    assert scale.bytes_read(JOB, "round", 2, memory) == pytest.approx(
        160_000 + rows * 128, rel=0.01
    )
    assert scale.bytes_read(JOB, "class_counts", 2, memory) == pytest.approx(
        80_000 + rows * 4, rel=0.01
    )


def test_a_plan_of_the_statistics(shards_record):
    plan = scale.statistics_plan(shards_record, JOB, TWO, at_a_time=2)
    assert plan.memory == 7 * MIB // 2
    assert plan.ranges == 8  # cutting takes 1.28 MB, but each of 8 cores is to train on a range
    by_name = {stage.name: stage for stage in plan.stages}
    cut = by_name["edges by source and by target"]
    assert cut.core_seconds == pytest.approx(2 * 0.03)  # twice the edges
    assert cut.bytes_read == pytest.approx(2 * 120_000)
    assert cut.bytes_written == pytest.approx(2 * 180_000)
    assert cut.bytes_shuffled == 160_000
    copied = by_name["attributes, labels, splits copied"]
    assert copied.bytes_read == copied.bytes_written == 2_000 * (32 + 11)
    means = by_name["class means, half precision"]
    assert means.core_seconds == pytest.approx(2 * 2 * 0.04)  # twice the edges and attributes
    assert means.bytes_written == 2_000 * 32
    assert means.bytes_read == scale.bytes_read(JOB, "class_means", 8, plan.memory)
    sketch = by_name["sketch, d = 32, 29 rounds"]
    assert sketch.core_seconds == pytest.approx(29 * 2 * 2 * 0.04)  # a round of 16 columns: 0.04
    of_round = scale.bytes_read(JOB, "round", 8, plan.memory)
    assert sketch.bytes_read == pytest.approx(28 * of_round + 160_000)  # the first reads T alone
    assert sketch.bytes_written == 29 * 2_000 * 128
    assert plan.hours == pytest.approx(sum(stage.hours for stage in plan.stages))
    assert cut.hours == pytest.approx((0.06 / 4 + 0.6e6 / 2e6) / 3600)


def test_cutting_decides_how_many_ranges_there_are():
    assert scale.num_ranges(JOB, TWO, 160_000) == 8  # 64 bytes for each of 20,000 edges
    assert scale.num_ranges(JOB, TWO, 159_999) == 16


def test_the_best_plan_is_the_shortest(shards_record):
    plans = [scale.statistics_plan(shards_record, JOB, TWO, number) for number in (1, 2, 4)]
    best = scale.best_plan(shards_record, JOB, TWO)
    assert best == min(plans, key=lambda plan: plan.hours)
    assert len({plan.hours for plan in plans}) > 1


def test_training_computes_communicates_and_reads(shards_record):
    stage = scale.training_stage(shards_record, JOB, TWO)
    assert stage.name == "training, 2 epochs, 8 CPU ranks"
    # 58 columns where 30 were measured; 1,000 train rows of 2 ms, 400 validation rows of 1 ms.
    assert stage.core_seconds == pytest.approx(2 * 58 / 30 * (1_000 * 0.002 + 400 * 0.001))
    assert scale.num_parameters(shards_record, JOB) == 1_000 + 28 * 8
    # Steps of 8 · 25 train nodes; a machine of two sends as many bytes as there are.
    steps, sent = 2 * 5, 4 * 1_224
    assert stage.bytes_shuffled == steps * 2 * sent
    assert stage.waiting == pytest.approx(steps * (3 * 0.01 + sent / 1e5))
    assert stage.bytes_read == 2_000 * 200
    assert stage.at_a_time == 4


def test_rows_beyond_memory_are_read_page_by_page_in_every_epoch():
    assert scale.training_bytes(JOB, TWO) == 2_000 * 200
    small = replace(TWO, memory=2**17)
    assert scale.training_bytes(JOB, small) == pytest.approx(2 * 1_400 * (200 + 4 * 4096))


def test_enough_machines_for_a_night(shards_record):
    one = replace(TWO, count=1)
    hours = {
        count: scale.total_hours(shards_record, JOB, replace(one, count=count))
        for count in (1, 2, 3)
    }
    assert hours[1] > hours[2] > hours[3]
    assert scale.machines_for(shards_record, JOB, one, hours[3]) == 3
    assert scale.machines_for(shards_record, JOB, one, hours[1]) == 1
    assert scale.machines_for(shards_record, JOB, one, 0.0, most=4) is None


def test_tables_of_a_plan(shards_record, monkeypatch):
    rows = {row[0]: row[1:] for row in scale.formula_table(shards_record).rows}
    job = Job(1_000, 10_000, 4, 2, 16)
    formula = scale.bytes_read(job, "round", 8, MIB) / 1e6
    assert rows["one round of the sketch"] == ["1", f"{formula:,.0f}"]  # 0.6 MB, one of two
    facts = scale.plan_facts(shards_record)
    plan = scale.best_plan(shards_record, scale.JOB, scale.MACHINES)
    training = scale.training_stage(shards_record, scale.JOB, scale.MACHINES)
    assert facts["hours"] == pytest.approx(plan.hours + training.hours)
    total = facts["stages"].rows[-1]
    assert (total[0], total[-1]) == ("sum", f"{facts['hours']:.2f}")
    assert len(facts["sizes"].rows) == 3
    monkeypatch.setattr(scale, "NIGHT_HOURS", 0.0)
    assert scale.sizes_table(shards_record).rows[0][2:] == ["–", "–", "–"]
