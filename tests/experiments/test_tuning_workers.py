"""Several trials at a time: what workers answer, and what becomes of a trial whose worker dies."""

from __future__ import annotations

import dataclasses
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hpgmn.datasets import write_graph
from hpgmn.experiments import tuning_workers
from hpgmn.experiments.search import run_trials
from hpgmn.experiments.tuning import TuneSpec, Tuning, tune_here
from hpgmn.experiments.tuning_workers import tune_in_workers, work
from hpgmn.graph import Graph

FIXED = {"epochs": 3, "hidden_dim": 4}


@pytest.fixture
def spec(small_graph: Graph, tmp_path: Path) -> TuneSpec:
    path = tmp_path / "small.npz"
    write_graph(small_graph, path)
    return TuneSpec(str(path), "mlp", splits=(0, 1), fixed=FIXED, sampler="random")


@pytest.fixture
def study() -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(direction="maximize")


def states(study: Any) -> list[str]:
    return [one.state.name for one in study.get_trials()]


# The worker's side.


@pytest.fixture
def as_before() -> Iterator[None]:
    """A worker changes its process: here that of the tests."""
    handler, threads = signal.getsignal(signal.SIGINT), torch.get_num_threads()
    yield
    signal.signal(signal.SIGINT, handler)
    torch.set_num_threads(threads)


def hear(spec: TuneSpec, *sent: Any) -> list[Any]:
    """Send a worker each of these after its answer to the one before; returns the answers."""
    near, far = multiprocessing.Pipe()
    heard = []

    def talk() -> None:
        for one in sent:
            near.send(one)
            heard.append(near.recv())
        near.close()

    talking = threading.Thread(target=talk)
    talking.start()
    work(far, spec, 1, 0.25)
    talking.join()
    return heard


@pytest.mark.usefixtures("as_before")
def test_a_worker_trains_what_it_is_handed(spec: TuneSpec, small_graph: Graph) -> None:
    settings = [FIXED | {"lr": lr} for lr in (0.001, 0.1)]
    heard = hear(spec, *settings)
    records = run_trials(small_graph, "mlp", settings, splits=[0, 1])
    assert [kind for kind, _ in heard] == ["done", "done"]
    assert [own["val_score"] for _, own in heard] == [own["val_score"] for own in records]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.usefixtures("as_before")
def test_a_worker_plans_with_its_share_of_the_memory(
    spec: TuneSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = []

    def at_once(*given: Any) -> int:
        shares.append(given[4])
        return 1

    monkeypatch.setattr("hpgmn.training.replicas.replicas_at_once", at_once)
    assert hear(spec, FIXED)[0][0] == "done"
    assert shares == [0.25]


@pytest.mark.usefixtures("as_before")
def test_a_worker_asks_whether_to_go_on(spec: TuneSpec) -> None:
    long = FIXED | {"epochs": 100, "patience": 0}
    heard = hear(spec, long, False, True)
    assert [answer[:2] for answer in heard] == [("score", 20), ("score", 40), ("hopeless",)]


@pytest.mark.usefixtures("as_before")
def test_a_worker_says_what_cannot_be_trained_and_lives_on(spec: TuneSpec) -> None:
    heard = hear(spec, {"lr": "fast"}, FIXED, None)
    assert heard[0] == ("error", "Setting 'lr' takes a number (got 'fast').")
    assert heard[1][0] == "done"
    assert heard[2][0] == "bug"
    assert "Traceback" in heard[2][1]


@pytest.mark.usefixtures("as_before")
def test_a_worker_that_is_left_alone_ends(spec: TuneSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    long = FIXED | {"epochs": 10**6, "patience": 0}
    near, far = multiprocessing.Pipe()
    near.send(long)
    near.close()
    work(far, spec, 1, 1.0)  # finds out when it asks whether to go on

    class Dead:
        def is_alive(self) -> bool:
            return False

    near, far = multiprocessing.Pipe()
    near.send(long)
    monkeypatch.setattr(multiprocessing, "parent_process", Dead)
    work(far, spec, 1, 1.0)
    assert not near.poll()


# The side of the study: workers that are threads, and do as they are told.


class Process:
    exitcode = -9

    def join(self) -> None:
        pass


class FakeWorker(tuning_workers._Worker):
    """Answers from a thread; the script says what happens to each trial by its place."""

    script: Callable[[int], Any]
    crew: int = 0
    threads: list[int]
    shares: list[float]

    def __init__(self, spec: TuneSpec, threads: int, memory_share: float) -> None:
        type(self).crew += 1
        self.threads.append(threads)
        self.shares.append(memory_share)
        self.line, self.far = multiprocessing.Pipe()
        self.process: Any = Process()
        self.trial, self.place = None, -1
        threading.Thread(target=self.answer, daemon=True).start()

    def answer(self) -> None:
        while True:
            try:
                self.far.recv()
                answers = type(self).script(self.place)
                if answers == "dies":
                    self.far.close()
                    return
                for one in answers:
                    self.far.send(one)
                    if one[0] == "score" and self.far.recv():
                        self.far.send(("hopeless",))
                        break
            except (EOFError, OSError):
                return

    def stop(self) -> None:
        self.far.close()
        self.line.close()


def record(score: float) -> dict[str, Any]:
    found = dict.fromkeys(("best_epoch", "seconds", "device", "version"), 0)
    return found | {"val_score": [score], "val_loss": [1.0], "val_score_mean": score}


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], Any]], type[FakeWorker]]:
    def start(script: Callable[[int], Any]) -> type[FakeWorker]:
        own = {"script": staticmethod(script), "threads": [], "shares": []}
        made = type("Made", (FakeWorker,), own)
        monkeypatch.setattr(tuning_workers, "_Worker", made)
        return made

    return start


