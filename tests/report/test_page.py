"""The page against the data it is made from."""

import base64
import hashlib
import html
import json
import re
import statistics
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from hpgmn.auditing import audit
from hpgmn.evaluation.scores import class_calibration
from hpgmn.models import MODELS
from hpgmn.report import ReportDataError, render_report
from hpgmn.report.model_plots import pattern_marks
from hpgmn.report.page import MOST_BARS, MOST_PATTERNS, STAGE_NAMES
from hpgmn.report.rendering import resource

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
    result = re.search(rf'<section id="{key}".*?</section>', page, flags=re.S)
    return plain(result.group()) if result else ""


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


def test_ranked_nodes_name_class_probability_and_reason(make_data, tables_of):
    rows = [{"node": name, "label": None, "class": "no", "probability": 0.75} for name in "xy"]
    ranked = {"class": "no", "split": 3, "num_nodes": 2000, "is_labelled": False, "rows": rows}
    nodes = [node(1, None, "unlabelled", shares=[0.5, 0.25]), node(0, None, "unlabelled")]
    nodes[1]["shares"] = [0.125, -0.75]  # against "yes", which is for "no"
    content = explorer(nodes=nodes, ids=["x", "y"], statistics=[["a", "one"], ["b", "two"]])
    page = render_report(make_data(ranked=ranked, explorer=content))
    assert tables_of(page)["Ranked nodes, highest first"][1:] == [
        ["x", "", "75.0%", "one (+0.50)"],
        ["y", "", "75.0%", "two (+0.75)"],
    ]
    assert "the first 2 of 2,000" in section(page, "ranked")
    assert '<a class="open" href="#node=x" title="x">' in page
    without = render_report(make_data(ranked=ranked))
    assert tables_of(without)["Ranked nodes, highest first"][1] == ["x", "", "75.0%"]
    assert "#node=" not in without


def test_bare_data_is_enough(make_data):
    """Only what INTERFACE.md promises; neither history nor labelled test nodes."""
    data = make_data()
    optional = ("hardware", "graph_summary", "label_estimator", "warnings", "created")
    metrics = {key: value for key, value in data.metrics.items() if key not in optional}
    bare = replace(data, metrics=metrics, stages=(), confusion=np.zeros((3, 3), int))
    page = render_report(bare)
    read(page)
    for key in ("curves", "classes", "graph"):
        assert section(page, key)
    for key in ("health", "calibration", "statistics", "memory", "label-next", "explorer"):
        assert not section(page, key)


def test_warnings_are_listed(make_data):
    page = render_report(make_data(warnings=["one thing", "another"]))
    assert "<li>one thing</li><li>another</li>" in page
    assert "<li>" not in render_report(make_data(warnings=[])).split("</nav>")[1]
    folded = render_report(make_data(warnings=list("abcde")))
    assert folded.index("<li>c</li>") < folded.index("<summary>2 more") < folded.index("<li>d</li>")


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


def test_an_ensemble_shows_its_members(make_data, tables_of):
    facts = {"model": "gcn", "seconds": 2.0, "settings": {"hidden_dim": 64}}
    members = [
        {**facts, "name": "<wide>", "weight": 0.75, "val_score": 0.8, "contribution": 0.0125},
        {**facts, "name": "deep", "weight": 0.25, "val_score": 0.7, "contribution": None},
        {**facts, "name": "idle", "weight": 0.0, "val_score": 0.6, "contribution": 0.0},
    ]
    data = make_data(
        seeds=1,
        members=members,
        portfolio={"members": [*members, {"name": "late", "model": "gat", "failure": "no time"}]},
        explained_member="<wide>",
        config={"model": "ensemble", "settings": {}},
    )
    page = render_report(data)
    tables = tables_of(page)
    assert tables["Members of the ensemble"][1:] == [
        ["<wide>", "gcn", "0.750", "80.00%", "+1.25", "2.0 s"],
        ["deep", "gcn", "0.250", "70.00%", "–", "2.0 s"],
        ["idle", "gcn", "0.000", "60.00%", "+0.00", "2.0 s"],
    ]
    assert tables["Left out"][1:] == [["late", "gat", "no time"]]
    assert "The portfolio" not in tables
    assert tables["Settings over the model's defaults"][1] == ["<wide>", "hidden_dim=64"]
    assert "2 of 3 trained members" in page
    assert "Weight of each member: &lt;wide&gt; 0.75, deep 0.25." in page
    assert page.count("&lt;wide&gt;") >= 5
    assert "--ensemble" in page
    assert "--model" not in page


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


