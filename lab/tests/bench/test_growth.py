"""Growth: stages that add up, ratios per edge, and bars."""

import time

import pytest

from hpgmn.base.errors import SettingError
from hpgmn_lab.bench import growth
from hpgmn_lab.bench.process import ProcessFailed

from .conftest import growth_size

FEW = ["estimator_epochs=1", "hidden_dim=8", "num_patterns=4"]


def measure(call, nodes, **more):
    return growth.measure(call, nodes, degree=4.0, attributes=4, epochs=2, set_=FEW, **more)


def test_stages_add_up_to_the_whole_run(call, here, capsys):
    started = time.perf_counter()
    record = measure(call, "200,400", repeats=3)
    elapsed = time.perf_counter() - started
    assert here == [*["graph", *["growth"] * 3] * 2]
    assert [size["nodes"] for size in record["sizes"]] == [200, 400]
    for size in record["sizes"]:
        assert set(size["seconds"]) == set(growth.STAGES)
        assert min(size["seconds"].values()) > 0
        assert size["seconds_of_runs"] == sorted(size["seconds_of_runs"])
        assert growth.total_seconds(size) == size["seconds_of_runs"][1]  # the median
        assert 3 * size["nodes"] < size["edges"] < 5 * size["nodes"]
        assert size["train_nodes"] == pytest.approx(size["nodes"] / 2, abs=3)
        slack = 2**20  # Linux counts in lots
        assert size["peak_bytes"] > size["peak_bytes_after"]["training"] - slack
        assert size["peak_bytes"] > size["level_bytes"] - slack
        assert 0 < size["val_accuracy"] <= 1
        assert 0 < size["test_accuracy"] <= 1
    assert sum(sum(size["seconds_of_runs"]) for size in record["sizes"]) < elapsed
    assert record["settings"]["epochs"] == 2
    assert record["settings"]["batch_size"] == 4096
    assert record["seeds"] == {"graph": 0, "training": 0}
    assert "400 nodes: run 3 of 3" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_a_failing_size_ends_the_benchmark(call, monkeypatch):
    original = growth.run_stages

    def run_stages(path, **more):
        if "n400" in path:
            raise ProcessFailed("out of memory", "Choose smaller sizes")
        return original(path, **more)

    monkeypatch.setattr(growth, "run_stages", run_stages)
    record = measure(call, "200,400,800")
    assert [size["nodes"] for size in record["sizes"]] == [200, 400]
    assert record["sizes"][1]["failed"] == "out of memory"
    runs, costs, bars = growth.tables(record)
    assert runs.rows[0][2] == "out of memory"
    assert runs.rows[1][2] == "–"
    assert len(costs.columns) == 2
    assert [row[-1] for row in bars.rows] == [record["sizes"][1]["failed"]] * 2
    with pytest.raises(ProcessFailed):  # nothing was measured
        measure(call, "400")


def test_the_bars_of_a_record(growth_record):
    bars = {bar.what: (bar.value, bar.verdict) for bar in growth.bars(growth_record)}
    ratio, verdict = bars["whole run per edge, against the size before"]
    assert ratio == pytest.approx(240 / 15 / 10)
    assert verdict == "short by 0.10 ×"
    assert bars["memory per edge, against the size before"] == (0.8, "reached")
    assert bars["1,000,000 nodes, whole run"] == (240.0, "reached")
    assert bars["1,000,000 nodes, peak memory"] == (5.0, "reached")
    growth_record["sizes"][1] = {"nodes": 1_000_000, "failed": "out of memory"}
    assert {bar.verdict for bar in growth.bars(growth_record)} == {"out of memory"}


def test_the_bars_of_a_gpu(growth_record):
    growth_record["device_kind"] = "cuda"
    for size, memory in zip(growth_record["sizes"], (2**28, 11 * 2**28), strict=True):
        size["device_peak_bytes"] = memory
    words = {bar.what: bar.verdict for bar in growth.bars(growth_record)}
    assert words["GPU memory per edge, against the size before"] == "short by 0.10 ×"
    assert words["whole run on a GPU"] == "short by 180.00 s"
    assert not any("1,000,000" in what for what in words)
    [memory] = [row for row in growth.tables(growth_record)[0].rows if row[0].startswith("GPU")]
    assert memory[1:] == ["0.25", "2.75"]


def test_memory_above_start_up_is_never_nothing():
    assert growth.working_bytes(growth_size(1000, 10.0, 2**20)) == 2**20
    assert growth.working_bytes(growth_size(1000, 10.0, -9)) == 4096


def test_one_size_has_no_ratio(growth_record):
    growth_record["sizes"] = [growth_size(1000, 10.0, 2**20)]
    assert [bar.verdict for bar in growth.bars(growth_record)] == ["needs two sizes"] * 2


def test_tables_show_seconds_costs_and_ratios(growth_record):
    runs, costs, bars = growth.tables(growth_record)
    assert runs.columns == ("nodes", "100,000", "1,000,000")
    rows = {row[0]: row[1:] for row in runs.rows}
    assert rows["edges"] == ["1,000,000", "10,000,000"]
    assert rows["training, s"] == ["10.00", "235.00"]
    assert rows["whole run, s"] == ["15.0", "240.0"]
    assert rows["peak memory, GiB"] == ["1.50", "5.00"]
    assert rows["test, %"] == ["94.9", "94.9"]
    assert costs.columns == ("per edge", "100,000", "1,000,000", "1,000,000 : 100,000")
    rows = {row[0]: row[1:] for row in costs.rows}
    assert rows["training, µs"] == ["10", "23.5", "2.35 ×"]
    assert rows["whole run, µs"] == ["15", "24", "1.60 ×"]
    assert rows["memory, bytes"] == ["537", "429", "0.80 ×"]
    assert bars.rows[0][-1] == "short by 0.10 ×"


@pytest.mark.parametrize("sizes", ["400,200", "200,200"])
def test_sizes_must_increase(call, sizes):
    with pytest.raises(SettingError, match="--nodes takes increasing sizes"):
        measure(call, sizes)
