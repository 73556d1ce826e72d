"""The service's page: its data against the run's own answers, and its behaviour in a browser."""

import asyncio
import re
import socket
import threading
import time
import warnings
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

import hpgmn
from hpgmn.service.app import make_app
from hpgmn.service.journal import Journal
from hpgmn.service.live import LiveRun
from hpgmn.service.page import MOST_MATCHES, search_ids
from hpgmn.service.state import ServedRun

HOSTILE = "<img src=x onerror=alert(1)>"
CLASS = "</script><b>yes</b>"
SETTINGS = {
    **{"epochs": 15, "estimator_epochs": 8, "hidden_dim": 6, "num_patterns": 3},
    **{"statistics": ("attributes", "class_counts", "class_means"), "neighbors": "both"},
}


def tables(num_nodes=60):
    random = np.random.default_rng(0)
    kind = np.arange(num_nodes) % 2
    ids = [HOSTILE, "a/b#c%20", *(f"n{k}" for k in range(2, num_nodes))]
    nodes = {
        "id": ids,
        "age": (kind + random.normal(size=num_nodes)).round(3).tolist(),
        "label": [(CLASS, "no", None)[k % 3] for k in range(num_nodes)],
        "price": [None if k % 3 == 2 else round(1000 + 50.5 * k, 1) for k in range(num_nodes)],
    }
    ends = random.integers(num_nodes - 1, size=(2, 3 * num_nodes))  # the last node has no edge
    edges = {
        key: [ids[k] for k in row] for key, row in zip(("source", "target"), ends, strict=True)
    }
    return nodes, edges


def train(folder, target):
    nodes, edges = tables()
    other = {"label": "price", "price": "label"}[target]
    nodes = {key: values for key, values in nodes.items() if key != other}
    graph = hpgmn.from_tables(nodes, edges, label=target, name="people & <co>")
    graph = graph.with_splits(hpgmn.random_splits(graph))
    options = {"model": "hpgmn", "settings": SETTINGS, "splits": [0], "report": False}
    return hpgmn.train(graph, out=folder / target, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("page"), "label")


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    return train(tmp_path_factory.mktemp("page"), "price")


def app_of(live):
    """The page over a graph that the test itself changes."""
    served = ServedRun(live.run, Journal(live.run, is_writable=False))
    served.live = live
    served.load = partial(asyncio.sleep, 0)
    return make_app(served)


def client_of(run):
    with warnings.catch_warnings(action="ignore"):  # it prefers another client library
        from starlette.testclient import TestClient

    live = LiveRun(run)
    return TestClient(app_of(live)), live


def get(client, path, **parameters):
    response = client.get(f"/page/{path}", params=parameters)
    assert response.status_code == 200, response.text
    return response.json()


def add_edge(live, source, target):
    live.apply(live.prepare([], [{"source": source, "target": target}]))


# The data.


@pytest.mark.parametrize("node", [HOSTILE, "a/b#c%20", "n7", "n8", "n59"])
def test_a_node_has_the_numbers_of_its_explanation(run, node):
    client, _ = client_of(run)
    expected, content = run.explain(node), get(client, "node", id=node)
    [row], ids, names = content["nodes"], content["ids"], content["classes"]
    assert ids[0] == node
    assert names == list(run.model.class_names)
    assert names[row["prediction"]] == expected.prediction
    assert row["probabilities"] == pytest.approx(list(expected.probabilities.values()))
    shares = dict(zip((name for name, _ in content["statistics"]), row["shares"], strict=True))
    assert shares == pytest.approx(expected.statistics)
    assert [number for number, _ in row["patterns"]] == [one.number for one in expected.patterns]
    for one in expected.patterns:
        pattern = content["patterns"][str(one.number)]
        assert pattern["classes"] == pytest.approx(list(one.classes.values()))
    assert [
        (ids[k], support) for k, support in zip(row["neighbors"], row["support"], strict=True)
    ] == [(one.node, pytest.approx(one.support)) for one in expected.neighbors]
    for k, one in zip(row["neighbors"], expected.neighbors, strict=True):
        counts_as = content["counts_as"][k]
        assert (None if counts_as < 0 else names[counts_as]) == one.counts_as
        assert bool(content["is_known"][k]) == one.is_known
    position = run.graph.node_ids.tolist().index(node)
    label, split = run.graph.y[position], run.graph.split(0)
    assert row["label"] == (None if label < 0 else label)
    assert row["role"] == "unlabelled" or getattr(split, row["role"])[position]
    assert (row["role"] == "unlabelled") == (label < 0)


