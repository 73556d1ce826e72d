"""Figure 3: the bars are the means, the whiskers the intervals."""

from xml.etree import ElementTree

import pytest

from hpgmn_lab.reproduction.figure import draw, inline_svg, text_alternative, write_figure
from hpgmn_lab.reproduction.plan import QUICK, Budget, experiment
from hpgmn_lab.reproduction.tables import table


@pytest.fixture
def figure3(make_record, as_records):
    """Every variant but 'without both' on squirrel."""
    plan = experiment("figure3", Budget(splits=4))
    records = [
        make_record(cell, [70.0, 72.0, 74.0, 76.0])
        for cell in plan.cells
        if cell.name != "squirrel-hpgmn-without-both"
    ]
    return table(plan, as_records(*records))


def test_bars_and_whiskers_are_the_numbers(figure3):
    with draw(figure3) as figure:
        texas, squirrel = figure.axes
        assert [axes.get_title() for axes in figure.axes] == ["Texas", "Squirrel"]
        assert [bar.get_height() for bar in texas.patches] == pytest.approx([73.0] * 4)
        # 73 ± t(0.975, 3) · 2.5820 / 2
        whiskers = texas.collections[0].get_segments()[0]
        assert whiskers[:, 1] == pytest.approx([68.8916, 77.1084], abs=1e-3)
        assert squirrel.patches[3].get_height() == 0.0  # below the foot of the axis
        assert len(squirrel.collections) == 3
        low, high = texas.get_ylim()
        assert 0 < low < 68.89
        assert high > 77.1


def test_both_panels_have_the_same_scale(make_record, as_records):
    plan = experiment("figure3", Budget(splits=2))
    scores = {"texas": [70.0, 71.0], "squirrel": [75.0, 75.1]}
    records = [make_record(cell, scores[cell.graph]) for cell in plan.cells]
    with draw(table(plan, as_records(*records))) as figure:
        spans = [high - low for low, high in (axes.get_ylim() for axes in figure.axes)]
    assert spans[0] > 12.7  # 70.5 ± t(0.975, 1) · 0.5
    assert spans[1] == pytest.approx(spans[0])


def test_bars_differ_without_colours(figure3):
    with draw(figure3) as figure:
        hatches = [bar.get_hatch() for bar in figure.axes[0].patches]
        labels = [words.get_text() for words in figure.legends[0].get_texts()]
    assert len(set(hatches)) == 4
    assert labels == ["full", "without K-pattern", "without entropy", "without both"]


def test_the_axis_says_that_it_does_not_start_at_zero(figure3):
    with draw(figure3) as figure:
        label = figure.get_supxlabel()
    assert "do not start at zero" in label
    assert "95 % interval of the mean" in label


def test_same_numbers_give_the_same_files(figure3, tmp_path):
    import matplotlib

    first = [path.read_bytes() for path in write_figure(figure3, tmp_path / "one")]
    with matplotlib.rc_context({"font.size": 20}):  # the user's own style has no say
        second = [path.read_bytes() for path in write_figure(figure3, tmp_path / "two")]
    assert first == second
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("one.png", "one.svg", "two.png", "two.svg")
    ]
    assert first[0].startswith(b"\x89PNG")
    ElementTree.fromstring(first[1])
    assert b"date" not in first[1].lower()


def test_without_records_the_figure_is_empty(tmp_path, as_records):
    found = table(experiment("figure3", QUICK), as_records())
    assert len(write_figure(found, tmp_path / "f")) == 2
    assert text_alternative(found).endswith("texas: no record yet.")
    assert inline_svg(found).startswith("<svg")
