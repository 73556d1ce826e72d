from __future__ import annotations

import html
import json
import re
import statistics
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.models import MODELS
from hpgmn.report import build_report, write_report
from hpgmn.report.html import _STAGE_NAMES, _facts, command

MakeRun = Callable[..., Path]
VOID = {"meta", "br", "hr", "link", "img", "input"}
EVIL = ["<script>alert(1)</script>", "$x^2$ & \"quoted\" 'too'", "学生\x00\n", '"><b>bold</b>']


class Reader(HTMLParser):
    """Checks that tags are balanced; collects tags, attributes and the tables."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[int] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.rows: list[list[str]] = []
        self.caption = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"attribute given twice: {attrs}"
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "table":
            self.rows, self.caption = [], ""
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag
        if tag == "table":
            self.tables[self.caption] = self.rows

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        if self.open and self.open[-1] == "caption":
            self.caption += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def metrics_of(folder: Path) -> Any:
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def plain(page: str) -> str:
    """The page's text without tags."""
    return html.unescape(
        re.sub(r"<[^>]*>", " ", re.sub(r"<style>.*?</style>", "", page, flags=re.S))
    )


def test_page_is_well_formed_and_in_order(make_run: MakeRun) -> None:
    reader = read(build_report(make_run()))
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


def test_page_asks_for_nothing_from_outside(make_run: MakeRun) -> None:
    page = build_report(make_run())
    for tag, attributes in read(page).tags:
        assert tag not in {"script", "link", "img", "image", "iframe", "object", "base"}
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert str(attributes.get("href", "#")).startswith("#")
    assert "http://" not in page
    assert "https://" not in page


def test_headline_tells_the_recorded_scores(make_run: MakeRun) -> None:
    folder = make_run()
    metrics, page = metrics_of(folder), plain(build_report(folder))
    mean = sum(metrics["test_score"]) / 4
    deviation = statistics.stdev(metrics["test_score"])
    assert f"{100 * mean:.2f} ± {100 * deviation:.2f}%" in page
    assert "mean and standard deviation over 4 runs" in page
    assert "2 splits × 2 seeds" in page
    assert "78.12 ± 5.00%" in page
    difference = 100 * (mean - 0.7812)
    assert f"{difference:.2f} points above" in page
    assert "more than the standard deviation between the runs" in page


@pytest.mark.parametrize(
    ("guess", "words"),
    [
        (0.86, "2.00 points below"),
        (0.83, "less than the standard deviation"),
        (0.70, "more than the standard deviation"),
        (0.84, "the model equals its label estimator"),
    ],
)
def test_headline_compares_with_the_label_estimator(
    make_run: MakeRun, guess: float, words: str
) -> None:
    folder = make_run(
        test_score_mean=0.84,
        test_accuracy_mean=0.84,
        test_accuracy_std=0.05,
        label_estimator={"test_accuracy_mean": guess, "test_accuracy_std": 0.01},
    )
    assert words in " ".join(plain(build_report(folder)).split())


def test_another_metric_is_not_compared_with_an_accuracy(make_run: MakeRun) -> None:
    folder = make_run(metric="roc_auc", test_score_mean=0.99, test_accuracy_mean=0.80)
    page = plain(build_report(folder))
    assert "Test ROC-AUC" in page
    assert "99.00 ±" in page
    assert "1.88 points above" in page  # 80 - 78.12


@pytest.mark.parametrize("estimator", [None, {}])
def test_run_without_a_label_estimator_says_nothing_of_one(
    make_run: MakeRun, estimator: dict[str, float] | None
) -> None:
    page = build_report(make_run(label_estimator=estimator))
    assert "points above" not in page


def test_scores_by_split_match_a_plain_loop(make_run: MakeRun) -> None:
    folder = make_run(splits=[0, 3, 7], seeds=4)
    metrics = metrics_of(folder)
    rows = read(build_report(folder)).tables["Accuracy by split, 4 seeds each"]
    assert rows[0] == [
        *("Split", "Test", "Deviation (points)", "Lowest to highest", "Validation", "Best epoch"),
    ]
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


