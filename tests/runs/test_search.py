"""The search kept in a study: what it tries, what it repeats, and what it never reads."""

import dataclasses
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
from hpgmn.runs import search as module
from hpgmn.runs.search import Search, TuneSpec, check_names, sample_for_sampler, study_value
from hpgmn.runs.spec import RunSpec
from hpgmn.runs.study import is_done
from hpgmn.runs.trials import literature, paper_space, planned_trials, run_trials, space_for
from hpgmn.runs.tune import run_search

run_here = partial(run_search, LocalEngine())
GRAPHS = ("texas", "squirrel", "crocodile", "cora", "mine")


def spec_of(model="hpgmn", fixed=None, graph="small", **options):
    return TuneSpec(RunSpec(graph, model, fixed or {}, (0, 1)), **options)


MLP = spec_of("mlp", {"epochs": 3, "hidden_dim": 4}, sampler="random")
TPE = dataclasses.replace(MLP, sampler="tpe")


def new_study():
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(direction="maximize")


@pytest.fixture
def study():
    return new_study()


def with_labels(graph, y, name=None):
    masks = {f"{part}_mask": getattr(graph.splits, part) for part in ("train", "val", "test")}
    return Graph(graph.x, graph.edge_index, y, name=name or graph.name, **masks)


def settings_by_place(study):
    done = [trial for trial in study.get_trials() if is_done(trial)]
    done.sort(key=lambda trial: int(trial.user_attrs["place"]))
    return [trial.user_attrs["settings"] for trial in done]


def states(study):
    return [trial.state.name for trial in study.get_trials()]


def full(model, *parts):
    values: dict[str, Any] = {}
    for part in parts:
        values |= part
    return settings_dict(make_settings(find_model(model).settings, values))


# The space.


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", GRAPHS)
def test_every_value_of_every_space_is_recognised_as_the_study_stores_it(small_graph, model, name):
    choices = spec_of(model).choices(with_labels(small_graph, small_graph.y, name))
    cls = find_model(model).settings
    for setting, stored in choices.items():
        assert list(stored.values()) == list(space_for(model, name)[setting])
        for text, value in stored.items():
            assert isinstance(text, str | int | float | bool)
            assert study_value(settings_dict(make_settings(cls, {setting: value}))[setting]) == text


def test_fixed_settings_and_single_values_are_not_searched(small_graph):
    choices = spec_of("mlp", {"lr": 0.5}).choices(small_graph)
    space = space_for("mlp", "small")
    assert set(choices) == {n for n, values in space.items() if len(values) > 1} - {"lr"}
    assert "epochs" in space
    assert "epochs" not in choices
    fixed = {name: values[0] for name, values in paper_space().items()}
    with pytest.raises(SettingError, match="Nothing is left to search"):
        spec_of(fixed=fixed, space="paper").choices(small_graph)


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
    check_names("paper", "random", "hpgmn")
    check_names("ours", "tpe", "mlp")


# What is tried.


def test_the_random_search_is_the_one_of_comparison_tables(study, small_graph):
    run_here(Search(study, MLP, small_graph), 5)
    fixed = MLP.run.settings
    planned = planned_trials("mlp", "small", 5)
    assert [trial.number for trial in study.trials] == list(range(5))
    assert settings_by_place(study) == [full("mlp", trial, fixed) for trial in planned]
    trials = [trial | fixed for trial in planned]
    records = run_trials(small_graph, "mlp", trials, splits=[0, 1])
    for trial, record in zip(study.trials, records, strict=True):
        assert trial.value == record["val_score_mean"]
        assert trial.user_attrs["record"]["val_score"] == record["val_score"]
        assert trial.user_attrs["record"]["best_epoch"] == record["best_epoch"]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_literature_comes_first_though_it_lies_outside_the_space(study, small_graph, sampler):
    graph = with_labels(small_graph, small_graph.y, "squirrel")
    known = literature("gcnii", "squirrel")
    space = space_for("gcnii", "squirrel")
    outside = [name for name, value in known.items() if value not in space.get(name, [value])]
    assert outside, "choose another model to test with"
    trial = Search(study, spec_of("gcnii", sampler=sampler), graph).start(0)
    effective = full("gcnii", known)
    assert trial.user_attrs["settings"] == effective
    inside = {n: effective[n] for n, v in space.items() if len(v) > 1 and effective[n] in v}
    assert trial.params == inside
    assert not set(outside) & set(trial.params)


