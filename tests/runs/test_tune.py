"""The trials of a search as tasks: what they find, and what becomes of those that are lost."""

import dataclasses

import pytest

import hpgmn
from hpgmn.base.errors import HPGMNError
from hpgmn.engines.processes import LocalEngine
from hpgmn.runs import tune as tuning_tasks
from hpgmn.runs.search import run_trials
from hpgmn.runs.tune import trial_task, tune_on
from hpgmn.runs.tuning import HopelessTrialError, TuneSpec, Tuning

SPEC = TuneSpec("small", "mlp", splits=(0, 1), fixed={"epochs": 25, "patience": 0, "hidden_dim": 4})


def new_study():
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(direction="maximize")


def states(study):
    return [one.state.name for one in study.get_trials()]


def test_trials_are_those_of_this_process(small_graph, here_engine):
    there, here, told = new_study(), new_study(), []
    engine = here_engine()
    tune_on(engine, Tuning(there, SPEC, small_graph), 4, on_trial=lambda: told.append(1))
    tune_on(LocalEngine(), Tuning(here, SPEC, small_graph), 4)
    assert len(told) == engine.options["max_tasks"] == 4
    for one, other in zip(there.trials, here.trials, strict=True):
        assert one.value == other.value
        assert one.intermediate_values == other.intermediate_values != {}
        assert one.user_attrs["settings"] == other.user_attrs["settings"]
    settings = [one.user_attrs["settings"] for one in here.trials]
    records = run_trials(small_graph, "mlp", settings, splits=[0, 1])
    assert [one.value for one in here.trials] == [one["val_score_mean"] for one in records]
    tune_on(engine, Tuning(there, SPEC, small_graph), 4)
    assert len(there.trials) == 4, "nothing was left to do"


@pytest.mark.slow
def test_processes_find_what_one_process_finds(small_graph):
    spec = dataclasses.replace(SPEC, sampler="random")
    many, one, lost = new_study(), new_study(), []
    tune_on(LocalEngine(2), Tuning(many, spec, small_graph, workers=2), 4, on_lost=lost.append)
    tune_on(LocalEngine(), Tuning(one, spec, small_graph), 4)
    assert lost == []
    for study in (many, one):
        assert sorted(trial.user_attrs["place"] for trial in study.trials) == [0, 1, 2, 3]
    found = [
        sorted((trial.user_attrs["place"], trial.value) for trial in study.trials)
        for study in (many, one)
    ]
    assert found[0] == found[1]


def test_ends_become_states(small_graph, here_engine, monkeypatch):
    ends = iter([HopelessTrialError(), HPGMNError("Too large."), None])
    genuine = tuning_tasks.train_trial

    def train(*arguments):
        end = next(ends)
        if end is not None:
            raise end
        return genuine(*arguments)

    monkeypatch.setattr(tuning_tasks, "train_trial", train)
    study = new_study()
    tuning = Tuning(study, SPEC, small_graph)
    tune_on(here_engine(), tuning, 3)
    assert states(study) == ["PRUNED", "FAIL", "COMPLETE"]
    assert study.trials[1].user_attrs["error"] == "Too large."
    assert tuning.places(3) == []


def test_a_task_asks_whether_to_go_on(small_graph, here_engine):
    asked = []

    def answer(name, message):
        asked.append(message[0])
        return len(asked) == 2

    line = here_engine()
    line.name, line.on_message = "0", answer
    spec = dataclasses.replace(SPEC, fixed={})
    found = trial_task((spec, {"epochs": 100, "patience": 0}), small_graph, line)
    assert found == ("hopeless", None)
    assert asked == [20, 40]


@pytest.mark.parametrize("count", [1, 2])
def test_a_lost_trial_is_run_again_but_not_for_ever(small_graph, here_engine, count):
    study, lost = new_study(), []
    tuning = Tuning(study, SPEC, small_graph)
    names = tuple(str(number) for number in range(count))
    tune_on(here_engine(lost=names), tuning, 2, on_lost=lost.append)
    assert lost == [f"Trial {number} counts as failed. Gone." for number in range(count)]
    places = [one.user_attrs["place"] for one in study.trials]
    assert places == [0, 0, 1]
    assert tuning.places(2) == ([] if count == 1 else [0])


@pytest.mark.parametrize(
    ("error", "raised"), [(ZeroDivisionError("bug"), RuntimeError), (HPGMNError("No."), HPGMNError)]
)
def test_what_fails_outside_of_a_trial_ends_the_search(
    small_graph, here_engine, monkeypatch, error, raised
):
    def task(*arguments):
        raise error

    monkeypatch.setattr(tuning_tasks, "trial_task", task)
    study = new_study()
    with pytest.raises(raised):
        tune_on(here_engine(), Tuning(study, SPEC, small_graph), 2)
    assert states(study) == ["FAIL"]


def test_no_trial_begins_after_the_deadline(small_graph, here_engine):
    study = new_study()
    tune_on(here_engine(), Tuning(study, SPEC, small_graph), 2, deadline=0.0)
    assert states(study) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "no study .* to show"),
        ({"trials": -1}, "0 or more"),
        ({"trials": 2, "timeout": 0}, "above 0 seconds"),
        ({"trials": 2, "space": "our"}, "Unknown space"),
        ({"trials": 2, "splits": 7}, "Unknown split 7"),
    ],
)
def test_a_refused_search_leaves_no_folder(small_graph, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HPGMNError, match=message):
        hpgmn.tune(small_graph, **options)
    assert list(tmp_path.iterdir()) == []
