"""``main``: exit codes, help that answers at once, and the commands one after the other."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hpgmn as package
from hpgmn.cli import main

SOURCE = Path(package.__file__).parents[1]


def python(*arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_train_evaluate_predict_and_statistics_follow_each_other(hpgmn, tiny, graph_file):
    assert hpgmn("train", graph_file, *tiny(), "--seeds", "2", "--out", "run").code == 0
    metrics = json.loads(Path("run/metrics.json").read_text())
    found = json.loads(hpgmn("evaluate", "run", "--json").out)
    assert found["score"] == metrics["test_score"]
    assert hpgmn("predict", "run", "--out", "p.parquet").code == 0
    assert Path("p.parquet").stat().st_size > 0
    assert hpgmn("statistics", graph_file, "--out", "s.npz").code == 0
    with np.load("s.npz") as arrays:
        assert arrays["class_counts"].shape == (18, 3)


# Exit codes.


def test_done_is_0(hpgmn):
    assert hpgmn("models").code == 0
    assert hpgmn("--version").out == f"hpgmn {package.__version__}\n"


def test_an_interrupt_is_130(hpgmn, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("hpgmn.graph.datasets.load", interrupted)
    answer = hpgmn("statistics", "texas", "--out", "s.npz")
    assert answer.code == 130
    assert answer.err == "Interrupted.\n"


def test_a_bug_of_ours_is_not_hidden(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("our bug")

    monkeypatch.setattr("hpgmn.graph.datasets.load", broken)
    with pytest.raises(RuntimeError, match="our bug"):
        main(["statistics", "texas", "--out", "s.npz"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--version"], 0), (["train", "zzz"], 2), (["settings", "--nonsense"], 2)],
    ids=str,
)
def test_the_exit_code_reaches_the_shell(arguments, code):
    done = python("-m", "hpgmn", *arguments)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_a_bug_of_ours_exits_with_1():
    code = "import hpgmn.cli as c; c.make_app = lambda names: 1 / 0; exit(c.main(['models']))"
    done = python("-c", code)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


# Help.


@pytest.mark.parametrize("arguments", [[], ["--help"]], ids=str)
def test_help_names_every_command(hpgmn, arguments):
    answer = hpgmn(*arguments)
    assert answer.code == 0
    assert answer.out.startswith("Usage: hpgmn [OPTIONS] COMMAND")
    words = ["demo", "train", "predict", "evaluate", "statistics", "convert"]
    for command in [*words, "datasets", "models", "settings"]:
        assert f"\n  {command} " in answer.out


@pytest.mark.parametrize(
    "command",
    ["demo", "train", "predict", "evaluate", "statistics", "convert", "datasets", "models"],
)
def test_every_command_has_help(hpgmn, command):
    answer = hpgmn(command, "--help")
    assert answer.code == 0
    assert answer.out.startswith(f"Usage: hpgmn {command}")


def test_help_answers_at_once_and_without_torch():
    code = (
        "import sys; from hpgmn.cli import main; code = main(['train', '--help'])\n"
        "slow = {'torch', 'scipy', 'pyarrow', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "print('loaded:', *sorted(slow)); sys.exit(code)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = python("-c", code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"
    # Processor time: how long the clock runs says how busy the machine is.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
