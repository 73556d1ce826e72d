"""No room, no permission, no such folder: one sentence, and what was there before stays."""

import errno
import os
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import hpgmn as package
from hpgmn.base.errors import HPGMNError
from hpgmn.runs.outputs import read_metrics
from hpgmn.training.saved import SavedModel

pytestmark = [pytest.mark.slow, pytest.mark.soak]

QUICK = ("--splits", "0", "--device", "cpu", "--set", "epochs=4")
COMMANDS: dict[str, tuple[str, ...]] = {
    "train": ("train", "g.npz", "--model", "hpgmn", *QUICK, "--out", "{out}/run"),
    "train again": (
        "train",
        "g.npz",
        "--model",
        "mlp",
        *QUICK,
        "--out",
        "{out}/run",
        "--overwrite",
    ),
    "several": ("train", "g.npz", "--model", "mlp,gcn", *QUICK, "--out", "{out}/runs"),
    "tune": (
        *("tune", "g.npz", "--model", "mlp", "--trials", "2", "--device", "cpu"),
        *("--set", "epochs=4", "--study", "{out}/a.db"),
    ),
    "reproduce": ("reproduce", "table2", "--quick", "--device", "cpu", "--out", "{out}/rep"),
    "convert": ("convert", "tables", "--out", "{out}/g.npz", "--overwrite"),
    "convert to a folder": ("convert", "tables", "--out", "{out}/g.graph", "--overwrite"),
    "predict": ("predict", "run", "--out", "{out}/p.csv"),
    "predict parquet": ("predict", "run", "--out", "{out}/p.parquet"),
    "statistics": ("statistics", "g.npz", "--out", "{out}/s.npz"),
    "shard": ("shard", "g.graph", "--out", "{out}/shards", "--ranges", "2"),
}
REPLACING = (
    *("convert", "convert to a folder", "predict", "predict parquet", "statistics"),
    "train again",
)
"""Commands whose output may be there already."""
FEW = {"convert": 3, "convert to a folder": 3, "predict": 1, "predict parquet": 1, "statistics": 1}
"""How often these touch files before the last is written; others do so more than ten times."""
SMALL = ("convert", "convert to a folder", "predict", "predict parquet")
WRITES = {"tune": (20, 4096)} | dict.fromkeys(SMALL, (1, 2048))
"""Touch and bytes at which one of its files is cut; those of others are larger."""
FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EFBIG), "requested and")
"""Reasons: no space left, beyond the size limit of a file, or NumPy's of a partial write."""
BEFORE = """
import hpgmn.explain.explorer as dossier
dossier.SECONDS = 0.02
from hpgmn_lab import paper
paper.TABLE_2 = {"gcn": paper.TABLE_2["gcn"]}
"""


