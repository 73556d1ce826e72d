"""Every route: its values, and its refusals as JSON with a remedy."""

import json
import random
import threading
import time

import numpy as np
import pytest

import hpgmn

JSON = {"Content-Type": "application/json"}


def assert_refused(response, status):
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error", "remedy"}
    assert body["error"]
    assert body["remedy"]
    assert "Traceback" not in response.text
    return body


def probabilities(response):
    assert response.status_code == 200, response.text
    return {
        row["id"]: list(row["probabilities"].values()) for row in response.json()["predictions"]
    }


def assert_same(found, expected):
    for name, row in found.items():
        np.testing.assert_allclose(row, expected[name], atol=1e-5)


def test_known_nodes_have_the_predictions_of_the_run(client, expected, run_folder):
    names = [f"n{k}" for k in range(60)]
    response = client.post("/predict", json={"ids": names})
    found = probabilities(response)
    assert list(found) == names
    assert_same(found, expected())
    run = hpgmn.open_run(run_folder).predict()
    rows = response.json()["predictions"]
    assert [row["prediction"] for row in rows] == run.labels.tolist()
    assert [row["confidence"] for row in rows] == pytest.approx(run.confidence.tolist(), abs=1e-5)


def test_new_nodes_are_predicted_and_not_kept(client, expected, new_node, new_edge):
    nodes, edges = [new_node("a"), new_node("b", kind="bank")], [new_edge("a", "n1")]
    edges += [new_edge("n2", "b", 500.0), new_edge("a", "b")]
    found = probabilities(client.post("/predict", json={"nodes": nodes, "edges": edges}))
    assert list(found) == ["a", "b"]
    assert_same(found, expected(nodes, edges))
    assert_refused(client.post("/predict", json={"ids": ["a"]}), 422)
    assert client.get("/ready").json()["graph"] == {"nodes": 60, "edges": 240}


def test_the_graph_grows(client, expected, new_node, new_edge):
    nodes, edges = [new_node("a"), new_node("b", age=None)], [new_edge("a", "n1", 900.0)]
    answer = client.post("/nodes", json={"nodes": nodes, "edges": edges})
    assert answer.json() == {
        "added": {"nodes": 2, "edges": 1},
        "graph": {"nodes": 62, "edges": 241},
    }
    more = [new_edge("b", "n1"), new_edge("n5", "a", 70.5)]
    assert client.post("/edges", json={"edges": more}).json()["graph"]["edges"] == 243
    names = ["a", "b", *(f"n{k}" for k in range(60))]
    found = probabilities(client.post("/predict", json={"ids": names}))
    assert_same(found, expected(nodes, edges + more))
    assert client.get("/metrics").text.count("hpgmn_journal_entries 2.0") == 1


def test_what_was_added_is_replayed(open_client, expected, new_node, new_edge):
    nodes = [new_node(f"a{k}", age=20 + k if k % 2 else 20.5) for k in range(6)]
    edges = [new_edge(f"a{k}", "n1", 10 * k) for k in range(6)]
    with open_client() as client:
        for node, edge in zip(nodes, edges, strict=True):
            assert client.post("/nodes", json={"nodes": [node], "edges": [edge]}).is_success
        before = probabilities(client.post("/predict", json={"ids": ["a0", "a5", "n1"]}))
    for is_writable in (True, False):
        with open_client(is_writable=is_writable) as client:
            after = probabilities(client.post("/predict", json={"ids": list(before)}))
            assert client.get("/ready").json()["graph"]["nodes"] == 66
            for name, row in before.items():
                np.testing.assert_allclose(after[name], row, atol=1e-6)
    assert_same(before, expected(nodes, edges))


def test_explanation_and_ranking_are_those_of_the_run(client, run_folder):
    run = hpgmn.open_run(run_folder)
    found = client.post("/explain", json={"id": "n7"}).json()
    assert found["prediction"] == run.explain("n7").as_dict()["prediction"]
    ranked = client.get("/top", params={"k": 5, "of": "yes"}).json()["nodes"]
    top = run.predict(top=5, of="yes")
    assert [row["id"] for row in ranked] == top.node_ids.tolist()
    assert [row["reason"] for row in ranked] == top.reasons.tolist()


def test_the_page_and_its_data_are_served(client):
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert client.get("/page/search", params={"q": "n1"}).json()["ids"][0] == "n1"


