"""Searches: trials as tasks, how they end, and what ``hpgmn.tune`` refuses and returns."""

import dataclasses
import math
import time
from functools import partial

import numpy as np
import pytest

import hpgmn
from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.engines.processes import LocalEngine
from hpgmn.graph import Graph
from hpgmn.runs import tune as module
from hpgmn.runs.fit import Monitor
from hpgmn.runs.search import Search, TuneSpec
from hpgmn.runs.spec import RunSpec
from hpgmn.runs.study import claim, open_study
from hpgmn.runs.trials import run_trials
from hpgmn.runs.tune import make_tune_spec, run_search, trial_task
from hpgmn.training.replicas import Progress

RUN = RunSpec("small", "mlp", {"epochs": 25, "patience": 0, "hidden_dim": 4}, (0, 1))
SPEC = TuneSpec(RUN)
QUICK = {"model": "mlp", "settings": {"epochs": 3, "hidden_dim": 4}, "device": "cpu"}
run_here = partial(run_search, LocalEngine())


@pytest.fixture
def study():
    return new_study()


def new_study():
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(direction="maximize")


def states(study):
    return [trial.state.name for trial in study.get_trials()]


# Trials as tasks.


def test_trials_are_those_of_this_process(small_graph, here_engine):
    there, here, steps = new_study(), new_study(), []
    engine = here_engine()
    monitor = Monitor(progress=lambda task, now: steps.append(now.epoch))
    run_search(engine, Search(there, SPEC, small_graph), 4, monitor=monitor)
    run_here(Search(here, SPEC, small_graph), 4)
    assert steps == [0, 1, 2, 3, 4]
    assert engine.options["max_tasks"] == 4
    for trial, other in zip(there.trials, here.trials, strict=True):
        assert trial.value == other.value
        assert trial.intermediate_values == other.intermediate_values != {}
        assert trial.user_attrs["settings"] == other.user_attrs["settings"]
    settings = [trial.user_attrs["settings"] for trial in here.trials]
    records = run_trials(small_graph, "mlp", settings, splits=[0, 1])
    assert [trial.value for trial in here.trials] == [one["val_score_mean"] for one in records]
    run_search(engine, Search(there, SPEC, small_graph), 4)
    assert len(there.trials) == 4, "nothing was left to do"


@pytest.mark.slow
def test_processes_find_what_one_process_finds(small_graph):
    spec = dataclasses.replace(SPEC, sampler="random")
    many, single = new_study(), new_study()
    engine = LocalEngine(2)
    assert run_search(engine, Search(many, spec, small_graph, workers=2), 4) == 0
    run_here(Search(single, spec, small_graph), 4)
    results = [
        sorted((trial.user_attrs["place"], trial.value) for trial in study.trials)
        for study in (many, single)
    ]
    assert results[0] == results[1]
    assert [place for place, _ in results[0]] == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [1, 2])
def test_a_lost_trial_is_repeated_a_limited_number_of_times(
    study, small_graph, here_engine, count, caplog
):
    search = Search(study, SPEC, small_graph)
    names = tuple(str(number) for number in range(count))
    assert run_search(here_engine(lost=names), search, 2) == count
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"Trial {number} counts as failed. Gone." for number in range(count)]
    assert [trial.user_attrs["place"] for trial in study.trials] == [0, 0, 1]
    assert search.pending(2) == ([] if count == 1 else [0])


@pytest.mark.parametrize(
    ("error", "raised"), [(ZeroDivisionError("bug"), RuntimeError), (HPGMNError("No."), HPGMNError)]
)
def test_failures_outside_of_a_trial_end_the_search(
    study, small_graph, here_engine, monkeypatch, error, raised
):
    def task(*arguments):
        raise error

    monkeypatch.setattr(module, "trial_task", task)
    with pytest.raises(raised):
        run_search(here_engine(), Search(study, SPEC, small_graph), 2)
    assert states(study) == ["FAIL"]


# Pruning.