def test_the_summary_follows_the_graph(run):
    client, live = client_of(run)
    before = {name: rest for name, *rest in get(client, "summary")["facts"]}
    assert before["Nodes"][0] == "60"
    assert before["Edges"][0] == str(run.graph.num_listed_edges)
    assert before["Test accuracy"][0] == f"{run.metrics['test_score_mean']:.2%}"
    add_edge(live, "n59", "n2")
    after = {name: rest for name, *rest in get(client, "summary")["facts"]}
    assert after["Edges"] == [str(run.graph.num_listed_edges + 1), "1 added since training"]


def test_a_regression_has_its_value_and_neighbours(regression):
    client, live = client_of(regression)
    content, expected = get(client, "node", id="n8"), regression.explain("n8")
    [row], [prediction] = content["nodes"], live.predict(["n8"])
    assert float(row["value"].replace(",", "")) == pytest.approx(prediction["prediction"], abs=0.5)
    assert content["classes"] == row["probabilities"] == []
    near = [content["ids"][k] for k in row["neighbors"]]
    assert near == [one.node for one in expected.neighbors]
    assert row["support"] == pytest.approx([one.support for one in expected.neighbors])
    assert get(client, "summary")["class"] is None


def test_an_unknown_id_or_class_is_refused_with_a_remedy(run):
    client, _ = client_of(run)
    answer = client.get("/page/node", params={"id": "n5x"})
    assert answer.status_code == 422
    assert "n5" in answer.json()["error"]
    assert client.get("/page/node").status_code == 422


@pytest.mark.parametrize("text", ["", "N1", "1", "  n5 ", "IMG", "zzz", "n"])
def test_a_search_finds_what_a_slow_one_finds(run, text):
    client, _ = client_of(run)
    ids, wanted = run.graph.node_ids.tolist(), text.strip().lower()
    ranked = sorted(
        (name for name in ids if wanted in name.lower()),
        key=lambda name: (name.lower() != wanted, not name.lower().startswith(wanted)),
    )
    content = get(client, "search", q=text)
    assert content["ids"] == ranked[:MOST_MATCHES]
    assert content["has_more"] == (len(ranked) > MOST_MATCHES)


def test_a_search_of_100_000_ids_is_fast():
    ids = [f"account-{k:07d}" for k in range(100_000)]
    start = time.process_time()
    assert search_ids(ids, "99999") == ["account-0099999"]
    assert time.process_time() - start < 0.5  # about 20 ms


# The page.


def test_the_page_holds_no_data_and_loads_nothing_from_elsewhere(run):
    client, _ = client_of(run)
    response = client.get("/")
    page, policy = response.text, response.headers["content-security-policy"]
    assert response.headers["content-type"].startswith("text/html")
    for secret in ("n59", "people", "onerror", run.metrics["version"]):
        assert secret not in page
    outside = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", page))
    assert outside == {"http://www.w3.org/2000/svg"}  # a name, never loaded
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.count("<script") == page.count("<style") == 1
    assert " style=" not in page
    assert not re.search(r"\son\w+=", page)


def test_the_script_makes_no_markup_from_text():
    from hpgmn.report.rendering import resource

    script = resource("page.js", "hpgmn.service")
    words = ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval", "Function(")
    for word in (*words, "XMLHttp", "import(", "</script", "<!--"):
        assert word not in script
    assert script.count("fetch(") == 1


# In a browser.


@contextmanager
def serve(app):
    """Serve an app on a free port of this machine; yields its address."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            for _ in range(500):
                if server.started:
                    break
                time.sleep(0.02)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(20)


@contextmanager
def open_page(browser, address, expected_faults=()):
    """Open a page; requests elsewhere, dialogs and unexpected messages are failures."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page, faults = context.new_page(), []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
    page.on("console", lambda message: faults.append(message.text))
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith(address.split("#")[0]) else faults.append(request.url)
        ),
    )
    try:
        page.goto(address)
        yield page
    finally:
        context.close()
    unexpected = [text for text in faults if not any(part in text for part in expected_faults)]
    assert unexpected == []


def shown(page, node):
    page.locator("#explorer-node").get_by_text(f"Node {node}", exact=True).wait_for()


def neighbors(page):
    return page.locator("#explorer-result .neighbors a").all_inner_texts()


def search(page, text):
    page.get_by_label("Node id").fill(text)
    page.get_by_role("button", name="Show the node").click()