def test_metrics_count_requests_by_route_and_status(client):
    client.post("/predict", json={"ids": ["n1"]})
    client.post("/predict", json={"ids": ["nobody"]})
    client.get("/nowhere/1")
    client.get("/nowhere/2")
    text = client.get("/metrics").text
    assert 'hpgmn_request_seconds_count{route="/predict",status="200"} 1.0' in text
    assert 'hpgmn_request_seconds_count{route="/predict",status="422"} 1.0' in text
    assert 'hpgmn_request_seconds_count{route="other",status="404"} 2.0' in text
    assert "hpgmn_nodes 60.0" in text
    assert "hpgmn_edges 240.0" in text


def test_the_schema_has_valid_examples_and_the_form_of_errors(client):
    from hpgmn.service import app

    schema = client.get("/openapi.json").json()
    assert {"/health", "/ready", "/metrics", "/top"} <= set(schema["paths"])
    for path in ("/predict", "/explain", "/nodes", "/edges"):
        operation = schema["paths"][path]["post"]
        assert set(operation["responses"]) == {"200", "default"}
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        name = reference.rpartition("/")[2]
        examples = schema["components"]["schemas"][name]["examples"]
        assert examples
        for example in examples:
            getattr(app, name).model_validate(example)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/predict", b'{"ids": ["n1"', 400),
        ("/predict", b'{"ids": ["\xff"]}', 400),
        ("/predict", b"[" * 100_000, 400),
        ("/predict", b'{"ids": [' + b"9" * 5000 + b"]}", 400),
        ("/predict", b"[]", 422),
        ("/predict", b"", 422),
        ("/predict", b"{}", 422),
        ("/predict", b'{"ids": ["n1"], "nodes": []}', 422),
        ("/predict", b'{"ids": "n1"}', 422),
        ("/predict", b'{"ids": [1.5]}', 422),
        ("/predict", b'{"ids": [true]}', 422),
        ("/predict", b'{"ids": ["nobody"]}', 422),
        ("/predict", b'{"ids": ["\\ud800"]}', 422),
        ("/predict", b'{"ids": [], "more": 1}', 422),
        ("/predict", b'{"nodes": [{"id": "a", "age": NaN, "kind": "firm"}]}', 422),
        ("/predict", b'{"nodes": [{"id": "a", "age": 1e999, "kind": "firm"}]}', 422),
        ("/predict", b'{"nodes": [{"id": "a", "age": "old", "kind": "firm"}]}', 422),
        ("/predict", b'{"nodes": [{"id": "a", "age": [1], "kind": "firm"}]}', 422),
        ("/predict", b'{"nodes": [{"id": "a", "agee": 1, "kind": "firm"}]}', 422),
        ("/predict", b'{"nodes": [{"id": "a", "kind": "firm"}]}', 422),
        ("/predict", b'{"nodes": [{"id": "n1", "age": 1, "kind": "firm"}]}', 422),
        ("/explain", b'{"id": "nobody"}', 422),
        ("/explain", b'{"id": null}', 422),
        ("/nodes", b'{"nodes": []}', 422),
        ("/nodes", b'{"nodes": [{"id": "\\ud800", "age": 1, "kind": "x"}]}', 422),
        ("/edges", b'{"edges": [{"source": "n1", "target": "no", "amount": 1}]}', 422),
        ("/edges", b'{"edges": [{"source": "n1", "target": "n2", "amount": "x"}]}', 422),
        ("/edges", b'{"edges": [{"source": "n1", "target": "n2", "amoun": 1}]}', 422),
    ],
)
def test_invalid_bodies_are_refused_and_change_nothing(client, path, body, status):
    assert_refused(client.post(path, content=body, headers=JSON), status)
    assert client.get("/ready").json()["graph"] == {"nodes": 60, "edges": 240}
    assert client.served.journal.num_entries == 0


def test_a_mistyped_column_is_corrected(client):
    rows = {"nodes": [{"id": "a", "agee": 1, "kind": "firm"}]}
    body = assert_refused(client.post("/predict", json=rows), 422)
    assert "'agee'" in body["error"]
    assert "'age'" in body["remedy"]


def test_errors_of_types_name_the_item_alone(client):
    body = assert_refused(client.post("/predict", json={"ids": ["n1", None]}), 422)
    assert body["error"].startswith("body.ids.1: ")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/predict", 405),
        ("DELETE", "/nodes", 405),
        ("GET", "/nowhere", 404),
        ("GET", "/docs", 404),
        ("GET", "/top?k=0", 422),
        ("GET", "/top?k=many", 422),
        ("GET", "/top?k=999999999999999999999", 422),
        ("GET", "/top?of=nothing", 422),
    ],
)
def test_wrong_methods_paths_and_parameters(client, method, path, status):
    assert_refused(client.request(method, path), status)