def test_the_paper_is_searched_on_top_of_its_settings(study, small_graph):
    paper = read_config("paper")["settings"]
    spec = spec_of(fixed={"epochs": 7}, space="paper")
    search = Search(study, spec, small_graph)
    first, second = search.start(0), search.start(1)
    assert first.user_attrs["settings"] == full("hpgmn", paper, {"epochs": 7})
    drawn = second.params
    assert set(drawn) == set(paper_space())
    assert second.user_attrs["settings"] == full("hpgmn", paper, drawn, {"epochs": 7})
    planned = Search(new_study(), dataclasses.replace(spec, sampler="random"), small_graph)
    plan = planned_trials("hpgmn", "small", 3, paper_space())
    for place in range(3):
        settings = planned.start(place).user_attrs["settings"]
        assert settings == full("hpgmn", paper, plan[place], {"epochs": 7})


def test_drawn_settings_are_those_of_the_study(study, small_graph):
    """Tuples are texts in the study and lists in the settings; single values are included."""
    search = Search(study, spec_of(fixed={"lr": 0.02}), small_graph)
    search.start(0)
    trial = search.start(1)
    settings = trial.user_attrs["settings"]
    assert trial.params.keys() == search.spec.choices(small_graph).keys()
    assert settings["statistics"] == trial.params["statistics"].split(",")
    for name, chosen in trial.params.items():
        assert study_value(settings[name]) == chosen
    assert settings["lr"] == 0.02
    assert settings["num_patterns"] == 50 == space_for("hpgmn", "small")["num_patterns"][0]


def test_an_interrupted_search_continues_as_if_it_had_not_been(small_graph):
    """Beyond the ten random trials that TPE starts with, and with interrupted trials."""
    whole = new_study()
    run_here(Search(whole, TPE, small_graph), 14)
    parts = new_study()
    run_here(Search(parts, TPE, small_graph), 3)
    Search(parts, TPE, small_graph).start(3)  # … and the process is killed
    run_here(Search(parts, TPE, small_graph), 12)
    Search(parts, TPE, small_graph).start(12)
    search = Search(parts, TPE, small_graph)
    assert search.pending(14) == [12, 13]
    run_here(search, 14)
    assert states(parts).count("FAIL") == 2
    assert states(parts).count("COMPLETE") == 14
    assert settings_by_place(parts) == settings_by_place(whole)
    assert len({str(settings) for settings in settings_by_place(whole)}) > 8


def test_an_interrupted_trial_is_repeated_with_its_settings(study, small_graph):
    """Also where others have finished meanwhile, so that the sampler would draw otherwise."""
    search = Search(study, TPE, small_graph, workers=2)
    first, second = search.start(0), search.start(1)
    search.fail(second)
    record = dict.fromkeys(("best_epoch", "seconds", "device", "version", "val_score"), 0)
    search.finish(first, record | {"val_loss": [1.0], "val_score_mean": 0.5})
    again = search.start(1)
    assert again.number == 2
    assert again.params == second.params
    assert again.user_attrs["settings"] == second.user_attrs["settings"]


def test_a_trial_that_waits_is_not_left_over(study, small_graph):
    study.enqueue_trial({"lr": 0.01})
    search = Search(study, MLP, small_graph)
    assert states(study) == ["FAIL"]
    run_here(search, 2)
    assert states(study) == ["FAIL", "COMPLETE", "COMPLETE"]


