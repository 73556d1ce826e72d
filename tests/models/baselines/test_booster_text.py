"""A checked text predicts as the booster it comes from; a damaged one never reaches LightGBM."""

import re

import lightgbm
import numpy as np
import pytest

from hpgmn.models.baselines.booster_text import clean_booster


def trained(classes, rounds=3, **values):
    random = np.random.default_rng(0)
    rows = random.normal(size=(120, 4)).astype(np.float32)
    labels = random.integers(0, classes, 120)
    several = {"objective": "multiclass", "num_class": classes}
    parameters = {"objective": "binary"} if classes == 2 else several
    parameters |= {"verbosity": -1, "min_data_in_leaf": 3, "num_leaves": 6} | values
    return rows, lightgbm.train(parameters, lightgbm.Dataset(rows, labels), rounds)


@pytest.mark.parametrize(("classes", "trees"), [(2, 1), (3, 3)])
@pytest.mark.parametrize("least", [3, 500])  # 500: trees of a single leaf
def test_a_checked_text_predicts_the_same_bits(classes, trees, least):
    rows, booster = trained(classes, min_data_in_leaf=least)
    text = clean_booster(booster.model_to_string(), 4, trees)
    again = lightgbm.Booster(model_str=text)
    for keywords in ({"raw_score": True}, {"pred_contrib": True}):
        assert np.array_equal(booster.predict(rows, **keywords), again.predict(rows, **keywords))
    assert clean_booster(text, 4, trees) == text


DAMAGES = [
    ("split_feature=3", "split_feature=4"),
    (r"split_feature=(\d)", "split_feature=-1"),
    (r"left_child=(-?\d+)", "left_child=99"),
    (r"left_child=(-?\d+)", "left_child=0"),
    (r"right_child=\S+ ", "right_child="),
    (r"leaf_value=\S+ ", "leaf_value="),
    ("num_leaves=6", "num_leaves=7"),
    ("num_leaves=6", "num_leaves=999999999999"),
    ("num_leaves=6", ""),
    (r"decision_type=\d+", "decision_type=1"),
    ("\nTree=2", ""),
]


@pytest.mark.parametrize(("old", "new"), DAMAGES)
def test_a_damaged_text_is_refused(old, new):
    _, booster = trained(3)
    text = booster.model_to_string()
    if old == "split_feature=3":
        old = f"split_feature={re.search('split_feature=([0-9])', text)[1]}"  # type: ignore[index]
    damaged = re.sub(old, new, text, count=1)
    assert damaged != text
    with pytest.raises((ValueError, KeyError)):
        clean_booster(damaged, 4, 3)


def test_text_that_is_no_booster_is_refused():
    for text in ("", "tree\n", "\nTree=0\n", "\nTree=0\n=\n", "garbage" * 1000):
        with pytest.raises((ValueError, KeyError)):
            clean_booster(text, 4, 1)


def test_changed_letters_are_refused_or_harmless():
    rows, booster = trained(2, rounds=2)
    text = booster.model_to_string()
    random = np.random.default_rng(1)
    for _ in range(300):
        place = int(random.integers(len(text)))
        damaged = text[:place] + chr(random.integers(32, 127)) + text[place + 1 :]
        try:
            again = lightgbm.Booster(model_str=clean_booster(damaged, 4, 1))
        except (ValueError, KeyError, lightgbm.basic.LightGBMError):
            continue
        assert again.predict(rows).shape == (120,)
