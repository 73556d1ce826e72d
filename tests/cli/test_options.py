"""Shared options: columns, URLs, ``--engine``, and that Ctrl-C leaves no process behind."""

import dataclasses
import inspect
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest

import hpgmn as package
from hpgmn.base.errors import SettingError
from hpgmn.cli.options import check_engine, column_options, open_engine, refuse_url
from hpgmn.engines import ray as cluster
from hpgmn_lab import paper
from hpgmn_lab.reproduction import plan

SOURCE = Path(package.__file__).parents[1]


def test_options_about_columns_become_keywords():
    received = []

    @column_options("split")
    def command(graph: str, *, is_quiet: bool = False, columns: dict[str, object]) -> None:
        received.append((graph, columns))

    names = list(inspect.signature(command).parameters)
    assert names[:4] == ["graph", "is_quiet", "column_id", "column_label"]
    assert "column_split" not in names
    empty = dict.fromkeys(names[2:])
    command(graph="g", **empty | {"column_drop": []})
    given = {"column_label": "", "column_split_by": ("time", "t"), "column_directed": False}
    command(graph="g", **empty | given)
    assert received == [
        ("g", {}),
        ("g", {"label": "", "split_by": ["time", "t"], "directed": False}),
    ]


@pytest.mark.parametrize("path", ["s3://bucket/run", "memory:/runs"])  # a path has one slash alone
def test_urls_are_refused_where_paths_are_required(path):
    with pytest.raises(SettingError, match=r"--out takes a path of this machine \(got"):
        refuse_url("--out", Path(path))
    for fine in (None, Path("runs/a"), Path("/a:b/c"), Path("a:b")):
        refuse_url("--out", fine)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("rai", None), r"Unknown engine 'rai'.*ray"),
        (("local", "auto"), r"--address requires --engine ray"),
        (("local", None, 0), r"--workers must be at least 1 \(got 0\)"),
    ],
)
def test_options_that_exclude_each_other_are_refused(given, words):
    with pytest.raises(SettingError, match=words):
        check_engine(*given)


@pytest.mark.parametrize(
    "command",
    [
        ("train", "texas", "--model", "mlp"),
        ("tune", "texas", "--trials", "1", "--study", "study.db"),
        ("reproduce", "table2", "--quick"),
    ],
)
def test_every_command_names_the_package_of_ray(hpgmn, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "ray", None)
    answer = hpgmn(*command, "--engine", "ray")
    assert answer.code == 2
    assert "needs Ray, which is not installed. Run: pip install 'hpgmn[ray]'" in answer.err


def test_the_local_engine_needs_no_start():
    with open_engine("local", None, "cpu") as (engine, device):
        assert (device, engine.workers, engine.is_local) == ("cpu", 1, True)
    with open_engine("local", None, "cpu", 3) as (engine, _):
        assert engine.workers == 3
    with (
        pytest.raises(SettingError, match="Unknown device 'gpu'"),
        open_engine("local", None, "gpu"),
    ):
        pass


class FakeRay:
    """A cluster of two cores, with or without a GPU."""

    def __init__(self, gpus):
        self.resources = {"CPU": 2.0, **({"GPU": float(gpus)} if gpus else {})}

    def nodes(self):
        return [{"Alive": True, "Resources": self.resources}]

    def cluster_resources(self):
        return self.resources


@pytest.mark.parametrize(
    ("gpus", "asked", "device"), [(0, "auto", "cpu"), (1, "auto", "cuda"), (1, "cpu", "cpu")]
)
def test_a_cluster_takes_its_own_gpus(monkeypatch, capsys, gpus, asked, device):
    @contextmanager
    def connect_ray(address):
        assert address == "here:1"
        yield FakeRay(gpus)

    monkeypatch.setattr(cluster, "connect_ray", connect_ray)
    monkeypatch.setattr(cluster, "require_ray", lambda: None)
    with open_engine("ray", "here:1", asked) as (engine, chosen):
        assert chosen == device
        assert not engine.is_local
        assert engine.workers == (1 if device == "cuda" else 2)
    assert capsys.readouterr().err.startswith("Ray: 1 machine, 2 cores")


# With Ray.