@pytest.fixture
def _short_sample(monkeypatch):
    monkeypatch.setattr(module, "SAMPLED_BEST", 2)
    monkeypatch.setattr(module, "SAMPLED_LATEST", 3)


@pytest.mark.usefixtures("_short_sample")
def test_the_sampler_sees_the_best_and_the_latest_trials(study):
    import optuna

    for score in (0.9, 0.1, 0.8, None, 0.2, 0.3, 0.4, 0.85):
        state = None if score is not None else optuna.trial.TrialState.FAIL
        study.tell(study.ask(), score, state=state)
    trials = study.get_trials()
    assert sample_for_sampler(trials[:6], False) is None  # five that have ended are not too many
    assert [trial.number for trial in sample_for_sampler(trials, False)] == [0, 5, 6, 7]
    study.ask()
    shared = sample_for_sampler(study.get_trials(), True)
    assert [trial.number for trial in shared] == [0, 5, 6, 7, 8]


@pytest.mark.usefixtures("_short_sample")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_long_search_continues_as_if_it_had_not_been_interrupted(small_graph, workers):
    def tried(*counts):
        study = new_study()
        for count in counts:
            run_here(Search(study, TPE, small_graph, workers), count)
        return settings_by_place(study)

    whole = tried(9)
    assert whole == tried(7, 9)
    assert len({str(settings) for settings in whole}) > 5


def test_several_workers_draw_differently_and_without_warnings(small_graph):
    """Trials that run at the same time do not repeat each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search = Search(new_study(), TPE, small_graph, workers=4)
        drawn = [str(search.start(place).params) for place in range(5)]
        run_here(Search(new_study(), TPE, small_graph, workers=2), 12)
    assert len(set(drawn)) == 5


# What it depends on.


@pytest.mark.parametrize("spec", [MLP, TPE])
def test_other_test_labels_change_nothing(small_graph, spec):
    y, hidden = small_graph.y.copy(), small_graph.splits.test.all(axis=1)
    assert hidden.any()
    y[hidden] = (y[hidden] + 1) % 3
    other = with_labels(small_graph, y)
    assert spec.identity(small_graph) == spec.identity(other)
    results = []
    for graph in (small_graph, other):
        study = new_study()
        run_here(Search(study, spec, graph), 12)
        results.append([(t.params, t.value, t.intermediate_values) for t in study.trials])
        assert not any("test" in " ".join(t.user_attrs["record"]) for t in study.trials)
    assert results[0] == results[1]


def test_the_identity_names_all_that_a_search_depends_on(small_graph):
    before = MLP.identity(small_graph)
    assert list(before) == [
        *("graph", "model", "space", "sampler", "splits", "seeds", "protocol", "metric", "fixed"),
        *("values", "content"),
    ]
    y = small_graph.y.copy()
    node = np.flatnonzero(small_graph.splits.val[:, 0])[0]
    y[node] = (y[node] + 1) % 3
    assert MLP.identity(with_labels(small_graph, y))["content"] != before["content"]
    assert TPE.identity(small_graph)["sampler"] == "tpe"
    changes: dict[str, Any] = {
        "model": "gcn",
        "splits": (0,),
        "seeds": 2,
        "protocol": "x",
        "metric": "roc_auc",
        "positive": "a",
        "deterministic": True,
    }
    for name, value in changes.items():
        run = dataclasses.replace(MLP.run, **{name: value})
        assert dataclasses.replace(MLP, run=run).identity(small_graph)[name] != before.get(name)
    run = dataclasses.replace(MLP.run, settings={"epochs": 4})
    assert dataclasses.replace(MLP, run=run).identity(small_graph)["fixed"] == {"epochs": 4}
    run = dataclasses.replace(MLP.run, device="cuda")
    assert dataclasses.replace(MLP, run=run, pruning=False).identity(small_graph) == before
