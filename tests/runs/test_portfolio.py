"""The portfolio: what is tried, who wins, and what may not matter."""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpgmn import HPGMNClassifier
from hpgmn import choose as public_choose
from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import find_model
from hpgmn.runs import portfolio
from hpgmn.runs.portfolio import (
    Choice,
    Member,
    choose,
    members_for,
    portfolio_members,
    splits_to_try,
)
from hpgmn.runs.trials import run_trials
from hpgmn.training.replicas import Progress

SHORT: dict[str, Any] = {
    "hidden_dim": 6,
    "num_patterns": 5,
    "estimator_hidden": 6,
    "epochs": 6,
    "patience": 0,
    "estimator_epochs": 4,
    "neighbors": "undirected",
}
OUT = Member("out", "hpgmn", SHORT | {"neighbors": "out", "lr": 0.003})
ALL = Member("all", "hpgmn", SHORT | {"lr": 0.03})
PLAIN = Member("plain", "hpgmn", SHORT | {"statistics": ("attributes",)})
WRONG = Member("wrong", "hpgmn", {"batch_size": 4, "statistics": ("neighbor_attributes",)})
ALIKE = Member(
    "alike",
    "hpgmn-gcn",
    {"epochs": 4, "pretraining_epochs": 4, "hidden_dim": 6, "query_dim": 6, "num_patterns": 5},
)
MEMBERS = (OUT, PLAIN, ALL, ALIKE)
MEMBER_KEYS = {
    *("name", "model", "settings", "val_score", "val_score_mean", "val_loss_mean", "seconds"),
    "failure",
}


def other_test_labels(graph):
    """The same graph with other labels on all nodes that are test nodes of both splits."""
    splits = graph.splits
    assert splits is not None
    y, hidden = graph.y.copy(), splits.test.all(axis=1)
    assert hidden.any()
    y[hidden] = (y[hidden] + 1) % 3
    masks = {f"{part}_mask": getattr(splits, part) for part in ("train", "val", "test")}
    return Graph(graph.x, graph.edge_index, y, name=graph.name, **masks)


def without_seconds(content):
    rows = [{key: row[key] for key in row if key != "seconds"} for row in content["members"]]
    return content | {"seconds": 0, "members": rows}


# How much is tried.


@pytest.mark.parametrize(
    ("enough", "expected"), [(1000, [2, 0, 1, 3, 5]), (7, [2, 0, 1]), (6, [2, 0]), (3, [2])]
)
def test_as_many_splits_as_have_enough_validation_nodes_five_at_most(
    ring, monkeypatch, enough, expected
):
    monkeypatch.setattr(portfolio, "ENOUGH_NODES", enough)
    assert splits_to_try(ring(12, splits=6), [2, 0, 1, 3, 5, 4]) == expected


def test_members_of_equal_shapes_are_trained_as_one(small_graph, monkeypatch):
    together: list[list[float]] = []

    def noted(graph, model, trials, **options):
        together.append([trial.get("lr") for trial in trials])
        return run_trials(graph, model, trials, **options)

    monkeypatch.setattr(portfolio, "run_trials", noted)
    choice = choose(small_graph, members=MEMBERS)
    assert together == [[0.003, 0.03], [None], [None]]
    assert [row["name"] for row in choice.as_dict()["members"]] == [one.name for one in MEMBERS]


def slow(monkeypatch):
    """A clock on which every look takes a second."""
    looks = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(looks)))


def test_after_the_budget_no_member_is_trained_but_the_first_are(small_graph, monkeypatch):
    slow(monkeypatch)
    choice = choose(small_graph, members=MEMBERS, budget=1.0)
    rows = {row["name"]: row for row in choice.as_dict()["members"]}
    assert rows["out"]["failure"] is None
    assert rows["all"]["failure"] is None
    assert rows["plain"]["failure"] == rows["alike"]["failure"] == "time limit reached"
    assert rows["plain"]["val_score_mean"] is None
    assert choice.name in ("out", "all")


def test_within_the_budget_every_member_is_trained(small_graph):
    rows = choose(small_graph, members=MEMBERS).as_dict()["members"]
    assert [row["failure"] for row in rows] == [None] * 4


# Who wins.


