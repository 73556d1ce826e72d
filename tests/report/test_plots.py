from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from hpgmn.graph import Array
from hpgmn.report import plots
from hpgmn.report.rendering import LearningCurves


def stage(num_runs=3, epochs=40, name="main"):
    random = np.random.default_rng(0)
    fall = np.exp(-np.arange(epochs) / 10)
    loss = fall + 0.1 * random.random((num_runs, epochs))
    score = 0.9 - 0.4 * fall + 0.02 * random.random((num_runs, epochs))
    for run in range(1, num_runs):  # the later ones stop earlier
        for curve in (loss, score):
            curve[run, epochs - 5 * run :] = np.nan
    curves = {"loss": loss, "val_loss": loss + 0.2, "val_score": score}
    return LearningCurves(name, np.arange(epochs), curves)


def confusion(num_classes):
    random = np.random.default_rng(num_classes)
    counts: Array = random.integers(0, 5, (num_classes, num_classes))
    np.fill_diagonal(counts, 40)
    return counts


def names(num_classes):
    return [f"c{index}" for index in range(num_classes)]


def words(svg):
    """Every text of a picture, in order."""
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("text")]


def label(svg):
    return ElementTree.fromstring(svg).attrib["aria-label"]


def pictures(prefix="p"):
    drawn = [
        plots.loss_curves(stage(), f"{prefix}-loss"),
        plots.score_curve(stage(), "accuracy", np.array([[3.0, 7.0, 12.0]]), f"{prefix}-score"),
        plots.confusion_matrix(confusion(3), names(3), f"{prefix}-few"),
        plots.confusion_matrix(confusion(20), names(20), f"{prefix}-many"),
        plots.run_scores(np.array([[0.8, 0.9], [0.7, 0.75]]), [0, 1], "accuracy", f"{prefix}-runs"),
    ]
    return [svg for svg in drawn if svg is not None]


def test_pictures_are_deterministic():
    assert pictures() == pictures()


def test_pictures_ignore_the_users_matplotlib_settings():
    import matplotlib

    expected = pictures()
    with matplotlib.rc_context(
        {"font.size": 20, "axes.facecolor": "black", "svg.fonttype": "path"}
    ):
        assert pictures() == expected
        assert matplotlib.rcParams["font.size"] == 20