# Calibration


def recorded(**changes):
    errors = {
        f"{key}_{when}_mean": value
        for when, values in (
            ("before", (0.15, 0.14, 0.12, 1.1, 0.4)),
            ("after", (0.04, 0.05, 0.06, 0.7, 0.3)),
        )
        for key, value in zip(
            ("ece", "ece_equal_mass", "ece_by_class", "nll", "brier"), values, strict=True
        )
    }
    bins = [
        {"low": 0.0, "high": 0.5, "count": 0, "confidence": None, "accuracy": None},
        {"low": 0.5, "high": 0.75, "count": 10, "confidence": 0.6, "accuracy": 0.7},
        {"low": 0.75, "high": 1.0, "count": 1030, "confidence": 0.9, "accuracy": 0.75},
    ]
    coverage = [
        {"threshold": 0.9, "coverage": 0.5, "accuracy": 0.95},
        {"threshold": 0.51, "coverage": 1.0, "accuracy": 0.8},
    ]
    thresholds = [
        {"wanted_accuracy": 0.9, "threshold": 0.7, "coverage": 0.6, "accuracy": 0.91},
        {"wanted_accuracy": 0.99, "threshold": None},
    ]
    return {
        "temperature": [2.0, 2.5, 1.5, 2.0],
        **errors,
        "reliability": bins,
        "coverage": coverage,
        "thresholds": thresholds,
    } | changes


def test_calibration_shows_the_recorded_numbers(make_data, tables_of):
    page = render_report(make_data(calibration=recorded()))
    tables, text = tables_of(page), section(page, "calibration")
    for fact in ("1.50 to 2.50", "4.0 points", "15.0 before"):
        assert fact in text
    assert tables["Errors of the probabilities on test nodes, mean of the runs"][1:] == [
        ["Calibration error, bins of equal width", "0.150", "0.040"],
        ["Calibration error, bins of equal size", "0.140", "0.050"],
        ["Calibration error, mean over classes", "0.120", "0.060"],
        ["Log loss", "1.100", "0.700"],
        ["Brier score", "0.400", "0.300"],
    ]
    assert tables["Confidence and accuracy of test nodes, all 4 runs pooled"][1:] == [
        ["0.50 to 0.75", "10", "60.00%", "70.00%"],
        ["0.75 to 1.00", "1,030", "90.00%", "75.00%"],
    ]
    assert tables["Accuracy when only the most confident test nodes are answered"][1:] == [
        ["50.00%", "0.900", "95.00%"],
        ["100.00%", "0.510", "80.00%"],
    ]
    assert tables["Confidence thresholds from validation nodes"][1:] == [
        ["90%", "0.700", "60.00%", "91.00%"],
        ["99%", "–", "–", "–"],
    ]


def test_calibration_names_the_classes_whose_probabilities_are_off(make_data, tables_of):
    random = np.random.default_rng(0)
    truth = random.random(2000) < 0.028
    off = class_calibration(np.where(truth, 0.45, 0.23), truth)
    good = class_calibration(np.full(2000, 0.028), truth)
    classes = [{"class": "<fraud>", **off}, {"class": "mule", **good}]
    page = render_report(make_data(calibration=recorded(classes=classes, bias=[[0.0, -3.0]])))
    text = html.unescape(section(page, "calibration"))
    assert f"{100 * off['mean_probability']:.2f}%" in text
    assert f"{100 * truth.mean():.2f}%" in text
    assert "too high" in text
    assert "well calibrated" not in text
    rows = tables_of(page)[
        "Probability of each class on test nodes, mean over the seeds of a split"
    ]
    assert [row[0] for row in rows[1:]] == ["<fraud>", "mule"]
    assert page.count('aria-label="Reliability diagram') == 2  # of two classes one
    page = render_report(make_data(calibration=recorded(classes=classes[1:])))
    assert "well calibrated" in section(page, "calibration")


def test_calibration_without_test_nodes_or_temperature(make_data, tables_of):
    content = {"temperature": [2.0], "thresholds": recorded()["thresholds"]}
    page = render_report(make_data(calibration=content))
    assert "Confidence thresholds from validation nodes" in tables_of(page)
    assert 'aria-label="Reliability' not in page
    page = render_report(make_data(calibration=recorded(), config={"calibrate": False}))
    assert "1.50 to 2.50" not in section(page, "calibration")


# Graph health


