"""The page against the data it is made from."""

import html
import re
import statistics
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from hpgmn.models import MODELS
from hpgmn.report import ReportData, render_report
from hpgmn.report.page import STAGE_NAMES, _facts, class_scores, train_command

MakeData = Callable[..., ReportData]
Make = Callable[..., dict[str, Any]]
Tables = Callable[[str], dict[str, list[list[str]]]]
VOID = {"meta", "br", "hr", "link", "img", "input"}
EVIL = ["<script>alert(1)</script>", "$x^2$ & \"quoted\" 'too'", "学生\x00\n", '"><b>bold</b>']


class Reader(HTMLParser):
    """Checks that tags are balanced; collects tags, attributes and heading levels."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[int] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"attribute given twice: {attrs}"
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def read(page):
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def plain(page):
    """The page's text without tags and figures, on one line."""
    page = re.sub(r"<(style|svg)\b.*?</\1>", "", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def section(page, key):
    """The text of a section; empty if the page has none of that id."""
    found = re.search(rf'<section id="{key}".*?</section>', page, flags=re.S)
    return plain(found.group()) if found else ""


# The frame


def test_page_is_well_formed_and_in_order(make_data, make_understanding):
    reader = read(render_report(make_data(understanding=make_understanding())))
    names = [tag for tag, _ in reader.tags]
    assert names.count("h1") == names.count("title") == names.count("main") == 1
    assert reader.headings[0] == 1
    steps = zip(reader.headings, reader.headings[1:], strict=False)
    assert all(after <= before + 1 for before, after in steps)
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in reader.tags:
        if tag == "a":
            assert str(attributes["href"])[1:] in ids
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
        if tag == "th":
            assert attributes["scope"] in ("row", "col")


def test_page_loads_nothing_from_outside(make_data):
    page = render_report(make_data())
    for tag, attributes in read(page).tags:
        assert tag not in {"script", "link", "img", "image", "iframe", "object", "base"}
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert str(attributes.get("href", "#")).startswith("#")
    assert "default-src 'none'" in page
    for word in ("http:", "https:", "@import", "script-src"):
        assert word not in page


def test_page_supports_dark_mode_and_phones(make_data):
    page = render_report(make_data())
    assert "@media (prefers-color-scheme: dark)" in page
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert '<html lang="en">' in page


def test_nothing_from_data_becomes_markup(make_data, tables_of):
    bad = "<img src=x onerror=alert(2)>"
    names = ("graph", "model", "metric", "version", "created")
    data = make_data(classes=EVIL, warnings=[bad], hardware={bad: bad}, **dict.fromkeys(names, bad))
    page = render_report(data)
    reader = read(page)
    assert {"script", "img", "b"}.isdisjoint(tag for tag, _ in reader.tags)
    assert not any("onerror" in attributes for _, attributes in reader.tags)
    assert "\x00" not in page
    rows = tables_of(page)["Test nodes by class, all runs pooled"]
    assert [row[0] for row in rows[1:4]] == [EVIL[0], EVIL[1], "学生\ufffd "]
    page.encode("utf-8")


def test_report_is_deterministic_and_small(make_data):
    data = make_data(splits=list(range(10)), seeds=3, epochs=300)
    page = render_report(data)
    assert page == render_report(data)
    assert len(page.encode()) < 400_000


# Scores


def test_headline_shows_the_recorded_scores(make_data):
    data = make_data()
    page, scores = plain(render_report(data)), data.metrics["test_score"]
    assert f"{100 * statistics.mean(scores):.2f} ± {100 * statistics.stdev(scores):.2f}%" in page
    assert "2 splits × 2 seeds" in page
    assert "78.12 ± 5.00%" in page
    assert f"{100 * (statistics.mean(scores) - 0.7812):.2f} points above" in page


@pytest.mark.parametrize(
    ("baseline", "facts"),
    [
        (0.86, ["2.00 points below"]),
        (0.83, ["1.00 points above", "less than the standard deviation"]),
        (0.70, ["14.00 points above", "more than the standard deviation"]),
        (0.84, ["equal to"]),
    ],
)
def test_headline_compares_with_the_label_estimator(make_data, baseline, facts):
    data = make_data(
        test_score_mean=0.84,
        test_accuracy_mean=0.84,
        test_accuracy_std=0.05,
        label_estimator={"test_accuracy_mean": baseline, "test_accuracy_std": 0.01},
    )
    page = plain(render_report(data))
    for fact in facts:
        assert fact in page


def test_another_metric_is_not_compared_with_an_accuracy(make_data):
    data = make_data(metric="roc_auc", test_score_mean=0.99, test_accuracy_mean=0.80)
    page = plain(render_report(data))
    assert "Test ROC-AUC" in page
    assert "99.00 ±" in page
    assert "1.88 points above" in page  # 80 - 78.12


@pytest.mark.parametrize("estimator", [None, {}])
def test_run_without_a_label_estimator_has_no_comparison(make_data, estimator):
    assert "points above" not in render_report(make_data(label_estimator=estimator))


def test_scores_by_split_match_a_plain_loop(make_data, tables_of):
    data = make_data(splits=[0, 3, 7], seeds=4)
    metrics = data.metrics
    rows = tables_of(render_report(data))["Accuracy by split, 4 seeds each"]
    groups = {str(split): slice(4 * i, 4 * i + 4) for i, split in enumerate([0, 3, 7])}
    for row, (name, part) in zip(rows[1:], [*groups.items(), ("All", slice(0, 12))], strict=True):
        test, val = metrics["test_score"][part], metrics["val_score"][part]
        epochs = metrics["epochs"][part]
        assert row == [
            name,
            f"{100 * statistics.mean(test):.2f}%",
            f"{100 * statistics.stdev(test):.2f}",
            f"{100 * min(test):.2f}% to {100 * max(test):.2f}%",
            f"{100 * statistics.mean(val):.2f}%",
            f"{min(epochs)} to {max(epochs)}",
        ]


def test_single_run_has_no_spread(make_data, tables_of):
    page = render_report(make_data(splits=[0], seeds=1, test_score_std=0.0))
    assert "±" not in page
    assert tables_of(page)["Accuracy by split"][0] == ["Split", "Test", "Validation", "Best epoch"]


def test_run_without_test_nodes_has_dashes(make_data, tables_of):
    names = ("test_score_mean", "test_score_std", "test_accuracy_mean", "test_accuracy_std")
    page = render_report(make_data(test_score=[], **dict.fromkeys(names)))
    assert "<strong>–</strong>" in page
    assert tables_of(page)["Accuracy by split, 2 seeds each"][-1][:4] == ["All", "–", "–", "–"]
    assert "points above" not in page


def test_score_without_a_recorded_spread_is_compared_alone(make_data):
    page = plain(render_report(make_data(test_score_std=None, test_accuracy_std=None)))
    assert "points above" in page
    assert "the standard deviation between" not in page


def test_class_table_and_confusion_match_a_plain_loop(make_data, tables_of):
    data = make_data()
    tables, counts = tables_of(render_report(data)), data.confusion.tolist()
    matrix = tables["Test nodes by true class (row) and predicted class (column)"]
    assert matrix[0] == ["True class", *data.classes]
    for row, name, expected in zip(matrix[1:], data.classes, counts, strict=True):
        assert row == [name, *(str(count) for count in expected)]
    by_class = tables["Test nodes by class, all runs pooled"]
    columns: list[list[float]] = [[], [], []]
    for index, name in enumerate(data.classes):
        hits, support = counts[index][index], sum(counts[index])
        precision = hits / sum(row[index] for row in counts)
        recall = hits / support
        shares = (precision, recall, 2 * precision * recall / (precision + recall))
        for column, share in zip(columns, shares, strict=True):
            column.append(share)
        expected = [f"{100 * share:.2f}%" for share in shares]
        assert by_class[index + 1] == [name, *expected, str(support), f"{support / 4:.1f}"]
    means = [f"{100 * statistics.mean(column):.2f}%" for column in columns]
    total = int(data.confusion.sum())
    assert by_class[-1] == ["Mean, total support", *means, str(total), f"{total / 4:.1f}"]


def test_class_without_nodes_or_predictions_has_dashes(make_data, tables_of):
    data = make_data()
    confusion = np.zeros((4, 4), int)
    confusion[:3, :3] = data.confusion
    page = render_report(replace(data, classes=(*data.classes, "rare"), confusion=confusion))
    rows = tables_of(page)["Test nodes by class, all runs pooled"]
    assert rows[4] == ["rare", "–", "–", "–", "0", "0.0"]
    assert np.isnan(class_scores(confusion)["f1"][3])


def test_many_classes_get_a_list_of_errors(make_data, tables_of):
    data = make_data(classes=[f"c{index}" for index in range(14)])
    rows = tables_of(render_report(data))["The most frequent errors"][1:]
    assert len(rows) == 15
    counts = [int(row[2]) for row in rows]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == (data.confusion - np.diag(np.diag(data.confusion))).max()
    for true, predicted, count, share in rows:
        row = data.confusion[data.classes.index(true)]
        assert int(count) == row[data.classes.index(predicted)]
        assert share == f"{100 * int(count) / row.sum():.2f}%"


def test_bare_data_is_enough(make_data):
    """Only what INTERFACE.md promises; neither history nor labelled test nodes."""
    data = make_data()
    optional = ("hardware", "graph_summary", "label_estimator", "warnings", "created")
    metrics = {key: value for key, value in data.metrics.items() if key not in optional}
    bare = replace(data, metrics=metrics, stages=(), confusion=np.zeros((3, 3), int))
    page = render_report(bare)
    read(page)
    for key in ("curves", "confusion", "classes", "graph", "warnings"):
        assert section(page, key)
    for key in ("health", "calibration", "statistics", "memory", "label-next", "explorer"):
        assert not section(page, key)


def test_warnings_are_listed(make_data):
    page = render_report(make_data(warnings=["one thing", "another"]))
    assert "<li>one thing</li><li>another</li>" in page
    assert "<li>" not in render_report(make_data(warnings=[])).split("</nav>")[1]


def test_every_stage_of_every_model_has_a_name():
    assert {stage for entry in MODELS.values() for stage in entry.stages} <= STAGE_NAMES.keys()


def test_early_stops_are_shown(make_data):
    text = section(render_report(make_data()), "curves")
    assert "stops after epoch 22;" in text  # the fourth run of 30 epochs
    assert "pseudo-labels" not in text
    stages = make_data().stages
    first = replace(make_data(), stages=(replace(stages[0], stage="refinement"), *stages[1:]))
    assert STAGE_NAMES["refinement"] in section(render_report(first), "curves")


def test_a_chosen_run_shows_its_portfolio(make_data, tables_of):
    members = [
        {"name": "one", "model": "hpgmn", "val_score_mean": 0.5, "seconds": 2.0, "failure": None},
        {"name": "two", "model": "mlp", "val_score_mean": 0.75, "seconds": 61.0, "failure": None},
        {"name": "big", "model": "mlp", "val_score_mean": None, "seconds": 0, "failure": "<no>"},
    ]
    chosen = {"chosen": "two", "splits": [0, 3], "members": members}
    assert tables_of(render_report(make_data(portfolio=chosen)))["The portfolio"][1:] == [
        ["one", "hpgmn", "50.00%", "2.0 s", ""],
        ["two", "mlp", "75.00%", "61 s", "chosen"],
        ["big", "mlp", "–", "0.0 s", "<no>"],
    ]
    for nothing in ({}, {"members": []}, None):
        assert not section(render_report(make_data(portfolio=nothing)), "choice")


# Settings and command


def test_settings_and_command_are_those_of_the_run(make_data, tables_of):
    page = render_report(make_data(graph="my graphs/a.npz"))
    tables = tables_of(page)
    assert ["statistics", "x,counts"] in tables["Settings of hpgmn"]
    assert ["gate", "true"] in tables["Settings of hpgmn"]
    assert (
        "hpgmn train 'my graphs/a.npz' --model hpgmn --metric accuracy --splits 0,3 --seeds 2 \\\n"
        "    --set lr=0.01 --set weight_decay=5e-05 --set gate=true --set statistics=x,counts<"
    ) in html.unescape(page)
    machine = tables["Versions, machine and cost"]
    for row in (["hpgmn", "0.1.0"], ["PyTorch", "2.13.0"], ["Peak memory", "812 MB"]):
        assert row in machine


def test_command_formats_values_as_the_command_line_reads_them():
    config = {"graph": "g", "model": "m", "metric": "accuracy", "splits": [0], "seeds": 1}
    settings = {"a": None, "b": False, "c": [1, "x"], "d": 1e-5}
    words = train_command(config | {"settings": settings})
    assert words[-8:] == [
        *("--set", "a=none", "--set", "b=false", "--set", "c=1,x", "--set", "d=1e-05")
    ]
    more = train_command(config | {"settings": {}, "protocol": "geom", "device": "cpu"})
    assert more[-4:] == ["--protocol", "geom", "--device", "cpu"]
    assert train_command(config | {"settings": {}, "calibrate": False})[-1] == "--no-calibration"


def test_command_repeats_the_options_of_tables():
    config = {"graph": "g", "model": "m", "metric": "precision@5", "splits": [0], "seeds": 1}
    tables = {
        "id": "email",
        "split": "",
        "weight": "amount",
        "drop": ["a", "b c"],
        "categories": ["zip"],
        "split_by": ["time", "when"],
        "drop_unknown_edges": True,
        "directed": False,
    }
    words = train_command(config | {"settings": {}, "positive": "fraud", "tables": tables})
    assert words[11:] == [
        *("--positive", "fraud", "--id", "email", "--split-column", "", "--weight", "amount"),
        *("--drop", "a", "--drop", "b c", "--category", "zip", "--split-by", "time", "when"),
        *("--drop-unknown-edges", "--undirected"),
    ]


def test_facts_of_any_type_become_rows():
    content = {"num_nodes": 1234, "homophily": {"edge": 0.1234, "node": float("nan")}, "x": None}
    assert _facts(content) == [
        ("Nodes", "1,234"),
        ("Homophily, edge", "0.123"),
        ("Homophily, node", "–"),
    ]