def test_every_place_is_done_once(
    spec: TuneSpec, study: Any, small_graph: Graph, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    made = play(lambda place: [("done", record(place / 10))])
    told: list[int] = []
    search = Tuning(study, spec, small_graph, workers=3)
    tune_in_workers(search, 7, 3, told=lambda: told.append(1))
    assert sorted(one.user_attrs["place"] for one in study.trials) == list(range(7))
    assert {one.user_attrs["place"]: one.value for one in study.trials} == {
        place: place / 10 for place in range(7)
    }
    assert len(told) == 7
    assert made.crew == 3
    assert made.threads == [2, 2, 2]
    assert made.shares == [1 / 3] * 3
    tune_in_workers(search, 7, 3)
    assert made.crew == 3, "nothing was left to do"


def test_the_random_search_does_not_depend_on_the_workers(
    spec: TuneSpec, study: Any, small_graph: Graph, play: Any
) -> None:
    import optuna

    play(lambda place: [("done", record(0.5))])
    tune_in_workers(Tuning(study, spec, small_graph, workers=2), 5, 2)
    alone = optuna.create_study(direction="maximize")
    tune_here(Tuning(alone, spec, small_graph), 5)
    assert [one.user_attrs["settings"] for one in study.trials] == [
        one.user_attrs["settings"] for one in alone.trials
    ]


def test_answers_become_states(spec: TuneSpec, study: Any, small_graph: Graph, play: Any) -> None:
    def script(place: int) -> Any:
        if place == 0:
            return [("error", "Too large.")]
        good = place < 7
        return [("score", 60, 0.5 if good else 0.1), ("done", record(0.5))]

    play(script)
    search = Tuning(study, dataclasses.replace(spec, pruning=True), small_graph)
    tune_in_workers(search, 8, 1)
    assert states(study) == ["FAIL"] + ["COMPLETE"] * 6 + ["PRUNED"]
    assert study.trials[0].user_attrs["error"] == "Too large."
    assert search.places(8) == []


def test_the_trial_of_a_dead_worker_is_run_by_another(
    spec: TuneSpec, study: Any, small_graph: Graph, play: Any
) -> None:
    deaths = []

    def script(place: int) -> Any:
        if place == 1 and not deaths:
            deaths.append(place)
            return "dies"
        return [("done", record(0.5))]

    play(script)
    lost: list[str] = []
    search = Tuning(study, spec, small_graph, workers=2)
    tune_in_workers(search, 4, 2, lost=lost.append)
    assert search.places(4) == []
    assert sorted(states(study)) == ["COMPLETE"] * 4 + ["FAIL"]
    (line,) = lost
    assert line.startswith("A worker was ended by signal 9 (perhaps for lack of memory); its trial")


def test_a_trial_that_kills_its_workers_is_left_out(
    spec: TuneSpec, study: Any, small_graph: Graph, play: Any
) -> None:
    play(lambda place: "dies" if place == 0 else [("done", record(0.5))])
    lost: list[str] = []
    search = Tuning(study, spec, small_graph, workers=3)
    tune_in_workers(search, 4, 3, lost=lost.append)
    assert len(lost) == 2
    assert search.places(4) == [0]
    assert states(study).count("COMPLETE") == 3


def test_the_search_ends_when_all_workers_are_dead(
    spec: TuneSpec, study: Any, small_graph: Graph, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Process, "exitcode", 3)
    play(lambda place: "dies")
    lost: list[str] = []
    tune_in_workers(Tuning(study, spec, small_graph, workers=2), 9, 2, lost=lost.append)
    assert [line.split(";")[0] for line in lost] == ["A worker ended with exit code 3"] * 2
    assert set(states(study)) == {"FAIL"}


def test_a_bug_in_a_worker_is_not_hidden(
    spec: TuneSpec, study: Any, small_graph: Graph, play: Any
) -> None:
    play(lambda place: [("bug", "Traceback …")])
    with pytest.raises(RuntimeError, match="A worker failed:\nTraceback"):
        tune_in_workers(Tuning(study, spec, small_graph), 2, 1)
    assert states(study) == ["FAIL"]


def test_ctrl_c_stops_the_workers(
    spec: TuneSpec, study: Any, small_graph: Graph, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_workers, "LOOK_SECONDS", 0.01)
    play(lambda place: [("done", record(0.5))] if place == 0 else [])  # the others take long
    search = Tuning(study, spec, small_graph, workers=2)
    with pytest.raises(KeyboardInterrupt):
        tune_in_workers(search, 4, 2, should_stop=lambda: "COMPLETE" in states(study))
    assert set(states(study)) == {"COMPLETE", "FAIL"}
    assert search.places(4) == [1, 2, 3]


def test_no_trial_is_handed_out_after_the_deadline(
    spec: TuneSpec, study: Any, small_graph: Graph, play: Any
) -> None:
    play(lambda place: [("done", record(0.5))])
    tune_in_workers(Tuning(study, spec, small_graph), 4, 2, deadline=0.0)
    assert states(study) == []


# Processes.


@pytest.mark.slow
def test_processes_find_what_one_process_finds(
    spec: TuneSpec, study: Any, small_graph: Graph
) -> None:
    import optuna

    lost: list[str] = []
    tune_in_workers(Tuning(study, spec, small_graph, workers=2), 4, 2, lost=lost.append)
    alone = optuna.create_study(direction="maximize")
    tune_here(Tuning(alone, spec, small_graph), 4)
    assert lost == []
    assert [one.value for one in study.trials] == [one.value for one in alone.trials]
    worker = tuning_workers._Worker(spec, 1, 1.0)
    worker.stop()
    assert worker.process.exitcode == -signal.SIGTERM
    worker.send("nothing")  # to a closed line: no error
