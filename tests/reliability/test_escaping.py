"""Names from data stay text: on pages in a browser, in notebooks, on a terminal and in logs.

The browser is told to ignore the page's own policy, so that escaping alone is tested.
"""

import csv
import io
import json
import shutil
from typing import Any

import pytest

SCRIPT = "<script>window.hacked=1</script>"
IMAGE = '"><img src=x onerror=window.hacked=1>'
MARKUP = "[red]\x1b[31m[link=https://example.org]here[/link]\x1b]0;title\x07[/red]"
FORMULA = "=cmd|' /C calc'!A0"
NAMES = [
    *(SCRIPT, IMAGE, MARKUP, FORMULA, "javascript:window.hacked=1", "a|b\u202egnp.exe"),
    *("</script><script>window.hacked=1</script>", "{{7*7}}${7*7}", "' onfocus='window.hacked=1"),
    *(f"n{place}" for place in range(9, 24)),
]
CLASSES = [SCRIPT, f"{MARKUP}|{IMAGE}"]
COLUMN = f"{IMAGE[:-1]} "
FOLDER = "[bold]<img src=x onerror=window.hacked=1>"
SETTINGS = {
    "hidden_dim": 4,
    "num_patterns": 3,
    "epochs": 8,
    "estimator_epochs": 5,
    "statistics": "attributes,class_counts",
}