def test_class_table_and_confusion_match_a_plain_loop(make_run: MakeRun) -> None:
    folder = make_run()
    nodes = [
        (row["label"], row["prediction"])
        for row in pq.read_table(folder / "predictions.parquet").to_pylist()
        if row["role"] == "test" and row["label"] is not None
    ]
    tables = read(build_report(folder)).tables
    names = ["course", "faculty", "student"]
    matrix = tables["Test nodes by true class (row) and predicted class (column)"]
    assert matrix[0] == ["True class", *names]
    for row, true in zip(matrix[1:], names, strict=True):
        assert row == [true, *(str(nodes.count((true, guess))) for guess in names)]
    by_class = tables["Test nodes by class, all runs together"]
    columns: list[list[float]] = [[], [], []]
    for row, name in zip(by_class[1:], names, strict=False):
        hits = nodes.count((name, name))
        support = sum(true == name for true, _ in nodes)
        predicted = sum(guess == name for _, guess in nodes)
        precision, recall = hits / predicted, hits / support
        shares = (precision, recall, 2 * precision * recall / (precision + recall))
        for column, share in zip(columns, shares, strict=True):
            column.append(share)
        expected = [f"{100 * share:.2f}%" for share in shares]
        assert row == [name, *expected, str(support), f"{support / 4:.1f}"]
    means = [f"{100 * statistics.mean(column):.2f}%" for column in columns]
    total = len(nodes)
    assert by_class[-1] == ["Mean, total support", *means, str(total), f"{total / 4:.1f}"]


def test_class_without_nodes_or_predictions_has_dashes(make_run: MakeRun) -> None:
    names = ["course", "faculty", "student", "nobody"]
    folder = make_run(graph_summary={"class_names": names})
    page = build_report(folder)
    rows = read(page).tables["Test nodes by class, all runs together"]
    assert rows[4] == ["nobody", "–", "–", "–", "0", "0.0"]
    assert "a share of nothing" in page


def test_many_classes_get_a_list_of_mistakes(make_run: MakeRun) -> None:
    folder = make_run(classes=[f"c{index}" for index in range(14)], num_nodes=400)
    nodes = [
        (row["label"], row["prediction"])
        for row in pq.read_table(folder / "predictions.parquet").to_pylist()
        if row["role"] == "test" and row["label"] is not None
    ]
    rows = read(build_report(folder)).tables["The most frequent mistakes"][1:]
    assert len(rows) == 15
    counts = [int(row[1]) for row in rows]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == max(nodes.count(pair) for pair in set(nodes) if pair[0] != pair[1])
    for mistake, count, share in rows:
        true, guess = mistake.split(" taken for ")
        assert int(count) == nodes.count((true, guess))
        of_class = sum(label == true for label, _ in nodes)
        assert share == f"{100 * int(count) / of_class:.2f}%"


def test_settings_and_command_are_those_of_the_run(make_run: MakeRun) -> None:
    folder = make_run(graph="my graphs/a.npz")
    page = build_report(folder)
    tables = read(page).tables
    assert ["statistics", "x,counts"] in tables["Settings of hpgmn"]
    assert ["gate", "true"] in tables["Settings of hpgmn"]
    assert (
        "hpgmn train 'my graphs/a.npz' --model hpgmn --metric accuracy --splits 0,3 --seeds 2 \\\n"
        "    --set gate=true --set lr=0.01 --set statistics=x,counts --set weight_decay=5e-05<"
    ) in html.unescape(page)
    machine = tables["Versions, machine and cost"]
    for row in (["hpgmn", "0.1.0"], ["PyTorch", "2.13.0"], ["Peak memory", "812 MB"]):
        assert row in machine