def test_ids_are_unique_on_a_page_and_lead_somewhere():
    drawn = pictures("a") + pictures("b")
    assert len(drawn) == 10
    page = "".join(drawn)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    links = {a or b for a, b in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', page)}
    assert links
    assert links <= set(ids)


def test_pictures_hold_no_dates_images_or_style_sheets():
    for svg in pictures():
        for word in ("<image", "<style", "<metadata", "http", "data:", "<!--", "xmlns"):
            assert word not in svg


def test_pictures_say_what_they_show():
    for svg in pictures():
        root = ElementTree.fromstring(svg)
        assert root.tag == "svg"
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"].endswith(".")


def test_curve_points_of_a_short_curve_are_mean_lowest_and_highest():
    curves = stage().curves["loss"]
    epochs, mean, low, high = plots.curve_points(np.arange(40), curves)
    assert epochs.tolist() == list(range(40))
    for epoch in range(40):
        known = [value for value in curves[:, epoch] if value == value]
        assert mean[epoch] == pytest.approx(sum(known) / len(known))
        assert (low[epoch], high[epoch]) == (min(known), max(known))


def test_curve_points_leave_out_epochs_without_a_value():
    values = np.array([[1.0, np.nan, 3.0], [2.0, np.nan, np.nan]])
    epochs, mean, low, high = plots.curve_points(np.array([0, 5, 9]), values)
    assert epochs.tolist() == [0, 9]
    assert mean.tolist() == [1.5, 3.0]
    assert (low.tolist(), high.tolist()) == ([1.0, 3.0], [2.0, 3.0])


@pytest.mark.parametrize("length", [151, 5000])
def test_long_curves_are_shortened_but_keep_ends_and_spikes(length):
    values = np.random.default_rng(0).random((4, length))
    values[2, length // 3] = 50.0
    epochs, mean, low, high = plots.curve_points(np.arange(length), values)
    assert len(epochs) == len(mean) == len(low) == len(high) <= plots.MOST_POINTS
    assert (epochs[0], epochs[-1]) == (0, length - 1)
    assert mean[0] == pytest.approx(values[:, 0].mean())
    assert mean[-1] == pytest.approx(values[:, -1].mean())
    assert high.max() == 50.0
    assert low.min() == values.min()
    assert (np.diff(epochs) > 0).all()


def test_loss_sentence_tells_the_ends_of_the_mean_curves():
    one = stage(num_runs=1)
    svg = plots.loss_curves(one, "loss")
    assert svg is not None
    first, last = one.curves["loss"][0, [0, -1]]
    expected = f"training loss {first:.3g} at epoch 0, {last:.3g} at epoch 39"
    assert expected in label(svg)
    assert "validation" in words(svg)


def test_curves_that_were_not_recorded_are_not_drawn():
    nothing = np.full((2, 5), np.nan)
    empty = LearningCurves(
        "main", np.arange(5), dict.fromkeys(("loss", "val_loss", "val_score"), nothing)
    )
    assert plots.loss_curves(empty, "a") is None
    assert plots.score_curve(empty, "accuracy", None, "b") is None
    loss_only = LearningCurves("main", np.arange(5), dict(empty.curves) | {"loss": np.ones((2, 5))})
    svg = plots.loss_curves(loss_only, "c")
    assert svg is not None
    assert "training" in words(svg)
    assert "validation" not in words(svg)


def test_best_epochs_are_marked():
    plain = plots.score_curve(stage(), "accuracy", None, "s")
    marked = plots.score_curve(stage(), "accuracy", np.array([[3.0, np.nan], [7.0, 8.0]]), "s")
    assert plain is not None
    assert marked is not None
    assert "best epoch of each run" in words(marked)
    assert "best epoch of each run" not in words(plain)
    assert "3 to 8, median 7." in label(marked)
    fewer = plots.score_curve(stage(), "accuracy", np.array([[3.0, np.nan], [np.nan, 8.0]]), "s")
    assert fewer is not None
    assert marked.count("<use ") - fewer.count("<use ") == 1


def test_confusion_matrix_tells_shares_and_counts():
    counts = np.array([[3, 1], [0, 8]])
    svg = plots.confusion_matrix(counts, ["cat", "dog"], "m")
    for word in ("75%", "3", "25%", "1", "0", "100%", "8", "cat", "dog"):
        assert word in words(svg)
    assert "0%" not in words(svg)
    assert "91.7% correct" in label(svg)
    assert "cat predicted as dog, 25.0%" in label(svg)


def test_confusion_matrix_copes_with_a_class_without_test_nodes():
    svg = plots.confusion_matrix(np.array([[4, 0], [0, 0]]), ["cat", "dog"], "m")
    assert "100%" in words(svg)
    assert "error" not in label(svg)


def test_matrix_of_many_classes_shows_colours_only():
    assert "c11" in words(plots.confusion_matrix(confusion(12), names(12), "m"))
    svg = plots.confusion_matrix(1000 + confusion(13), names(13), "m")
    assert "c12" in words(svg)
    assert "1,000" not in words(svg)


def test_smallest_of_very_many_classes_are_drawn_as_one():
    counts = np.diag(np.arange(100, 200))
    svg = plots.confusion_matrix(counts, names(100), "m")
    shown = words(svg)
    assert "71 other classes" in shown
    assert "c99" in shown
    assert "c71" in shown
    assert "c70" not in shown
    assert len(svg) < 250_000


def test_condensed_matrix_keeps_every_node():
    counts = confusion(35)
    smaller, labels = plots._merge_small_classes(counts, names(35))
    assert smaller.shape == (30, 30)
    assert smaller.sum() == counts.sum()
    kept = [names(35).index(name) for name in labels[:-1]]
    rest = [index for index in range(35) if index not in kept]
    np.testing.assert_array_equal(smaller[:-1, :-1], counts[np.ix_(kept, kept)])
    assert smaller[0, -1] == counts[kept[0], rest].sum()
    assert smaller[-1, -1] == counts[np.ix_(rest, rest)].sum()
    assert counts[rest].sum(axis=1).max() <= counts[kept].sum(axis=1).min()


@pytest.mark.parametrize(
    "name",
    ["<script>", "$x^2$", "a & b", ' id="x', "学生", "\x00\x1b", "--><b>", "", "x" * 500, "\ud800"],
)
def test_odd_class_names_stay_text(name):
    svg = plots.confusion_matrix(np.array([[3, 1], [1, 3]]), [name, "other"], "m")
    root = ElementTree.fromstring(svg)
    known = {"svg", "g", "path", "text", "defs", "use", "clipPath", "rect"}
    assert {element.tag for element in root.iter()} <= known
    if name.isprintable() and 0 < len(name) < 18:
        assert name in words(svg)


def test_one_dot_is_drawn_for_each_run():
    scores = np.array([[0.8, 0.9, 0.85], [0.7, np.nan, 0.75]])
    svg = plots.run_scores(scores, [0, 4], "accuracy", "r")
    five = "Test accuracy of 5 runs by split: between 70.0% and 90.0%, mean 80.0%."
    assert label(svg) == five
    assert "4" in words(svg)
    fewer = plots.run_scores(np.where(scores == 0.9, np.nan, scores), [0, 4], "accuracy", "r")
    dots = [picture.count(f"fill: {plots.TRAINING}") for picture in (svg, fewer)]
    assert dots[0] - dots[1] == 1


def test_split_labels_are_thinned_where_there_are_very_many():
    svg = plots.run_scores(np.linspace(0.5, 0.9, 100)[:, None], range(100), "accuracy", "r")
    assert "96" in words(svg)
    assert "97" not in words(svg)


def test_printable_text_fits_any_file():
    text = plots.printable("a\nb\x1b\x00\ud800\uffff<ü学>")
    assert text == "a b\ufffd\ufffd\ufffd\ufffd<ü学>"
    text.encode("utf-8")