@pytest.fixture(scope="module")
def place(commands, tmp_path_factory):
    """A folder with all that the commands read."""
    folder = tmp_path_factory.mktemp("place")
    graph = package.trading_network(num_nodes=120, seed=3).graph
    package.write_graph(graph, folder / "g.npz")
    package.write_graph(graph, folder / "g.graph")
    for name in ("texas", "cora"):
        package.write_graph(graph, folder / "data" / f"{name}.npz")
    (folder / "tables").mkdir()
    rows = [f"n{number},{'ab'[number % 2]},{number / 2}" for number in range(300)]
    edges = [f"n{number},n{number * 7 % 300}" for number in range(300)]
    (folder / "tables" / "nodes.csv").write_text("\n".join(["id,label,x", *rows]) + "\n")
    (folder / "tables" / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    answer = commands(*COMMANDS["train"][:-1], "run", folder=folder, before=BEFORE)
    assert answer.code == 0, answer.err
    return folder


Run = Callable[..., Any]


@pytest.fixture
def run(commands, place):
    """Runs one of the commands, its output in a folder."""

    def start(name, out, *more, **options):
        words = [*(word.format(out=out) for word in COMMANDS[name]), *more]
        environment = {"HPGMN_DATA": str(place / "data"), "XDG_CACHE_HOME": str(place)}
        environment |= options.pop("environment", {})
        return commands(*words, folder=place, before=BEFORE, environment=environment, **options)

    return start


@pytest.fixture
def assert_refused(good_message):
    """Fails where a command did not end with a sentence that says what to do."""

    def check(answer, what):
        assert answer.code == 2, f"{what}: {answer.err}"
        last = answer.err.splitlines()[-1]
        assert last.startswith("Error: "), f"{what}: {answer.err}"
        for trouble in ("Traceback", "Exception ignored", "Logging error"):
            assert trouble not in answer.err, f"{what}: {answer.err}"
        good_message(last)

    return check


def earlier_results(run, name, out):
    """Fill a folder with what is not to be lost."""
    out.mkdir(exist_ok=True)
    (out / "earlier.txt").write_text("a result")
    if name in REPLACING:
        assert run(name, out).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_fills_up_is_told_and_nothing_is_lost(
    soak, commands, run, assert_refused, contents, place, tmp_path, name
):
    """From some touch of a file on no file can be begun, or none can grow; needs no small disk."""
    out = place / "out"
    shutil.rmtree(out, ignore_errors=True)
    earlier_results(run, name, out)
    shutil.copytree(out, tmp_path / "kept")
    before = contents(out)
    draw = random.Random(name)
    chosen = [
        commands.at(touch=draw.randint(1, FEW.get(name, 10)), signal=0),
        full_write(commands, name),
    ]
    if soak.is_long:
        whole = run(name, out)
        assert whole.code == 0, whole.err
        chosen += every_moment(commands, whole)
    for moment in chosen:
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "kept", out)
        answer = run(name, out, moment=moment)
        assert_refused(answer, f"full {moment}")
        told = answer.err.splitlines()[-1]
        is_named = any(reason in told for reason in FULL) or "the study" in told.lower()
        assert is_named, f"full {moment}: {told}"
        after = contents(out)
        assert is_kept(before, after) or is_replaced(before, after, out), f"full {moment}"
        assert not [file for file in after if ".unfinished" in file], f"full {moment}"
    soak.record(
        f"full-{name.replace(' ', '-')}",
        f"`{name}` on a disk that fills up: one sentence, earlier results intact.",
        moments=len(chosen),
    )


def is_kept(before, after):
    """Whether all that was there is there, a run that is replaced in its place or aside."""
    aside = {file.replace("run/", "run/.replaced/"): content for file, content in before.items()}
    return before.items() <= after.items() or aside.items() <= after.items()


def is_replaced(before, after, out):
    """Whether the run that replaces another is finished, but for its page; the rest is there."""
    if before.get("run/metrics.json") == after.get("run/metrics.json"):  # they tell of seconds
        return False
    try:
        read_metrics(out / "run" / "metrics.json")
        SavedModel.read(out / "run" / "model.safetensors")
    except HPGMNError:
        return False
    others = {file: content for file, content in before.items() if not file.startswith("run/")}
    return others.items() <= after.items()


def full_write(commands, name):
    """No file grows beyond some bytes, of a study once it has trials."""
    touch, room = WRITES.get(name, (1, 4096))
    return commands.at(touch=touch, signal=0, room=room)


