"""Tomorrow's nodes through ``hpgmn predict``: whole graphs, and tables of what is new."""

import csv
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

OLD, NEW = 40, 5


def people(first, last):
    """Persons, traders and brokers in turn, with an age and a region."""
    return [
        {
            "id": f"p{number}",
            "age": 20 + number % 7 + 9 * (number % 2),
            "region": ("north", "south", "west")[number % 3],
            "label": "" if number % 6 == 5 else ("trader", "broker")[number % 2],
        }
        for number in range(first, last)
    ]


def payments(count):
    return [
        {"source": f"p{number}", "target": f"p{(7 * number + step) % count}"}
        for number in range(count)
        for step in (1, 3)
    ]


def is_new(edge):
    return any(int(end[1:]) >= OLD for end in edge.values())


def write(folder, nodes, edges):
    folder.mkdir(exist_ok=True)
    for name, rows in (("nodes", nodes), ("edges", edges)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return folder


def renamed(rows, **names):
    return [{names.get(key, key): value for key, value in row.items()} for row in rows]


TODAY = [edge for edge in payments(OLD + NEW) if not is_new(edge)]
TOMORROW = [edge for edge in payments(OLD + NEW) if is_new(edge)]


@pytest.fixture
def today(tmp_path):
    return write(tmp_path / "today", people(0, OLD), TODAY)


@pytest.fixture
def only_new(tmp_path):
    """The new persons and their payments, without labels."""
    nodes = [{key: row[key] for key in ("id", "age", "region")} for row in people(OLD, OLD + NEW)]
    return write(tmp_path / "new", nodes, TOMORROW)


@pytest.fixture
def everyone(tmp_path):
    """Old and new persons, the new ones first."""
    nodes = [*people(OLD, OLD + NEW), *people(0, OLD)]
    return write(tmp_path / "everyone", nodes, [*TODAY, *TOMORROW])


@pytest.fixture
def train(hpgmn, tiny):
    def run(folder, *options, **changes):
        changes = {"statistics": "attributes,class_counts,class_means,diffusion"} | changes
        answer = hpgmn(
            *("train", folder, *tiny(**changes), "--device", "cpu", "--splits", "0"),
            *("--out", "run", *options),
        )
        assert answer.code == 0, answer.err
        return answer

    return run


def predicted(path):
    with Path(path).open(newline="", encoding="utf-8") as file:
        return {row["node_id"]: row for row in csv.DictReader(file)}


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, row in found.items():
        assert row["prediction"] == expected[name]["prediction"]
        for kind in ("trader", "broker"):
            column = f"probability_{kind}"
            assert float(row[column]) == pytest.approx(float(expected[name][column]), abs=1e-5)


def test_what_is_new_is_added_and_predicted_as_in_the_whole_graph(
    train, hpgmn, today, only_new, everyone
):
    train(today)
    answer = hpgmn("predict", "run", only_new, "--add", "--out", "new.csv")
    assert answer.code == 0, answer.err
    assert answer.err.splitlines()[-1] == "5 new nodes of 45, split 0, 1 seed: new.csv"
    found = predicted("new.csv")
    assert list(found) == [f"p{number}" for number in range(OLD, OLD + NEW)]
    answer = hpgmn("predict", "run", everyone, "--out", "whole.csv")
    assert answer.code == 0, answer.err
    assert "45 nodes (5 of them new to the model), split 0" in answer.err
    whole = predicted("whole.csv")
    assert len(whole) == OLD + NEW
    assert_same(found, {name: whole[name] for name in found})
    assert hpgmn("predict", "run", everyone, "--only-new", "--out", "some.csv").code == 0
    assert_same(predicted("some.csv"), found)
    options = ["--add", "--all-nodes", "--out", "all.csv"]
    assert hpgmn("predict", "run", only_new, *options).code == 0
    assert_same(predicted("all.csv"), whole)


def test_columns_are_called_as_in_the_training_unless_the_user_says_otherwise(
    train, hpgmn, tmp_path, today, only_new
):
    names = {"id": "who", "source": "payer", "target": "paid"}
    options = [word for role, name in names.items() for word in (f"--{role}", name)]
    nodes, edges = people(OLD, OLD + NEW), TOMORROW
    write(today, renamed(people(0, OLD), **names), renamed(TODAY, **names))
    train(today, *options)
    again = write(tmp_path / "again", renamed(nodes, **names), renamed(edges, **names))
    assert hpgmn("predict", "run", again, "--add", "--out", "one.csv").code == 0
    refused = hpgmn("predict", "run", only_new, "--add", "--out", "two.csv")
    assert refused.code == 2
    assert "nodes.csv has no column 'who'" in refused.err
    said = ["--id", "id", "--source", "source", "--target", "target", "--label", ""]
    answer = hpgmn("predict", "run", only_new, "--add", *said, "--out", "two.csv")
    assert answer.code == 0, answer.err
    assert_same(predicted("two.csv"), predicted("one.csv"))


def test_a_graph_file_can_be_added_to(train, hpgmn, tmp_path, today, only_new):
    """Its attributes are numbers as they are, and have names."""
    for folder in (today, only_new):
        with (folder / "nodes.csv").open(newline="", encoding="utf-8") as file:
            rows = [{"x": "ignored", **row} for row in csv.DictReader(file)]
        keys = ("id", "age", "label") if folder == today else ("x", "id", "age")
        nodes = [{key: row[key] for key in keys} for row in rows]
        write(folder, nodes, TODAY if folder == today else TOMORROW)
    assert hpgmn("convert", today, "--out", "today.npz").code == 0
    train(tmp_path / "today.npz")
    answer = hpgmn("predict", "run", only_new, "--add", "--out", "new.csv")
    assert answer.code == 0, answer.err
    assert len(predicted("new.csv")) == NEW


def last_line(answer):
    assert answer.code == 2
    line = str(answer.err.splitlines()[-1])
    assert line.startswith("Error: ")
    return line


def test_mistakes_about_new_nodes_name_what_to_do(train, hpgmn, tmp_path, today, only_new):
    assert f"keeps no copy of the graph: predictions will need {today}." in " ".join(
        train(today, "--no-graph").err.split()
    )
    assert not Path("run/graph.npz").exists()
    predict = ["predict", "run"]
    out = ["--out", "p.csv"]
    told = last_line(hpgmn(*predict, only_new, *out))
    assert "add them to the trained graph (--add)" in told
    told = last_line(hpgmn(*predict, today, "--add", *out))
    assert "has the id 'p0', which graph 'today' has already (40 such rows in all)" in told
    assert "pass the whole graph, old and new, instead of adding to it" in told
    assert "(--all-nodes)" in last_line(hpgmn(*predict, today, "--only-new", *out))
    for option in (["--add"], ["--only-new"], ["--id", "who"], ["--drop-unknown-edges"]):
        assert "--add, --only-new" in last_line(hpgmn(*predict, *option, *out))
    write(only_new, people(OLD, OLD + NEW), [*TOMORROW, {"source": "p1", "target": "nobody"}])
    told = last_line(hpgmn(*predict, only_new, "--add", *out))
    assert "the target 'nobody', not an id in nodes.csv. Add the node" in told
    assert not Path("p.csv").exists()
    dropped = hpgmn(*predict, only_new, "--add", "--drop-unknown-edges", *out)
    assert dropped.code == 0
    assert len(predicted("p.csv")) == NEW
    write(today, people(0, OLD - 1), TODAY[:9])
    told = last_line(hpgmn(*predict, only_new, "--add", *out))
    assert "no longer the graph the model was trained on." in told
    (today / "nodes.csv").unlink()
    told = last_line(hpgmn(*predict, only_new, "--add", *out))
    assert "has no table nodes" in told


@pytest.mark.parametrize("fate", ["deleted", "changed"])
def test_a_run_works_without_its_tables_and_in_another_place(
    train, hpgmn, today, only_new, fate, tmp_path
):
    train(today)
    commands = [
        ["predict", "run", "--out", "old.csv"],
        ["predict", "run", only_new, "--add", "--out", "new.csv"],
        ["explain", "run", "--node", "p3"],
        ["evaluate", "run"],
        ["report", "run"],
    ]
    before = [hpgmn(*command).out for command in commands]
    tables = [Path(name).read_bytes() for name in ("old.csv", "new.csv")]
    for name in ("nodes.csv", "edges.csv"):
        (today / name).unlink()
    if fate == "changed":
        write(today, people(3, OLD), TODAY[30:])
    (tmp_path / "elsewhere").mkdir()
    Path("run").rename(tmp_path / "elsewhere" / "run")
    os.chdir(tmp_path / "elsewhere")  # the fixture hpgmn returns to the old one
    after = [hpgmn(*command) for command in commands]
    assert [(answer.code, answer.err) for answer in after if answer.code] == []
    assert [answer.out for answer in after] == before
    assert [Path(name).read_bytes() for name in ("old.csv", "new.csv")] == tables


def test_new_nodes_are_explained_and_scored(train, hpgmn, today, only_new):
    train(today)
    answer = hpgmn("explain", "run", "--graph", only_new, "--add", "--node", "p42", "--columns")
    assert answer.code == 0, answer.err
    assert "Node p42: " in answer.out
    assert {"age =", "region ="} <= {" ".join(line.split()[:2]) for line in answer.out.splitlines()}
    told = last_line(hpgmn("evaluate", "run", only_new, "--add"))
    assert "None of the 5 new nodes of 'new' has a label." in told
    write(only_new, people(OLD, OLD + NEW), TOMORROW)
    answer = hpgmn("evaluate", "run", only_new, "--add", "--json")
    assert answer.code == 0, answer.err
    content = json.loads(answer.out)
    labels = [row["label"] for row in people(OLD, OLD + NEW)]
    assert sum(row["support"] for row in content["classes"]) == sum(map(bool, labels))
    hpgmn("predict", "run", only_new, "--add", "--out", "new.csv")
    found = [row["prediction"] for row in predicted("new.csv").values()]
    right = [one == other for one, other in zip(found, labels, strict=True) if other]
    assert content["metrics"]["accuracy"]["mean"] == pytest.approx(np.mean(right))
    for command in (["evaluate", "run", "--add"], ["explain", "run", "--add"]):
        assert "--add is about tables" in last_line(hpgmn(*command))


def test_a_copy_of_the_graph_that_cannot_be_used_is_named_with_what_to_do(train, hpgmn, today):
    train(today)
    copy = Path("run/graph.npz")
    good = copy.read_bytes()
    copy.write_bytes(good[: len(good) // 2])
    told = last_line(hpgmn("predict", "run", "--out", "p.csv"))
    assert "run/graph.npz': it is truncated or damaged" in told
    assert f"delete it to read {today} instead" in told
    copy.write_bytes(good.replace("p17".encode("utf-32-le"), "p99".encode("utf-32-le")))
    told = last_line(hpgmn("predict", "run", "--out", "p.csv"))
    assert "graph.npz" in told
    assert f"delete it to read {today} instead" in told
    copy.unlink()
    assert hpgmn("predict", "run", "--out", "p.csv").code == 0


def test_a_large_graph_is_copied_on_request_only(train, hpgmn, today, monkeypatch):
    monkeypatch.setattr("hpgmn.runs.train.LARGEST_COPY", 2000)
    told = " ".join(train(today).err.split())
    assert "keeps no copy of the graph of 0.0 MiB (keep_graph)" in told
    assert not Path("run/graph.npz").exists()
    assert hpgmn("predict", "run", "--out", "p.csv").code == 0
    train(today, "--keep-graph", "--overwrite")
    assert Path("run/graph.npz").exists()
    (today / "nodes.csv").unlink()
    assert hpgmn("predict", "run", "--out", "p.csv").code == 0


def test_a_graph_without_names_cannot_tell_what_is_new(
    hpgmn, trained, graph_file, everyone, small_graph
):
    from hpgmn.graph import Graph
    from hpgmn.graph.files import write_graph

    told = last_line(hpgmn("predict", trained, everyone, "--add", "--out", "p.csv"))
    assert "Graph 'small' has no node_ids, so new edges cannot name its nodes" in told
    write_graph(Graph(small_graph.x + 1, small_graph.edge_index), "other.npz")
    told = last_line(hpgmn("predict", trained, "other.npz", "--out", "p.csv"))
    assert "reads diffusion rows" in told
    assert told.endswith("(--set diffusion_form=sketch).")
    told = last_line(hpgmn("predict", trained, "other.npz", "--only-new", "--out", "p.csv"))
    assert "recognised by node_ids" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "reads diffusion rows"),
        ({"statistics": "attributes,adjacency"}, "(--set statistics=attributes)."),
        ({"diffusion_form": "sketch"}, None),
        ({"statistics": "attributes,class_means"}, None),
    ],
)
def test_strangers_are_refused_by_models_tied_to_their_nodes_alone(
    train, hpgmn, tmp_path, today, changes, told
):
    train(today, **changes)
    nodes = [row | {"id": f"stranger {row['id']}"} for row in people(0, OLD)]
    edges = [{end: f"stranger {name}" for end, name in edge.items()} for edge in TODAY]
    answer = hpgmn("predict", "run", write(tmp_path / "other", nodes, edges), "--out", "p.csv")
    if told is not None:
        assert told in last_line(answer)
    else:
        assert answer.code == 0, answer.err
        assert "40 nodes (40 of them new to the model)" in answer.err


