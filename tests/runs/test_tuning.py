"""The search kept in a study: what it tries, what it repeats, and what it never reads."""

import dataclasses
import math
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.engines.processes import LocalEngine
from hpgmn.graph import Graph
from hpgmn.models import MODELS, find_model, read_config
from hpgmn.runs import tune as tuning_tasks
from hpgmn.runs import tuning
from hpgmn.runs.search import planned_trials, run_trials
from hpgmn.runs.spaces import literature, paper_space, space_for
from hpgmn.runs.tune import tune_on
from hpgmn.runs.tuning import (
    Choices,
    HopelessTrialError,
    Judged,
    TuneSpec,
    Tuning,
    check_names,
    is_done,
    recalled_trials,
    study_value,
    train_trial,
)
from hpgmn.training.replicas import Progress

tune_here = partial(tune_on, LocalEngine())

MLP = TuneSpec(
    "small", "mlp", splits=(0, 1), fixed={"epochs": 3, "hidden_dim": 4}, sampler="random"
)
TPE = dataclasses.replace(MLP, sampler="tpe")
GRAPHS = ("texas", "squirrel", "crocodile", "cora", "mine")


@pytest.fixture(autouse=True)
def quiet():
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


@pytest.fixture
def study():
    return new_study()


def new_study():
    import optuna

    return optuna.create_study(direction="maximize")


def with_labels(graph, y, name=None):
    splits = graph.splits
    assert splits is not None
    masks = {f"{part}_mask": getattr(splits, part) for part in ("train", "val", "test")}
    return Graph(graph.x, graph.edge_index, y, name=name or graph.name, **masks)


def settings_by_place(study):
    done = [one for one in study.get_trials() if is_done(one)]
    done.sort(key=lambda one: int(one.user_attrs["place"]))
    return [one.user_attrs["settings"] for one in done]


def states(study):
    return [one.state.name for one in study.get_trials()]


def full(model, *parts):
    values: dict[str, Any] = {}
    for part in parts:
        values |= part
    return settings_dict(make_settings(find_model(model).settings, values))


# The space.


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", GRAPHS)
def test_every_value_of_every_space_is_known_again_by_its_word(small_graph, model, name):
    graph = with_labels(small_graph, small_graph.y, name)
    choices = Choices.of(TuneSpec(name, model), graph)
    cls = find_model(model).settings
    for setting, words in choices.items():
        assert [words[one] for one in words] == list(space_for(model, name)[setting])
        for one, value in words.items():
            assert isinstance(one, str | int | float | bool)
            assert study_value(settings_dict(make_settings(cls, {setting: value}))[setting]) == one


def test_fixed_settings_and_single_values_are_not_searched(small_graph):
    choices = Choices.of(TuneSpec("small", "mlp", fixed={"lr": 0.5}), small_graph)
    space = space_for("mlp", "small")
    assert set(choices) == {n for n, values in space.items() if len(values) > 1} - {"lr"}
    assert "epochs" in space
    assert "epochs" not in choices


def test_a_space_of_which_nothing_is_left_is_refused(small_graph):
    fixed = {name: values[0] for name, values in paper_space().items()}
    with pytest.raises(SettingError, match="Nothing is left to search"):
        Choices.of(TuneSpec("small", space="paper", fixed=fixed), small_graph)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("our", "tpe", "hpgmn"), "Unknown space 'our'. Did you mean 'ours'"),
        (("ours", "tp", "hpgmn"), "Unknown sampler 'tp'. Did you mean 'tpe'"),
        (("ours", "tpe", "hpgm"), "Unknown model 'hpgm'"),
        (("paper", "tpe", "mlp"), "The space of the paper is for hpgmn only"),
    ],
)
def test_unknown_names_are_refused(names, message):
    with pytest.raises(HPGMNError, match=message):
        check_names(*names)


def test_known_names_are_accepted():
    check_names("paper", "random", "hpgmn")
    check_names("ours", "tpe", "mlp")


# What is tried.


