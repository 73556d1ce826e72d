"""Own tables, as a user brings them: audit, train, predict and evaluate take a folder."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

COUNT = 40


def people(count=COUNT, first=0):
    """Persons with columns of every kind; honest and fraud in turn, some without a label."""
    random = np.random.default_rng(first)
    return [
        {
            "id": f"u{number}",
            "age": "" if number % 10 == 3 else 30 + int(random.integers(20)) + 5 * (number % 2),
            "region": ("north", "south", "")[number % 3],
            "joined": f"2020-01-{1 + number % 28:02d}",
            "team": f"t{number % 5}",
            "bio": f"a long text that {number} has written about life and about trade",
            "label": "" if number % 8 == 7 else ("honest", "fraud")[number % 2],
        }
        for number in range(first, first + count)
    ]


def payments(rows):
    """Each person pays the next one and the one after the next three."""
    ids = [row["id"] for row in rows]
    return [
        {"source": name, "target": ids[(place + step) % len(ids)]}
        for place, name in enumerate(ids)
        for step in (1, 4)
    ]


def write_rows(path, rows):
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def folder(tmp_path):
    write_rows(tmp_path / "people" / "nodes.csv", people())
    write_rows(tmp_path / "people" / "edges.csv", payments(people()))
    return tmp_path / "people"


@pytest.fixture
def train(hpgmn, tiny):
    """Trains a folder of tables with tiny settings."""
    small = tiny(statistics="attributes,class_counts,class_means")

    def run(folder, *options, out="run"):
        device = ["--device", "cpu", "--splits", "0"]
        return hpgmn("train", folder, *small, *device, "--out", out, *options)

    return run


def predicted(path):
    with Path(path).open(newline="", encoding="utf-8") as file:
        return {row["node_id"]: row for row in csv.DictReader(file)}


def test_a_folder_is_trained_and_its_columns_are_printed(train, hpgmn, folder):
    answer = train(folder)
    assert answer.code == 0, answer.err
    for line in (
        "nodes.csv: id is 'id', label is 'label'; 5 more columns: age, region, joined, team, bio.",
        "edges.csv: source is 'source', target is 'target', directed.",
        "nodes.csv: standardised: 'age'.",
        "nodes.csv: dates as days, standardised: 'joined'.",
        "nodes.csv: one attribute for each word: 'region', 'team'.",
        "Graph 'people' has no splits; using 10 random splits 60/20/20, stratified, seeds 0 to 9.",
    ):
        assert line in answer.err.splitlines()
    assert "Warning: nodes.csv: 'bio': free text or names, left out." in answer.err
    assert hpgmn("predict", "run", "--out", "p.csv").code == 0
    rows = predicted("p.csv")
    assert list(rows) == [row["id"] for row in people()]
    assert {row["prediction"] for row in rows.values()} <= {"honest", "fraud"}
    scored = hpgmn("evaluate", "run", "--json")
    assert json.loads(scored.out)["nodes"] == "test nodes"
    again = hpgmn("predict", "run", folder, "--out", "again.csv")
    assert again.code == 0, again.err
    assert predicted("again.csv") == rows


def test_audit_takes_a_folder(hpgmn, folder):
    answer = hpgmn("audit", folder, "--no-training", "--json", "--drop", "age")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert found["graph"] == "people"
    assert "left out" in answer.err
    assert "standardised: 'age'" not in answer.err


def test_new_nodes_are_prepared_as_the_model_was_trained(train, hpgmn, folder, tmp_path):
    """The same persons in another order and without labels, and others of unknown regions."""
    assert train(folder).code == 0
    assert hpgmn("predict", "run", "--out", "first.csv").code == 0
    rows = people()
    strangers = people(3, COUNT)
    for row in strangers:
        row["region"] = "west"
    everyone = [row | {"shoe": 44} for row in [*reversed(rows), *strangers]]
    for row in everyone:
        del row["label"]
    write_rows(tmp_path / "new" / "nodes.csv", everyone)
    write_rows(tmp_path / "new" / "edges.csv", payments(rows))
    answer = hpgmn("predict", "run", "new", "--out", "second.csv")
    assert answer.code == 0, answer.err
    assert "column 'region' holds 'west', unknown when the model was trained" in answer.err
    assert "ignored, because the model does not know: 'shoe'." in answer.err
    first, second = predicted("first.csv"), predicted("second.csv")
    assert set(second) - set(first) == {"u40", "u41", "u42"}
    for name, row in first.items():
        for column in ("probability_fraud", "probability_honest"):
            assert float(second[name][column]) == pytest.approx(float(row[column]), abs=1e-5)


def test_the_user_may_say_what_the_columns_are(train, hpgmn, folder, tmp_path):
    renamed = {"id": "who", "label": "kind", "age": "code"}
    rows = [{renamed.get(key, key): value for key, value in row.items()} for row in people()]
    write_rows(folder / "nodes.csv", rows)
    edges = [{"u": one["source"], "v": one["target"]} for one in payments(people())]
    write_rows(folder / "edges.csv", [*edges, {"u": "u1", "v": "nobody"}])
    named = ["--id", "who", "--label", "kind", "--source", "u", "--target", "v", "--undirected"]
    options = [*named, "--drop", "bio", "--category", "code", "--split-by", "group", "team"]
    refused = train(folder, *options)
    assert refused.code == 2
    assert "the target 'nobody', not an id in nodes.csv" in refused.err
    assert "(--drop-unknown-edges)" in refused.err
    assert not (tmp_path / "run").exists()
    answer = train(folder, *options, "--drop-unknown-edges")
    assert answer.code == 0, answer.err
    assert "each group of 'team' is in one part" in answer.err
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["tables"] == {
        "id": "who",
        "label": "kind",
        "source": "u",
        "target": "v",
        "drop": ["bio"],
        "categories": ["code"],
        "split_by": ["group", "team"],
        "drop_unknown_edges": True,
        "directed": False,
    }
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert hpgmn("predict", "run", "--out", "p.csv").code == 0
    scored = json.loads(hpgmn("evaluate", "run", "--json").out)
    assert scored["score_mean"] == pytest.approx(metrics["test_score_mean"])
    with_config = hpgmn(
        *("train", folder, "--config", "run/config.yaml", "--out", "again", "--device", "cpu")
    )
    assert with_config.code == 0, with_config.err
    again = json.loads((tmp_path / "again" / "metrics.json").read_text())
    assert again["test_score"] == metrics["test_score"]


def test_a_model_of_numbers_as_they_are_reads_tables_as_they_are(hpgmn, train, folder):
    rows = [
        {"id": row["id"], "age": n % 7, "label": row["label"]} for n, row in enumerate(people())
    ]
    write_rows(folder / "nodes.csv", rows)
    assert hpgmn("convert", folder, "--out", "people.npz").code == 0
    assert train(Path("people.npz")).code == 0
    assert hpgmn("predict", "run", "--out", "file.csv").code == 0
    answer = hpgmn("predict", "run", folder, "--out", "folder.csv")
    assert answer.code == 0, answer.err
    assert predicted("file.csv") == predicted("folder.csv")


def few_labels(folder):
    rows = people()
    write_rows(
        folder / "nodes.csv",
        [row | {"label": "ab"[n] if n < 2 else ""} for n, row in enumerate(rows)],
    )


def test_too_few_labels_are_reported_once(train, folder):
    few_labels(folder)
    answer = train(folder)
    assert "fractions" not in answer.err
    assert "train_mask" not in answer.err
    assert "or write train, val and test into a column 'split'." in answer.err


def test_weights_are_needed_where_the_model_had_them(train, hpgmn, folder, tmp_path):
    edges = payments(people())
    weighted = [edge | {"amount": 1 + n % 7} for n, edge in enumerate(edges)]
    write_rows(folder / "edges.csv", weighted)
    plain = train(folder, "--edge-drop", "amount", out="plain")
    assert "edges.csv: not used: 'amount'." in plain.err
    assert train(folder, "--weight", "amount").code == 0
    write_rows(tmp_path / "later" / "nodes.csv", people())
    write_rows(tmp_path / "later" / "edges.csv", edges)
    refused = hpgmn("predict", "run", "later", "--out", "p.csv")
    assert refused.code == 2
    assert "edges.csv has no column 'amount', which the model was trained with. Add it" in (
        refused.err
    )
    assert not Path("p.csv").exists()
    bare = hpgmn("predict", "plain", "later", "--out", "bare.csv")
    assert bare.code == 0, bare.err
    full = hpgmn("predict", "plain", folder, "--weight", "amount", "--out", "full.csv")
    assert "edges.csv: not used: 'amount'." in full.err
    assert predicted("full.csv") == predicted("bare.csv")


def test_ids_keep_their_type(train, hpgmn, folder):
    rows = [row | {"id": int(row["id"][1:]) + 100} for row in people()]
    for name, own in (("nodes", rows), ("edges", payments(rows))):
        (folder / f"{name}.csv").unlink()
        columns = {key: [row[key] if row[key] != "" else None for row in own] for key in own[0]}
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    assert train(folder).code == 0
    assert hpgmn("predict", "run", "--out", "p.parquet").code == 0
    found = pq.read_table("p.parquet").column("node_id")
    assert found.type == pa.int64()
    assert found.to_pylist() == [row["id"] for row in rows]


def test_tables_without_attributes_or_edges_are_trained(train, hpgmn, folder):
    bare = [{"id": row["id"], "label": row["label"]} for row in people()]
    write_rows(folder / "nodes.csv", bare)
    edges = payments(people())[:-5]
    write_rows(folder / "edges.csv", edges)
    answer = train(folder)
    assert answer.code == 0, answer.err
    assert "nodes.csv has no attributes that can be used, so nodes have one: degree, the" in (
        answer.err
    )
    assert hpgmn("predict", "run", "--out", "p.csv").code == 0
    assert hpgmn("predict", "run", folder, "--out", "again.csv").code == 0
    assert predicted("again.csv") == predicted("p.csv")
    write_rows(folder / "nodes.csv", people())
    (folder / "edges.csv").write_text("source,target\n")
    alone = train(folder, out="alone")
    assert alone.code == 0, alone.err
    assert "has no edges; only the attributes can help." in alone.err


def test_a_missing_label_option_is_suggested(hpgmn, tmp_path):
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank/nodes.csv").write_text("id,fraud\na,yes\nb,no\nc,\n")
    (tmp_path / "bank/edges.csv").write_text("source,target\na,b\nb,c\n")
    answer = hpgmn("train", tmp_path / "bank")
    assert answer.code == 2
    assert "(--label fraud)" in answer.err


def test_options_are_checked_before_tables_are_read(hpgmn):
    for options, remedy in (
        (("--seeds", "0"), "--seeds 1"),
        (("--splits", "x"), "--splits"),
        (("--metric", "acuracy"), "accuracy"),
        (("--single", "--no-portfolio"), "--no-portfolio"),
    ):
        answer = hpgmn("train", "no-such-folder", *options)
        assert answer.code == 2
        assert remedy in answer.err
        assert "no-such-folder" not in answer.err


def test_a_remedy_names_no_option_that_the_command_lacks():
    from hpgmn.base.errors import HPGMNError, Remedy
    from hpgmn.cli.options import COLUMN_FLAGS

    assert {"--weight", "--directed", "--split-column", "--drop", "--edge-type"} <= COLUMN_FLAGS
    assert all(flag.startswith("--") for flag in COLUMN_FLAGS)
    without = Remedy("Leave it out", option="drop", value=["x"])
    error = HPGMNError("It is text.", Remedy("Convert it") | without)
    assert error.render(cli=True) == "It is text. Convert it, or leave it out (--drop x)."
    assert error.render(cli=True, without={"--drop"}) == "It is text. Convert it."
    assert HPGMNError("It.", without).render(cli=True, without={"--drop"}) == "It. Leave it out."
