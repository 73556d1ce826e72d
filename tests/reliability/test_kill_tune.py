"""A search that is killed again and again, or loses a worker, ends with the same trials."""

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import optuna
import pytest

import hpgmn as package
from hpgmn.base.settings import parse_assignments
from hpgmn.runs.search import Search
from hpgmn.runs.trials import run_trials
from hpgmn.runs.tune import make_tune_spec

pytestmark = [pytest.mark.slow, pytest.mark.soak]

TRIALS = 12
FIXED = ("patience=0", "epochs=12")
WORDS = ("tune", "small.npz", "--study", "out/a.db", "--device", "cpu", "--model", "mlp")
WORDS += ("--trials", str(TRIALS), *(word for one in FIXED for word in ("--set", one)))
# The sampler looks at the trials before from the third on, at some of them from the ninth on, and
# trials are given up after a few epochs.
BEFORE = """
import functools
import optuna
from hpgmn.runs import search, tune
optuna.samplers.TPESampler = functools.partial(optuna.samplers.TPESampler, n_startup_trials=2)
search.SAMPLED_BEST, search.SAMPLED_LATEST = 3, 4
tune.PRUNING_INTERVAL, search.PRUNING_EPOCHS, search.PRUNING_TRIALS = 4, 4, 3
"""
DONE = ("COMPLETE", "PRUNED")
TABLES = {
    "params": ("trial_params", "param_name", "param_value"),
    "values": ("trial_values", "objective", "value"),
    "reports": ("trial_intermediate_values", "step", "intermediate_value"),
    "attributes": ("trial_user_attributes", "key", "value_json"),
}


@pytest.fixture(scope="module")
def whole(commands, tmp_path_factory):
    """The folder of a search that was left alone, and what became of it."""
    folder = tmp_path_factory.mktemp("whole")
    package.write_graph(package.trading_network(num_nodes=120, seed=3).graph, folder / "small.npz")
    answer = commands(*WORDS, folder=folder, before=BEFORE)
    assert answer.code == 0, answer.err
    return folder, answer


@pytest.fixture
def folder(whole, tmp_path):
    """A folder with the graph."""
    (tmp_path / "small.npz").symlink_to(whole[0] / "small.npz")
    return tmp_path


def trials_of(path):
    """All that a study file says of its trials, by their number; none where it has no tables yet.

    A copy is read, with what a killed writer has left beside it: who goes on must cope with that.
    """
    with TemporaryDirectory() as place:
        for part in path.parent.glob(f"{path.name}*"):
            shutil.copy(part, place)
        with closing(sqlite3.connect(Path(place) / path.name)) as database:
            return list(_rows(database))


def _rows(database):
    known = {name for (name,) in database.execute("SELECT name FROM sqlite_master").fetchall()}
    if not {"trials", *(table for table, _, _ in TABLES.values())} <= known:
        return
    rows = database.execute(
        "SELECT trial_id, number, state, datetime_start, datetime_complete FROM trials "
        "ORDER BY number"
    ).fetchall()
    for own, number, state, began, ended in rows:
        found = {"number": number, "state": state, "times": (began, ended)}
        for part, (table, key, value) in TABLES.items():
            pairs = f"SELECT {key}, {value} FROM {table} WHERE trial_id = ?"
            found[part] = dict(database.execute(pairs, (own,)).fetchall())
        found["attributes"] = {key: json.loads(text) for key, text in found["attributes"].items()}
        yield found


def done_of(path):
    """Number → a trial that came to its end, with its times."""
    return {one["number"]: one for one in trials_of(path) if one["state"] in DONE}


def sequence_of(path):
    """The trials that came to their end, in their order, without numbers and times."""
    found = list(done_of(path).values())
    for one in found:
        del one["number"], one["times"]
        one["attributes"].get("record", {}).pop("seconds", None)
    return found


def told(answer):
    """What a search printed, but for how many trials were cut off, and their numbers."""
    lines = answer.out.splitlines()
    lines[0] = re.sub(r", \d+ cut off \(run again\)", "", lines[0])
    return re.sub(r"\btrial \d+", "trial", "\n".join(lines))


def without_history(folder):
    """Place → what a sampler draws there that knows of no trials before."""
    asked = {"model": "mlp", "settings": parse_assignments(FIXED)}
    spec, graph, _ = make_tune_spec(
        str(folder / "small.npz"), str(folder / "small.npz"), asked, "cpu", None
    )
    search = Search(optuna.create_study(direction="maximize"), spec, graph)
    return [search.start(place).user_attrs["settings"] for place in range(TRIALS)]


