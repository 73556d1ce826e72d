"""Bytes that change or are missing are told, or the file is made anew; no other number is read."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hpgmn as package
from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import read_tensors, write_tensors
from hpgmn.graph import Graph
from hpgmn.runs.outputs import read_metrics, read_pseudo_labels, read_used_ids
from hpgmn.runs.report_data import read_report_data
from hpgmn.shards import Shards, shard
from hpgmn.statistics import StatisticsSettings
from hpgmn.statistics.cache import entry_draft, publish, read_entry, save_array
from hpgmn.training.saved import SavedModel
from hpgmn_lab.reproduction.cells import CellRecord, read_cell, write_cell

pytestmark = pytest.mark.soak

Read = Callable[[Path], Any]
KEY = "0123456789" * 4


def model(graph, folder):
    classifier = package.HPGMNClassifier(epochs=2, estimator_epochs=2, hidden_dim=4)
    classifier.fit(graph).save(folder)

    def read(path):
        found = SavedModel.read(path)
        parts = [(s, n, v.numpy().tobytes()) for s, p in found.done.items() for n, v in p.items()]
        return (
            parts,
            found.train_labels.tolist(),
            found.metadata,
            found.calibration.tolist(),
            found.replicas,
        )

    return folder / "model.safetensors", read


def state(graph, folder):
    tensors = {"a": torch.rand(7, 3), "b": torch.arange(5), "c": torch.tensor(True)}
    write_tensors(folder / "state", tensors, {"identity": "me", "seconds": {"main": 0.25}})

    def read(path):
        found, about = read_tensors(path)
        return {k: (v.dtype, v.shape, v.numpy().tobytes()) for k, v in found.items()}, about

    return folder / "state", read


def graph_file(graph, folder):
    package.write_graph(graph, folder / "g.npz")
    return folder / "g.npz", read_graph


def graph_array(name):
    def made(graph, folder):
        package.write_graph(graph, folder / "g.graph")
        return folder / "g.graph" / name, lambda path: read_graph(path.parent)

    return made


def read_graph(path):
    graph = package.read_graph(path)
    masks = [getattr(graph.splits, part).tobytes() for part in ("train", "val", "test")]
    return graph.fingerprint, graph.y.tolist(), graph.class_names, masks


def record(graph, folder):
    cell = {"graph": "texas", "model": "mlp", "variant": "tuned"}
    metrics = {"test_score": [0.8125, 0.84375], "config": {"settings": {"lr": 0.01}}}
    write_cell(folder, CellRecord(cell, "5d", {"trials": [{"val_score": [0.5]}]}, metrics))
    return folder / "texas-mlp-tuned.json", lambda path: read_cell(folder, "texas-mlp-tuned")


def metrics(graph, folder):
    return folder / "made" / "run" / "metrics.json", read_metrics


def entry(graph, folder):
    with entry_draft(folder, KEY) as place:
        said = {"rows": save_array(place / "rows.npy", np.random.default_rng(0).random((20, 5)))}
        publish(place, KEY, {"kind": "rows"}, said)
    return folder / KEY / "rows.npy", lambda path: read_entry(folder, KEY)["rows"].tobytes()


def predictions(graph, folder):
    names = package.read_graph(folder / "made" / "g.npz").class_names

    def read(path):
        return [read_pseudo_labels(path, names, split).tolist() for split in (0, 1)]

    return folder / "made" / "run" / "predictions.parquet", read


def used_nodes(graph, folder):
    return predictions(graph, folder)[0], read_used_ids


def confusion(graph, folder):
    def read(path):
        found = read_report_data(path.parent)
        return found.classes, found.confusion.tolist()

    return predictions(graph, folder)[0], read


def predicted(graph, folder):
    """What is written for others, who can check it, but for the names and kinds at its end."""

    def read(path):
        try:
            table = pq.read_table(path, page_checksum_verification=True)
            return [column.to_pylist() for column in table.columns]
        except (OSError, ValueError, pa.ArrowException) as error:
            raise HPGMNError(f"{path} is damaged ({error}).") from None

    return folder / "made" / "p.parquet", read


def shards(graph, folder):
    settings = StatisticsSettings(statistics=("class_counts",), neighbors="undirected")
    shard(graph, folder / "shards", graph.y, settings, ranges=2)

    def read(path):
        found = Shards(folder / "shards")
        found.check()
        name = path.name.removesuffix(".npy")
        return [np.asarray(found.statistic(name, part)).tolist() for part in range(len(found))]

    return next((folder / "shards").glob("rows-*1/class_counts*.npy")), read


KINDS: dict[str, Callable[[Graph, Path], tuple[Path, Read]]] = {
    "model.safetensors": model,
    "state": state,
    "metrics.json": metrics,
    "graph.npz": graph_file,
    "edges of a graph folder": graph_array("edges_indices.npy"),
    "attributes of a graph folder": graph_array("x.npy"),
    "checksums of a graph folder": graph_array("checksums.json"),
    "entry of the cache": entry,
    "description of an entry": lambda graph, folder: (
        folder / KEY / "entry.json",
        entry(graph, folder)[1],
    ),
    "record": record,
    "predictions.parquet as labels": predictions,
    "predictions.parquet as used nodes": used_nodes,
    "predictions.parquet as confusion": confusion,
    "what predict writes": predicted,
    "shard": shards,
}
EFFECTLESS = {
    "graph.npz": 0.35,
    "predictions.parquet as labels": 0.75,
    "predictions.parquet as used nodes": 0.75,
    "predictions.parquet as confusion": 0.8,
    "what predict writes": 0.15,
    "metrics.json": 0.1,
    "record": 0.1,
}
"""The share of damages that may be without effect: to dates in an archive, to columns that are not
read, to spaces. Everywhere else each one counts."""
MADE_ANEW = ("entry of the cache", "description of an entry")
TOLD = (ValueError, OSError, LookupError, TypeError, AttributeError)
"""What the cache turns into work."""


@pytest.fixture(scope="module")
def made(commands, tmp_path_factory):
    """A folder with what commands have written."""
    folder = tmp_path_factory.mktemp("made")
    graph = package.trading_network(num_nodes=120, seed=3).graph
    package.write_graph(graph, folder / "g.npz")
    words = ("train", "g.npz", "--model", "mlp", "--splits", "0,1", "--device", "cpu", "--out")
    for own in ((*words, "run", "--set", "epochs=4"), ("predict", "run", "--out", "p.parquet")):
        answer = commands(*own, folder=folder)
        assert answer.code == 0, answer.err
    return folder


def damages(content, count, draw):
    """A file with a bit turned, a byte of another value, a part zeroed, or its end missing."""
    for number in range(count):
        place = draw.randrange(len(content))
        if number % 4 == 0:
            yield (
                f"bit of byte {place}",
                _put(content, place, bytes([content[place] ^ 1 << draw.randrange(8)])),
            )
        elif number % 4 == 1:
            other = draw.choice([value for value in range(256) if value != content[place]])
            yield f"byte {place} as {other}", _put(content, place, bytes([other]))
        elif number % 4 == 2:
            size = draw.randint(1, 64)
            changed = _put(content, place, bytes(len(content[place : place + size])))
            if changed != content:
                yield f"{size} bytes from {place} as 0", changed
        else:
            yield f"cut at {place}", content[:place]


def _put(content, place, new):
    return content[:place] + new + content[place + len(new) :]


def _end_of_pages(content):
    """Where the rows of a Parquet file end; its last bytes say how long what follows is."""
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_damaged_file_is_read_as_good(soak, made, small_graph, tmp_path, kind):
    shutil.copytree(made, tmp_path / "made")
    path, read = KINDS[kind](small_graph, tmp_path)
    expected, content = read(path), path.read_bytes()
    told = same = 0
    end = _end_of_pages(content) if kind == "what predict writes" else len(content)
    draw, count = random.Random(kind), soak.amount(short=24, long=600)
    for what, damaged in damages(content[:end], count, draw):
        path.write_bytes(damaged + content[end:])
        try:
            found = read(path)
        except HPGMNError:
            told += 1
        except TOLD:
            assert kind in MADE_ANEW, what
            told += 1
        else:
            if found is None:  # it is made anew
                told += 1
                continue
            assert found == expected, f"{kind}, {what}: another content was read as good"
            same += 1
    path.write_bytes(content)
    assert read(path) == expected
    assert told > 0
    assert same <= EFFECTLESS.get(kind, 0.0) * (told + same)
    soak.record(
        f"corrupt-{kind.replace(' ', '-')}",
        f"A changed byte never gives another content: {kind}.",
        damages_told=told,
        without_effect=same,
    )


@pytest.mark.slow
def test_a_training_does_not_go_on_from_a_damaged_plan_or_state(soak, commands, made, tmp_path):
    words = ("train", made / "g.npz", "--model", "mlp", "--splits", "0,1", "--device", "cpu")
    words += ("--out", "run", "--set", "epochs=12", "--set", "patience=0")
    before = (
        "import hpgmn.training.replicas as replicas\n"
        "replicas.SAVE_SECONDS = -1.0\nreplicas.replicas_at_once = lambda *_: 1\n"
    )
    options = {"folder": tmp_path, "before": before}
    whole = commands(*words, **options)
    assert whole.code == 0, whole.err
    shutil.rmtree(tmp_path / "run")
    begun = whole.seen.index(("os.rename", "/run/state/state-001.safetensors")) + 1
    assert commands(*words, **options, moment=commands.at(touch=begun)).code == -9
    count = soak.amount(short=2, long=20)
    for name in ("plan.json", "state-000.safetensors"):
        path = tmp_path / "run" / "state" / name
        content = path.read_bytes()
        for what, damaged in damages(content, count, random.Random(name)):
            path.write_bytes(damaged)
            answer = commands(*words, "--resume", **options)
            assert answer.code == 2, f"{name}, {what}: {answer.err}"
            assert f"{name} is damaged" in answer.err, what
            assert "Restore it, or train again (--overwrite)." in answer.err, what
        path.write_bytes(content)
    answer = commands(*words, "--resume", **options)
    assert answer.code == 0, answer.err
    soak.record(
        "corrupt-resumed",
        "No training goes on from a damaged plan or state.",
        damages_told=2 * count,
    )
