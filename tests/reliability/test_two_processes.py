"""Two processes that want the same place: one waits or is refused, and nothing is mixed."""

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest

import hpgmn as package

pytestmark = pytest.mark.slow

QUICK = ("--splits", "0", "--device", "cpu", "--set", "epochs=30")
TRAIN = ("train", "g.npz", "--model", "mlp", *QUICK, "--out", "run")
SAME = ("model.safetensors", "predictions.parquet", "history.jsonl")
"""What has the same bytes, whoever wrote it."""
# The state is saved after each epoch.
BEFORE = """
import hpgmn.explain.explorer as dossier
import hpgmn.training.replicas as replicas
dossier.SECONDS = 0.02
replicas.SAVE_SECONDS = -1.0
"""
# Whoever comes first stays for a while: the other must find it at work.
SLOW = f"""{BEFORE}
import time
genuine = replicas.train
def train(*arguments, **options):
    time.sleep(1.0)
    return genuine(*arguments, **options)
replicas.train = train
from hpgmn_lab import paper
paper.TABLE_2 = {{"gcn": paper.TABLE_2["gcn"]}}
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with a graph in all forms."""
    graph = package.trading_network(num_nodes=120, seed=3).graph
    package.write_graph(graph, tmp_path / "g.npz")
    package.write_graph(graph, tmp_path / "g.graph")
    for name in ("texas", "cora"):
        package.write_graph(graph, tmp_path / "data" / f"{name}.npz")
    return tmp_path


@pytest.fixture(scope="module")
def alone(commands, tmp_path_factory):
    """The folder of a run that nobody else wanted to make, and what became of it."""
    folder = tmp_path_factory.mktemp("alone")
    graph = package.trading_network(num_nodes=120, seed=3).graph
    package.write_graph(graph, folder / "g.npz")
    answer = commands(*TRAIN, folder=folder, before=BEFORE)
    assert answer.code == 0, answer.err
    return folder / "run", answer


def assert_same_run(run, alone):
    for name in SAME:
        assert (run / name).read_bytes() == (alone[0] / name).read_bytes(), name
    metrics = [json.loads((one / "metrics.json").read_text()) for one in (run, alone[0])]
    assert metrics[0]["test_score"] == metrics[1]["test_score"]
    assert {path.name for path in run.iterdir()} == {path.name for path in alone[0].iterdir()}


def both(commands, folder, *words):
    """What became of commands that were started together, those that succeeded first."""
    environment = {"HPGMN_DATA": str(folder / "data"), "XDG_CACHE_HOME": str(folder)}
    jobs = [
        commands.job(*own, folder=folder, before=SLOW, environment=environment) for own in words
    ]
    return sorted(commands.together(jobs), key=lambda answer: answer.code)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (TRAIN, "Another process is using run. Wait for it"),
        (
            ("train", "g.npz", "--model", "mlp,gcn", *QUICK, "--out", "run"),
            "Another process is using run. Wait for it",
        ),
        (
            (
                *("tune", "g.npz", "--model", "mlp", "--trials", "2", "--device", "cpu"),
                *("--set", "epochs=5", "--study", "a.db"),
            ),
            "Another process is searching with the study a.db. Wait for it",
        ),
        (
            ("reproduce", "table2", "--quick", "--device", "cpu", "--out", "rep"),
            "Another process is using rep. Wait for it",
        ),
    ],
    ids=["train", "train several", "tune", "reproduce"],
)
def test_the_second_is_refused(commands, folder, alone, words, refusal):
    first, second = both(commands, folder, words, words)
    assert first.code == 0, first.err
    assert second.code == 2, second.err
    assert refusal in second.err.splitlines()[-1]
    assert "Traceback" not in first.err + second.err
    assert not [*folder.rglob("*.lock"), *folder.rglob("*.unfinished")]
    if words == TRAIN:
        assert_same_run(folder / "run", alone)
    if words[0] == "tune":
        with closing(sqlite3.connect(folder / "a.db")) as database:
            states = database.execute("SELECT state FROM trials").fetchall()
        assert states == [("COMPLETE",)] * 2