def test_a_trial_asks_at_fixed_epochs_of_its_last_stage(small_graph, here_engine, monkeypatch):
    asked: list[tuple[int, float]] = []

    def train(graph, model, trials, *, report, **options):
        report(Progress(0, 1, "estimator", 200, 300, 1.0, 0.5))
        report(Progress(0, 1, "main", 200, 300, 1.0, math.nan))
        report(Progress(0, 2, "main", 200, 300, 1.0, 0.5))  # one of two batches
        for epoch in (1, 19, 20, 21, 39, 47, 59, 120, 119):
            report(Progress(0, 1, "main", epoch, 300, 1.0, epoch / 1000))
        return ["record"]

    monkeypatch.setattr(module, "run_trials", train)
    line = here_engine()
    line.name, line.on_message = "0", lambda name, message: bool(asked.append(message))
    assert trial_task((SPEC, {}), small_graph, line) == ("done", "record")
    assert asked == [(20, 0.02), (40, 0.047), (120, 0.12)]


def test_a_pruned_trial_is_not_trained_on(small_graph, here_engine):
    asked = []

    def answer(name, message):
        asked.append(message[0])
        return len(asked) == 2

    line = here_engine()
    line.name, line.on_message = "0", answer
    result = trial_task((SPEC, {"epochs": 100, "patience": 0}), small_graph, line)
    assert result == ("pruned", None)
    assert asked == [20, 40]


@pytest.mark.parametrize("pruning", [True, False])
def test_trials_below_the_median_are_pruned_after_a_while(study, small_graph, monkeypatch, pruning):
    scores = iter([0.1, 0.5, 0.6, 0.7, 0.8, 0.2, 0.9])
    ends: list[int] = []

    def train(graph, model, trials, *, report, **options):
        score = next(scores)
        ends.append(0)
        for ends[-1] in range(20, 101, 20):
            report(Progress(0, 1, "main", ends[-1], 300, 1.0, score))
        record = dict.fromkeys(("best_epoch", "seconds", "device", "version"), 0)
        return [record | {"val_score": [score], "val_loss": [1.0], "val_score_mean": score}]

    monkeypatch.setattr(module, "run_trials", train)
    run_here(Search(study, dataclasses.replace(SPEC, pruning=pruning), small_graph), 7)
    assert ends == [100] * 5 + [60 if pruning else 100, 100]
    assert states(study) == ["COMPLETE"] * 5 + ["PRUNED" if pruning else "COMPLETE", "COMPLETE"]
    assert len(study.trials[5].intermediate_values) == (3 if pruning else 5)


# Trials that end otherwise.


def failing(monkeypatch, error):
    def train(*_, **__):
        raise error

    monkeypatch.setattr(module, "run_trials", train)


def test_a_trial_that_cannot_be_trained_is_not_repeated(study, small_graph, monkeypatch):
    failing(monkeypatch, HPGMNError("Out of memory."))
    search = Search(study, SPEC, small_graph)
    run_here(search, 2)
    assert [trial.user_attrs["error"] for trial in study.trials] == ["Out of memory."] * 2
    assert search.pending(3) == [2]


def test_settings_that_exclude_each_other_end_one_trial(study, small_graph):
    """batch_size and consistency_weight are both allowed, but not together."""
    run = RunSpec("small", "hpgmn", {"batch_size": 2, "consistency_weight": 1.0}, (0,))
    run_here(Search(study, TuneSpec(run), small_graph), 2)
    assert states(study) == ["FAIL", "FAIL"]
    assert all("batch_size=0" in trial.user_attrs["error"] for trial in study.trials)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (ZeroDivisionError(), RuntimeError)],
)
def test_an_interrupted_trial_is_repeated(study, small_graph, monkeypatch, error, raised):
    failing(monkeypatch, error)
    search = Search(study, SPEC, small_graph)
    with pytest.raises(raised):
        run_here(search, 2)
    assert states(study) == ["FAIL"]
    assert search.pending(2) == [0, 1]


def test_ctrl_c_ends_the_training_of_a_trial(study, small_graph):
    answers = iter([False])
    monitor = Monitor(should_stop=lambda: next(answers, True))
    with pytest.raises(KeyboardInterrupt):
        run_here(Search(study, SPEC, small_graph), 2, monitor=monitor)
    assert states(study) == ["FAIL"]


def test_no_trial_starts_after_the_deadline(study, small_graph, monkeypatch):
    now = 9.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def tick(task, progress):
        nonlocal now
        now += 1

    run_here(Search(study, SPEC, small_graph), 9, 11.5, Monitor(progress=tick))
    assert len(study.trials) == 2


# The whole search.