def test_the_random_search_is_the_one_of_comparison_tables(study, small_graph):
    tune_here(Tuning(study, MLP, small_graph), 5)
    planned = planned_trials("mlp", "small", 5)
    fixed = dict(MLP.fixed)
    assert [one.number for one in study.trials] == list(range(5))
    assert settings_by_place(study) == [full("mlp", trial, fixed) for trial in planned]
    trials = [trial | fixed for trial in planned]
    records = run_trials(small_graph, "mlp", trials, splits=[0, 1])
    assert [one.value for one in study.trials] == [one["val_score_mean"] for one in records]
    for one, found in zip(study.trials, records, strict=True):
        assert one.user_attrs["record"]["val_score"] == found["val_score"]
        assert one.user_attrs["record"]["best_epoch"] == found["best_epoch"]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_literature_comes_first_though_it_lies_outside_the_space(study, small_graph, sampler):
    graph = with_labels(small_graph, small_graph.y, "squirrel")
    known = literature("gcnii", "squirrel")
    space = space_for("gcnii", "squirrel")
    outside = [name for name, value in known.items() if value not in space.get(name, [value])]
    assert outside, "choose another model to test with"
    trial = Tuning(study, TuneSpec("squirrel", "gcnii", sampler=sampler), graph).begin(0)
    effective = full("gcnii", known)
    assert trial.user_attrs["settings"] == effective
    inside = {n: effective[n] for n, v in space.items() if len(v) > 1 and effective[n] in v}
    assert trial.params == inside
    assert not set(outside) & set(trial.params)


def test_the_paper_is_searched_on_top_of_its_settings(study, small_graph):
    paper = read_config("paper")["settings"]
    spec = TuneSpec("small", space="paper", fixed={"epochs": 7})
    search = Tuning(study, spec, small_graph)
    first, second = search.begin(0), search.begin(1)
    assert first.user_attrs["settings"] == full("hpgmn", paper, {"epochs": 7})
    drawn = second.params
    assert set(drawn) == set(paper_space())
    assert second.user_attrs["settings"] == full("hpgmn", paper, drawn, {"epochs": 7})
    planned = Tuning(new_study(), dataclasses.replace(spec, sampler="random"), small_graph)
    plan = planned_trials("hpgmn", "small", 3, paper_space())
    for place in range(3):
        settings = planned.begin(place).user_attrs["settings"]
        assert settings == full("hpgmn", paper, plan[place], {"epochs": 7})


def test_drawn_settings_are_those_of_the_study(study, small_graph):
    """Tuples are words in the study and lists in the settings; single values are there, too."""
    search = Tuning(study, TuneSpec("small", "hpgmn", fixed={"lr": 0.02}), small_graph)
    search.begin(0)
    trial = search.begin(1)
    settings = trial.user_attrs["settings"]
    choices = Choices.of(search.spec, small_graph)
    assert trial.params.keys() == choices.keys()
    assert settings["statistics"] == trial.params["statistics"].split(",")
    for name, chosen in trial.params.items():
        assert study_value(settings[name]) == chosen
    assert settings["lr"] == 0.02
    assert settings["num_patterns"] == 50 == space_for("hpgmn", "small")["num_patterns"][0]


def test_a_cut_off_search_goes_on_as_if_it_had_not_been(small_graph):
    """Beyond the ten random trials that TPE starts with, and with trials that were cut off."""
    whole = new_study()
    tune_here(Tuning(whole, TPE, small_graph), 14)
    parts = new_study()
    tune_here(Tuning(parts, TPE, small_graph), 3)
    Tuning(parts, TPE, small_graph).begin(3)  # … and the process is killed
    tune_here(Tuning(parts, TPE, small_graph), 12)
    Tuning(parts, TPE, small_graph).begin(12)
    search = Tuning(parts, TPE, small_graph)
    assert search.places(14) == [12, 13]
    tune_here(search, 14)
    assert states(parts).count("FAIL") == 2
    assert states(parts).count("COMPLETE") == 14
    assert settings_by_place(parts) == settings_by_place(whole)
    tried = [str(settings) for settings in settings_by_place(whole)]
    assert len(set(tried)) > 8


def test_a_trial_that_was_cut_off_is_repeated_with_its_settings(study, small_graph):
    """Also where others have finished meanwhile, so that the sampler would draw otherwise."""
    search = Tuning(study, TPE, small_graph, workers=2)
    first, second = search.begin(0), search.begin(1)
    search.abandon(second)
    search.end(first, train_trial(small_graph, TPE, first.user_attrs["settings"], no, never))
    again = search.begin(1)
    assert again.number == 2
    assert again.params == second.params
    assert again.user_attrs["settings"] == second.user_attrs["settings"]