def test_command_writes_values_as_they_are_typed() -> None:
    config = {"graph": "g", "model": "m", "metric": "accuracy", "splits": [0], "seeds": 1}
    settings = {"a": None, "b": False, "c": [1, "x"], "d": 1e-5}
    words = command(config | {"settings": settings})
    assert words[-8:] == ["--set", "a=none", "--set", "b=false", "--set", "c=1,x", *words[-2:]]
    assert words[-1] == "d=1e-05"
    assert "--protocol" not in words
    more = command(config | {"settings": {}, "protocol": "geom", "device": "cpu"})
    assert more[-4:] == ["--protocol", "geom", "--device", "cpu"]


def test_command_repeats_what_was_said_of_the_tables() -> None:
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
    words = command(config | {"settings": {}, "positive": "fraud", "tables": tables})
    assert words[11:] == [
        *("--positive", "fraud", "--id", "email", "--split-column", "", "--weight", "amount"),
        *("--drop", "a", "--drop", "b c", "--category", "zip", "--split-by", "time", "when"),
        *("--drop-unknown-edges", "--undirected"),
    ]


def test_nothing_from_data_becomes_markup(make_run: MakeRun) -> None:
    bad = "<img src=x onerror=alert(2)>"
    folder = make_run(
        classes=EVIL,
        graph=bad,
        model=bad,
        metric=bad,
        version=bad,
        created=bad,
        warnings=[bad],
        hardware={bad: bad},
    )
    page = build_report(folder)
    reader = read(page)
    assert {"script", "img", "b"}.isdisjoint(tag for tag, _ in reader.tags)
    assert not any("onerror" in attributes for _, attributes in reader.tags)
    assert "\x00" not in page
    rows = reader.tables["Test nodes by class, all runs together"]
    assert rows[1][0] == "<script>alert(1)</script>"
    assert rows[2][0] == EVIL[1]
    assert rows[3][0] == "学生\ufffd "
    page.encode("utf-8")


def test_a_chosen_run_shows_what_it_was_chosen_among(make_run: MakeRun) -> None:
    members = [
        {"name": "one", "model": "hpgmn", "val_score_mean": 0.5, "seconds": 2.0, "failure": None},
        {"name": "two", "model": "mlp", "val_score_mean": 0.75, "seconds": 61.0, "failure": None},
        {"name": "big", "model": "mlp", "val_score_mean": None, "seconds": 0, "failure": "<no>"},
    ]
    chosen = {"chosen": "two", "splits": [0, 3], "members": members}
    page = build_report(make_run(portfolio=chosen))
    assert "by accuracy on the validation nodes of 2 splits" in page
    assert read(page).tables["The portfolio"] == [
        ["Settings", "Model", "Validation", "Time", "Note"],
        ["one", "hpgmn", "50.00%", "2.0 s", ""],
        ["two", "mlp", "75.00%", "61 s", "chosen"],
        ["big", "mlp", "–", "0.0 s", "<no>"],
    ]
    for nothing in ({}, {"members": []}, None):
        assert "Choice of settings" not in build_report(make_run(portfolio=nothing))


def test_warnings_are_listed(make_run: MakeRun) -> None:
    page = build_report(make_run(warnings=["one thing", "another"]))
    assert "<li>one thing</li><li>another</li>" in page
    none = build_report(make_run(warnings=[]))
    assert '<p class="quiet">None.</p>' in none


def test_single_run_has_no_spread(make_run: MakeRun) -> None:
    page = build_report(make_run(splits=[0], seeds=1, test_score_std=0.0))
    reader = read(page)
    assert "±" not in page
    assert "of a single run" in page
    assert reader.tables["Accuracy by split"][0] == ["Split", "Test", "Validation", "Best epoch"]
    assert "One run cannot tell" in page


