"""The cache of statistics: the same bits read as computed, and nothing mistaken for another."""

import json
import logging
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import hpgmn
from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import array_digest
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.models.stage import Replica
from hpgmn.statistics import (
    LocalStatistics,
    StatisticsSettings,
    cache,
    definitions,
    diffusion_forms,
    push,
)
from hpgmn.statistics.cache import ENTRY_FILE, Recipe, StatisticsCache, rounding_environment
from hpgmn.training.replicas import fit_replicas
from hpgmn.training.trainer import run_training_thread

SOURCE = Path(hpgmn.__file__).parents[1]
RECIPE = Recipe("Test", {"teleport": 0.15}, {"adjacency": "abc"})
CPU = torch.device("cpu")
WORK: dict[str, np.ndarray] = {"rows": np.arange(12, dtype=np.float32).reshape(3, 4)}


@pytest.fixture
def keep_all(monkeypatch):
    """Keep what takes no time, too."""
    monkeypatch.setattr(cache, "MIN_SECONDS", -1.0)


@pytest.fixture
def folder(tmp_path, monkeypatch, keep_all):
    """The folder of the user's cache, where everything is kept."""
    monkeypatch.setenv("HPGMN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def little_memory(monkeypatch):
    monkeypatch.setattr(cache, "free_bytes", lambda device: 100.0)


def keys(folder):
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def never():
    raise AssertionError("recomputed")


# Where.


def test_the_user_chooses_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HPGMN_CACHE", "~/kept")
    assert StatisticsCache.of_user().folder == Path.home() / "kept"
    for word in ("off", "OFF"):
        monkeypatch.setenv("HPGMN_CACHE", word)
        assert StatisticsCache.of_user().folder is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for unset in (lambda: monkeypatch.setenv("HPGMN_CACHE", ""), lambda: delete(monkeypatch)):
        unset()
        assert StatisticsCache.of_user().folder == tmp_path / "hpgmn" / "statistics"


def delete(monkeypatch):
    monkeypatch.delenv("HPGMN_CACHE")


def test_tests_never_write_into_the_users_own_cache():
    named = os.environ["HPGMN_CACHE"]
    assert Path(named).is_relative_to(tempfile.gettempdir())


# Keys.


def test_digests_tell_values_shapes_and_types_apart():
    matrix = sp.csr_array(np.array([[0, 1, 2], [3, 0, 0]], np.float32))
    other = matrix.copy()
    other.data[1] = np.nextafter(np.float32(2), np.float32(3))
    moved = matrix.copy()
    moved.indices[0] = 0
    wider = sp.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(2, 4))
    values = np.arange(6, dtype=np.int32)
    arrays: list[Any] = [
        *(matrix, other, moved, wider, values, values.reshape(2, 3), values.reshape(3, 2)),
        *(values.astype(np.uint32), values.astype(np.int64), values.view(np.float32)),
        *(values[:0], values[:0].astype(np.float32), np.array(["ab", "c"]), np.array(["a", "bc"])),
        *(np.zeros(2), -np.zeros(2), None),
    ]
    found = [array_digest(array) for array in arrays]
    assert len(set(found)) == len(arrays)
    np.testing.assert_array_equal(found, [array_digest(array) for array in arrays])
    every_second = np.arange(12, dtype=np.int32)[::2]
    assert array_digest(every_second) == array_digest(every_second.copy())


def test_a_key_changes_with_everything_it_is_made_of(monkeypatch):
    recipes = [
        RECIPE,
        replace(RECIPE, kind="Other"),
        replace(RECIPE, parameters={"teleport": np.nextafter(0.15, 1)}),
        replace(RECIPE, parameters={"heat_time": 0.15}),
        replace(RECIPE, parameters={"teleport": 0.15, "unit_length": True}),
        replace(RECIPE, inputs={"adjacency": "abd"}),
        replace(RECIPE, inputs={"labels": "abc"}),
    ]
    found = {one.key() for one in recipes}
    found.add(run_training_thread(lambda _: RECIPE.key()))
    monkeypatch.setattr(cache, "CACHE_VERSION", cache.CACHE_VERSION + 1)
    found.add(RECIPE.key())
    for name, value in cache._environment().items():
        changed = cache._environment() | {name: f"{value}0"}
        with monkeypatch.context() as patch:
            patch.setattr(cache, "_environment", lambda changed=changed: changed)
            found.add(RECIPE.key())
    assert len(found) == len(recipes) + 2 + 6
    assert all(re.fullmatch("[0-9a-f]{40}", key) for key in found)
    assert RECIPE.key() == replace(RECIPE, parameters=dict(RECIPE.parameters)).key()