def records(scores):
    """Stands in for a training: score and loss by the trial's learning rate."""

    def made(graph, model, trials, **options):
        found = []
        for trial in trials:
            score, loss = scores[trial["lr"]]
            found.append(
                {"val_score": [score], "val_score_mean": score, "val_loss": [loss], "seconds": 1.0}
            )
        return found

    return made


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ({0.1: (0.5, 1.0), 0.2: (0.6, 9.0), 0.3: (0.55, 0.1)}, "0.2"),
        ({0.1: (0.6, 1.0), 0.2: (0.6, 0.9), 0.3: (0.6, 1.1)}, "0.2"),
        ({0.1: (0.6, 1.0), 0.2: (0.6, 1.0), 0.3: (0.1, 0.0)}, "0.1"),
    ],
)
def test_the_best_on_validation_wins_ties_by_loss_then_order(
    small_graph, monkeypatch, scores, best
):
    monkeypatch.setattr(portfolio, "run_trials", records(scores))
    choice = choose(small_graph, members=[Member(str(lr), "hpgmn", {"lr": lr}) for lr in scores])
    assert choice.name == best
    assert choice.settings == {"lr": float(best)}


def test_scores_are_those_of_training_each_member_alone(small_graph):
    choice = choose(small_graph, [1, 0], members=MEMBERS)
    for member, row in zip(MEMBERS, choice.as_dict()["members"], strict=True):
        [alone] = run_trials(small_graph, member.model, [member.settings], splits=[1, 0])
        assert row["val_score"] == pytest.approx(alone["val_score"])
        assert row["val_score_mean"] == pytest.approx(np.mean(alone["val_score"]))
        assert row["val_loss_mean"] == pytest.approx(np.mean(alone["val_loss"]), rel=1e-4)
    best = max(choice.as_dict()["members"], key=lambda row: float(row["val_score_mean"]))
    assert best["val_score_mean"] == pytest.approx(
        next(r["val_score_mean"] for r in choice.as_dict()["members"] if r["name"] == choice.name)
    )


def test_test_labels_change_nothing(small_graph):
    one = choose(small_graph, members=MEMBERS).as_dict()
    other = choose(other_test_labels(small_graph), members=MEMBERS).as_dict()
    assert without_seconds(one) == without_seconds(other)


def test_a_member_that_fails_is_left_out_and_named(small_graph, caplog):
    with caplog.at_level(logging.WARNING):
        choice = choose(small_graph, members=[WRONG, OUT])
    row, other = choice.as_dict()["members"]
    assert "atches cannot have" in row["failure"]
    assert row["val_score"] == []
    assert other["failure"] is None
    assert choice.name == "out"
    assert "'wrong'" in caplog.text


def test_where_a_group_does_not_fit_its_members_are_trained_alone(small_graph, monkeypatch):
    def narrow(graph, model, trials, **options):
        if len(trials) > 1 or trials[0].get("lr") == 0.03:
            raise HPGMNError("Out of memory.")
        return run_trials(graph, model, trials, **options)

    monkeypatch.setattr(portfolio, "run_trials", narrow)
    choice = choose(small_graph, members=[OUT, ALL])
    assert [row["failure"] for row in choice.as_dict()["members"]] == [None, "Out of memory."]


def test_where_none_can_be_trained_the_error_says_what_to_do(small_graph):
    with pytest.raises(HPGMNError, match=r"mean over neighbours"):
        choose(small_graph, members=[WRONG])


def test_a_metric_that_does_not_apply_is_refused_at_once(small_graph):
    with pytest.raises(HPGMNError, match="precision@3"):
        choose(small_graph, members=MEMBERS, metric="precision@3")


def test_progress_names_the_members_and_a_stop_is_a_stop(small_graph):
    told: list[tuple[str, Progress]] = []
    choose(small_graph, members=MEMBERS, report=lambda names, now: told.append((names, now)))
    assert {names for names, _ in told} == {"'out' and 'all'", "'plain'", "'alike'"}
    with pytest.raises(KeyboardInterrupt):
        choose(small_graph, members=MEMBERS, should_stop=lambda: True)


# What is kept.