def test_other_media_types_are_refused(client):
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        body = json.dumps({"ids": ["n1"]}).encode()
        response = client.post("/predict", content=body, headers={"Content-Type": kind})
        assert "application/json" in assert_refused(response, 422)["remedy"]


def test_the_token_is_required_but_for_health(open_client):
    with open_client(token="secret") as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            response = client.post("/predict", json={"ids": ["n1"]}, headers=headers)
            assert_refused(response, 401)
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert_refused(client.get("/metrics", headers=headers), 401)
            assert_refused(client.get("/page/summary", headers=headers), 401)
        lower = {"Authorization": "bearer secret"}  # schemes are case-insensitive
        assert client.post("/predict", json={"ids": ["n1"]}, headers=lower).status_code == 200
        for method in ("HEAD", "OPTIONS", "GET", "POST", "PUT"):
            for path in ("/predict//", "/predict/", "/page/node?id=n1", "/health/", "/top?/"):
                assert client.request(method, path).status_code == 401
        assert client.get("/health").status_code == 200
        right = {"Authorization": "Bearer secret"}
        assert client.post("/predict", json={"ids": ["n1"]}, headers=right).status_code == 200


def test_requests_are_limited_in_bytes(open_client):
    with open_client(max_body=200) as client:
        assert_refused(client.post("/predict", content=b" " * 201, headers=JSON), 413)
        chunks = (b" " * 50 for _ in range(5))  # no Content-Length
        assert_refused(client.post("/predict", content=chunks, headers=JSON), 413)
        assert client.post("/predict", json={"ids": ["n1"] * 3}).status_code == 200


def test_a_slow_computation_is_answered_in_time(open_client, monkeypatch):
    with open_client(timeout=0.2) as client:
        monkeypatch.setattr(client.served.live, "explain", lambda name: time.sleep(1))
        start = time.monotonic()
        assert_refused(client.post("/explain", json={"id": "n1"}), 503)
        assert time.monotonic() - start < 0.9


