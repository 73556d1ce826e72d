"""Workers: both sides alternate, and the median ratio is judged."""

import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.engines.processes import LocalEngine
from hpgmn_lab.bench import workers


@pytest.fixture(autouse=True)
def _data_folder_as_before(monkeypatch):
    monkeypatch.setenv("HPGMN_DATA", "elsewhere")  # which the measured process changes


def test_every_run_is_trained(monkeypatch):
    original, done = workers.work_on, []

    def work_on(engine, cells, folder, **more):
        outcomes = original(engine, cells, folder, **more)
        done.extend((engine.workers, each.cell.name, each.record.cell["settings"])
                    for each in outcomes)  # fmt: skip
        return outcomes

    monkeypatch.setattr(workers, "work_on", work_on)
    monkeypatch.setattr(workers, "NODES", 200)
    monkeypatch.setattr(workers, "seconds_since_start", lambda: 100.0)
    result = workers.run_cells("local", 1, 2, 3, "cpu")
    settings = {"epochs": 3, "patience": 0}
    assert done == [(1, f"texas-gcn-copy-{number}", settings) for number in range(2)]
    assert result["seconds"] == 100.0


def test_a_failed_run_is_an_error(monkeypatch):
    failed = [SimpleNamespace(record=None, reason="no memory")]
    monkeypatch.setattr(workers, "work_on", lambda *_, **__: failed)
    with pytest.raises(HPGMNError, match="A run failed: no memory"):
        workers.run_cells("local", 1, 2, 1, "cpu")


def test_ray_has_one_core_per_worker_and_starts_before_the_clock(monkeypatch):
    options = {}

    @contextmanager
    def connect_ray(**given):
        options.update(given)
        time.sleep(0.2)
        yield "a ray"

    def engine(ray, device, number):
        options["engine"] = (ray, device, number)
        return LocalEngine(1)

    monkeypatch.setattr(workers, "connect_ray", connect_ray)
    monkeypatch.setattr(workers, "RayEngine", engine)
    monkeypatch.setattr(workers, "work_on", lambda *_, **__: [])
    result = workers.run_cells("ray", 2, 2, 1, "cpu")
    assert options["num_cpus"] == 2
    assert options["engine"] == ("a ray", "cpu", 2)
    assert result["seconds"] < 0.2


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_both_sides_alternate(engine, call, here, monkeypatch):
    order = []

    def run_cells(**arguments):
        order.append(arguments["workers"])
        assert arguments["runs"] == 4
        return {"seconds": 6.0 / arguments["workers"], "cores_taken_by_others": 0.5}

    monkeypatch.setattr(workers, "run_cells", run_cells)
    monkeypatch.setattr(workers, "require_ray", lambda: None)
    record = workers.measure(call, engine=engine, runs=4, epochs=7, repeats=3)
    assert order == [1, 2, 2, 1, 1, 2]
    assert here == ["workers"] * 6
    assert record["settings"]["epochs"] == 7
    assert record["engine"] == engine


def test_the_median_ratio_is_judged(workers_record):
    repeats, bars = workers.tables(workers_record)
    assert repeats.title == "8 runs, engine local, 2 cores:"
    assert repeats.rows[0] == ["1", "60.0", "40.0", "1.50 ×"]
    assert bars.rows[0][1:] == ["1.75 ×", "≥ 1.7 ×", "reached"]
    workers_record["repeats"] = workers_record["repeats"][:1]
    assert workers.tables(workers_record)[1].rows[0][-1] == "short by 0.20 ×"


@pytest.mark.parametrize(
    ("options", "message"), [({"engine": "rya"}, "'rya'"), ({"runs": 3}, "even number")]
)
def test_invalid_options_are_refused(call, options, message):
    with pytest.raises(SettingError, match=message):
        workers.measure(call, **options)