@pytest.mark.slow
def test_a_key_is_the_same_in_another_process():
    program = (
        "from hpgmn.statistics.cache import Recipe;"
        "print(Recipe('Test', {'teleport': 0.15}, {'adjacency': 'abc'}).key())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(SOURCE), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == RECIPE.key()


def test_changed_code_is_noticed(tmp_path):
    files = [tmp_path / "statistics" / name for name in ("diffusion.py", "push.py")]
    files += [tmp_path / "base" / name for name in cache._HELPERS]
    for path in files:
        path.parent.mkdir(exist_ok=True)
        path.write_text("a = 1\n")
    found = {cache._code_digest(tmp_path)}
    for path in files:
        path.write_text("a = 2\n")
        found.add(cache._code_digest(tmp_path))
    assert len(found) == len(files) + 1
    (tmp_path / "base" / "errors.py").write_text("no part of it")
    assert cache._code_digest(tmp_path) in found


def test_a_helper_that_was_renamed_is_an_error(tmp_path):
    assert all((SOURCE / "hpgmn" / "base" / name).is_file() for name in cache._HELPERS)
    for path in ("statistics/push.py", "base/sparse.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("a = 1\n")
    with pytest.raises(FileNotFoundError, match="randomness"):
        cache._code_digest(tmp_path)


def test_kinds_of_processors_are_told_apart_and_their_clocks_are_not(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"

    def processor(model, flags, clock):
        core = f"vendor_id : x\nmodel name : {model}\nflags : {flags}\ncpu MHz : {clock}\n"
        cpuinfo.write_text(f"processor : 0\n{core}\nprocessor : 1\n{core}")
        return cache._processor(cpuinfo)

    first = processor("A", "avx2", "1000")
    assert processor("A", "avx2", "2000") == first
    assert len({first, processor("B", "avx2", "1"), processor("A", "avx512f", "1")}) == 3
    assert cache._processor(tmp_path / "none") != first


def test_threads_and_devices_count_where_rounding_depends_on_them(monkeypatch):
    names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    found = [rounding_environment(CPU)]
    for name in names:
        monkeypatch.setenv(name, "3")
        found.append(rounding_environment(CPU))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 17)
    found.append(rounding_environment(CPU))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 99)
    found.append(rounding_environment(CPU))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A card")
    found.append(rounding_environment(torch.device("cuda")))
    assert "A card" in found[-1]
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    found.append(rounding_environment(torch.device("cuda")))
    assert len({tuple(one) for one in found}) == len(found)


# Kept, read, and when not.


def test_what_took_long_is_read_the_next_time(folder, caplog):
    caplog.set_level(logging.INFO, "hpgmn")
    first = StatisticsCache.of_user().arrays(RECIPE, lambda: WORK)
    assert keys(folder) == {RECIPE.key()}
    place = folder / RECIPE.key()
    assert f"Test, 0.0 MiB, stored in the cache, {place}." in caplog.messages
    caplog.clear()
    again = StatisticsCache.of_user().arrays(RECIPE, never, never)
    assert caplog.messages == [f"Test, 0.0 MiB, read from the cache, {place}."]
    for found in (first["rows"], again["rows"]):
        np.testing.assert_array_equal(found, WORK["rows"])
        assert found.ctypes.data % 64 == 0
        assert found.flags.writeable
    about = json.loads((place / ENTRY_FILE).read_text())
    assert about["about"]["kind"] == "Test"
    assert about["about"]["parameters"] == {"teleport": 0.15}
    assert about["arrays"]["rows"]["shape"] == [3, 4]
    assert about["arrays"]["rows"]["dtype"] == "<f4"


def test_computed_arrays_begin_where_mapped_ones_do():
    room = np.zeros(1_000, np.uint8)
    start = -room.ctypes.data % 64 + 16
    askew = room[start : start + 48].view(np.float32)
    askew[:] = np.arange(12)
    found = StatisticsCache(None).arrays(RECIPE, lambda: {"a": askew})["a"]
    assert found.ctypes.data % 64 == 0
    np.testing.assert_array_equal(found, np.arange(12))


def test_what_took_a_blink_never_touches_the_disk(tmp_path):
    kept = StatisticsCache(tmp_path / "cache")
    kept.arrays(RECIPE, lambda: WORK)
    kept.rows(RECIPE, (2, 3), lambda rows: rows.fill(1))
    assert list(tmp_path.iterdir()) == []


def test_time_of_preparation_does_not_count(tmp_path, monkeypatch):
    now = [0.0]

    def takes(seconds):
        def work():
            now[0] += seconds
            return WORK

        return work

    monkeypatch.setattr(cache.time, "perf_counter", lambda: now[0])
    kept = StatisticsCache(tmp_path)
    kept.arrays(RECIPE, takes(0.9), takes(9.0))
    assert keys(tmp_path) == set()
    kept.arrays(RECIPE, takes(1.1), takes(9.0))
    assert keys(tmp_path) == {RECIPE.key()}


def test_off_keeps_and_reads_nothing(tmp_path, monkeypatch, folder):
    StatisticsCache.of_user().arrays(RECIPE, lambda: WORK)
    monkeypatch.setenv("HPGMN_CACHE", "off")
    kept = StatisticsCache.of_user()
    other = {"rows": WORK["rows"] + 1}
    np.testing.assert_array_equal(kept.arrays(RECIPE, lambda: other)["rows"], other["rows"])
    assert kept.digest("adjacency", None) == ""
    assert kept.digest("adjacency", WORK["rows"]) == ""  # no work for nothing
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("name", [ENTRY_FILE, "rows.npy"])
def test_a_damaged_entry_is_dropped_and_computed_again(folder, caplog, name):
    kept = StatisticsCache.of_user()
    kept.arrays(RECIPE, lambda: WORK)
    path = folder / RECIPE.key() / name
    for bad in (b"", path.read_bytes()[:-1], bytes([path.read_bytes()[0] ^ 1])):
        path.write_bytes(bad)
        caplog.clear()
        found = kept.arrays(RECIPE, lambda: WORK)
        np.testing.assert_array_equal(found["rows"], WORK["rows"])
        [record] = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert f"'{path.parent}' is damaged" in record.getMessage()
        assert "recomputed" in record.getMessage()
        kept.arrays(RECIPE, never)  # whole again
    assert keys(folder) == {RECIPE.key()}


def test_an_entry_of_strange_content_is_dropped(folder):
    kept = StatisticsCache.of_user()
    for arrays in ([], {"rows": {}}, {"rows": 3}, {"rows": {"bytes": "x", "crc32": 0}}):
        place = folder / RECIPE.key()
        place.mkdir(parents=True)
        (place / "rows.npy").write_bytes(b"x")
        text = cache._entry_text({"key": RECIPE.key(), "arrays": arrays})
        (place / ENTRY_FILE).write_text(text)
        np.testing.assert_array_equal(kept.arrays(RECIPE, lambda: WORK)["rows"], WORK["rows"])
        kept.arrays(RECIPE, never)
        cache.drop(place)


def test_the_limit_holds_for_writers_at_the_same_time(folder, monkeypatch):
    monkeypatch.setattr(cache, "LIMIT_BYTES", 150_000)
    big, other = {"rows": np.zeros(100_000, np.uint8)}, replace(RECIPE, kind="Other")
    save = cache.save_array

    def save_beside_another(path, array):
        with monkeypatch.context() as patch:
            patch.setattr(cache, "save_array", save)
            StatisticsCache.of_user().arrays(other, lambda: big)
        os.utime(folder / other.key() / ENTRY_FILE, (1, 1))
        return save(path, array)

    with monkeypatch.context() as patch:
        patch.setattr(cache, "save_array", save_beside_another)
        StatisticsCache.of_user().arrays(RECIPE, lambda: big)
    assert keys(folder) == {RECIPE.key()}


def test_one_who_was_faster_is_kept(folder, caplog):
    caplog.set_level(logging.INFO, "hpgmn")
    theirs = {"rows": WORK["rows"] + 1}

    def compute():
        StatisticsCache.of_user().arrays(RECIPE, lambda: theirs)
        return WORK

    found = StatisticsCache.of_user().arrays(RECIPE, compute)
    np.testing.assert_array_equal(found["rows"], WORK["rows"])
    again = StatisticsCache.of_user().arrays(RECIPE, never)
    np.testing.assert_array_equal(again["rows"], theirs["rows"])
    assert keys(folder) == {RECIPE.key()}
    assert sum("stored in the cache" in line for line in caplog.messages) == 1


# A folder that cannot be used.


@contextmanager
def files_of_at_most(size):
    """As on a disk that is nearly full: writing stops in the middle of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def warnings_of(caplog):
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def test_a_full_disk_is_one_line_and_leaves_nothing(folder, caplog):
    big = {"rows": np.arange(10_000)}
    with files_of_at_most(20_000):
        found = StatisticsCache.of_user().arrays(RECIPE, lambda: big)
    np.testing.assert_array_equal(found["rows"], big["rows"])
    assert warnings_of(caplog) == [
        f"Statistics are not cached in '{folder}' (File too large). Set HPGMN_CACHE to a "
        "writable folder with free space, or to off."
    ]
    assert keys(folder) == set()


def test_a_folder_that_cannot_be_made_is_one_line(folder, caplog):
    folder.write_text("a file")
    found = StatisticsCache.of_user().arrays(RECIPE, lambda: WORK)
    np.testing.assert_array_equal(found["rows"], WORK["rows"])
    [line] = warnings_of(caplog)
    assert line.startswith(f"Statistics are not cached in '{folder}' (File exists).")


@contextmanager
def without_privileges():
    """As an ordinary user, whom permissions bind."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_a_folder_without_permission_is_one_line_and_left_alone(folder, caplog, mode):
    other = replace(RECIPE, kind="Other")
    StatisticsCache.of_user().arrays(RECIPE, lambda: WORK)
    folder.chmod(mode)
    try:
        with without_privileges():
            kept = StatisticsCache.of_user()
            for recipe in (RECIPE, other):
                found = kept.arrays(recipe, lambda: WORK)
                np.testing.assert_array_equal(found["rows"], WORK["rows"])
    finally:
        folder.chmod(0o700)
    [line] = warnings_of(caplog)
    assert line.startswith(f"Statistics are not cached in '{folder}' (Permission denied).")
    assert keys(folder) == {RECIPE.key()}
    StatisticsCache.of_user().arrays(RECIPE, never)


# Rows beyond memory.


def fill(rows):
    rows[:] = np.arange(rows.size).reshape(rows.shape) / 8


EXPECTED = (np.arange(2 * 30 * 7).reshape(2, 30, 7) / 8).astype(np.float16)
SHAPE = (2, 30, 7)


def file_behind(array):
    while not isinstance(array, np.memmap):
        assert isinstance(array.base, np.ndarray)
        array = array.base
    return array


def test_rows_that_fit_are_in_memory(folder):
    found = StatisticsCache.of_user().rows(RECIPE, SHAPE, fill)
    np.testing.assert_array_equal(found, EXPECTED)
    assert found.ctypes.data % 64 == 0
    base = found.base
    assert not isinstance(base, np.memmap)
    again = StatisticsCache.of_user().rows(RECIPE, SHAPE, never)
    np.testing.assert_array_equal(again, EXPECTED)
    assert file_behind(again).mode == "c"


def test_rows_beyond_memory_are_a_mapped_entry(folder, little_memory, caplog):
    caplog.set_level(logging.INFO, "hpgmn")
    seen = []

    def watched(rows):
        seen.append(isinstance(rows, np.memmap))
        fill(rows)

    found = StatisticsCache.of_user().rows(RECIPE, SHAPE, watched)
    assert seen == [True]
    np.testing.assert_array_equal(found, EXPECTED)
    assert file_behind(found).mode == "c"
    found[:] = 0  # never changes the entry
    again = StatisticsCache.of_user().rows(RECIPE, SHAPE, never)
    np.testing.assert_array_equal(again, EXPECTED)
    assert keys(folder) == {RECIPE.key()}
    assert "Test take 0.0 MiB and are computed into a file: 0.0 MiB of memory" in caplog.text


def test_half_of_the_free_memory_may_be_taken(tmp_path, monkeypatch):
    size = 2 * EXPECTED.size
    for free, is_mapped in ((2.0 * size, False), (2.0 * size - 1, True)):
        monkeypatch.setattr(cache, "free_bytes", lambda device, free=free: free)
        found = StatisticsCache(None).rows(RECIPE, SHAPE, fill)
        chain: Any = found
        while isinstance(chain, np.ndarray) and not isinstance(chain, np.memmap):
            chain = chain.base
        assert isinstance(chain, np.memmap) == is_mapped


@pytest.mark.parametrize("why", ["off", "too large", "no folder"])
def test_rows_beyond_memory_and_cache_leave_no_file(
    tmp_path, little_memory, monkeypatch, caplog, why
):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    folder = None if why == "off" else tmp_path / "cache"
    if why == "no folder":
        (tmp_path / "cache").write_text("a file")
    if why == "too large":
        monkeypatch.setattr(cache, "LIMIT_BYTES", 10)
    found = StatisticsCache(folder).rows(RECIPE, SHAPE, fill)
    np.testing.assert_array_equal(found, EXPECTED)
    assert isinstance(file_behind(found), np.memmap)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == ([tmp_path / "cache"] if why == "no folder" else [])
    assert len(warnings_of(caplog)) == (why == "no folder")


def test_rows_that_fit_nowhere_are_refused_with_a_remedy(tmp_path, little_memory, monkeypatch):
    usage = cache.shutil.disk_usage(tmp_path)._replace(free=2 * EXPECTED.size)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(HPGMNError, match=r"Test take 0\.0 MiB, which fit neither") as caught:
        StatisticsCache(tmp_path / "cache").rows(RECIPE, SHAPE, never)
    message = str(caught.value)
    assert f"'{tmp_path / 'cache'}' (0.0 MiB free)" in message
    for remedy in ("Set HPGMN_CACHE to a folder", "fewer splits", "leave class_means"):
        assert remedy in message
    assert keys(tmp_path / "cache") == set()


def test_a_disk_that_fills_up_meanwhile_is_refused_too(tmp_path, little_memory, caplog):
    with files_of_at_most(500), pytest.raises(HPGMNError, match="File too large"):
        StatisticsCache(tmp_path / "cache").rows(RECIPE, SHAPE, never)
    assert keys(tmp_path / "cache") == set()
    assert len(warnings_of(caplog)) == 1


def test_rows_serve_this_run_where_the_entry_cannot_be_finished(
    tmp_path, little_memory, monkeypatch, caplog
):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "publish", refuse)
    found = StatisticsCache(tmp_path).rows(RECIPE, SHAPE, fill)
    np.testing.assert_array_equal(found, EXPECTED)
    assert keys(tmp_path) == set()
    assert len(warnings_of(caplog)) == 1


