"""Many at once and many in a row: predictions, trainings and trials."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpgmn.cli import main
from hpgmn.graph.files import read_graph, write_graph
from hpgmn.graph.synthetic import trading_network

SOURCE = Path(__file__).parents[2] / "src"
TRAININGS = Path(__file__).with_name("many_trainings.py")
MEMORY_MB = 16 * 1024
FIRST_SECONDS = 60
"""For the first suggestion in a study of 2,000 trials: 2 on a quiet machine, 19 on a busy one."""
NEEDLESS = {"torch_geometric", "matplotlib", "optuna", "numba", "ray", "sqlalchemy", "networkx"}
NEEDLESS |= {"sklearn", "PIL", "tensorboard", "pyarrow.dataset", "pyarrow.flight"}
QUICK = {"epochs": 2, "estimator_epochs": 2, "hidden_dim": 4, "num_patterns": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run folder, and its graph beside it."""
    folder = tmp_path_factory.mktemp("load")
    write_graph(trading_network(num_nodes=200, seed=0).graph, folder / "graph.npz")
    options = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
    words = ["train", str(folder / "graph.npz"), "--model", "hpgmn", "--splits", "0", *options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hpgmn.runs.train.explain_run", lambda *_: None)
        assert main([*words, "--device", "cpu", "--out", str(folder / "run")]) == 0
    yield folder / "run"
    shutil.rmtree(folder)


def environment(folder):
    """Turns are taken among the processes of a test alone."""
    (folder / "tmp").mkdir(exist_ok=True)
    more = {"TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    return os.environ | more


# Predictions.

PREDICT = (
    "import sys; from hpgmn.cli import main; assert main(sys.argv[1:]) == 0; "
    "print(*sys.modules, sep='\\n')"
)


def memory_mb(processes):
    """What processes take together, shared pages counted once."""
    total = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, ValueError):  # it has ended
            continue
    return total / 1024


def content(folder):
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.soak
@pytest.mark.slow
def test_predictions_that_are_started_together_all_succeed(run, tmp_path, soak):
    assert main(["predict", str(run), "--out", str(tmp_path / "alone.csv")]) == 0
    before, started = content(run), time.monotonic()
    count = soak.amount(4, 100)
    command = [sys.executable, "-c", PREDICT, "predict", str(run), "--out"]
    told = tmp_path / "told.txt"
    with told.open("w") as file:
        processes = [
            subprocess.Popen(
                [*command, str(tmp_path / f"{number}.csv")],
                env=environment(tmp_path),
                stdout=file if number == 0 else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for number in range(count)
        ]
    most, at_once = 0.0, 0
    while running := [process for process in processes if process.poll() is None]:
        most, at_once = max(most, memory_mb(running)), max(at_once, len(running))
        time.sleep(3 if soak.is_long else 0.2)  # looking costs as much as a prediction
    assert [process.returncode for process in processes] == [0] * count
    assert at_once == count
    assert most < MEMORY_MB
    loaded = set(told.read_text().split())
    assert "torch" in loaded
    assert not loaded & NEEDLESS
    alone = (tmp_path / "alone.csv").read_bytes()
    assert all((tmp_path / f"{number}.csv").read_bytes() == alone for number in range(count))
    assert content(run) == before
    soak.record(
        "predict-together",
        "Predictions started together on one run folder all succeed with the same result within "
        "16 GiB, and write nothing into it.",
        processes_at_once=count,
        megabytes_together_at_most=round(most),
        seconds_for_all=round(time.monotonic() - started),
    )


# Trainings.


@pytest.mark.soak
@pytest.mark.slow
def test_trainings_in_a_row_leave_nothing_behind(tmp_path, soak):
    """In a process of their own, where nothing but they can leave anything."""
    wanted = soak.amount(30, 500)
    done = subprocess.run(
        [sys.executable, str(TRAININGS), str(wanted)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    middle, end = told["middle"], told["end"]
    assert told["done"]["trainings"] >= wanted
    assert middle["graphs"] == end["graphs"] == 1  # the one that is still in use
    growth = {name: end[name] - middle[name] for name in end}
    assert growth["resident_mb"] < 8
    assert growth["files"] <= 0
    assert growth["threads"] <= 0
    assert growth["tensors"] <= 0
    assert growth["objects"] < 1000
    soak.record(
        "many-trainings",
        "Trainings in one process leave no memory, file, thread, tensor or graph behind.",
        trainings=told["done"]["trainings"],
        megabytes_grown_over_the_last_two_thirds=round(growth["resident_mb"], 1),
    )


# Trials.


def filled_study(path, graph, count):
    """A study with so many finished trials, and what is searched in it.

    Optuna commits trial by trial, which takes minutes, so the tables are filled directly.
    """
    from optuna.distributions import CategoricalDistribution, distribution_to_json

    from hpgmn.runs.search import TuneSpec
    from hpgmn.runs.spec import RunSpec
    from hpgmn.runs.study import claim, open_study

    run = RunSpec(str(path.with_name("graph.npz")), "hpgmn", {"epochs": 2}, (0,))
    spec = TuneSpec(run)
    with open_study(path) as study:
        claim(study, path, spec.identity(graph))
    random, choices = np.random.default_rng(0), spec.choices(graph)
    forms = {name: CategoricalDistribution(list(words)) for name, words in choices.items()}
    texts = {name: distribution_to_json(form) for name, form in forms.items()}
    tables: dict[str, list[tuple[Any, ...]]] = {
        "trials (trial_id, number, study_id, state, datetime_start, datetime_complete)": [],
        "trial_values (trial_id, objective, value, value_type)": [],
        "trial_params (trial_id, param_name, param_value, distribution_json)": [],
        "trial_user_attributes (trial_id, key, value_json)": [],
    }
    trials, values, params, attributes = tables.values()
    day = "2026-01-01 00:00:00"
    for place in range(count):
        own, score = place + 1, float(random.random())
        drawn = {name: int(random.integers(len(words))) for name, words in choices.items()}
        settings = {name: list(choices[name])[number] for name, number in drawn.items()}
        record = {"val_score": [score], "val_loss": [1.0], "best_epoch": [1], "seconds": 1.0}
        trials.append((own, place, 1, "COMPLETE", day, day))
        values.append((own, 0, score, "FINITE"))
        params += [(own, name, number, texts[name]) for name, number in drawn.items()]
        about = {"place": place, "settings": settings, "record": record}
        attributes += [(own, name, json.dumps(value)) for name, value in about.items()]
    with closing(sqlite3.connect(path)) as database, database:
        for table, rows in tables.items():
            places = ", ".join("?" * len(rows[0]))
            names = table[table.index("(") :]
            database.executemany(f"INSERT INTO {table.split()[0]} {names} VALUES ({places})", rows)
    return spec


@pytest.mark.soak
@pytest.mark.slow
def test_a_long_search_suggests_its_next_trial_within_a_second(tmp_path, soak):
    """What is measured: time of the processor for one more suggestion, the middle one of three.

    And by the clock, as a user waits: from opening the study until its first suggestion is there,
    in which all trials are read once. That is bounded loosely, because the machine may have other
    work; reading all trials once for each of them would take a quarter of an hour.
    """
    from hpgmn.runs.search import Search
    from hpgmn.runs.study import open_study

    write_graph(trading_network(num_nodes=100, seed=0).graph, tmp_path / "graph.npz")
    graph = read_graph(tmp_path / "graph.npz")
    count = soak.amount(2000, 10_000)
    spec = filled_study(tmp_path / "study.db", graph, count)
    seconds, first = [], 0.0
    opened = time.monotonic()
    with open_study(tmp_path / "study.db") as study:
        search = Search(study, spec, graph)
        assert search.pending(count + 3) == [count, count + 1, count + 2]
        for place in range(count, count + 3):
            began = time.process_time()  # the machine may have other work
            trial = search.start(place)
            seconds.append(time.process_time() - began)
            first = first or time.monotonic() - opened
            assert set(trial.params) == set(spec.choices(graph))
            search.fail(trial)
    assert sorted(seconds)[1] < 1
    assert first < soak.amount(FIRST_SECONDS, 2 * FIRST_SECONDS)
    soak.record(
        "long-search",
        "A search with many trials suggests the next one within a second.",
        trials_in_the_study=count,
        seconds_to_suggest=round(sorted(seconds)[1], 2),
        seconds_until_the_first=round(first, 1),
    )