def test_the_choice_is_json_and_comes_back(small_graph):
    choice = choose(small_graph, [1], members=MEMBERS, metric="macro_f1", seeds=2)
    content = json.loads(json.dumps(choice.as_dict()))
    assert content == choice.as_dict()
    assert content["metric"] == "macro_f1"
    assert content["splits"] == [1]
    assert content["seeds"] == 2
    assert content["note"] is None
    assert content["seconds"] > 0
    assert all(set(row) == MEMBER_KEYS for row in content["members"])
    assert all(len(row["val_score"]) == 2 for row in content["members"])
    assert Choice.from_dict(content) == choice


@pytest.mark.parametrize("content", [{}, {"chosen": "a", "members": []}, {"chosen": 1}])
def test_a_damaged_choice_is_refused(content):
    with pytest.raises(HPGMNError, match=r"damaged.*overwrite=True"):
        Choice.from_dict(content)


def test_the_sentence_says_what_won_and_what_was_next(small_graph, monkeypatch):
    scores = {0.1: (0.512, 1.0), 0.2: (0.634, 9.0)}
    monkeypatch.setattr(portfolio, "run_trials", records(scores))
    members = [Member(str(lr), "hpgmn", {"lr": lr}) for lr in scores]
    both = choose(small_graph, members=members).sentence()
    assert both == (
        "Chosen on the validation nodes of 2 splits: '0.2' (hpgmn), accuracy 63.4; the next has "
        "51.2."
    )
    one = choose(small_graph, [0], members=members[:1]).sentence()
    assert one == "Chosen on the validation nodes of 1 split: '0.1' (hpgmn), accuracy 51.2."


def test_a_classifier_takes_the_choice(small_graph):
    choice = public_choose(small_graph, members=[PLAIN])
    model = HPGMNClassifier(model=choice.model, **choice.settings).fit(small_graph)
    assert model.predict(small_graph).shape == (small_graph.num_nodes,)


def test_without_splits_the_error_is_the_graphs_own(small_graph):
    bare = Graph(small_graph.x, small_graph.edge_index, small_graph.y)
    with pytest.raises(HPGMNError, match="split"):
        choose(bare, members=MEMBERS)


def two_classes(graph):
    """The same graph with classes fraud, the rarer one, and honest."""
    splits = graph.splits
    assert splits is not None
    masks = {f"{part}_mask": getattr(splits, part) for part in ("train", "val", "test")}
    y = np.where(graph.y == 2, 0, 1)
    x = np.random.default_rng(1).normal(size=graph.x.shape)  # hard to tell
    return Graph(x, graph.edge_index, y, class_names=["fraud", "honest"], **masks)


@pytest.mark.parametrize(("asked", "number"), [(None, 0), ("honest", 1)])
def test_the_rarer_class_chooses_unless_another_is_named(small_graph, asked, number):
    graph = two_classes(small_graph)
    choice = choose(graph, [0], members=[PLAIN], metric="average_precision", positive=asked)
    about = {"splits": [0], "metric": "average_precision"}
    (expected,) = run_trials(graph, "hpgmn", [PLAIN.settings], positive=number, **about)
    (other,) = run_trials(graph, "hpgmn", [PLAIN.settings], positive=1 - number, **about)
    (row,) = choice.as_dict()["members"]
    assert row["val_score"] == expected["val_score"] != other["val_score"]
    assert choice.as_dict()["positive"] == ("fraud", "honest")[number]
    assert f"average_precision of '{('fraud', 'honest')[number]}'" in choice.sentence()


def test_settings_are_put_over_every_member_that_has_them(small_graph):
    over = {"class_weights": "balanced", "estimator_dropout": "0.5"}
    choice = choose(small_graph, [0], members=[PLAIN, ALIKE], settings=over)
    plain, alike = (row["settings"] for row in choice.as_dict()["members"])
    assert plain == {
        **{key: value for key, value in PLAIN.settings.items() if key != "statistics"},
        "statistics": ["attributes"],
        "class_weights": "balanced",
        "estimator_dropout": 0.5,
    }
    assert alike == ALIKE.settings | {"class_weights": "balanced"}
    with pytest.raises(HPGMNError, match="Unknown setting 'weights'"):
        choose(small_graph, [0], members=[PLAIN], settings={"weights": 1})