def test_interrupted_rows_leave_nothing(tmp_path, little_memory):
    def interrupt(rows):
        rows[:] = 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        StatisticsCache(tmp_path).rows(RECIPE, SHAPE, interrupt)
    assert keys(tmp_path) == set()


# Statistics.

SETTINGS = StatisticsSettings(
    statistics=("diffusion",),
    neighbors="out",
    diffusion_topk=4,
    diffusion_dim=16,
    diffusion_scaling="raw",
    diffusion_self_entry=True,
)
FORMS: dict[str, StatisticsSettings] = {
    "dense": replace(SETTINGS, diffusion_form="dense"),
    "topk": replace(SETTINGS, diffusion_form="topk"),
    "sketch": replace(SETTINGS, diffusion_form="sketch"),
    "half": replace(SETTINGS, statistics=("class_means",), class_means_form="half"),
}


def build(graph, settings, labels=None, num_classes=3):
    labels = np.stack([graph.y, graph.y[::-1]]) if labels is None else labels
    [statistic] = LocalStatistics(graph).build(labels, num_classes, [settings] * 2).values()
    return statistic


def rows_of(statistic):
    nodes = torch.arange(18)
    found = [statistic.rows(nodes, replica).numpy() for replica in range(2)]
    weight = torch.randn(2, statistic.width, 1, generator=torch.Generator().manual_seed(0))
    return np.concatenate([*found, *statistic.times(weight).numpy()], axis=1)


