"""A reproduction that is killed again and again ends with the records of an undisturbed one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpgmn as package

pytestmark = [pytest.mark.slow, pytest.mark.soak]

# States are saved all the time, two replicas fit into memory at once, and there are four cells.
BEFORE = """
import hpgmn.training.replicas as replicas
replicas.SAVE_SECONDS = 0.005
replicas.replicas_at_once = lambda *_: 2
from hpgmn.experiments import paper
paper.TABLE_2 = {name: paper.TABLE_2[name] for name in ("gcn", "hpgmn")}
"""
WORDS = ("reproduce", "table2", "--quick", "--device", "cpu", "--out", "out")


class Whole:
    """A reproduction that was left alone."""

    def __init__(self, folder: Path, answer: Any) -> None:
        self.folder, self.answer = folder, answer
        self.environment = environment(folder)

    def check(self, out: Path, lasting: Callable[[Any], Any]) -> None:
        """Fail where a folder is not as that of the whole one."""
        expected = records(self.folder / "out", lasting)
        assert len(expected) == 4
        assert records(out, lasting) == expected
        assert not [*out.glob("work/*"), *out.glob("search/*")]
        names = {path.name for path in (self.folder / "out").iterdir()}
        assert {path.name for path in out.iterdir()} == names


def environment(folder: Path) -> dict[str, str]:
    return {"HPGMN_DATA": str(folder / "data"), "XDG_CACHE_HOME": str(folder)}


def records(out: Path, lasting: Callable[[Any], Any]) -> dict[str, Any]:
    """Every record of a folder, without times, memory, dates, and the checksum of these."""
    return {
        path.name: lasting(json.loads(path.read_text())) for path in sorted(out.glob("cells/*"))
    }


@pytest.fixture(scope="module")
def whole(commands: Any, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    random = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 8)
    role = np.stack([random.permutation(np.tile([0, 1, 2, 2], 6)) for _ in range(2)], axis=1)
    masks = dict(
        zip(("train_mask", "val_mask", "test_mask"), (role == k for k in range(3)), strict=True)
    )
    graph = package.Graph(random.random((24, 5)), random.integers(24, size=(2, 80)), y, **masks)
    for name in ("texas", "cora"):
        package.write_graph(graph, folder / "data" / f"{name}.npz")
    answer = commands(*WORDS, folder=folder, before=BEFORE, environment=environment(folder))
    assert answer.code == 0, answer.err
    return Whole(folder, answer)


def test_a_killed_reproduction_ends_with_the_same_records(
    soak: Any, survive: Any, whole: Whole, tmp_path: Path, lasting: Callable[[Any], Any]
) -> None:
    kills = soak.amount(short=3, long=50)
    ends = survive(
        *(kills, whole.answer, *WORDS),
        folder=tmp_path,
        out=tmp_path / "out",
        check=lambda: whole.check(tmp_path / "out", lasting),
        seed=11,
        before=BEFORE,
        environment=whole.environment,
    )
    soak.record(
        "kill-reproduce",
        "A reproduction that is killed and goes on ends with the records of an undisturbed one.",
        kills_survived=kills,
        reproductions_compared=ends + 1,
    )


def test_workers_whose_command_is_killed_leave_what_others_go_on_with(
    commands: Any, whole: Whole, tmp_path: Path, lasting: Callable[[Any], Any]
) -> None:
    options = {"folder": tmp_path, "before": BEFORE, "environment": whole.environment}
    watched = BEFORE + KILL_AT_WORK
    killed = commands(*WORDS, "--workers", "2", **options | {"before": watched})
    assert killed.code == -9, killed.err
    answer = commands(*WORDS, **options)  # waits for the workers, which find themselves alone
    assert answer.code == 0, answer.err
    whole.check(tmp_path / "out", lasting)


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