def hpgmn(*arguments):
    from hpgmn.cli import main

    assert main([str(argument) for argument in arguments]) == 0


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A folder of tables whose names are attacks, and a run on it."""
    folder = tmp_path_factory.mktemp("hostile")
    tables = folder / FOLDER
    tables.mkdir()
    nodes = [
        [name, CLASSES[place % 2], place % 2 + place / 50, SCRIPT if place % 3 else IMAGE]
        for place, name in enumerate(NAMES)
    ]
    count = len(NAMES)
    edges = [
        [NAMES[place], NAMES[(place + step) % count]] for place in range(count) for step in (1, 3)
    ]
    for name, head, lines in (
        ("nodes.csv", ["id", "label", COLUMN, "kind"], nodes),
        ("edges.csv", ["source", "target"], edges),
    ):
        with (tables / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([head, *lines])
    options = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    hpgmn("train", tables, "--splits", "0", *options, "--out", folder / "run")
    return folder


# On a terminal and in logs.


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["evaluate", "run"], 0),
        (["explain", "run"], 0),
        (["explain", "run", "--node", MARKUP], 0),
        (["explain", "run", "--node", f"{MARKUP}?"], 2),
        (["audit", FOLDER, "--no-training"], 0),
        (["predict", "run", "--out", "predictions.csv"], 0),
        (["train", f"{MARKUP[:10]}.npz"], 2),
    ],
    ids=["evaluate", "explain", "node", "unknown node", "audit", "predict", "missing"],
)
def test_a_terminal_is_told_nothing_by_names(hostile, capsys, monkeypatch, command, code):
    from hpgmn.cli import main
    from hpgmn.cli.console import err, out

    monkeypatch.chdir(hostile)
    for console in (out, err):  # a wide terminal in full colour: its own codes come from styles
        monkeypatch.setattr(console, "_force_terminal", True)
        monkeypatch.setattr(console, "_color_system", None)
        monkeypatch.setattr(console, "_width", 400)
    capsys.readouterr()
    assert main(command) == code
    said = "".join(capsys.readouterr())
    assert "\x07" not in said
    assert "\x1b[31m" not in said
    assert "\x1b]" not in said
    assert "\u202e" not in said
    if command[0] in ("evaluate", "audit", "train") or MARKUP in command[-1]:
        assert "[red]\ufffd[31m" in said or r"[red]\x1b[31m" in said
    if command[0] == "evaluate":
        assert SCRIPT in said


def test_a_log_holds_no_codes(hostile):
    import logging

    from hpgmn.runs.folder import log_file

    path = hostile / "log.txt"
    with log_file(path):
        logging.getLogger("hpgmn").warning("Node '%s'\nhas no\tneighbours.", MARKUP)
    text = path.read_text(encoding="utf-8")
    assert "[red]\ufffd[31m" in text
    assert text.endswith("\nhas no\tneighbours.\n")
    assert not {"\x1b", "\x07"} & set(text + (hostile / "run" / "log.txt").read_text())


def test_text_that_is_no_name_is_shown_as_it_is():
    from hpgmn.base.errors import without_controls

    fine = "Zoë & 'co' 学生 – ± \u200d 🙂\n\tx"
    assert without_controls(fine) == fine
    assert without_controls("a\rb\x7fc\x9bd\x00") == "a\ufffdb\ufffdc\ufffdd\ufffd"


def test_tables_hold_names_whole(hostile, tmp_path):
    """A table is for programs: names are quoted, never changed."""
    hpgmn("predict", hostile / "run", "--out", tmp_path / "found.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "found.csv").read_text(encoding="utf-8"))))
    assert [row["node_id"] for row in rows] == NAMES
    assert {row["prediction"] for row in rows} <= set(CLASSES)


def test_markdown_cells_stay_cells():
    from hpgmn_lab.rendering import frame
    from hpgmn_lab.reproduction.documents import Document, Grid, markdown

    evil = f"a|b {SCRIPT} 1 < 2"
    grid = Grid("g", evil, frame(("x", "y"), [(evil, f"**{evil}** / {evil}")]))
    text = markdown(Document("g", evil, evil, "hpgmn", (grid,)))
    assert "<script" not in text
    assert "1 < 2" in text
    [row] = [line for line in text.splitlines() if line.startswith("| a")]
    assert len(row.replace("\\|", "").split("|")) == 4  # two cells between three bars


# In a browser.


@pytest.fixture
def page(browser):
    context = browser.new_context(offline=True, bypass_csp=True)
    yield context.new_page()
    context.close()


def assert_unharmed(page, scripts=0):
    """No name has become an element, an attribute or a link, and none has run."""
    page.wait_for_timeout(50)  # a picture that fails does so later
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, iframe, object, embed, base, form[action]").count() == 0
    assert page.locator("script").count() == scripts
    found = page.evaluate(
        "[...document.querySelectorAll('*')].flatMap(e => [...e.attributes].filter(a => "
        "a.name.startsWith('on') || /^\\s*javascript:/i.test(a.value) && a.name === 'href')"
        ".map(a => e.tagName + ' ' + a.name))"
    )
    assert found == []
    links = page.locator("a[href]").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    assert [link for link in links if not link.startswith("#")] == []


@pytest.mark.browser
def test_a_browser_does_run_what_is_not_escaped(page):
    """So that the other tests can fail."""
    page.set_content(f"<p>{SCRIPT}{IMAGE}</p>")
    page.wait_for_timeout(50)
    assert page.evaluate("window.hacked") == 1


@pytest.mark.browser
def test_the_report_shows_hostile_names_as_text(page, hostile):
    page.goto((hostile / "run" / "report.html").as_uri())
    assert_unharmed(page, scripts=2)  # the explorer's data, and what looks nodes up
    assert "<img src=x onerror=window.hacked=1>" in page.title()
    text = page.locator("body").inner_text()
    assert SCRIPT in text
    assert FOLDER in text
    for name in NAMES[:9]:
        page.evaluate("document.getElementById('explorer-status').textContent = ''")
        page.get_by_label("Node id").fill(name)
        page.get_by_role("button", name="Show the node").click()
        page.locator("#explorer-node").wait_for()
        assert_unharmed(page, scripts=2)
    assert SCRIPT in page.locator("#explorer-result").inner_text()
    page.goto((hostile / "run" / "report.html").as_uri() + "#node=<img src=x onerror=hacked=1>")
    assert_unharmed(page, scripts=2)


@pytest.mark.browser
def test_notebooks_and_the_page_of_a_reproduction_show_names_as_text(page, hostile):
    from hpgmn import HPGMNClassifier, audit, load, open_run
    from hpgmn_lab.rendering import frame
    from hpgmn_lab.reproduction.documents import Document, Grid
    from hpgmn_lab.reproduction.documents import page as reproduction_page

    graph = load(hostile / FOLDER)
    model = HPGMNClassifier.load(hostile / "run")
    evil = SCRIPT + IMAGE
    grid = Grid("g", evil, frame((evil, "b"), [(evil, f"**{evil}**")]), True, evil)
    document = Document("g", evil, f"`{evil}`", evil, (grid,), missing=(evil,))
    shown: list[Any] = [graph, model.explain(graph), model.explain(graph, SCRIPT)]
    shown += [open_run(hostile / "run"), audit(graph, training=False)]
    contents = [one._repr_html_() for one in shown]
    for content in (*contents, reproduction_page([document])):
        page.set_content(content)
        assert_unharmed(page)
    page.set_content(contents[0])
    assert SCRIPT in page.locator("body").inner_text()


@pytest.mark.soak
@pytest.mark.browser
def test_changed_records_of_a_run_stay_text(page, hostile, tmp_path, soak):
    """A run folder may come from anywhere: every word in its records is made an attack."""
    run = shutil.copytree(hostile / "run", tmp_path / "run")

    def spoiled(content):
        if isinstance(content, dict):
            return {name: spoiled(own) for name, own in content.items()}
        if isinstance(content, list):
            return [spoiled(own) for own in content]
        return f"{SCRIPT}{IMAGE}" if isinstance(content, str) else content

    from hpgmn.base.errors import HPGMNError
    from hpgmn.base.files import CHECKSUM_KEY, with_checksum
    from hpgmn.runs.report_data import build_report

    made, every = 0, soak.amount(short=8, long=1)
    for path in sorted(run.glob("*.json")):
        before = path.read_text(encoding="utf-8")
        content = json.loads(before)
        worded = [name for name, own in content.items() if spoiled(own) != own]
        for name in worded[::every]:
            changed = content | {name: spoiled(content[name])}  # with a checksum that is right
            changed = with_checksum(changed) if CHECKSUM_KEY in content else changed
            path.write_text(json.dumps(changed), encoding="utf-8")
            try:
                text = build_report(run)
            except HPGMNError:
                continue
            made += 1
            if SCRIPT in text or IMAGE in text:  # only these can be dangerous: shown in the browser
                page.set_content(text)
                assert_unharmed(page, scripts=text.count("</script>"))
                pytest.fail(f"{path.name}: {name} is in the page as it is.")
        path.write_text(before, encoding="utf-8")
    assert made >= soak.amount(short=2, long=20)
    soak.record(
        "hostile-records",
        "A word in the records of a run stays text in its report, whatever it is.",
        records_changed=made,
    )