def test_an_interrupted_run_is_resumed_by_one_of_two(commands, folder, alone):
    saves = saves_of(alone[1])
    assert len(saves) > 20
    moment = commands.at(touch=saves[len(saves) // 2])  # a state is about to be moved to its place
    assert commands(*TRAIN, folder=folder, before=BEFORE, moment=moment).code == -9
    assert (folder / "run" / "state" / "state-000.safetensors").exists()
    first, second = both(commands, folder, (*TRAIN, "--resume"), (*TRAIN, "--resume"))
    assert (first.code, second.code) == (0, 2), first.err + second.err
    assert "Another process is using run." in second.err
    assert 0 < len(saves_of(first)) <= len(saves) // 2 + 2  # it went on, and did not begin anew
    assert not saves_of(second)
    assert_same_run(folder / "run", alone)


def saves_of(answer):
    """The touches at which a state came to its place."""
    return [
        number
        for number, (event, name) in enumerate(answer.seen, start=1)
        if event == "os.rename" and name == "/run/state/state-000.safetensors"
    ]


def test_one_of_two_may_not_replace_what_the_other_makes(commands, folder, alone):
    first, second = both(commands, folder, (*TRAIN, "--overwrite"), (*TRAIN, "--overwrite"))
    assert (first.code, second.code) == (0, 2), first.err + second.err
    assert_same_run(folder / "run", alone)


def test_shards_are_made_by_one_of_two(commands, folder):
    words = ("shard", "g.graph", "--out", "shards", "--ranges", "4")
    answers = both(commands, folder, words, words)
    assert answers[0].code == 0, answers[0].err
    assert answers[1].code in (0, 2), answers[1].err  # 0: it came when the other was done
    if answers[1].code == 2:
        assert "Another process is using" in answers[1].err
    again = commands(*words, folder=folder, before=SLOW)
    assert again.code == 0, again.err  # checks every shard


@pytest.mark.parametrize("name", ["out.npz", "out.graph"])
def test_of_two_graphs_one_is_there_whole(commands, folder, name):
    known = {}
    for number, source in enumerate(("one", "other")):
        (folder / source).mkdir()
        rows = [f"n{place},{'ab'[place % 2]},{place + number}" for place in range(3000)]
        edges = [f"n{place},n{place * 7 % 3000}" for place in range(3000)]
        (folder / source / "nodes.csv").write_text("\n".join(["id,label,x", *rows]) + "\n")
        (folder / source / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
        assert commands("convert", source, "--out", f"{source}.npz", folder=folder).code == 0
        known[source] = package.read_graph(folder / f"{source}.npz").fingerprint
    for _ in range(3):
        words = [("convert", source, "--out", name, "--overwrite") for source in known]
        answers = both(commands, folder, *words)
        assert [answer.code for answer in answers] == [0, 0], answers
        assert package.read_graph(folder / name).fingerprint in known.values()
    assert not list(folder.glob(".*"))


# Both compute what is not in the cache; both answer.
CACHE = """
import numpy as np, os, torch
import hpgmn
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.statistics import LocalStatistics, cache
cache.MIN_SECONDS = -1.0
graph = hpgmn.read_graph("g.npz")
settings = HPGMNSettings(statistics=("diffusion",), neighbors="undirected")
built = LocalStatistics(graph).build(graph.y[None], graph.num_classes, [settings])
np.save(f"rows-{os.getpid()}.npy", built["diffusion"].rows(torch.arange(120)).numpy())
"""


def test_two_that_fill_the_same_entry_have_the_same_bits(commands, folder):
    environment = {"HPGMN_CACHE": str(folder / "cache")}
    jobs = [commands.job(folder=folder, before=CACHE, environment=environment) for _ in range(3)]
    answers = commands.together(jobs)
    assert [answer.code for answer in answers] == [0, 0, 0], answers
    rows = [np.load(path) for path in folder.glob("rows-*.npy")]
    assert len(rows) == 3
    for other in rows[1:]:
        np.testing.assert_array_equal(rows[0], other)
    assert len(list((folder / "cache").iterdir())) == len(
        list((folder / "cache").glob("[0-9a-f]*"))
    )