def every_moment(commands, whole):
    """The first of each kind of touch of each file, and the middle of the first write of each."""
    first: dict[str, int] = {}
    for number, (event, file) in enumerate(whole.seen, start=1):
        if event in ("open", "os.mkdir"):
            first.setdefault(f"{event} {Path(file).name[:12]}", number)
    touches = [commands.at(touch=touch, signal=0) for touch in first.values()]
    writes = [own[0] for own in whole.writes().values()]
    return touches + [
        commands.at(touch=touch, signal=0, room=max(size // 2, 2048), about=f"of {size} bytes")
        for touch, size in writes
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_place_that_is_no_folder_is_told(run, assert_refused, tmp_path, name):
    (tmp_path / "file").write_text("a result")
    assert_refused(run(name, tmp_path / "file"), "below a file")
    assert (tmp_path / "file").read_text() == "a result"


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_without_permission_is_told(run, assert_refused, contents, tmp_path, name):
    """Privileges are given up for it: root may write everywhere."""
    out = tmp_path / "out"
    earlier_results(run, name, out)
    before = contents(out)
    folders = [out, *(path for path in out.iterdir() if path.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    answer = run(name, out, is_bound=True)
    for folder in folders:
        folder.chmod(0o700)
    assert_refused(answer, "no permission")
    assert "(Permission denied)" in answer.err
    assert contents(out) == before


@pytest.mark.parametrize(
    ("name", "file"),
    [("train", "g.npz"), ("shard", "g.graph/y.npy"), ("predict", "run/model.safetensors")],
    ids=["graph file", "graph folder", "model"],
)
def test_a_file_that_may_not_be_read_is_told(run, place, tmp_path, name, file):
    """It is not called damaged: then somebody would replace it."""
    (place / file).chmod(0)
    answer = run(name, tmp_path, is_bound=True)
    (place / file).chmod(0o600)
    assert answer.code == 2, answer.err
    assert file.split("/")[0] in answer.err
    assert "cannot be read (Permission denied)" in answer.err
    assert "damaged" not in answer.err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def disk(tmp_path):
    """Makes small disks of their own; skips where the system does not let us."""
    made: list[Path] = []

    def mount(size, *options):
        folder = tmp_path / f"disk{len(made)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}k", *options])]
        if os.geteuid() != 0 or shutil.which("mount") is None:
            pytest.skip("root alone may mount a disk")
        done = subprocess.run([*command, "none", folder], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("this machine mounts no disks")
        made.append(folder)
        return folder

    yield mount
    for folder in made:
        subprocess.run(["umount", "-l", folder], check=True)


SIZES = {"train": (8, 40, 80), "tune": (64, 120, 160)}
"""KiB at which a command has begun to write and does not come to its end."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "tune", "reproduce", "convert to a folder", "predict"])
def test_a_small_disk_and_one_that_is_read_only_are_told(run, assert_refused, disk, name, soak):
    sizes = SIZES.get(name, (8,))
    for size in sizes if soak.is_long else sizes[-1:]:
        full = disk(size)
        (full / "earlier.txt").write_text("a result")
        assert_refused(run(name, full), f"{size} KiB")
        assert (full / "earlier.txt").read_text() == "a result"
    assert_refused(run(name, disk(64, "ro")), "read-only")


def test_a_run_goes_on_when_a_small_disk_has_room_again(run, assert_refused, disk):
    folder = disk(90)
    assert_refused(run("train", folder), "90 KiB")
    assert (folder / "run" / "config.yaml").exists()
    subprocess.run(["mount", "-o", "remount,size=8m", folder], check=True)
    answer = run("train", folder, "--resume")
    assert answer.code == 0, answer.err
    assert (folder / "run" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["several", "tune", "reproduce", "shard"])
def test_work_goes_on_when_there_is_room_again(commands, run, assert_refused, place, name):
    out = place / f"{name} again"
    out.mkdir()
    assert_refused(run(name, out, moment=full_write(commands, name)), "full")
    answer = run(name, out, *(["--resume"] if name == "several" else []))
    assert answer.code == 0, answer.err
    assert not list(out.rglob("*.unfinished"))
    if name == "tune":
        with closing(sqlite3.connect(out / "a.db")) as database:
            states = [state for (state,) in database.execute("SELECT state FROM trials")]
        assert states.count("COMPLETE") == 2
        assert set(states) <= {"COMPLETE", "FAIL"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["no folder", "full", "read-only"])
def test_a_cache_that_cannot_be_written_stops_no_training(commands, place, tmp_path, disk, kind):
    (tmp_path / "file").touch()
    cache = tmp_path / "file" / "cache"
    if kind != "no folder":
        cache = disk(8192, "ro") if kind == "read-only" else disk(4)
        if kind == "full":
            (cache / "ballast").write_bytes(bytes(3000))
    worth = "from hpgmn.statistics import cache\ncache.MIN_SECONDS = -1.0\n"
    words = [word.format(out=tmp_path) for word in COMMANDS["train"]]
    options = {"before": BEFORE + worth, "environment": {"HPGMN_CACHE": str(cache)}}
    answer = commands(*words, "--set", "statistics=attributes,diffusion", folder=place, **options)
    assert answer.code == 0, answer.err
    assert (tmp_path / "run" / "report.html").exists()
    if kind != "full":  # an entry too large for the disk is not worth a line
        assert f"Statistics are not cached in '{cache}'" in answer.err
