"""A run that is killed or interrupted again and again ends with the bits of an undisturbed one."""

import json
import shutil
import signal
from collections import Counter
from itertools import chain
from typing import Any

import pytest

import hpgmn as package
from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import read_tensors
from hpgmn.runs.outputs import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.soak]

RUN_FILES = {
    *("config.yaml", "metrics.json", "history.jsonl", "predictions.parquet"),
    *("model.safetensors", "report.html", "explorer.json", "log.txt"),
    *("audit.json", "understanding.json", "graph.npz"),
}
# The state is saved after each epoch, and two replicas fit into memory at once: two batches.
BEFORE = """
import hpgmn.training.replicas as replicas
replicas.SAVE_SECONDS = -1.0
replicas.replicas_at_once = lambda *_: 2
"""
SAME = (
    *("model.safetensors", "predictions.parquet", "history.jsonl"),
    *("explorer.json", "audit.json", "understanding.json"),
)
"""What has the same bytes."""
SETTINGS: dict[str, Any] = {
    "hidden_dim": 8,
    "num_patterns": 5,
    "estimator_hidden": 8,
    "estimator_epochs": 20,
    "estimator_patience": 10,
    "epochs": 60,
    "patience": 4,
    "neighbors": "undirected",
    "statistics": "attributes,class_counts,class_means,diffusion",
}
WORDS = ("train", "trading.npz", "--splits", "0,1,2", "--device", "cpu", "--out", "run")
WORDS += tuple(word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}"))