def test_health_shows_the_audit(make_data, small_graph, tables_of):
    result = audit(small_graph, training=False)
    content = result.as_dict()
    kinds = ("out-neighbors", "in-neighbors", "attributes")
    content["twins"] = [
        {"alike": kind, "nodes": 6 * position, "test_share": 0.5, "agreement": None}
        for position, kind in zip((1, 0, 2), kinds, strict=True)
    ]
    content["homophily"]["edge"] = None
    content["findings"] += [
        {"severity": "odd", "topic": "t", "message": "<b>Bad</b>.", "advice": "Do <i>."}
    ]
    page = render_report(make_data(audit=content))
    tables, edges = tables_of(page), result.structure
    assert ["Self-loops, repeated edges", "1, 3"] in tables["Edges and attributes"]
    assert ["Edges", f"{edges.edges} directed"] in tables["Edges and attributes"]
    assert ["Nodes without neighbours", "1"] in tables["Edges and attributes"]
    measures = tables["Homophily"]
    assert measures[1][1] == f"{result.homophily.node:.3f}"
    assert measures[2][1] == "–"
    assert [row[1:] for row in tables["Duplicate nodes"][1:]] == [
        ["6", "50.00%", "–"],
        ["12", "50.00%", "–"],
    ]
    findings = tables["Findings, most severe first"][1:]
    assert len(findings) == len(result.findings) + 1
    assert findings[-1] == ["odd", "<b>Bad</b>. Do <i>."]
    assert "<b>" not in page


def test_health_without_findings_or_left_out(make_data, small_graph):
    content = audit(small_graph, training=False).as_dict()
    page = render_report(make_data(audit=content | {"findings": [], "twins": [], "split": None}))
    assert section(page, "health")
    assert "Duplicate nodes" not in page
    page = render_report(make_data(audit={"left_out": "Too large & slow."}))
    assert "Too large &amp; slow." in page


# The model


def test_statistics_are_shown_overall_and_by_class(make_data, make_understanding, tables_of):
    page = render_report(make_data(understanding=make_understanding()))
    tables = tables_of(page)
    shares = tables["Share of each statistic"][1:]
    assert [row[0].split()[0] for row in shares] == ["class_counts", "attributes"]
    assert [row[1] for row in shares] == ["0.750", "0.250"]
    assert tables["Share of each statistic by predicted class"] == [
        ["Class", "Nodes", "class_counts", "attributes"],
        ["student", "3", "2.500", "0.100"],
        ["faculty", "2", "1.500", "0.100"],
        ["course", "1", "0.500", "0.100"],
    ]
    assert "30 sampled nodes" in section(page, "statistics")
    assert "2 models of split 0" in section(page, "statistics")


def test_columns_are_listed_by_their_contribution(make_data, make_understanding, tables_of):
    page = render_report(make_data(understanding=make_understanding()))
    rows = tables_of(page)["Contribution of each column"]
    assert rows[1:] == [["amount (out, mean)", "0.500"], ["<b>age</b>", "0.125"]]
    content = make_understanding()
    del content["columns"]  # as earlier versions recorded it
    assert "Contribution of each column" not in render_report(make_data(understanding=content))


def test_models_of_a_single_run_have_no_scope(make_data, make_understanding):
    content = make_understanding(seeds=1, split=4)
    page = render_report(make_data(splits=[4], seeds=1, understanding=content))
    assert "of split 4" not in page
    page = render_report(make_data(splits=[4, 5], seeds=1, understanding=content))
    assert "Model of split 4." in section(page, "memory")


def test_bars_show_the_classes_with_the_most_nodes(make_data, make_understanding):
    classes = [f"c{number}" for number in range(MOST_BARS + 5)]
    page = render_report(make_data(understanding=make_understanding(classes=classes)))
    assert f"the {MOST_BARS} classes" in section(page, "statistics")
    assert "c20: class_counts" in page  # has the most nodes
    assert "c4: class_counts" not in page
    content = make_understanding()
    content["statistics_by_class"] = content["statistics_by_class"][:1]
    page = render_report(make_data(understanding=content))
    assert "by predicted class. Largest" not in page


def test_a_model_without_statistics_or_memory(make_data, make_understanding):
    content = make_understanding(
        statistics={}, statistics_by_class=[], patterns=[], map=None, model="<gcn>", label_next=[]
    )
    page = render_report(make_data(understanding=content))
    for key in ("statistics", "memory"):
        assert "<gcn>" in section(page, key)
    assert not section(page, "label-next")
    page = render_report(make_data(understanding={"left_out": "Too <large>."}))
    assert "Too <large>." in section(page, "learned")
    assert not section(page, "memory")


