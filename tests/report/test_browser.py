"""The report in a real browser, offline: looking nodes up, by mouse, keyboard and address."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.browser

HOSTILE = "</script><b>bold</b>"
NAMES = ["Ann", "ann smith", HOSTILE, "Zoë & 'co'", "50% off/#1", *(f"n{v}" for v in range(5, 24))]
SETTINGS = {
    "hidden_dim": 8,
    "num_patterns": 4,
    "epochs": 40,
    "estimator_epochs": 20,
    "statistics": "attributes,class_counts,class_means",
    "neighbors": "both",
}


def rows():
    """Nodes of two classes whose edges lead mostly to the other class; a few have no label."""
    random = np.random.default_rng(5)
    kind = np.arange(len(NAMES)) % 2
    nodes = []
    for v, name in enumerate(NAMES):
        label = "" if v in (6, 7) else ("buyer", "seller")[kind[v]]
        nodes.append([name, label, *(kind[v] + random.normal(size=2)).round(3)])
    other = [np.flatnonzero(kind != one) for one in (0, 1)]
    pairs = {
        (v, int(u))
        for v in range(len(NAMES) - 1)  # the last one has no edge
        for u in random.choice(other[kind[v]], 3, replace=False)
        if u != len(NAMES) - 1
    }
    return nodes, sorted((NAMES[v], NAMES[u]) for v, u in pairs)


def hpgmn(*arguments):
    from hpgmn.cli import main

    assert main([str(argument) for argument in arguments]) == 0


@pytest.fixture(scope="module")
def run(browser, tmp_path_factory):
    """Two tables and a trained model; the browser comes first, to skip early."""
    folder = tmp_path_factory.mktemp("browser")
    nodes, edges = rows()
    tables = folder / "people"
    tables.mkdir()
    for name, head, lines in (
        ("nodes.csv", ["id", "label", "height", "weight"], nodes),
        ("edges.csv", ["source", "target"], edges),
    ):
        with (tables / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([head, *lines])
    options = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    hpgmn("train", tables, "--splits", "0", "--seeds", "2", *options, "--out", folder / "run")
    return folder / "run"


@pytest.fixture
def page(run, browser):
    """The report in an offline browser; errors and requests for anything else are failures."""
    context = browser.new_context(offline=True, viewport={"width": 1300, "height": 900})
    opened = context.new_page()
    address = (run / "report.html").resolve().as_uri()
    faults: list[str] = []
    opened.on("console", lambda message: faults.append(message.text))
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on(
        "request",
        lambda request: (
            faults.append(request.url) if request.url.split("#")[0] != address else None
        ),
    )
    opened.goto(address)
    yield opened
    context.close()
    assert faults == []


def explained(run, node, capsys):
    capsys.readouterr()
    hpgmn("explain", run, "--node", node, "--json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def ask(page, node):
    """Type an id, press the button and wait for the answer."""
    from playwright.sync_api import expect

    page.evaluate("document.getElementById('explorer-status').textContent = ''")
    page.get_by_label("Node id").fill(node)
    page.get_by_role("button", name="Show the node").click()
    expect(page.locator("#explorer-status")).not_to_be_empty()


def heading(page):
    return page.locator("#explorer-node").inner_text()


def cells(page, start):
    """The rows of the table whose caption starts so."""
    table = page.locator("#explorer-result table").filter(
        has=page.locator("caption", has_text=start)
    )
    lines = table.locator("tbody tr").all()
    return [[cell.inner_text() for cell in line.locator("th, td").all()] for line in lines]


def percent(share):
    return f"{100 * share:.1f} %"


def points(support):
    text = f"{100 * support:+.2f}".replace("-", "−")
    return text if text[1:] != "0.00" else "0.00"


@pytest.mark.slow
@pytest.mark.parametrize("node", ["Ann", HOSTILE, "n12", "n6", "Zoë & 'co'", NAMES[-1]])
def test_a_typed_node_is_shown_as_the_command_explains_it(page, run, capsys, node):
    found = explained(run, node, capsys)
    ask(page, node)
    assert heading(page) == f"Node {node}"
    chance = percent(found["probabilities"][found["prediction"]])
    result = page.locator("#explorer-result").inner_text()
    assert f"Predicted class: ‘{found['prediction']}’, probability {chance}." in result

    marks = dict(zip(found["probabilities"], "AB", strict=True))
    ranked = sorted(found["probabilities"].items(), key=lambda pair: -pair[1])
    assert [[row[0], row[2]] for row in cells(page, "Probability of each class")] == [
        [f"{marks[name]}: {name}", percent(share)] for name, share in ranked
    ]
    shares = [
        [row[0].split("\n")[-1], row[2]] for row in cells(page, "Contribution of each statistic")
    ]
    assert [name for name, _ in shares] == list(found["statistics"])
    for (_, shown), value in zip(shares, found["statistics"].values(), strict=True):
        assert float(shown.replace("−", "-")) == pytest.approx(value, abs=0.0051)
    patterns = cells(page, "Memory patterns")
    assert [row[:2] for row in patterns] == [
        [str(one["number"]), percent(one["attention"])] for one in found["patterns"]
    ]
    for row, one in zip(patterns, found["patterns"], strict=True):
        assert row[2].endswith(f"for example {', '.join(one['typical_nodes'])}")
        name, share = max(one["classes"].items(), key=lambda pair: pair[1])
        assert f"nodes of class ‘{name}’ {100 * share:.0f} %" in row[2]

    near = cells(page, "Neighbours") if found["neighbors"] else []
    assert [[row[0], row[3]] for row in near] == [
        [one["node"], points(one["support"])] for one in found["neighbors"]
    ]
    for row, one in zip(near, found["neighbors"], strict=True):
        how = "label" if one["is_known"] else "pseudo-label"
        assert row[1] == f"{marks[one['counts_as']]}: {one['counts_as']}, {how}"
    drawn = page.locator("#explorer-result figure > svg .neighbor")
    assert drawn.count() == len(near)
    for key in ("turning", "without"):
        if found[key] is not None:
            then = found[key]["prediction"]
            sure = percent(found[key]["probabilities"][then])
            gone = ", ".join(found[key]["neighbors"])
            assert f"Without {gone}: ‘{then}’ ({sure})." in result
    if not near:
        assert "The node has no neighbours." in result


@pytest.mark.slow
def test_the_role_and_the_label_are_those_of_the_run(page, run):
    import pyarrow.parquet as pq

    seen = set()
    first = pq.read_table(run / "predictions.parquet", filters=[("seed", "=", 0)]).to_pylist()
    for row in first:
        ask(page, row["node_id"])
        said = page.locator("#explorer-result p").first.inner_text()
        guess = said.split("‘")[1].split("’")[0]
        verdict = "correct" if guess == row["label"] else "wrong"
        outcome = f"label ‘{row['label']}’: {verdict} prediction."
        expected = {
            "train": f"Train node, label ‘{row['label']}’.",
            "val": f"Validation node, {outcome}",
            "test": f"Test node, {outcome}",
            "unlabelled": "Label unknown.",
        }[row["role"]]
        assert said.endswith(expected)
        seen.add(row["role"])
    assert seen == {"train", "val", "test", "unlabelled"}


def test_neighbours_lead_on_and_the_browser_leads_back(page):
    edges = rows()[1]
    ask(page, "n12")
    links = page.locator("#explorer-result .neighbors a")
    expected = {u for v, u in edges if v == "n12"} | {v for v, u in edges if u == "n12"}
    assert set(links.all_inner_texts()) == expected
    second = links.first.inner_text()
    links.first.click()
    page.locator("#explorer-node").get_by_text(f"Node {second}", exact=True).wait_for()
    assert page.get_by_label("Node id").input_value() == second
    assert page.evaluate("document.activeElement.id") == "explorer-node"
    page.go_back()
    page.locator("#explorer-node", has_text="Node n12").wait_for()
    page.go_forward()
    page.locator("#explorer-node").get_by_text(f"Node {second}", exact=True).wait_for()

    circle = page.locator("#explorer-result figure > svg .neighbor.open").first
    third = cells(page, "Neighbours")[0][0]
    circle.click()
    page.locator("#explorer-node").get_by_text(f"Node {third}", exact=True).wait_for()


@pytest.mark.slow
@pytest.mark.parametrize("node", NAMES[:6])
def test_an_address_names_a_node(page, node):
    ask(page, node)
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    assert heading(page) == f"Node {node}"
    assert page.get_by_label("Node id").input_value() == node


def test_capitals_do_not_matter_unless_they_tell_nodes_apart(page):
    ask(page, "  ANN smith ")
    assert heading(page) == "Node ann smith"
    ask(page, "aNN")
    assert heading(page) == "Node Ann"


def test_an_unknown_node_gets_the_nearest_ids(page):
    ask(page, "an smith")
    said = page.locator("#explorer-result .missing")
    assert said.inner_text().startswith("There is no node ‘an smith’. Nearest ids: ann smith, ")
    assert page.get_by_role("status").inner_text() == said.inner_text()
    said.get_by_role("link", name="ann smith").click()
    page.locator("#explorer-node", has_text="Node ann smith").wait_for()


def test_the_keyboard_is_enough(page):
    page.get_by_label("Node id").focus()
    page.keyboard.type("n12")
    page.keyboard.press("Enter")
    page.locator("#explorer-node", has_text="Node n12").wait_for()
    spoken = page.get_by_role("status").inner_text()
    assert spoken.startswith("Node n12. Predicted class: ‘")
    assert page.evaluate("document.activeElement.id") == "explorer-input"
    wanted = page.locator("#explorer-result .neighbors a").first.inner_text()
    for _ in range(60):
        page.keyboard.press("Tab")
        inside = "document.activeElement.closest('.neighbors') && document.activeElement.innerText"
        if page.evaluate(inside) == wanted:
            break
    page.keyboard.press("Enter")
    page.locator("#explorer-node").get_by_text(f"Node {wanted}", exact=True).wait_for()
    assert page.evaluate("document.activeElement.id") == "explorer-node"


def test_suggestions_follow_what_is_typed(page):
    page.get_by_label("Node id").fill("N1")
    found = page.locator("#explorer-options option").evaluate_all(
        "all => all.map(one => one.value)"
    )
    assert sorted(found) == sorted(name for name in NAMES if "n1" in name.lower())
    page.get_by_label("Node id").fill("smith")
    found = page.locator("#explorer-options option").evaluate_all(
        "all => all.map(one => one.value)"
    )
    assert found == ["ann smith"]


def test_a_hostile_id_stays_text(page):
    ask(page, HOSTILE)
    ask(page, f"{HOSTILE}<img src=x onerror=alert(1)>")
    assert "<img src=x" in page.locator("#explorer-result").inner_text()
    assert page.locator("#explorer b, #explorer img").count() == 0


def test_the_examples_on_the_page_lead_to_their_nodes(page):
    links = page.locator("#explorer-tool p").filter(has_text="For example").locator("a")
    assert links.count() >= 1
    for name in links.all_inner_texts():
        links.get_by_text(name, exact=True).click()
        page.locator("#explorer-node").get_by_text(f"Node {name}", exact=True).wait_for()


def test_direction_and_support_are_drawn(page, run):
    content = json.loads((run / "explorer.json").read_text(encoding="utf-8"))
    node = content["nodes"][content["ids"].index("n12")]
    ask(page, "n12")
    svg = page.locator("#explorer-result figure > svg")
    assert svg.locator(".arrow").count() == sum(bits.bit_count() for bits in node["edges"])
    widths = svg.locator(".edge").evaluate_all(
        "all => all.map(e => +e.getAttribute('stroke-width'))"
    )
    strength = np.abs(node["support"])
    assert widths == pytest.approx(1 + 6 * strength / max(strength.max(), 0.01), abs=0.06)
    opposing = svg.locator(".edge").evaluate_all("all => all.map(e => e.matches('.opposing'))")
    assert opposing == [value < 0 for value in node["support"]]
    letters = svg.locator(".neighbor text:first-of-type").all_text_contents()
    assert letters == ["AB"[content["counts_as"][u]] for u in node["neighbors"]]


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1300])
def test_the_page_is_never_wider_than_the_window(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    for node in ("n12", NAMES[-1], "no such node"):
        ask(page, node)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_without_scripts_the_page_names_the_command(run, browser):
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto((run / "report.html").resolve().as_uri())
    section = page.locator("#explorer").inner_text()
    assert "hpgmn explain RUN --node ID" in section
    assert not page.get_by_label("Node id").is_visible()
    context.close()


def test_a_sample_says_so_and_leaves_out_what_it_has_not(run, browser, tmp_path):
    from hpgmn.runs.report_data import write_report

    part = Path(shutil.copytree(run, tmp_path / "part"))
    content = json.loads((part / "explorer.json").read_text(encoding="utf-8"))
    content["nodes"] = content["nodes"][:4]
    first = next(row for row in content["nodes"] if row["degree"])
    for key in ("support", "without", "turning"):
        first.pop(key)
    (part / "explorer.json").write_text(json.dumps(content), encoding="utf-8")
    page = browser.new_page()
    page.goto(write_report(part).resolve().as_uri())
    assert "4 of 24 nodes are listed" in page.locator("#explorer").inner_text()
    shown = content["ids"][content["nodes"].index(first)]
    ask(page, shown)
    linked = {content["ids"][u] for u in first["neighbors"] if u < 4}
    assert set(page.locator("#explorer-result .neighbors a").all_inner_texts()) == linked
    assert len(cells(page, "Neighbours")) == len(first["neighbors"])
    result = page.locator("#explorer-result").inner_text()
    assert "Effects of neighbours: hpgmn explain RUN" in result
    away = content["ids"][5]
    ask(page, away)
    said = page.locator("#explorer-result").inner_text()
    assert f"Node ‘{away}’ is not among the 4 of 24 nodes on this page." in said
    assert "For any other node: hpgmn explain RUN --node" in said
    page.close()


# The page around the explorer


def shown_node(page, node):
    """Wait for a node in the explorer, which is then in view and has the focus."""
    page.locator("#explorer-node").get_by_text(f"Node {node}", exact=True).wait_for()
    assert page.evaluate("document.activeElement.id") == "explorer-node"
    top = page.evaluate("document.getElementById('explorer').getBoundingClientRect().top")
    assert -5 < top < 100
    return page.url.endswith(f"#node={node}")


@pytest.mark.parametrize("section", ["ranked", "label-next"])
def test_a_click_on_a_row_opens_its_node(page, section):
    rows = page.locator(f"#{section} tbody tr")
    last = rows.nth(rows.count() - 1)
    node = last.locator("a").inner_text()
    cell = last.locator("td").last  # anywhere in the row, not on the id alone
    cell.scroll_into_view_if_needed()
    box = cell.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert shown_node(page, node)


def test_ranked_nodes_are_unlabelled_and_the_keyboard_opens_them(page):
    names = page.locator("#ranked tbody a").all_inner_texts()
    assert sorted(names) == ["n6", "n7"]
    page.locator("#ranked .scroll").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert shown_node(page, names[1])


@pytest.mark.parametrize("width", [390, 1400])
def test_contents_stay_in_view_and_lead_to_their_sections(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    links = page.locator("nav a")
    for link in links.all():
        target = link.get_attribute("href")
        link.click()
        assert link.is_visible()
        assert page.locator(target).locator("h2").is_visible()
        box = page.locator(f"{target} h2").bounding_box()
        nav = page.locator("nav").bounding_box()
        assert nav["y"] >= 0
        assert box["y"] < 800
        if width == 390:
            assert box["y"] >= nav["y"] + nav["height"] - 1
    page.evaluate("document.getElementById('calibration').scrollIntoView()")
    page.locator('nav a[href="#calibration"][aria-current]').wait_for()
    assert page.locator("nav a[aria-current]").count() == 1


def test_a_phone_scrolls_wide_tables_not_the_page(page):
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    wider = page.locator(".scroll").evaluate_all(
        "all => all.filter(one => one.scrollWidth > one.clientWidth).length"
    )
    assert wider > 0


# Figures

COLLISIONS = """svgs => svgs.flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")]
    .map(one => [one.textContent, one.getBoundingClientRect()]);
  const outside = texts.filter(([, box]) =>
    box.left < frame.left - 1 || box.right > frame.right + 1);
  const pairs = texts.flatMap(([first, a], at) => texts.slice(at + 1).filter(([, b]) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
    .map(([second]) => [first, second]));
  return [...outside.map(([text]) => [text, "outside"]), ...pairs];
})"""


def test_texts_of_figures_do_not_collide(page):
    figures = page.locator("main figure > svg")
    assert figures.count() > 8
    assert figures.evaluate_all(COLLISIONS) == []


@pytest.mark.parametrize("attention", [1.0, 0.021, 0.00012345])
def test_ticks_of_attention_do_not_collide(browser, make_understanding, attention):
    from hpgmn.report.model_plots import pattern_heatmap

    patterns = make_understanding(num_patterns=12)["patterns"]
    for place, row in enumerate(patterns):
        row["attention"] = attention * (1 - 0.01 * place)
    page = browser.new_page()
    svg = pattern_heatmap(patterns, ["course", "faculty", "student"], {}, 12, "patterns")
    page.set_content(f"<style>text {{ font-family: sans-serif !important; }}</style>{svg}")
    figure = page.locator("svg")
    assert figure.evaluate_all(COLLISIONS) == []
    assert "0%" in figure.locator("text").all_text_contents()
    page.close()