def test_bare_run_folder_is_enough(make_run: MakeRun) -> None:
    """Only what INTERFACE.md promises; neither history nor labelled test nodes."""
    folder = make_run()
    metrics = metrics_of(folder)
    for name in ("hardware", "graph_summary", "label_estimator", "warnings", "created"):
        del metrics[name]
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "history.jsonl").write_text("")
    table = pq.read_table(folder / "predictions.parquet")
    pq.write_table(table.slice(0, 0), folder / "predictions.parquet")
    page = build_report(folder)
    read(page)
    assert "No epochs were recorded." in page
    assert page.count("There is no labelled test node.") == 2
    assert "Not described." in page


def test_run_without_test_nodes_has_dashes(make_run: MakeRun) -> None:
    names = ("test_score_mean", "test_score_std", "test_accuracy_mean", "test_accuracy_std")
    folder = make_run(test_score=[], **dict.fromkeys(names))
    page = build_report(folder)
    reader = read(page)
    assert "<strong>–</strong>" in page
    assert reader.tables["Accuracy by split, 2 seeds each"][-1][:4] == ["All", "–", "–", "–"]
    assert "its label estimator" not in page


def test_score_without_a_recorded_spread_is_told_alone(make_run: MakeRun) -> None:
    page = plain(build_report(make_run(test_score_std=None, test_accuracy_std=None)))
    assert "points above" in page
    assert "the standard deviation between" not in page


def test_every_stage_of_every_model_has_a_name() -> None:
    assert {stage for entry in MODELS.values() for stage in entry.stages} <= _STAGE_NAMES.keys()


def test_the_first_of_two_trainings_is_named(make_run: MakeRun) -> None:
    folder = make_run()
    history = folder / "history.jsonl"
    history.write_text(history.read_text().replace('"estimator"', '"refinement"'))
    titles = re.findall("<h3>(.*?)</h3>", build_report(folder))
    assert titles[0] == "First training, for pseudo labels"


def test_early_stops_are_told(make_run: MakeRun) -> None:
    folder = make_run()
    last: dict[tuple[int, int], int] = {}
    for row in map(json.loads, (folder / "history.jsonl").read_text().splitlines()):
        if row["stage"] == "main" and row["loss"] is not None:
            last[row["split"], row["seed"]] = row["epoch"]
    assert f"After epoch {min(last.values())}, where the first run stops" in build_report(folder)


def test_report_is_deterministic(make_run: MakeRun) -> None:
    folder = make_run()
    assert build_report(folder) == build_report(folder)


def test_report_of_thirty_long_runs_is_small(make_run: MakeRun) -> None:
    folder = make_run(splits=list(range(10)), seeds=3, epochs=300)
    assert len(build_report(folder).encode()) < 400_000


def test_written_report_is_the_built_one(make_run: MakeRun) -> None:
    folder = make_run()
    before = {path.name for path in folder.iterdir()}
    path = write_report(folder)
    assert path == folder / "report.html"
    assert path.read_text(encoding="utf-8") == build_report(folder)
    assert {path.name for path in folder.iterdir()} == before | {"report.html"}


def test_failed_report_leaves_the_old_page(make_run: MakeRun) -> None:
    folder = make_run()
    old = write_report(folder).read_bytes()
    (folder / "metrics.json").write_text("{")
    with pytest.raises(HPGMNError, match=r"metrics\.json"):
        write_report(folder)
    assert (folder / "report.html").read_bytes() == old


def test_folder_that_cannot_be_written_is_named(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied")

    folder = make_run()
    before = sorted(folder.iterdir())
    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(
        HPGMNError,
        match=r"Cannot write .*report\.html \(Permission denied\)\. Choose a writable path",
    ):
        write_report(folder)
    assert sorted(folder.iterdir()) == before


def test_facts_of_any_kind_become_rows() -> None:
    content = {"num_nodes": 1234, "homophily": {"edge": 0.1234, "node": float("nan")}, "x": None}
    assert _facts(content) == [
        ("Nodes", "1,234"),
        ("Homophily, edge", "0.123"),
        ("Homophily, node", "–"),
    ]
