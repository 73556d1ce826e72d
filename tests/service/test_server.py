"""The real command: kill -9, two services, workers, shutdown."""

import re
import signal
import socket
import sqlite3
import threading
import time

import httpx
import numpy as np
import pytest

from hpgmn.service.journal import JOURNAL_FILE


def add_edges(address, numbers, acknowledged, new_edge, num_nodes=60):
    """Add edges one by one, recording each that was acknowledged, until the service is gone."""
    with httpx.Client(base_url=address, timeout=30) as client:
        for number in numbers:
            edge = new_edge(f"n{number % num_nodes}", f"n{7 * number % num_nodes}", 1000 + number)
            try:
                response = client.post("/edges", json={"edges": [edge]})
            except httpx.TransportError:
                return
            assert response.status_code == 200, response.text
            acknowledged.append(edge)


def journaled(folder):
    connection = sqlite3.connect(folder / JOURNAL_FILE)
    amounts = [
        int(found)
        for (content,) in connection.execute("SELECT content FROM entries")
        for found in re.findall(r'"amount": (\d+)', content)
    ]
    connection.close()
    return amounts


def kill_during(run_folder, start_service, new_edge, expected, total, kill_after):
    acknowledged = []
    with start_service(run_folder, expect=None) as (address, process):
        threads = [
            threading.Thread(
                target=add_edges, args=(address, range(first, total, 4), acknowledged, new_edge)
            )
            for first in range(4)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 60
        while len(acknowledged) < kill_after and time.monotonic() < deadline:
            time.sleep(0.001)
        process.kill()
        for thread in threads:
            thread.join()
    assert kill_after <= len(acknowledged) < total
    with start_service(run_folder) as (address, _):
        written = journaled(run_folder)
        assert {edge["amount"] for edge in acknowledged} <= set(written)
        assert len(set(written)) == len(written)
        sizes = httpx.get(f"{address}/ready").json()["graph"]
        assert sizes["edges"] == 240 + len(written)
        names = [f"n{number}" for number in range(60)]
        answer = httpx.post(f"{address}/predict", json={"ids": names}).json()
    edges = [new_edge(f"n{(a - 1000) % 60}", f"n{7 * (a - 1000) % 60}", a) for a in written]
    reference = expected((), edges)
    for row in answer["predictions"]:
        found = list(row["probabilities"].values())
        np.testing.assert_allclose(found, reference[row["id"]], atol=1e-5)


def test_a_kill_loses_nothing_acknowledged(run_folder, start_service, new_edge, expected):
    kill_during(run_folder, start_service, new_edge, expected, 2000, 60)


@pytest.mark.slow
@pytest.mark.parametrize("kill_after", [1, 250, 900])
def test_a_kill_during_a_thousand_edges_loses_nothing_acknowledged(
    run_folder, start_service, new_edge, expected, kill_after
):
    kill_during(run_folder, start_service, new_edge, expected, 1000, kill_after)


@pytest.mark.slow
def test_a_second_service_is_refused_in_one_line(run_folder, start_service, refused):
    with start_service(run_folder) as (address, _):
        port = address.rpartition(":")[2]
        line = refused(run_folder, "--port", port)
        assert port in line
        assert "--port" in line
        line = refused(run_folder, "--port", "0")
        assert JOURNAL_FILE in line
        assert "--read-only" in line


@pytest.mark.slow
def test_requests_are_finished_before_the_service_stops(run_folder, start_service, new_edge):
    acknowledged = []
    with start_service(run_folder) as (address, process):
        thread = threading.Thread(
            target=add_edges, args=(address, range(100_000), acknowledged, new_edge)
        )
        thread.start()
        while len(acknowledged) < 20:
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        thread.join()
    assert sorted(journaled(run_folder)) == [edge["amount"] for edge in acknowledged]
    leftovers = {path.name for path in run_folder.glob(f"{JOURNAL_FILE}*")}
    assert leftovers == {JOURNAL_FILE}  # no WAL, no lock


@pytest.mark.slow
def test_ctrl_c_is_the_interrupt_of_other_commands(run_folder, start_service):
    with start_service(run_folder, expect=130) as (_, process):
        process.send_signal(signal.SIGINT)
        process.wait(30)


@pytest.mark.slow
def test_workers_share_a_fixed_graph(run_folder, start_service, new_node, expected):
    with start_service(run_folder) as (address, _):
        httpx.post(f"{address}/nodes", json={"nodes": [new_node("a")]}).raise_for_status()
    options = ("--read-only", "--workers", "2")
    with start_service(run_folder, *options, environment={"HPGMN_TOKEN": "t"}) as (address, _):
        headers = {"Authorization": "Bearer t"}
        reference = expected([new_node("a")])
        for _ in range(20):  # new connections: either worker answers
            body = {"ids": ["a", "n1", "n2"]}
            answer = httpx.post(f"{address}/predict", json=body, headers=headers).json()
            for row in answer["predictions"]:
                found = list(row["probabilities"].values())
                np.testing.assert_allclose(found, reference[row["id"]], atol=1e-5)
        refusal = httpx.post(f"{address}/nodes", json={"nodes": [new_node("b")]}, headers=headers)
        assert refusal.status_code == 403
        text = httpx.get(f"{address}/metrics", headers=headers).text
        assert 'hpgmn_request_seconds_count{route="/predict",status="200"} 20.0' in text
        assert "hpgmn_nodes 61.0" in text


@pytest.mark.slow
def test_workers_end_with_their_parent(run_folder, start_service):
    options = ("--read-only", "--workers", "2")
    with start_service(run_folder, *options, expect=None) as (address, process):
        process.kill()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                httpx.get(f"{address}/health")
            except httpx.TransportError:
                return
            time.sleep(0.1)
        raise AssertionError("a worker still answers")


@pytest.mark.slow
def test_a_half_sent_body_is_answered_in_time(run_folder, start_service):
    with start_service(run_folder, "--timeout", "0.5") as (address, _):
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            connection.sendall(head + b"Content-Length: 100\r\n\r\n{")
            assert connection.recv(100).startswith(b"HTTP/1.1 503")