def test_known_nodes_are_answered_while_others_compute(client, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(client.served.live, "explain", lambda name: {"x": release.wait(20)})
    waiting = threading.Thread(target=client.post, args=("/explain",), kwargs={"json": {"id": "1"}})
    waiting.start()
    try:
        assert client.post("/predict", json={"ids": ["n1"]}).status_code == 200
        assert client.get("/ready").status_code == 200
        assert waiting.is_alive()
    finally:
        release.set()
        waiting.join()


def test_an_unexpected_error_is_short_and_logged(client, monkeypatch, caplog):
    def fail(name):
        raise ZeroDivisionError("a detail")

    monkeypatch.setattr(client.served.live, "explain", fail)
    body = assert_refused(client.post("/explain", json={"id": "n1"}), 500)
    assert "a detail" not in str(body)
    assert "ZeroDivisionError: a detail" in caplog.text


def test_a_failed_addition_ends_the_service_and_is_replayed(open_client, monkeypatch, new_node):
    with open_client() as client:

        def fail(addition):
            raise ZeroDivisionError

        monkeypatch.setattr(client.served.live, "apply", fail)
        assert_refused(client.post("/nodes", json={"nodes": [new_node("a")]}), 500)
        assert_refused(client.get("/ready"), 503)
        assert_refused(client.post("/predict", json={"ids": ["n1"]}), 503)
        assert "hpgmn_journal_entries 1.0" in client.get("/metrics").text
    monkeypatch.undo()
    with open_client() as client:
        assert client.post("/predict", json={"ids": ["a"]}).status_code == 200


def test_nothing_is_served_before_it_is_loaded(open_client, monkeypatch):
    release, loaded = threading.Event(), threading.Event()
    from hpgmn.service.state import ServedRun

    load = ServedRun._load
    monkeypatch.setattr(ServedRun, "_load", lambda self: (release.wait(20), load(self))[1])
    with open_client(on_loaded=lambda failure: loaded.set()) as client:
        for path in ("/health", "/metrics", "/", "/openapi.json"):
            assert client.get(path).status_code == 200
        for path in ("/ready", "/top", "/page/summary"):
            assert_refused(client.get(path), 503)
        assert_refused(client.post("/predict", json={"ids": ["n1"]}), 503)
        release.set()
        assert loaded.wait(20)
        assert client.get("/ready").status_code == 200


def test_remedies_name_no_options_of_python_or_commands(client, new_node, new_edge):
    bodies = [
        ("/edges", {"edges": [new_edge("n1", "nobody")]}),
        ("/edges", {"edges": [{"source": "n1", "target": "n2"}]}),
        ("/nodes", {"nodes": [new_node("a", age="old")]}),
        ("/nodes", {"nodes": [new_node("n1")]}),
        ("/nodes", {"nodes": [new_node("a", label="perhaps")]}),
        ("/nodes", {"nodes": [{"id": "a", "age": 1}]}),
    ]
    for path, body in bodies:
        remedy = assert_refused(client.post(path, json=body), 422)["remedy"]
        assert "=" not in remedy
        assert "--" not in remedy


def test_a_read_only_service_refuses_additions(open_client, new_node, new_edge):
    with open_client(is_writable=False) as client:
        assert_refused(client.post("/nodes", json={"nodes": [new_node("a")]}), 403)
        assert_refused(client.post("/edges", json={"edges": [new_edge("n1", "n2")]}), 403)
        nodes = {"nodes": [new_node("a")], "edges": [new_edge("a", "n2")]}
        assert client.post("/predict", json=nodes).status_code == 200


def random_value(draw, depth=0):
    plain = [
        *(None, True, False, 0, -1, 1.5, 10**30, -(10**400), 1e308, float("nan"), float("inf")),
        *("", "n1", "n2", "firm", "a", "\x00", "\ud800", "é" * 300, "1", "1e5", "2024-01-01"),
    ]
    if depth < 3 and draw.random() < 0.2:
        members = [random_value(draw, depth + 1) for _ in range(draw.randrange(4))]
        if draw.random() < 0.5:
            return members
        return {draw.choice(["id", "age", "x", ""]): member for member in members}
    return draw.choice(plain)


def random_row(draw, table):
    """A row that is often valid, else has changed, missing or unknown columns."""
    row = {"id": f"a{draw.randrange(99)}", "age": draw.choice([1, 2.5, None]), "kind": "firm"}
    if table == "edges":
        row = {"source": "n1", "target": f"n{draw.randrange(65)}", "amount": draw.choice([5, 0.1])}
    if draw.random() < 0.1:
        del row[draw.choice(list(row))]
    if draw.random() < 0.3:
        names = [*row, *row, "label", "split", "", "X", "\ud800"]
        row[draw.choice(names)] = random_value(draw, draw.choice([0, 3, 3]))
    return row


KEYS = {
    "/predict": [["ids"], ["nodes", "edges"], ["nodes"], ["ids", "nodes"]],
    "/nodes": [["nodes", "edges"], ["nodes"]],
    "/edges": [["edges"]],
    "/explain": [["id"]],
}


def random_body(draw, path):
    """A body of the route's shape, or nearly, or random bytes."""
    if draw.random() < 0.1:
        return draw.randbytes(draw.randrange(60))
    body = {}
    for name in draw.choice(KEYS[path]):
        body[name] = [random_row(draw, name) for _ in range(draw.randrange(3))]
        if name == "ids":
            body[name] = [draw.choice(["n1", "a1", random_value(draw)]) for _ in range(2)]
        if name == "id" or draw.random() < 0.05:
            body[name] = draw.choice(["n1", "n2", random_value(draw)])
    if draw.random() < 0.05:
        body["other"] = random_value(draw)
    text = json.dumps(body).encode()
    if draw.random() < 0.1:
        place = draw.randrange(len(text))
        text = text[:place] + draw.randbytes(draw.randrange(3)) + text[place + 1 :]
    return text


def test_fuzzed_bodies_never_fail(client, caplog):
    draw, codes = random.Random(20), []
    for _ in range(500):
        path = draw.choice([*["/predict", "/nodes", "/edges"] * 5, "/explain"])
        body = random_body(draw, path)
        response = client.post(path, content=body, headers=JSON)
        codes.append(response.status_code)
        if not response.is_success:
            assert 400 <= response.status_code < 500, (path, body, response.text, caplog.text)
            assert_refused(response, response.status_code)
    assert codes.count(200) > 100
    assert {200, 400, 422} <= set(codes)
    sizes = client.get("/ready").json()["graph"]
    assert sizes["nodes"] > 60
    assert client.post("/predict", json={"ids": ["n1"]}).status_code == 200
