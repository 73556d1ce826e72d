"""The load on a service: rates, errors, and the comparison with the graph built at once."""

import pytest

from hpgmn_lab.bench import serve


def test_bars_and_table_of_a_record(serve_record):
    latencies, bars = serve.tables(serve_record)
    assert latencies.rows[0] == ["single", "known", "no", "600", "0", "1.0", "5.0", "10.0"]
    assert latencies.rows[-1][:2] + latencies.rows[-1][5:6] == ["single", "added edge", "2.5"]
    verdicts = [row[-1] for row in bars.rows]
    assert verdicts == ["reached", "short by 1.50 ms", "reached", "reached", "reached"]


@pytest.mark.slow
def test_a_service_is_measured(call):
    pytest.importorskip("fastapi")
    record = serve.measure(
        call, nodes=400, edges=1200, epochs=2, seconds=1.5, added=15, ensemble=False
    )
    run = record["runs"]["single"]
    assert run["difference"] < 1e-5
    for load, parts in run["loads"].items():
        assert set(parts) == ({"known", "new"} if load == "both" else {load})
        for kind, part in parts.items():
            assert part["requests"] == int(1.5 * record["rates"][kind])
            assert part["errors"] == 0
            assert 0 < part["p50_ms"] <= part["p99_ms"] <= part["max_ms"]
