import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binom, spearmanr
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from hpgmn.base.errors import SettingError, format_score
from hpgmn.base.metrics import (
    REGRESSION_METRICS,
    conformal_quantile,
    plain_score,
    require_metric,
    selection_metric,
)

ROWS = arrays(np.float64, (3, 12), elements=st.integers(-20, 20).map(float))
PEERS = {
    "r2": r2_score,
    "rmse": root_mean_squared_error,
    "mae": mean_absolute_error,
    "spearman": lambda truth, values: spearmanr(truth, values).statistic,
}


@pytest.mark.parametrize("name", PEERS)
@given(ROWS)
def test_metrics_are_those_of_scikit_learn_and_scipy(name, rows):
    truth, values, mask = rows[0], rows[1], rows[2] > -10
    mask[:2], truth[:2], values[:2] = True, (30.0, 31.0), (40.0, 50.0)  # neither is constant
    expected = PEERS[name](truth[mask], values[mask])
    hidden = torch.from_numpy(np.where(mask, truth, math.nan))[None]
    function = REGRESSION_METRICS[name]
    value = float(
        function(torch.from_numpy(values)[None, :, None], hidden, torch.tensor(mask[None]))
    )
    assert value == pytest.approx(expected, rel=1e-5, abs=1e-5)
    selected = selection_metric(name)(
        torch.from_numpy(values)[None, :, None], hidden, torch.tensor(mask[None])
    )
    assert plain_score(name, float(selected)) == value
    assert (float(selected) == value) == (name in ("r2", "spearman") or value == 0)


def test_equal_targets_have_no_score_and_nan_no_rank():
    truth, valid = torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool)
    values = torch.tensor([[[1.0], [2.0], [3.0]]])
    assert REGRESSION_METRICS["r2"](values, truth, valid) == 0
    assert REGRESSION_METRICS["spearman"](values, truth, valid) == 0
    values[0, 1] = math.nan
    assert REGRESSION_METRICS["spearman"](values, truth, valid).isnan().all()


def test_metrics_are_refused_for_the_other_task():
    require_metric("r2", 0, "'g'")
    for name, classes, usual in (("r2", 3, "accuracy"), ("accuracy", 0, "r2")):
        with pytest.raises(SettingError, match=f"Metric '{name}' is not for .*{usual}"):
            require_metric(name, classes, "'g'")


def test_scores_of_targets_are_no_percentages():
    assert format_score("rmse", 0.5) == "0.500"
    assert format_score("mae", 12345.678) == "12345.7"
    assert format_score("accuracy", 0.5) == "50.0"


def test_conformal_intervals_cover_new_errors_as_often_as_they_say():
    random, covered, trials = np.random.default_rng(0), 0, 200
    for _ in range(trials):
        errors = np.abs(random.standard_t(3, size=60))
        covered += errors[0] <= conformal_quantile(errors[1:], 0.8)
    assert binom.ppf(0.001, trials, 0.8) <= covered <= binom.ppf(0.999, trials, 49 / 60)


def test_few_scores_give_an_infinite_interval():
    assert conformal_quantile(np.arange(18.0), 0.95) == math.inf
    assert conformal_quantile(np.arange(19.0), 0.95) == 18
    assert conformal_quantile(np.empty(0), 0.5) == math.inf