def test_a_trial_that_waits_for_its_turn_is_not_left_over(study, small_graph):
    study.enqueue_trial({"lr": 0.01})
    search = Tuning(study, MLP, small_graph)
    assert states(study) == ["FAIL"]
    tune_here(search, 2)
    assert states(study) == ["FAIL", "COMPLETE", "COMPLETE"]


@pytest.fixture
def _short_recall(monkeypatch):
    monkeypatch.setattr(tuning, "RECALLED_BEST", 2)
    monkeypatch.setattr(tuning, "RECALLED_LATEST", 3)


@pytest.mark.usefixtures("_short_recall")
def test_the_best_and_the_latest_trials_are_recalled(study):
    import optuna

    scores = [0.9, 0.1, 0.8, None, 0.2, 0.3, 0.4, 0.85]
    for score in scores:
        trial = study.ask()
        state = None if score is not None else optuna.trial.TrialState.FAIL
        study.tell(trial, score, state=state)
    trials = study.get_trials()
    assert recalled_trials(trials[:6], False) is None  # five that have ended are not too many
    recalled = recalled_trials(trials, False)
    assert recalled is not None
    assert [one.number for one in recalled] == [0, 5, 6, 7]
    study.ask()
    recalled = recalled_trials(study.get_trials(), True)
    assert recalled is not None
    assert [one.number for one in recalled] == [0, 5, 6, 7, 8]


@pytest.mark.usefixtures("_short_recall")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_long_search_goes_on_as_if_it_had_not_been_cut_off(small_graph, workers):
    def tried(*counts):
        study = new_study()
        for count in counts:
            tune_here(Tuning(study, TPE, small_graph, workers), count)
        return settings_by_place(study)

    whole = tried(9)
    assert whole == tried(7, 9)
    assert len({str(one) for one in whole}) > 5


def no(epoch, score):
    return False


def never():
    return False


# Test labels.


@pytest.mark.parametrize("spec", [MLP, TPE])
def test_other_test_labels_change_nothing(small_graph, spec):
    splits = small_graph.splits
    assert splits is not None
    y, hidden = small_graph.y.copy(), splits.test.all(axis=1)
    assert hidden.any()
    y[hidden] = (y[hidden] + 1) % 3
    other = with_labels(small_graph, y)
    assert spec.identity(small_graph) == spec.identity(other)
    found = []
    for graph in (small_graph, other):
        study_value = new_study()
        tune_here(Tuning(study_value, spec, graph), 12)
        found.append(
            [(one.params, one.value, one.intermediate_values) for one in study_value.trials]
        )
        for one in study_value.trials:
            assert "test" not in " ".join(one.user_attrs["record"])
    assert found[0] == found[1]


def test_the_identity_names_all_that_a_search_depends_on(small_graph):
    splits = small_graph.splits
    assert splits is not None
    before = MLP.identity(small_graph)
    y = small_graph.y.copy()
    node = np.flatnonzero(splits.val[:, 0])[0]
    y[node] = (y[node] + 1) % 3
    assert MLP.identity(with_labels(small_graph, y))["content"] != before["content"]
    changes: dict[str, Any] = {
        "model": "gcn",
        "sampler": "tpe",
        "splits": (0,),
        "seeds": 2,
        "protocol": "x",
        "metric": "roc_auc",
        "fixed": {"epochs": 4},
    }
    for name, value in changes.items():
        changed = dataclasses.replace(MLP, **{name: value}).identity(small_graph)
        assert changed[name] != before[name]
    for name, other in {"device": "cuda", "pruning": False}.items():
        assert dataclasses.replace(MLP, **{name: other}).identity(small_graph) == before


# Giving up.


def progress(epoch, score=0.5, stage="main", batches=1):
    return Progress(0, batches, stage, epoch, 300, 1.0, score)


def test_a_trial_is_judged_every_so_many_epochs_of_its_last_stage():
    asked: list[tuple[int, float]] = []
    judged = Judged("main", lambda epoch, score: bool(asked.append((epoch, score))))
    judged(progress(200, stage="estimator"))
    judged(progress(200, math.nan))
    judged(progress(200, batches=2))
    for epoch in (1, 19, 20, 21, 39, 47, 59, 120, 119):
        judged(progress(epoch, epoch / 1000))
    assert asked == [(20, 0.02), (40, 0.047), (120, 0.12)]


def test_a_hopeless_trial_is_not_trained_on(small_graph):
    spec = TuneSpec("small", "mlp", splits=(0, 1), fixed={})
    asked: list[int] = []

    def judge(epoch, score):
        asked.append(epoch)
        return epoch >= 40

    with pytest.raises(HopelessTrialError):
        train_trial(small_graph, spec, {"epochs": 200, "patience": 0}, judge, never)
    assert asked == [20, 40]