@pytest.fixture
def texas(small_graph, tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    package.write_graph(small_graph, folder / "texas.npz")
    monkeypatch.setenv("HPGMN_DATA", str(folder))
    return folder


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("texas", "ray_cluster")
def test_models_and_trials_are_as_on_this_machine(hpgmn, lasting):
    train = ("train", "texas", "--model", "mlp,gcn", "--set", "epochs=5", "--device", "cpu")
    found = {}
    for engine in ("local", "ray"):
        answer = hpgmn(*train, "--engine", engine, "--out", engine)
        assert answer.code == 0, answer.err
        for model in ("mlp", "gcn"):
            metrics = json.loads((Path(engine) / model / "metrics.json").read_text())
            del metrics["hardware"]
            found[engine, model] = lasting(metrics)
        names = {path.name for path in Path(engine, "mlp").iterdir()}
        assert {"report.html", "log.txt", "predictions.parquet", "model.safetensors"} <= names
    assert found["ray", "mlp"] == found["local", "mlp"]
    assert found["ray", "gcn"] == found["local", "gcn"]
    one = ("train", "texas", "--model", "mlp", "--set", "epochs=5", "--engine", "ray", "--out")
    answer = hpgmn(*one, "one")
    assert answer.code == 0, answer.err
    scores = json.loads(Path("one/metrics.json").read_text())["test_score"]
    assert scores == found["local", "mlp"]["test_score"]
    best = {}
    for engine in ("local", "ray"):
        tune = ("tune", "texas", "--model", "mlp", "--trials", "3", "--set", "epochs=25")
        answer = hpgmn(*tune, "--engine", engine, "--study", f"{engine}.db", "--json")
        assert answer.code == 0, answer.err
        best[engine] = json.loads(answer.out)["best"]
    for key in ("trial", "settings", "val_score"):
        assert best["ray"][key] == best["local"][key]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("texas", "ray_cluster")
def test_a_table_at_a_url_is_as_in_a_folder(hpgmn, tmp_path, lasting, monkeypatch):
    monkeypatch.setattr(paper, "TABLE_2", {"gcn": paper.TABLE_2["gcn"]})
    quick = dataclasses.replace(plan.QUICK, graphs=("texas",))
    monkeypatch.setattr(plan, "QUICK", quick)
    command = ("reproduce", "table2", "--quick", "--device", "cpu", "--out")
    url, there = f"file://{tmp_path}/there", tmp_path / "there"
    here = hpgmn(*command, "here")
    found = hpgmn(*command, url, "--engine", "ray")
    assert (here.code, found.code) == (0, 0), found.err
    assert found.out == here.out
    assert f"Records: {url}/cells\n" in found.err
    assert f"{url}/table2.md\n" in found.err
    records = {}
    for folder in (Path("here"), there):
        every = [json.loads(path.read_text()) for path in sorted(folder.glob("cells/*.json"))]
        for record in every:
            del record["metrics"]["hardware"]
        records[folder] = lasting(every)
    assert records[there] == records[Path("here")] != []
    assert (there / "table2.tex").exists()
    total = len(records[there])
    again = hpgmn(*command, url)
    assert f"{total} of {total} cells are already finished." in again.err


@pytest.mark.ray
@pytest.mark.slow
def test_a_cluster_is_found_by_its_address(texas, tmp_path, ray_cluster):
    """A command of its own process, which has nothing to do with the cluster but its address."""
    train = ("train", "texas", "--model", "mlp", "--set", "epochs=5", "--device", "cpu")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "hpgmn",
            *train,
            "--engine",
            "ray",
            "--address",
            ray_cluster.address,
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Ray: 1 machine, 1 core; 1 at a time." in done.stderr
    assert list(tmp_path.glob("runs/texas-mlp-*/metrics.json"))


def marked(mark):
    """The processes that have a mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_text(errors="replace"):
                found.append((path.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_behind(texas, tmp_path, number):
    """A command that starts Ray itself is stopped, as by Ctrl-C in a terminal, or killed."""
    pytest.importorskip("ray")
    mark = f"HPGMN_MARK_{uuid.uuid4().hex}"
    code = (
        "import sys; from hpgmn.engines import ray as cluster; from hpgmn.cli import main\n"
        "genuine = cluster.connect_ray\n"
        "cluster.connect_ray = lambda address: genuine(\n"
        "    address, num_cpus=2, object_store_memory=80 * 2**20)\n"
        "sys.exit(main())"
    )
    options = ("--set", "epochs=1000000", "--set", "patience=0", "--engine", "ray", "--out", "out")
    process = subprocess.Popen(
        [sys.executable, "-c", code, "train", "texas", "--model", "mlp,gcn", *options],
        env=os.environ | {mark: "1", "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path])},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "main " in line:  # progress of a training
                break
        assert "main " in lines[-1], lines
        assert len(marked(mark)) > 4, "Ray has several processes"
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # a terminal sends it to all
        else:
            process.send_signal(number)
        rest = process.communicate(timeout=60)[1]
        if number != signal.SIGKILL:
            assert process.returncode == 130
            assert "--resume --out out" in rest
            assert "Traceback" not in rest
        until = time.monotonic() + 90
        # Of a killed command Ray's own agents look only once a minute who is still there.
        while left := [one for one in marked(mark) if "agent" not in one.lower()]:
            assert time.monotonic() < until, left
            time.sleep(0.2)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
