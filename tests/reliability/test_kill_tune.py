"""A search that is killed again and again, or loses a worker, ends with the same trials."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import hpgmn as package
from hpgmn.graph import Graph

pytestmark = [pytest.mark.slow, pytest.mark.soak]

TRIALS = 4
WORDS = ("tune", "small.npz", "--study", "out/a.db", "--device", "cpu", "--model", "mlp")
WORDS += ("--trials", str(TRIALS), "--no-pruning", "--set", "patience=0")
SHORT = (*WORDS, "--set", "epochs=30")


@pytest.fixture
def folder(small_graph: Graph, tmp_path: Path) -> Path:
    """A folder with the graph."""
    package.write_graph(small_graph, tmp_path / "small.npz")
    return tmp_path


def trials_of(path: Path) -> dict[int, Any]:
    """Place → settings and scores of its finished trial; each place has one."""
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute(
            "SELECT t.trial_id, t.state, a.key, a.value_json FROM trials t "
            "JOIN trial_user_attributes a ON a.trial_id = t.trial_id"
        ).fetchall()
        values = dict(database.execute("SELECT trial_id, value FROM trial_values").fetchall())
    every: dict[int, dict[str, Any]] = {}
    for number, state, key, value in rows:
        if state == "COMPLETE":
            every.setdefault(number, {"value": values[number]})[key] = json.loads(value)
    places = [one["place"] for one in every.values()]
    assert len(set(places)) == len(places)
    for one in every.values():
        del one["record"]["seconds"]
    return {one.pop("place"): one for one in every.values()}


def test_a_killed_search_ends_with_the_same_trials(
    soak: Any, commands: Any, survive: Any, folder: Path
) -> None:
    answer = commands(*SHORT, folder=folder)
    assert answer.code == 0, answer.err
    (folder / "out").rename(folder / "whole")
    expected = trials_of(folder / "whole" / "a.db")
    assert list(expected) == list(range(TRIALS))
    best = (folder / "whole" / "a-best.yaml").read_bytes()

    def check() -> None:
        assert trials_of(folder / "out" / "a.db") == expected
        assert (folder / "out" / "a-best.yaml").read_bytes() == best
        left = {path.name for path in (folder / "out").iterdir()}
        assert left == {path.name for path in (folder / "whole").iterdir()}

    kills = soak.amount(short=3, long=50)
    ends = survive(
        *(kills, answer, *SHORT),
        folder=folder,
        out=folder / "out",
        check=check,
        seed=5,
    )
    soak.record(
        "kill-tune",
        "A search that is killed and goes on ends with the trials of an undisturbed one.",
        kills_survived=kills,
        studies_compared=ends + 1,
    )


# A thread of the command kills its first worker, once a trial is done.
MURDER = """
import os, signal, sqlite3, threading, time
from pathlib import Path

def children():
    text = Path(f"/proc/{os.getpid()}/task/{MAIN}/children").read_text()
    every = {int(word) for word in text.split()}
    return sorted(
        one for one in every if "spawn_main" in Path(f"/proc/{one}/cmdline").read_text()
    )

def is_begun():
    try:
        with sqlite3.connect("out/a.db") as database:
            return bool(database.execute(
                "SELECT count(*) FROM trials WHERE state = 'RUNNING'").fetchone()[0])
    except sqlite3.Error:
        return False

def murder():
    while not (is_begun() and children()):
        time.sleep(0.01)
    os.kill(children()[0], signal.SIGKILL)

MAIN = threading.get_native_id()
threading.Thread(target=murder, daemon=True).start()
"""


def test_a_search_survives_the_death_of_a_worker(commands: Any, folder: Path) -> None:
    words = (*WORDS, "--set", "epochs=300", "--workers", "2")
    answer = commands(*words, folder=folder, before=MURDER)
    assert answer.code == 0, answer.err
    assert "Its process was ended by signal 9" in answer.err
    assert sorted(trials_of(folder / "out" / "a.db")) == list(range(TRIALS))
    assert not (folder / "out" / "a.db.lock").exists()