@pytest.mark.browser
def test_search_list_and_neighbours_lead_from_node_to_node(run, browser):
    live = LiveRun(run)
    refusal = "422"  # the browser reports the status of an unknown id
    with serve(app_of(live)) as address, open_page(browser, address, [refusal]) as page:
        ranked = run.predict(top=50).node_ids.tolist()
        shown(page, ranked[0])
        links = page.locator("#ranking a")
        assert links.all_inner_texts() == [str(name) for name in ranked]
        place = next(k for k in (3, 4) if run.explain(ranked[k]).neighbors)
        links.nth(place).click()
        shown(page, ranked[place])
        assert page.locator("#ranking [aria-current]").inner_text() == ranked[place]
        expected = run.explain(ranked[place])
        assert neighbors(page) == [one.node for one in expected.neighbors]
        result = page.locator("#explorer-result").inner_text()
        chance = f"{100 * expected.probabilities[expected.prediction]:.1f} %"
        assert f"Predicted class: ‘{expected.prediction}’, probability {chance}." in result
        assert "Contribution of each statistic" in result

        second = neighbors(page)[0]
        page.locator("#explorer-result .neighbors a").first.click()
        shown(page, second)
        page.go_back()
        shown(page, ranked[place])

        page.get_by_label("Node id").fill("N5")
        page.locator("#matches a").first.wait_for()
        found = page.locator("#matches a").all_inner_texts()
        assert sorted(found) == sorted(name for name in run.graph.node_ids if "n5" in name)
        page.locator("#matches").get_by_text("n59", exact=True).focus()
        page.keyboard.press("Enter")
        shown(page, "n59")
        assert "The node has no neighbours." in page.locator("#explorer-result").inner_text()

        add_edge(live, "n59", HOSTILE)
        page.reload()
        shown(page, "n59")  # by its address
        assert neighbors(page) == [HOSTILE]
        page.locator("#explorer-result .neighbors a").first.click()
        shown(page, HOSTILE)
        assert page.locator("main img, main b").count() == 0

        search(page, f"{HOSTILE}{HOSTILE}")
        page.locator("#explorer-result .missing").wait_for()
        assert f"{HOSTILE}{HOSTILE}" in page.locator("#explorer-result").inner_text()
        assert page.locator("main img, main b").count() == 0
        other = next(name for name in run.model.class_names if name != live.positive)
        page.get_by_label("Class").select_option(other)
        page.locator("#ranking caption").get_by_text(other).wait_for()
        for width in (390, 1400):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_a_regression_is_shown_without_classes(regression, browser):
    with serve(app_of(LiveRun(regression))) as address, open_page(browser, address) as page:
        first = str(regression.predict(top=1).node_ids[0])
        shown(page, first)
        links = page.locator("#ranking a")
        assert links.all_inner_texts() == regression.predict(top=50).node_ids.tolist()
        result = page.locator("#explorer-result").inner_text()
        assert "Predicted value: " in result
        assert "undefined" not in result
        assert "NaN" not in result
        assert neighbors(page) == [one.node for one in regression.explain(first).neighbors]
        assert not page.get_by_label("Class").is_visible()


@pytest.mark.browser
def test_a_service_that_stops_is_reported(run, browser):
    refused = ["ERR_CONNECTION_REFUSED"]
    with serve(app_of(LiveRun(run))) as address:
        context = open_page(browser, address, refused)
        page = context.__enter__()
        page.locator("#explorer-node").wait_for()
    search(page, "n7")
    page.locator("#explorer-result .missing", has_text="does not answer").wait_for()
    page.get_by_role("button", name="Refresh").click()
    page.get_by_role("alert").get_by_text("does not answer").wait_for()
    context.__exit__(None, None, None)


@pytest.mark.browser
def test_the_page_asks_for_the_token(run, browser):
    served = ServedRun(run, Journal(run, is_writable=False))
    with (
        serve(make_app(served, token="secret-17")) as address,
        open_page(browser, f"{address}#node=n7", ["401"]) as page,
    ):
        field = page.get_by_label("Token of the service")
        field.wait_for()
        assert page.locator("#explorer-tool").is_hidden()
        field.fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_role("alert").get_by_text("refuses this token").wait_for()
        field.fill("secret-17")
        page.keyboard.press("Enter")
        shown(page, "n7")
        assert field.is_hidden()
        page.reload()
        shown(page, "n7")
        assert "secret-17" not in page.content()