def forbid_computing(monkeypatch):
    computing = {
        definitions: ("class_mean_rows",),
        diffusion_forms: ("dense_arrays", "sketch"),
        push: ("largest_entries", "prepare_push"),
    }
    for module, names in computing.items():
        for name in names:
            monkeypatch.setattr(module, name, lambda *_, **__: never())


@pytest.mark.parametrize("scaling", ["raw", "unit"])
@pytest.mark.parametrize("form", FORMS)
def test_statistics_read_have_the_bits_of_those_computed(
    small_graph, folder, monkeypatch, form, scaling
):
    settings = replace(FORMS[form], diffusion_scaling=scaling, class_means_scaling=scaling)
    with monkeypatch.context() as patch:
        patch.setenv("HPGMN_CACHE", "off")
        plain = rows_of(build(small_graph, settings))
    assert keys(folder) == set()
    first = rows_of(build(small_graph, settings))
    assert len(keys(folder)) == 1
    forbid_computing(monkeypatch)
    again = rows_of(build(small_graph, settings))
    assert plain.tobytes() == first.tobytes() == again.tobytes()
    assert plain.any()


def changed_graph(graph, **changes):
    arguments: dict[str, Any] = {"x": graph.x, "edge_index": graph.edge_index, "y": graph.y}
    return Graph(**(arguments | changes))