def test_nodes_to_label_next_are_listed_in_order(make_data, make_understanding, tables_of):
    page = render_report(make_data(understanding=make_understanding()))
    assert tables_of(page)["Nodes to label next"] == [
        ["Node", "Predicted class", "Entropy (nats)", "Neighbours"],
        ["n7", "course", "1.10", "1,234"],
        ["n3", "faculty", "0.50", "0"],
    ]
    assert "Nodes to label next are chosen so." in section(page, "label-next")


def test_patterns_are_shown_with_marks(make_data, make_understanding, tables_of):
    content = make_understanding()
    page = render_report(make_data(understanding=content))
    assert "6 patterns, 1 unused and 1 redundant" in section(page, "memory")
    marks = pattern_marks(content)
    first, *_, redundant, unused = [one["number"] for one in content["patterns"]]
    assert marks == {unused: "unused", redundant: f"like {first}"}
    rows = tables_of(page)["Patterns of the memory"]
    assert len(rows[0]) == 6
    for row, one in zip(rows[1:], content["patterns"], strict=True):
        mark = f" ({marks[one['number']]})" if one["number"] in marks else ""
        assert row[:2] == [f"{one['number']}{mark}", f"{100 * one['attention']:.1f}%"]
        best = max(one["classes"], key=lambda name: one["classes"][name])
        assert row[2].startswith(f"{best} {100 * one['classes'][best]:.0f}%")
        assert row[-1] == ", ".join(one["typical_nodes"])
    colours = tables_of(page)["Classes of each pattern's nodes"]
    one = content["patterns"][2]
    shares = [f"{100 * one['classes'][name]:.0f}%" for name in content["class_names"]]
    assert colours[3] == [str(one["number"]), *shares]


def test_many_patterns_and_classes_are_cut(make_data, make_understanding):
    names = [f"class {number} with a name that is rather long {number:>3}" for number in range(40)]
    content = make_understanding(classes=names, num_patterns=72, num_nodes=200)
    page = render_report(make_data(understanding=content))
    text = section(page, "memory")
    assert "The 11 classes" in text
    assert f"the {MOST_PATTERNS} most used patterns of 72" in text
    assert "Classes of each pattern's nodes" not in page
    content = make_understanding(num_patterns=4, map=None)
    for one in content["patterns"]:
        one["classes"] = dict.fromkeys(one["classes"], 0.0)
    text = section(render_report(make_data(understanding=content)), "memory")
    assert "Map of nodes" not in text


def test_map_shows_centres_and_variances(make_data, make_understanding, tables_of):
    content = make_understanding(num_nodes=30)
    page = render_report(make_data(understanding=content))
    text = section(page, "memory")
    for fact in ("75% of the variance", "50% and 25%", "40% of that", "All 30 nodes"):
        assert fact in text
    nodes, classes = np.array(content["map"]["nodes"]), np.array(content["map"]["classes"])
    rows = tables_of(page)["Mean position of each predicted class"][1:]
    for label, row in enumerate(rows):
        first, second = (
            sum(nodes[v, axis] for v in range(30) if classes[v] == label) / 10 for axis in (0, 1)
        )
        assert row == [content["class_names"][label], "10", f"{first:.3g}", f"{second:.3g}"]
    first, second = content["map"]["patterns"][4]
    rows = tables_of(page)["Positions of the patterns"][1:]
    assert rows[4] == ["4", f"{first:.3g}", f"{second:.3g}"]
    content["map"]["all_nodes"] = 12345
    page = render_report(make_data(understanding=content))
    assert "30 of 12,345 nodes" in section(page, "memory")


def test_nothing_from_the_model_becomes_markup(make_data, make_understanding):
    bad = '"><script>alert(1)</script><b>x</b>'
    content = make_understanding(classes=[bad, "b", "c"], model=bad, notes=[bad])
    for one in content["patterns"]:
        one["typical_nodes"] = [bad]
    content["label_next"][0]["node"] = bad
    page = render_report(make_data(understanding=content))
    assert "<script" not in page
    assert "<b>" not in page


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("audit", {"graph": "g"}),
        ("understanding", {"patterns": 3}),
        ("understanding", {"map": {"nodes": []}}),
        ("understanding", {"unused": None}),
        ("explorer", {"nodes": [{}]}),
        ("metrics", {"reliability": [{"low": 0.1}]}),
    ],
)
def test_data_of_another_form_is_named(make_data, make_understanding, part, content):
    if part == "metrics":
        data = make_data(calibration=recorded(**content))
    elif part == "understanding":
        data = make_data(understanding=make_understanding(**content))
    else:
        data = make_data(**{part: content})
    with pytest.raises(ReportDataError) as caught:
        render_report(data)
    assert caught.value.part == part


