"""The frame of a page, its parts and number formats."""

import math
import re
from typing import Any

import numpy as np
import pytest

from hpgmn.report.rendering import (
    ReportData,
    environment,
    facts,
    finite_mean,
    format_number,
    mapping,
    number,
    render_page,
    value_range,
)


def data(**metrics):
    recorded = {"splits": [0, 3], "seeds": 3} | metrics
    return ReportData({}, recorded, (), (), np.zeros((0, 0), int))


def test_lists_are_split_by_split_with_seeds_inside():
    run = data(test_score=[0.1, 0.2, 0.3, 0.4, None, 0.6])
    assert run.num_runs == 6
    np.testing.assert_equal(run.per_run("test_score"), [[0.1, 0.2, 0.3], [0.4, np.nan, 0.6]])


@pytest.mark.parametrize("values", [None, []])
def test_a_list_that_was_not_recorded_is_nan(values):
    assert np.isnan(data(epochs=values).per_run("epochs")).all()


@pytest.mark.parametrize(("values", "received"), [([0.5], "1 values"), (0.5, "0.5")])
def test_a_list_of_another_length_is_refused(values, received):
    with pytest.raises(ValueError, match=rf"2 splits × 3 seeds \(got {received}\)"):
        data(test_score=values).per_run("test_score")


@pytest.mark.parametrize("value", [None, "0.5", True, math.inf, math.nan, [1]])
def test_what_is_no_finite_number_is_nan(value):
    assert math.isnan(number(value))


def test_what_is_no_mapping_is_empty():
    assert mapping([1]) == mapping(None) == {}
    assert mapping({"a": 1}) == {"a": 1}


def test_only_the_script_of_a_page_may_run():
    # sha256 of "1", from another tool: printf 1 | openssl dgst -sha256 -binary | base64
    digest = "a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s="
    context = {"titles": {}, "bodies": {}, "tiles": [("Test", "1")], "warnings": [], "num_runs": 1}
    context |= dict.fromkeys(("version", "created", "points", "versus_spread", "noise"))
    page = render_page(title="t", script="1", **context)
    assert f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'\"" in page
    assert page.count("<script>1</script>") == page.count("<script") == 1


def test_every_macro_escapes_its_arguments():
    macros: Any = environment().get_template("macros.html.j2").module
    evil = "<script>alert('1')</script> & \"so\""
    for markup in (
        macros.table(evil, [evil, evil], [[evil, macros.noted(evil, evil)]]),
        macros.tiles([(evil, evil, evil)]),
        macros.panel(evil, wide=evil),
    ):
        assert "<script" not in markup
        assert '"so"' not in markup
        assert "&lt;script&gt;alert(&#39;1&#39;)" in markup


def test_table_heads_rows_and_columns():
    macros: Any = environment().get_template("macros.html.j2").module
    markup = macros.table("cap", ["a", "b", "c"], [["1", "2", "3"]], ["4", "5", "6"])
    assert "<caption>cap</caption>" in markup
    assert markup.count('scope="col"') == 3
    assert markup.count('scope="row"') == 2
    assert '<tfoot><tr><th scope="row">4</th><td>5</td><td>6</td></tr></tfoot>' in markup


def test_a_block_turns_items_into_rows():
    template = environment().from_string(
        '{% import "macros.html.j2" as m %}'
        '{% call(n) m.table("cap", ["n", "share"], [1, 2000], 3) %}'
        "{{ m.row([n | number, (n / 8) | percent(1)]) }}{% endcall %}"
    )
    cells = re.findall("<t[hd](?: [^>]*)?>(.*?)</t[hd]>", template.render())
    assert cells == ["n", "share", "1", "12.5%", "2,000", "25000.0%", "3", "37.5%"]


def test_missing_values_are_dashes():
    missing = np.array([np.nan, np.inf])
    assert format_number(None, ".3f") == value_range(missing, "{:g}") == "–"
    assert np.isnan(finite_mean(missing))
    values = np.array([1.0, np.nan, 3.0])
    assert (value_range(values, "{:g}"), finite_mean(values)) == ("1 to 3", 2)


def test_facts_of_any_type_become_rows():
    content = {"num_nodes": 1234, "homophily": {"edge": 0.1234, "node": float("nan")}, "x": None}
    assert facts(content) == [
        ("Nodes", "1,234"),
        ("Homophily, edge", "0.123"),
        ("Homophily, node", "–"),
    ]