def with_value(array, place, value):
    changed = array.copy()
    changed[place] = value
    return changed


GRAPHS: dict[str, Callable[[Graph], Graph]] = {
    "an edge": lambda g: changed_graph(g, edge_index=g.edge_index[:, :-2]),
    "a target": lambda g: changed_graph(
        g, edge_index=with_value(g.edge_index, (1, 1), (g.edge_index[1, 1] + 2) % 17)
    ),
    "a weight": lambda g: changed_graph(
        g, edge_weight=with_value(np.ones(g.edge_index.shape[1]), 2, 1.5)
    ),
    "directions": lambda g: changed_graph(g, directed=False),
    "a further node": lambda g: changed_graph(
        g, x=np.vstack([g.x, g.x[:1]]), y=np.append(g.y, g.y[0])
    ),
}


@pytest.mark.parametrize("form", ["dense", "topk", "sketch"])
def test_another_graph_has_another_entry_of_diffusion(small_graph, folder, form):
    def entries_after(graph, settings):
        build(graph, settings)
        return len(keys(folder))

    settings = FORMS[form]
    count = entries_after(small_graph, settings)
    assert count == 1
    for what, change in GRAPHS.items():
        count += 1
        assert entries_after(change(small_graph), settings) == count, what
    # What the result does not depend on: labels, attributes, and the names of nodes but for those
    # of a sketch; the largest entries are scaled after they were read.
    renamed = changed_graph(small_graph, node_ids=[f"n{number}" for number in range(18)])
    others = changed_graph(small_graph, x=small_graph.x + 1, y=None)
    assert entries_after(small_graph, settings) == count
    assert entries_after(others, replace(settings, attributes_scaling="unit")) == count
    assert entries_after(renamed, settings) == count + (form == "sketch")
    count = len(keys(folder))
    if form == "topk":
        assert entries_after(small_graph, replace(settings, diffusion_scaling="unit")) == count