# The node explorer; what its script does is tested in a browser

EVIL_ID = "</script><b>bold</b><!--"


def node(prediction, label, role, **more):
    probabilities = [0.1, 0.1]
    probabilities[prediction] = 0.9
    return {
        "degree": 0,
        "neighbors": [],
        "edges": [],
        "prediction": prediction,
        "label": label,
        "role": role,
        "probabilities": probabilities,
        **more,
    }


def explorer(**changes):
    nodes = [node(0, 0, "train"), node(1, 0, "test"), node(1, None, "unlabelled")]
    nodes[2]["probabilities"] = [0.4, 0.6]
    return {
        "split": 3,
        "seeds": 1,
        "num_nodes": 3,
        "classes": ["yes", "no"],
        "ids": ["ann", EVIL_ID, "a b/ö"],
        "counts_as": [0, 1, 1],
        "is_known": [1, 0, 0],
        "nodes": nodes,
        "directed": True,
        "statistics": [],
        "patterns": [],
        "notes": [],
        **changes,
    }


def test_an_empty_explorer_gives_no_section_and_no_script(make_data):
    page = render_report(make_data(explorer=explorer(nodes=[], ids=[])))
    assert not section(page, "explorer")
    assert "<script" not in page


def test_exactly_one_script_may_run_by_its_hash(make_data):
    page = render_report(make_data(explorer=explorer()))
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL)
    assert [attributes for attributes, _ in scripts] == [
        ' type="application/json" id="explorer-data"',
        "",
    ]
    digest = base64.b64encode(hashlib.sha256(scripts[1][1].encode()).digest()).decode()
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


def test_an_id_never_becomes_markup(make_data):
    page = render_report(make_data(explorer=explorer()))
    assert "<b>" not in page
    [data] = re.findall(r'id="explorer-data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data)["ids"] == ["ann", EVIL_ID, "a b/ö"]
    assert data.isascii()
    assert '<a href="#node=%3C%2Fscript%3E%3Cb%3Ebold%3C%2Fb%3E%3C%21--">&lt;/script&gt;' in page


@pytest.mark.parametrize("name", ["explorer.js", "embedded.js"])
def test_the_script_makes_no_markup_from_text_and_loads_nothing(name):
    script = resource(name)
    words = ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval", "Function(")
    for word in (*words, "fetch", "XMLHttp", "import(", "sendBeacon", "</script", "<!--"):
        assert word not in script
    assert len(script.splitlines()) <= 410
    assert max(len(line) for line in script.splitlines()) <= 110


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({}, ["split 3", "All 3 nodes"]),
        ({"seeds": 4}, ["mean of 4 seeds"]),
        ({"num_nodes": 51234}, ["3 of 51,234 nodes"]),
        (
            {"nodes": [node(0, 0, "train", support=[]), node(0, 0, "train"), node(0, 0, "train")]},
            ["computed for 1 of them"],
        ),
    ],
)
def test_the_explorer_says_what_it_holds(make_data, changes, facts):
    text = section(render_report(make_data(explorer=explorer(**changes))), "explorer")
    for fact in facts:
        assert fact in text
    assert "hpgmn explain RUN --node ID" in text  # where scripts are disabled


def test_examples_are_an_error_a_turning_node_and_the_least_confident(make_data):
    def examples(content):
        page = render_report(make_data(explorer=content))
        [line] = re.findall("<p>For example: (.*?)</p>", page, re.DOTALL)
        return re.findall(r">([^<]*)</a>", line)

    assert examples(explorer()) == [html.escape(EVIL_ID), "a b/ö"]
    turning = [
        node(0, 0, "train", turning={"neighbors": [1, 2]}),
        node(0, 0, "train", turning={"neighbors": [2]}),
        node(1, 0, "train"),
    ]
    turning[1]["probabilities"] = [0.5, 0.5]  # also the least confident: named once
    assert examples(explorer(nodes=turning, ids=["x", "y", "z"])) == ["y"]
