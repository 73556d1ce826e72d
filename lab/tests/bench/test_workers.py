"""Workers: both sides measured in turns, ratios of repeats, a bar."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.engines.local import LocalEngine
from hpgmn_lab.bench import workers


def test_one_side_trains_every_run_and_leaves_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HPGMN_DATA", "elsewhere")
    real, done = workers.work_on, []

    def work_on(engine: Any, cells: Any, folder: Any, **more: Any) -> Any:
        found = real(engine, cells, folder, **more)
        done.extend((engine.workers, one.cell.name, one.record.cell["settings"]) for one in found)
        return found

    monkeypatch.setattr(workers, "work_on", work_on)
    monkeypatch.setattr(workers, "NODES", 200)
    found = workers.one_side("local", 1, 2, 3, "cpu", time.time() - 100)
    settings = {"epochs": 3, "patience": 0}
    assert done == [(1, f"texas-gcn-copy-{number}", settings) for number in range(2)]
    assert found["seconds"] > 100  # from the start of the process on
    assert os.environ["HPGMN_DATA"] == "elsewhere"


def test_a_run_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPGMN_DATA", raising=False)
    failed = [SimpleNamespace(record=None, reason="no memory")]
    monkeypatch.setattr(workers, "work_on", lambda *_, **__: failed)
    with pytest.raises(HPGMNError, match="A run failed: no memory"):
        workers.one_side("local", 1, 2, 1, "cpu", 0.0)
    assert "HPGMN_DATA" not in os.environ


def test_a_ray_has_one_core_for_each_worker_and_starts_before_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from contextlib import contextmanager

    asked: dict[str, Any] = {}

    @contextmanager
    def connected(**options: Any) -> Any:
        asked.update(options)
        time.sleep(0.2)
        yield "a ray"

    def engine(ray: str, device: str, number: int) -> LocalEngine:
        asked["engine"] = (ray, device, number)
        return LocalEngine(1)

    monkeypatch.setattr(workers, "connected", connected)
    monkeypatch.setattr(workers, "RayEngine", engine)
    monkeypatch.setattr(workers, "work_on", lambda *_, **__: [])
    found = workers.one_side("ray", 2, 2, 1, "cpu", time.time() - 100)
    assert asked["num_cpus"] == 2
    assert asked["engine"] == ("a ray", "cpu", 2)
    assert found["seconds"] < 0.2


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_both_sides_are_measured_in_turns(
    engine: str,
    said: list[str],
    in_this_process: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = in_this_process(workers)
    order: list[int] = []

    def one_side(**asked: Any) -> Any:
        order.append(asked["workers"])
        assert asked["runs"] == 4
        return {"seconds": 6.0 / asked["workers"], "cores_taken_by_others": 0.5}

    monkeypatch.setattr(workers, "one_side", one_side)
    monkeypatch.setattr(workers, "require_ray", lambda: None)
    record = workers.measure(
        command="c", engine=engine, runs=4, epochs=7, repeats=3, say=said.append
    )
    assert order == [1, 2, 2, 1, 1, 2]
    assert tasks == ["workers"] * 6
    assert workers.ratios(record) == [2.0] * 3
    assert record["settings"]["epochs"] == 7
    assert record["engine"] == engine
    assert workers.disturbance(record) == 0.5
    assert said[:2] == ["repeat 1 of 3: 1 worker", "repeat 1 of 3: 2 workers"]


def test_the_median_of_ratios_is_judged(workers_record: dict[str, Any]) -> None:
    assert workers.ratios(workers_record) == [1.5, 2.0, 1.75]
    [bar] = workers.bars(workers_record)
    assert (bar.value, bar.words) == (1.75, "reached")
    repeats, bars = workers.tables(workers_record)
    assert repeats.title == "8 runs, engine local, a machine of 2 cores:"
    assert repeats.rows[0] == ["1", "60.0", "40.0", "1.50 ×"]
    assert bars.rows[0][1:3] == ["1.75 ×", "≥ 1.7 ×"]
    assert workers.disturbance(workers_record) == 0.04
    workers_record["repeats"] = workers_record["repeats"][:1]
    assert workers.bars(workers_record)[0].words == "short by 0.20 ×"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "rya"}, "Unknown engine 'rya'"),
        ({"runs": 3}, r"--runs must be an even number \(got 3\)"),
        ({"runs": 0}, "--runs must be an even number"),
        ({"epochs": 0}, "--epochs must be at least 1"),
        ({"repeats": 0}, "--repeats must be at least 1"),
    ],
)
def test_mistakes_are_refused_before_any_work(
    said: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        workers.measure(command="c", say=said.append, **options)
    assert said == []