def test_any_other_input_of_class_means_is_another_entry(small_graph, folder):
    settings, count = FORMS["half"], 0
    labels = np.stack([small_graph.y, small_graph.y[::-1]])
    sparse = sp.csr_array(np.where(small_graph.x > 0, small_graph.x, 0))
    cases: dict[str, tuple[Any, ...]] = {
        "nothing": (small_graph, settings, labels),
        "a label": (small_graph, settings, with_value(labels, (1, 3), -1)),
        "replicas": (small_graph, settings, labels[::-1]),
        "classes": (small_graph, settings, labels, 4),
        "scaling": (small_graph, replace(settings, class_means_scaling="unit"), labels),
        "neighbours": (small_graph, replace(settings, neighbors="in"), labels),
        "an attribute": (
            changed_graph(small_graph, x=with_value(small_graph.x, (4, 2), 9.0)),
            *(settings, labels),
        ),
        "sparse attributes": (changed_graph(small_graph, x=sparse), settings, labels),
        "a sparse attribute": (changed_graph(small_graph, x=sparse * 2), settings, labels),
    }
    for what, change in GRAPHS.items():
        graph = change(small_graph)
        cases[what] = (graph, settings, np.stack([graph.y, graph.y[::-1]]))
    for what, arguments in cases.items():
        build(*arguments)
        count += 1
        assert len(keys(folder)) == count, what
    for what, arguments in cases.items():
        build(*arguments)
        assert len(keys(folder)) == count, what
    build(changed_graph(small_graph, node_ids=list("abcdefghijklmnopqr")), settings, labels)
    assert len(keys(folder)) == count


