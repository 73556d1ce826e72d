"""Same seed, same machine, same number of threads: the same bits, whatever else differs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "every_result.py"
SOURCE = Path(__file__).parents[2] / "src"
# What must not matter: the order of sets, the clock's zone, the language, the names of folders.
SURROUNDINGS = (
    {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"},
    {"PYTHONHASHSEED": "20261", "TZ": "Asia/Kathmandu", "LC_ALL": "C"},
)
REAL = ("texas.npz", "chameleon.npz")


def begun(folder, number, threads, words):
    """A process of its own that trains everything."""
    own = folder / ("a" if number == 0 else "another place")
    own.mkdir(parents=True)
    environment = os.environ | SURROUNDINGS[number]
    environment |= {
        "OMP_NUM_THREADS": str(threads),
        "HPGMN_CACHE": str(own / "cache"),
        "PYTHONPATH": os.pathsep.join([str(SOURCE), str(PROGRAM.parent)]),
    }
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(own), *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def results(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-3000:]
    found: dict[str, str] = json.loads(out.splitlines()[-1])
    return found


@pytest.mark.soak
@pytest.mark.slow
def test_two_processes_agree_to_the_last_bit(tmp_path, soak):
    data, parts = os.environ.get("HPGMN_DATA"), "mlcf" if soak.is_long else "mlc"
    graphs = [str(Path(data).resolve() / name) for name in REAL] if data and soak.is_long else []
    by_threads: dict[int, dict[str, str]] = {}
    count = 0
    for threads in range(1, soak.amount(1, 2) + 1):
        for seed in range(soak.amount(1, 2)):
            folder, words = tmp_path / f"{threads}-{seed}", [str(seed), parts, *graphs]
            pair = [begun(folder, number, threads, words) for number in (0, 1)]
            one, other = (results(process) for process in pair)
            assert one.keys() == other.keys()
            different = [name for name in one if one[name] != other[name]]
            assert not different, f"{threads} threads, seed {seed}: {different}"
            assert len(set(one.values())) == len(one), "two kinds of results are the same"
            count += len(one)
            by_threads.setdefault(threads, one)
    if soak.is_long:
        first, second = by_threads[1], by_threads[2]
        recorded = ("run", "sharded")  # say how many threads there were
        same = sum(first[name] == second[name] for name in first if name not in recorded)
        soak.record(
            "same-bits",
            "Two processes with the same seed and number of threads give the same bits, for every "
            "model, form of statistics and command (between one thread and two there is no "
            "promise).",
            results_compared=count,
            of_one_seed_also_equal_between_one_and_two_threads=same,
            of_one_seed_compared_between_one_and_two_threads=len(first) - len(recorded),
        )
