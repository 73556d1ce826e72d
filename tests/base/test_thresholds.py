"""The threshold of the positive class against a search over all thresholds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.errors import SettingError
from hpgmn.base.thresholds import choose_threshold, parse_threshold


@st.composite
def scored_nodes(draw):
    number = draw(st.integers(2, 25))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    probability = random.integers(1, draw(st.sampled_from([4, 100])), number) / 100
    positive = random.random(number) < draw(st.sampled_from([0.1, 0.5]))
    positive[random.integers(number)] = True
    return probability, positive


def counts(threshold, probability, positive):
    predicted = probability >= threshold
    hits = int((predicted & positive).sum())
    return hits, int(predicted.sum()), int(positive.sum())


def every(case):
    """The counts at every possible threshold, that of no alarm included."""
    return [counts(value, *case) for value in [*set(case[0].tolist()), 2.0]]


@given(scored_nodes())
def test_f1_is_the_highest(case):
    def f1(row):
        return 2 * row[0] / (row[1] + row[2])

    found = counts(choose_threshold("f1", *case), *case)
    assert f1(found) == max(map(f1, every(case)))


@given(scored_nodes(), st.sampled_from([0.3, 0.9, 1.0]))
def test_recall_is_reached_with_the_highest_precision_threshold(case, target):
    hits, alarms, number = counts(choose_threshold(f"recall={target}", *case), *case)
    assert hits / number >= target - 1e-9
    fewer = [row for row in every(case) if row[1] < alarms]
    assert all(row[0] / number < target for row in fewer)


@given(scored_nodes(), st.sampled_from([0.3, 0.7, 1.0]))
def test_precision_is_reached_with_the_highest_recall_or_the_best_is_told(case, target):
    told = []
    hits, alarms, _ = counts(choose_threshold(f"precision={target}", *case, told.append), *case)
    alarmed = [row for row in every(case) if row[1]]
    enough = [row for row in alarmed if row[0] / row[1] >= target - 1e-9]
    best = max(row[0] / row[1] for row in alarmed)
    if enough:
        assert hits == max(row[0] for row in enough)
        assert not told
    else:
        assert hits / alarms == best
        assert f"{best:.3g}" in told[0]


@given(scored_nodes(), st.sampled_from([(10, 1), (1, 5), (0.5, 0.25)]))
def test_the_cost_is_the_lowest(case, costs):
    def cost(row):
        return costs[0] * (row[2] - row[0]) + costs[1] * (row[1] - row[0])

    rule = f"cost={costs[0]}:{costs[1]}"
    assert cost(counts(choose_threshold(rule, *case), *case)) == min(map(cost, every(case)))


def test_a_number_is_the_threshold():
    assert choose_threshold("0.3", np.array([0.5]), np.array([True])) == 0.3


def test_without_positive_nodes_it_is_one_half_and_told():
    told = []
    assert choose_threshold("f1", np.array([0.5]), np.array([False]), told.append) == 0.5
    assert len(told) == 1


@pytest.mark.parametrize(
    "text", ["", "f2", "precision", "precision=1.5", "recall=0", "cost=3", "cost=0:1", "1.0", "0"]
)
def test_an_unknown_rule_names_the_known_ones(text):
    with pytest.raises(SettingError, match="f1") as caught:
        parse_threshold(text)
    assert text in str(caught.value)


def test_a_target_of_one_is_allowed():
    assert parse_threshold("precision=1").target == parse_threshold("recall=1.0").target == 1