def test_a_member_far_behind_is_given_up(small_graph, monkeypatch, caplog):
    """No training can catch up with a best score that is out of reach."""
    monkeypatch.setattr(portfolio, "MIN_EPOCHS", 3)
    monkeypatch.setattr(portfolio, "MAX_GAP", -1.0)
    rows = choose(small_graph, [0, 1], members=(OUT, PLAIN)).as_dict()["members"]
    assert rows[0]["failure"] is None
    assert rows[1]["failure"].startswith("validation ")
    assert rows[1]["val_score"] == []
    assert "'plain': validation 50.0 after 3 epochs" in caplog.text
    monkeypatch.setattr(portfolio, "MAX_GAP", 1.0)
    rows = choose(small_graph, [0, 1], members=(OUT, PLAIN)).as_dict()["members"]
    assert [row["failure"] for row in rows] == [None, None]


def test_a_score_that_is_no_number_never_wins(small_graph):
    rows = [
        {"name": name, "failure": None, "val_score_mean": score, "val_loss_mean": 1.0}
        for name, score in (("nothing", float("nan")), ("low", 0.1), ("high", 0.2))
    ]
    assert portfolio._best(rows, small_graph)["name"] == "high"
    with pytest.raises(HPGMNError, match="No member"):
        portfolio._best([rows[0] | {"failure": "x"}], small_graph)


# Members.

SHIPPED = portfolio_members()
Ring = Callable[..., Graph]


@pytest.mark.parametrize("members", [portfolio_members(), portfolio_members(True)])
def test_every_member_has_a_name_of_its_own_and_settings_that_its_model_takes(members):
    assert len({member.name for member in members}) == len(members)
    made = [make_settings(find_model(one.model).settings, one.settings) for one in members]
    assert len({repr(settings) for settings in made}) == len(members)


def test_the_portfolio_covers_directions_statistics_and_encoders():
    settings = [
        make_settings(find_model(one.model).settings, one.settings) for one in portfolio_members()
    ]
    own = [one for one in settings if hasattr(one, "statistics")]
    assert {one.neighbors for one in own} == {"out", "undirected", "both"}
    assert any(one.statistics == ("attributes",) for one in own)
    assert any("adjacency" in one.statistics for one in own)
    assert any("diffusion" in one.statistics for one in own)
    assert any({"adjacency", "diffusion"}.isdisjoint(one.statistics[1:]) for one in own)
    assert max(one.weight_decay for one in own) >= 100 * min(one.weight_decay for one in own)
    assert any(member.model == "hpgmn-appnp" for member in portfolio_members())
    assert 8 <= len(portfolio_members()) <= 14


def test_a_directed_graph_gets_the_whole_portfolio(ring):
    assert members_for(ring(12)) == (portfolio_members(), None)


def test_where_edges_run_both_ways_no_two_members_are_the_same(ring):
    members, note = members_for(ring(12, both_ways=True))
    shapes = [
        (one.model, {k: v for k, v in one.settings.items() if k != "neighbors"})
        for one in members
        if one.settings.get("neighbors", "both") != "both"
    ]
    assert all(shape not in shapes[:place] for place, shape in enumerate(shapes))
    assert len(members) < len(portfolio_members())
    assert note is not None
    assert (
        f"{len(portfolio_members()) - len(members)} of {len(portfolio_members())} members" in note
    )


def test_weights_added_in_both_directions_are_another_graph(ring):
    twin = ring(12, both_ways=True)
    weights = np.arange(1, 25, dtype=np.float32)
    weighted = Graph(twin.x, twin.edge_index, twin.y, edge_weight=weights, directed=True)
    assert members_for(weighted) == (portfolio_members(), None)
    once = Graph(twin.x, ring(12).edge_index, twin.y, directed=False)
    assert members_for(once)[0] == members_for(twin)[0]


def test_a_large_graph_gets_batches_and_says_so(ring, monkeypatch):
    monkeypatch.setattr(portfolio, "LARGE_NODES", 12)
    assert members_for(ring(12))[0] == portfolio_members()
    members, note = members_for(ring(13))
    assert members == portfolio_members(True)
    assert note is not None
    assert "more than 12 nodes" in note
    assert f"{len(portfolio_members(True))} members" in note
    own = [one for one in portfolio_members(True) if one.model == "hpgmn"]
    assert all(one.settings["batch_size"] > 0 for one in own)