def test_the_undisturbed_search_is_worth_disturbing(whole):
    """Trials that end and that are given up, and settings that depend on the trials before."""
    folder, _ = whole
    found = sequence_of(folder / "out" / "a.db")
    assert [one["attributes"]["place"] for one in found] == list(range(TRIALS))
    assert {one["state"] for one in found} == set(DONE)
    assert len({one["values"].get(0) for one in found}) > 2
    alone = without_history(folder)
    differs = [one["attributes"]["settings"] != alone[place] for place, one in enumerate(found)]
    assert not any(differs[:2])
    assert sum(differs[2:]) > TRIALS // 2


@pytest.mark.slow
def test_a_killed_search_ends_with_the_same_trials(soak, survive, whole, folder):
    path, undisturbed = folder / "out" / "a.db", whole[0] / "out"
    expected = sequence_of(undisturbed / "a.db")
    settings = [one["params"] for one in expected]
    best = (undisturbed / "a-best.yaml").read_bytes()

    def check(answer):
        assert sequence_of(path) == expected
        for one in trials_of(path):
            assert one["state"] in (*DONE, "FAIL")
            if "place" in one["attributes"]:  # one that was cut off had the settings of its place
                assert one["params"].items() <= settings[one["attributes"]["place"]].items()
        assert (folder / "out" / "a-best.yaml").read_bytes() == best
        # Drafts of killed processes are removed by age: see test_kill_convert.py.
        files = [path for path in (folder / "out").iterdir() if path.suffix != ".unfinished"]
        assert {path.name for path in files} == {path.name for path in undisturbed.iterdir()}
        assert told(answer) == told(whole[1])

    kills = soak.amount(short=3, long=50)
    survived = survive(
        *(kills, whole[1], *WORDS),
        folder=folder,
        out=folder / "out",
        check=check,
        kept=lambda: done_of(path),
        seed=24,
        before=BEFORE,
    )
    assert survived.kept > 0
    soak.record(
        "kill-tune",
        "A search that is killed and goes on keeps its trials and ends as an undisturbed one.",
        kills_survived=kills,
        studies_compared=survived.ends,
        trials_kept=survived.kept,
    )


# A thread of the command kills its first worker, once there is a trial that no earlier one began.
MURDER = """
import os, signal, sqlite3, threading, time
from contextlib import closing
from pathlib import Path

def is_worker(child):
    try:
        return "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return False

def children():
    text = Path(f"/proc/{os.getpid()}/task/{MAIN}/children").read_text()
    return sorted(filter(is_worker, map(int, text.split())))

def newest(condition):
    with closing(sqlite3.connect("out/a.db")) as database:
        return database.execute(f"SELECT max(number) FROM trials WHERE {condition}").fetchone()[0]

def is_begun():
    try:
        return (newest("state = 'RUNNING'") or 0) > LEFT
    except sqlite3.Error:
        return False

def murder():
    while True:
        if is_begun() and (workers := children()):
            try:
                return os.kill(workers[0], signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)

MAIN, LEFT = threading.get_native_id(), newest("true")
threading.Thread(target=murder, daemon=True).start()
"""


@pytest.mark.slow
def test_a_search_with_workers_survives_their_deaths(soak, commands, folder):
    """First with the command, then one of them alone; the order of trials is left to chance."""
    path = folder / "out" / "a.db"
    words = (*WORDS, "--no-pruning", "--workers", "2")
    rounds = soak.amount(short=1, long=2)
    for number in range(rounds):
        shutil.rmtree(path.parent, ignore_errors=True)
        moment = commands.at(touch=70 + 10 * number, is_group=True)  # it commits; some are done
        killed = commands(*words, folder=folder, moment=moment, before=BEFORE)
        assert killed.is_killed, killed.err
        kept = done_of(path)
        assert 0 < len(kept) < TRIALS
        answer = commands(*words, folder=folder, before=BEFORE + MURDER)
        assert answer.code == 0, answer.err
        assert "Its process was ended by signal 9" in answer.err
        found = done_of(path)
        assert {trial: found.get(trial) for trial in kept} == kept
        assert {one["state"] for one in trials_of(path)} == {"COMPLETE", "FAIL"}
        assert sorted(one["attributes"]["place"] for one in found.values()) == list(range(TRIALS))
        assert_right(found.values(), package.read_graph(folder / "small.npz"))
        assert not (folder / "out" / "a.db.lock").exists()
    soak.record(
        "kill-tune-workers",
        "A search whose workers are killed with it keeps its trials and trains the others once.",
        kills_survived=2 * rounds,
    )


def assert_right(trials, graph):
    """Each has the scores that its settings have when they are trained anew, alone."""
    for one in trials:
        settings, record = one["attributes"]["settings"], one["attributes"]["record"]
        (alone,) = run_trials(graph, "mlp", [settings], splits=(0, 1, 2))
        assert alone["val_score"] == record["val_score"]
        assert alone["val_loss"] == pytest.approx(record["val_loss"], rel=1e-6)
        assert alone["best_epoch"] == record["best_epoch"]
