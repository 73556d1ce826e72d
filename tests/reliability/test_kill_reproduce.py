"""A reproduction that is killed again and again ends with the records of an undisturbed one."""

import json
from typing import Any

import numpy as np
import pytest

import hpgmn as package

pytestmark = [pytest.mark.slow, pytest.mark.soak]

# States are saved again and again, two replicas fit into memory at once, and there are four cells.
BEFORE = """
import hpgmn.training.replicas as replicas
replicas.SAVE_SECONDS = 0.03
replicas.replicas_at_once = lambda *_: 2
from hpgmn_lab import paper
paper.TABLE_2 = {name: paper.TABLE_2[name] for name in ("gcn", "hpgmn")}
"""
WORDS = ("reproduce", "table2", "--quick", "--device", "cpu", "--out", "out")


class Whole:
    """A reproduction that was left alone."""

    def __init__(self, folder, answer):
        self.folder, self.answer = folder, answer
        self.environment = environment(folder)

    def check(self, answer, out, lasting):
        """Fail where the tables or the folder are not those of the whole one."""
        assert answer.out == self.answer.out
        expected = records(self.folder / "out", lasting)
        assert len(expected) == 4
        assert records(out, lasting) == expected
        assert not [*out.glob("work/*"), *out.glob("search/*")]
        names = {path.name for path in (self.folder / "out").iterdir()}
        assert {path.name for path in out.iterdir()} == names


def environment(folder):
    return {"HPGMN_DATA": str(folder / "data"), "XDG_CACHE_HOME": str(folder)}


def records(out, lasting):
    """Every record of a folder, without times, memory, dates, and the checksum of these."""
    return {
        path.name: lasting(json.loads(path.read_text())) for path in sorted(out.glob("cells/*"))
    }


def finished(out):
    """The records of a folder with their bytes, and each trial that was trained, with its time."""
    found: dict[tuple[str, str], Any] = {}
    for path in out.glob("cells/*.json"):
        found["record", path.name] = path.read_bytes()
        search = json.loads(path.read_text())["search"] or {"trials": []}
        for place, trial in enumerate(search["trials"]):
            found["trial", f"{place} {path.name}"] = trial
    for path in out.glob("search/*.json"):
        for place, trial in json.loads(path.read_text())["trials"].items():
            found["trial", f"{place} {path.name}"] = trial
    return found


@pytest.fixture(scope="module")
def whole(commands, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    random = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 8)
    role = np.stack([random.permutation(np.tile([0, 1, 2, 2], 6)) for _ in range(2)], axis=1)
    masks = dict(
        zip(("train_mask", "val_mask", "test_mask"), (role == k for k in range(3)), strict=True)
    )
    x = random.random((24, 5)) + 1.0 * np.eye(5)[y]
    graph = package.Graph(x, random.integers(24, size=(2, 80)), y, **masks)
    for name in ("texas", "cora"):
        package.write_graph(graph, folder / "data" / f"{name}.npz")
    answer = commands(*WORDS, folder=folder, before=BEFORE, environment=environment(folder))
    assert answer.code == 0, answer.err
    return Whole(folder, answer)


@pytest.mark.slow
def test_a_killed_reproduction_ends_with_the_same_records(
    soak, commands, survive, whole, tmp_path, lasting
):
    kills = soak.amount(short=3, long=50)
    # States are saved by the clock. So many touches there are if none is saved, and a record is
    # there before if one is saved after each epoch.
    late = sum("state-" not in name for _, name in whole.answer.seen)
    survived = survive(
        *(kills, whole.answer, *WORDS),
        folder=tmp_path,
        out=tmp_path / "out",
        check=lambda answer: whole.check(answer, tmp_path / "out", lasting),
        kept=lambda: finished(tmp_path / "out"),
        seed=24,
        first=[commands.at(touch=late, about="late")],
        before=BEFORE,
        environment=whole.environment,
    )
    assert survived.kept > 0
    soak.record(
        "kill-reproduce",
        "A reproduction that is killed and goes on keeps its records and ends as an undisturbed "
        "one.",
        kills_survived=kills,
        reproductions_compared=survived.ends,
    )


@pytest.mark.slow
def test_workers_whose_command_is_killed_leave_what_others_go_on_with(
    commands, whole, tmp_path, lasting
):
    options = {"folder": tmp_path, "before": BEFORE, "environment": whole.environment}
    watched = BEFORE + KILL_AT_WORK
    killed = commands(*WORDS, "--workers", "2", **options | {"before": watched})
    assert killed.code == -9, killed.err
    answer = commands(*WORDS, **options)  # waits for the workers, which find themselves alone
    assert answer.code == 0, answer.err
    whole.check(answer, tmp_path / "out", lasting)


# A thread of the command kills it, once a worker works in its folder.
KILL_AT_WORK = """
import os, signal, threading, time
from pathlib import Path

def watch():
    while not list(Path("out/work").glob("*")):
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGKILL)

threading.Thread(target=watch, daemon=True).start()
"""