def test_a_search_continues_and_can_be_shown(small_graph, tmp_path):
    path = tmp_path / "new" / "a.db"
    assert hpgmn.tune(small_graph, 2, study=path, **QUICK).done == 2
    result = hpgmn.tune(small_graph, 12, study=path, **QUICK)
    assert (result.done, result.requested, result.is_late, result.lost_workers) == (
        12,
        12,
        False,
        0,
    )
    assert result.content["trials"]["finished"] == 12
    assert result.content["fixed"] == QUICK["settings"]
    assert result.settings == result.content["best"]["settings"]
    assert "12 trials, best " in repr(result)
    names = {"a.db", "a-best.yaml", "a-sensitivity.png", "a-sensitivity.svg"}
    assert {file.name for file in path.parent.iterdir()} == names
    shown = hpgmn.tune(small_graph, 0, study=path)
    assert shown.content == result.content
    with pytest.raises(HPGMNError, match=r"splits \(0,1, now 0\)"):
        hpgmn.tune(small_graph, 0, study=path, splits=0)
    run = hpgmn.train(
        small_graph,
        model="mlp",
        settings=result.settings,
        device="cpu",
        out=tmp_path / "run",
        report=False,
    )
    assert run.metrics["val_score"] == result.content["best"]["val_score"]


def test_options_complete_the_search(small_graph):
    graph = hpgmn.trading_network(num_nodes=100, seed=3).graph
    spec, _, _ = make_tune_spec(graph, graph.name, {"sampler": "random"}, "cpu", None)
    assert spec.run.splits == (0, 1, 2)
    assert not spec.pruning
    masks = {f"{p}_mask": getattr(small_graph.splits, p) for p in ("train", "val", "test")}
    y, names = np.where(small_graph.y == 2, 0, 1), ["fraud", "honest"]
    two = Graph(small_graph.x, small_graph.edge_index, y, class_names=names, **masks)
    for metric, expected in (("average_precision", "fraud"), ("accuracy", None)):
        spec, _, _ = make_tune_spec(two, two.name, {"metric": metric}, "cpu", None)
        assert spec.run.positive == spec.identity(two).get("positive") == expected


def test_a_search_in_which_nothing_can_be_trained_reports_the_first_error(
    small_graph, tmp_path, monkeypatch
):
    remedy = Remedy("Train in batches", setting="batch_size", value=8)
    failing(monkeypatch, HPGMNError("Out of memory.", remedy))
    with pytest.raises(HPGMNError, match="The first error: Out of mem") as caught:
        hpgmn.tune(small_graph, 2, study=tmp_path / "a.db", **QUICK)
    assert caught.value.remedy == remedy
    with pytest.raises(HPGMNError, match="The first error: Out of mem"):  # that of the study
        hpgmn.tune(small_graph, 2, study=tmp_path / "a.db", **QUICK)


def test_a_study_without_trials_is_not_shown_but_continued(small_graph, tmp_path):
    with open_study(tmp_path / "a.db"):
        pass  # the search was killed before its first trial
    with pytest.raises(HPGMNError, match="holds no trial yet"):
        hpgmn.tune(small_graph, 0, study=tmp_path / "a.db")
    assert hpgmn.tune(small_graph, 1, study=tmp_path / "a.db", **QUICK).done == 1


def test_code_is_imported_only_when_the_user_names_it(small_graph, tmp_path, monkeypatch):
    (tmp_path / "own_code.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with open_study(tmp_path / "a.db") as study:
        claim(study, tmp_path / "a.db", {"model": "own_code:Model"})
    with pytest.raises(HPGMNError, match="only when you name it") as caught:
        hpgmn.tune(small_graph, 0, study=tmp_path / "a.db")
    assert caught.value.remedy.value == "own_code:Model"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "no study .* to show"),
        ({"trials": -1}, "0 or more"),
        ({"trials": 2, "timeout": 0}, "above 0 seconds"),
        ({"trials": 2, "space": "our"}, "Unknown space"),
        ({"trials": 2, "splits": 7}, "Unknown split 7"),
        ({"trials": 2, "settings": {"lrr": 1}}, "Unknown setting 'lrr'"),
        ({"trials": 2, "settings": {"batch_size": 2, "consistency_weight": 1}}, "batch_size=0"),
    ],
)
def test_a_refused_search_leaves_no_folder(small_graph, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HPGMNError, match=message):
        hpgmn.tune(small_graph, **options)
    assert list(tmp_path.iterdir()) == []