def test_the_thread_count_is_part_of_what_blas_computed(small_graph, folder, monkeypatch):
    for form in ("dense", "topk", "sketch"):
        build(small_graph, FORMS[form])
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    before = keys(folder)
    build(small_graph, FORMS["topk"])  # the same bits whatever the number of threads
    assert keys(folder) == before
    build(small_graph, FORMS["dense"])
    build(small_graph, FORMS["sketch"])
    assert len(keys(folder)) == len(before) + 2


def test_undirected_neighbourhoods_share_an_entry(small_graph, folder):
    graph = changed_graph(small_graph, directed=False)
    for neighbors in ("out", "in", "undirected"):
        build(graph, replace(FORMS["topk"], neighbors=neighbors))
    assert len(keys(folder)) == 1


def test_each_array_of_a_graph_is_hashed_once(small_graph, folder, monkeypatch):
    hashed: list[int] = []

    def counted(array):
        hashed.append(id(array))
        return array_digest(array)

    monkeypatch.setattr(cache, "array_digest", counted)
    statistics = LocalStatistics(small_graph)
    labels = np.stack([small_graph.y, small_graph.y])
    for settings in (*FORMS.values(), replace(FORMS["topk"], teleport=0.3), FORMS["half"]):
        statistics.build(labels, 3, [settings] * 2)
    assert len(hashed) == 3  # the adjacency, the attributes, the names
    statistics.build(labels, 3, [replace(FORMS["dense"], neighbors="in")] * 2)
    assert len(hashed) == 4


def test_a_statistic_of_another_graphs_columns_is_read(small_graph, folder, monkeypatch):
    columns = np.arange(18)[::-1].copy()

    def reindexed(form):
        statistics = LocalStatistics(small_graph, columns=columns, width=20)
        built = statistics.build(small_graph.y[None], 3, [FORMS[form]])["diffusion"]
        return built.rows(torch.arange(18)).numpy().tobytes()

    first = [reindexed(form) for form in ("dense", "topk")]
    forbid_computing(monkeypatch)
    assert [reindexed(form) for form in ("dense", "topk")] == first


def test_progress_of_the_push_is_told(small_graph):
    told: list[tuple[str, int, int]] = []
    statistics = LocalStatistics(small_graph)
    with statistics.reporting(lambda *about: told.append(about)):
        statistics.build(small_graph.y[None], 3, [FORMS["topk"]])
    assert told == [("diffusion", 18, 18)]


# Training.

MODEL = HPGMNSettings(
    statistics=("attributes", "class_counts", "class_means", "diffusion"),
    neighbors="both",
    hidden_dim=6,
    num_patterns=5,
    estimator_hidden=6,
    estimator_epochs=4,
    epochs=6,
    patience=2,
    diffusion_topk=5,
    diffusion_dim=16,
)


def fit(graph, settings):
    replicas = [Replica(number % 2, number, settings) for number in range(3)]
    masks = [(graph.split(one.split).train, graph.split(one.split).val) for one in replicas]
    return fit_replicas(graph, MODELS["hpgmn"], replicas, masks)


def bits(fitted):
    tensors = {"logits": fitted.logits, "score": fitted.val_score, "loss": fitted.val_loss}
    for stage, parameters in fitted.done.items():
        tensors |= {f"{stage} {name}": value for name, value in parameters.items()}
        tensors |= {f"{stage} {name}": rows for name, rows in fitted.history[stage].items()}
    return {name: value.numpy().tobytes() for name, value in tensors.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "batch_size", "memory"),
    [("dense", 0, "much"), ("topk", 4, "little"), ("sketch", 4, "much"), ("dense", 4, "little")],
)
def test_training_on_kept_statistics_gives_the_same_bits(
    small_graph, folder, monkeypatch, form, batch_size, memory
):
    settings = replace(MODEL, diffusion_form=form, batch_size=batch_size, class_means_form="half")
    with monkeypatch.context() as patch:
        patch.setenv("HPGMN_CACHE", "off")
        plain = bits(fit(small_graph, settings))
    if memory == "little":
        monkeypatch.setattr(cache, "free_bytes", lambda device: 100.0)
    assert bits(fit(small_graph, settings)) == plain
    kept = keys(folder)
    assert len(kept) >= 4  # diffusion and class means, in two directions
    forbid_computing(monkeypatch)
    assert bits(fit(small_graph, settings)) == plain
    assert keys(folder) == kept