@pytest.fixture(scope="module")
def undisturbed(commands, tmp_path_factory):
    """The folder of a run that was left alone, and what became of it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    graph = package.trading_network(num_nodes=120, seed=3).graph
    package.write_graph(graph, folder / "trading.npz")
    answer = commands(*WORDS, folder=folder, before=BEFORE)
    assert answer.code == 0, answer.err
    return folder, answer


@pytest.fixture
def folder(undisturbed, tmp_path):
    """A folder with the graph."""
    (tmp_path / "trading.npz").symlink_to(undisturbed[0] / "trading.npz")
    return tmp_path


@pytest.fixture
def assert_same(lasting, undisturbed, folder):
    """Fails where a run is not the undisturbed one, but for times and dates."""

    return lambda answer: assert_same_run(folder / "run", undisturbed[0] / "run", lasting)


def assert_same_run(one, other, lasting):
    """Fails where two runs differ, but for times and dates."""
    assert {path.name for path in one.iterdir()} == RUN_FILES
    for name in SAME:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    found = [json.loads((place / "metrics.json").read_text()) for place in (one, other)]
    for metrics in found:
        metrics["config"].pop("graph")  # a path
    assert lasting(found[0]) == lasting(found[1])
    assert "<title>" in (one / "report.html").read_text()


class Finished:
    """The stages and epochs of a run under way, those of the former with the time they took."""

    def __init__(self, run):
        self._run, self._last = run, dict[tuple[object, ...], float]()

    def __call__(self):
        if (self._run / "metrics.json").exists():  # states are gone, and compared is the whole
            return self._last
        self._last = {}
        for path in (self._run / "state").glob("*.safetensors"):
            _, about = read_tensors(path)
            now = about["current"] or {"name": None, "epoch": 0}
            for stage in about["stages"]:
                self._last[path.name, stage] = about["seconds"][f"training {stage}"]
            for stage in (*about["stages"], now["name"]):
                epochs = now["epoch"] if stage == now["name"] else SETTINGS["epochs"]
                self._last |= {(path.name, stage, epoch): 0.0 for epoch in range(epochs)}
        return self._last


def saves_of(answer):
    """The touches at which a state of the second batch came to its place."""
    return [
        number
        for number, (event, name) in enumerate(answer.seen, start=1)
        if event == "os.rename" and name == "/run/state/state-001.safetensors"
    ]


@pytest.mark.slow
def test_the_undisturbed_run_is_worth_disturbing(undisturbed):
    """Several batches, replicas that stop at different epochs, and an estimator before them."""
    folder, answer = undisturbed
    lines = (folder / "run" / "history.jsonl").read_text().splitlines()
    main = [line for line in map(json.loads, lines) if line["stage"] == "main"]
    last = {line["split"]: line["epoch"] for line in main}
    assert len(last) == 3
    assert len(set(last.values())) > 1
    touched = {name for _, name in answer.seen}
    assert {"/run/state/state-000.safetensors", "/run/state/state-001.safetensors"} <= touched
    assert {f"/run/{name}" for name in RUN_FILES} <= touched


def test_a_killed_run_ends_with_the_same_bits(soak, survive, undisturbed, folder, assert_same):
    _, answer = undisturbed
    kills = soak.amount(short=3, long=50)
    survived = survive(
        *(kills, answer, *WORDS, "--resume"),
        folder=folder,
        out=folder / "run",
        check=assert_same,
        kept=Finished(folder / "run"),
        seed=0,
        done="is finished",
        before=BEFORE,
    )
    assert survived.kept > 0
    soak.record(
        "kill-train",
        "A run that is killed and resumed goes on and ends with the bits of an undisturbed one.",
        kills_survived=kills,
        runs_compared=survived.ends,
    )


@pytest.mark.slow
def test_an_interrupted_run_ends_with_the_same_bits(commands, undisturbed, folder, assert_same):
    saves = saves_of(undisturbed[1])
    moment = commands.at(touch=saves[len(saves) // 2], signal=signal.SIGINT)
    stopped = commands(*WORDS, folder=folder, before=BEFORE, moment=moment)
    assert stopped.code == 130
    assert "repeat the command with --resume --out run" in stopped.err
    assert "Traceback" not in stopped.err
    assert not (folder / "run" / "metrics.json").exists()
    resumed = commands(*WORDS, "--resume", folder=folder, before=BEFORE)
    assert resumed.code == 0, resumed.err
    assert 0 < len(saves_of(resumed)) <= len(saves) // 2 + 2  # it went on, and did not begin anew
    assert_same(resumed)


REPLACING = ("train", "trading.npz", "--model", "mlp", "--splits", "1", "--device", "cpu")
REPLACING += ("--out", "run", "--set", "epochs=6")


class Replacement:
    """A run that replaces the undisturbed one, left alone, and the same again to be disturbed.

    Attributes:
        old: the folder of the run that is replaced.
        new: that of the run which replaced it.
        answer: what became of the command.
        run: the folder that is disturbed.
    """

    def __init__(self, commands, contents, old, place):
        self.old, self.new, self.run = old, place / "alone" / "run", place / "run"
        self._commands, self._contents, self._files = commands, contents, contents(old)
        shutil.copytree(old, self.new)
        (place / "alone" / "trading.npz").symlink_to(old.parent / "trading.npz")
        self.answer = self("--overwrite", folder=place / "alone")
        assert self.answer.code == 0, self.answer.err

    def __call__(self, how, **options):
        """Give the command."""
        folder = {"folder": self.run.parent}
        return self._commands(*REPLACING, how, **folder | options, before=BEFORE)

    def begin(self):
        """Have the old run in its place."""
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.old, self.run)

    def left(self):
        """What is there, which is one of the two runs, whole; the page of the new may be missing.

        It fails where neither is.
        """
        if self._files.items() <= self._contents(self.run).items():
            return "old"
        if (self.run / "metrics.json").exists():
            assert read_metrics(self.run / "metrics.json")["config"]["splits"] == [1]
            for name in SAME[:3]:
                assert (self.run / name).read_bytes() == (self.new / name).read_bytes(), name
            return "new"
        assert self._files == self._contents(self.run / ".replaced")
        return "old, aside"

    def steps(self):
        """A moment of each step."""
        touched = [f"{event} {name.removeprefix('/run/')}" for event, name in self.answer.seen]
        for about in (
            "os.rename config.yaml",  # the old run is gone from its place
            "shutil.rmtree .replaced",  # the new one is finished
            "os.rename .replaced",  # the old one is about to be put aside
            "os.remove model.safetensors",  # half of it is gone from its place
            "os.rename state/state-000.safetensors",
        ):
            yield self._commands.at(touch=touched.index(about) + 1, about=about)


@pytest.fixture
def replacement(commands, contents, undisturbed, folder):
    return Replacement(commands, contents, undisturbed[0] / "run", folder)


@pytest.mark.slow
def test_a_killed_replacement_leaves_the_old_run_or_the_new_one(soak, replacement, lasting):
    """The first kill of a round finds the old run in its place, the second what the first left."""
    wanted = soak.amount(short=3, long=30)
    drawn = replacement.answer.moments(8)
    moments = chain(replacement.steps(), drawn)
    found: Counter[str] = Counter()
    rounds = 0
    while found.total() < wanted:
        rounds += 1
        replacement.begin()
        said, left = [], "old"
        try:
            for moment in [next(moments), *([next(drawn)] if soak.is_long else [])]:
                is_anew = left == "old" or (left == "old, aside" and rounds % 2 == 0)
                how = "--overwrite" if is_anew else "--resume"
                said.append(f"{how} {moment}")
                answer = replacement(how, moment=moment)
                if not answer.is_killed:
                    require_end(answer)
                left = replacement.left()
                found[left] += answer.is_killed
            answer = replacement("--resume")
            if left == "old":
                assert "was started with other options" in answer.err
                assert replacement.left() == "old"
                answer = replacement("--overwrite")
            require_end(answer)
            assert_same_run(replacement.run, replacement.new, lasting)
        except (AssertionError, HPGMNError) as error:
            raise AssertionError(f"killed {', '.join(said)}: {error}") from error
    assert min(found[left] for left in ("old", "old, aside", "new")) > 0
    soak.record(
        "kill-overwrite",
        "A run that is killed while it replaces another leaves one of the two whole, and goes on "
        "to the bits of an undisturbed one.",
        kills_survived=found.total(),
        old_run_in_place=found["old"],
        old_run_aside=found["old, aside"],
    )


def require_end(answer):
    is_done = answer.code == 2 and "The run in run is finished." in answer.err
    assert answer.code == 0 or is_done, answer.err