def curves(monkeypatch, scores):
    """Trials with the given scores at every judged epoch; returns where trials ended."""
    ends: list[int] = []

    def train(graph, spec, settings, judge, *_):
        score = scores[len(ends)]
        for epoch in range(20, 101, 20):
            if judge(epoch, score):
                ends.append(epoch)
                raise HopelessTrialError
        ends.append(300)
        record = dict.fromkeys(("best_epoch", "seconds", "device", "version"), 0)
        return record | {"val_score": [score], "val_loss": [1.0], "val_score_mean": score}

    monkeypatch.setattr(tuning_tasks, "train_trial", train)
    return ends


def test_trials_below_the_median_are_given_up_after_a_while(study, small_graph, monkeypatch):
    ends = curves(monkeypatch, [0.1, 0.5, 0.6, 0.7, 0.8, 0.2, 0.9])
    tune_here(Tuning(study, TPE, small_graph), 7)
    assert ends == [300] * 5 + [60, 300]
    assert states(study) == ["COMPLETE"] * 5 + ["PRUNED", "COMPLETE"]


def test_nothing_is_given_up_without_pruning(study, small_graph, monkeypatch):
    curves(monkeypatch, [0.5, 0.5, 0.6, 0.7, 0.8, 0.2])
    tune_here(Tuning(study, dataclasses.replace(TPE, pruning=False), small_graph), 6)
    assert states(study) == ["COMPLETE"] * 6
    assert study.trials[5].intermediate_values == dict.fromkeys(range(20, 101, 20), 0.2)


# Trials that end otherwise.


def failing(monkeypatch, error):
    def train(*_):
        raise error

    monkeypatch.setattr(tuning_tasks, "train_trial", train)


def test_a_trial_that_cannot_be_trained_is_not_run_again(study, small_graph, monkeypatch):
    failing(monkeypatch, HPGMNError("Out of memory."))
    search = Tuning(study, TPE, small_graph)
    told: list[int] = []
    tune_here(search, 2, on_trial=lambda: told.append(len(study.trials)))
    assert told == [1, 2]
    assert [one.user_attrs["error"] for one in study.trials] == ["Out of memory."] * 2
    assert search.places(3) == [2]


def test_settings_that_exclude_each_other_end_one_trial(study, small_graph):
    """batch_size and consistency_weight are both allowed, but not together."""
    fixed = {"batch_size": 2, "consistency_weight": 1.0}
    tune_here(Tuning(study, TuneSpec("small", "hpgmn", fixed=fixed), small_graph), 2)
    assert states(study) == ["FAIL", "FAIL"]
    assert all("batch_size=0" in one.user_attrs["error"] for one in study.trials)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (ZeroDivisionError(), RuntimeError)],
)
def test_an_interrupted_trial_is_to_be_run_again(study, small_graph, monkeypatch, error, raised):
    failing(monkeypatch, error)
    search = Tuning(study, TPE, small_graph)
    with pytest.raises(raised):
        tune_here(search, 2)
    assert states(study) == ["FAIL"]
    assert search.places(2) == [0, 1]


def test_ctrl_c_ends_the_training_of_a_trial(study, small_graph):
    search = Tuning(study, TPE, small_graph)
    asked = iter([False])
    with pytest.raises(KeyboardInterrupt):
        tune_here(search, 2, should_stop=lambda: next(asked, True))
    assert states(study) == ["FAIL"]


def test_no_trial_begins_after_the_deadline(study, small_graph, monkeypatch):
    now = 10.0
    monkeypatch.setattr("hpgmn.runs.tune.time.monotonic", lambda: now)

    def told():
        nonlocal now
        now += 1

    tune_here(Tuning(study, TPE, small_graph), 9, deadline=11.5, on_trial=told)
    assert len(study.trials) == 2


def test_nothing_is_warned_of(study, small_graph):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tune_here(Tuning(study, TPE, small_graph, workers=2), 12)


def test_several_workers_draw_differently_from_the_first(small_graph):
    """Trials that run at the same time do not repeat each other."""
    search = Tuning(new_study(), TPE, small_graph, workers=4)
    drawn = [str(search.begin(place).params) for place in range(5)]
    assert len(set(drawn)) == 5