@pytest.mark.slow
def test_a_thousand_new_nodes_take_seconds(tmp_path):
    """On 40,000 nodes with 400,000 edges, in a fresh process; 2.5 times as many take under 10."""
    random = np.random.default_rng(0)
    old, new, edges, width = 40_000, 1_000, 410_000, 64
    y = random.integers(0, 3, old + new)
    x = random.normal(size=(old + new, width)).astype(np.float32)
    x[np.arange(old + new), y] += 2
    ends = random.integers(0, old + new, (2, edges))
    ids = np.array([f"account-{number}" for number in range(old + new)])
    kinds = np.array(["a", "b", "c"])
    is_old = (ends < old).all(axis=0)
    for folder, nodes, kept in (
        ("today", np.arange(old), is_old),
        ("new", np.arange(old, old + new), ~is_old),
    ):
        (tmp_path / folder).mkdir()
        columns = {"id": ids[nodes]} | {f"x{place}": x[nodes, place] for place in range(width)}
        if folder == "today":
            columns["label"] = kinds[y[nodes]]
        pq.write_table(pa.table(columns), tmp_path / folder / "nodes.parquet")
        source, target = ids[ends[:, kept]]
        table = pa.table({"source": source, "target": target})
        pq.write_table(table, tmp_path / folder / "edges.parquet")

    def run(*arguments):
        """The seconds of a processor that a command takes: others on the machine do not count."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "hpgmn", *arguments],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=True,
            capture_output=True,
            timeout=300,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    settings = {"batch_size": 8192, "epochs": 1, "estimator_epochs": 1, "hidden_dim": 16}
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    run("train", "today", *options, "--splits", "0", "--device", "cpu", "--out", "run")
    seconds = run("predict", "run", "new", "--add", "--out", "p.csv")
    assert list(predicted(str(tmp_path / "p.csv"))) == ids[old:].tolist()
    assert seconds < 10
