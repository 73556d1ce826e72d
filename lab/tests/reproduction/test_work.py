"""One cell: what its record holds, which work is done again after which change, what goes on."""

import dataclasses
import json
from dataclasses import replace

import numpy as np
import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import verify_checksum
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.graph import Graph, Splits
from hpgmn.models import find_model
from hpgmn.runs import metrics as run_metrics
from hpgmn.runs import spec as run_module
from hpgmn.runs.fit import fit_run
from hpgmn.runs.folder import prepare_folder
from hpgmn.runs.spec import RunSpec
from hpgmn.runs.trials import planned_trials, run_trials
from hpgmn_lab.reproduction import cells
from hpgmn_lab.reproduction import work as module
from hpgmn_lab.reproduction.cells import Cell, read_cell
from hpgmn_lab.reproduction.work import Execution, do_cell, free_memory

SHORT = {"epochs": 4, "patience": 0}
CELL = Cell(
    "texas",
    "gcn",
    "tuned",
    SHORT,
    trials=5,
    search_splits=(1,),
    search_seeds=2,
    splits=(0, 1),
    protocol="paper-heterophily",
)
PLAIN = Cell("texas", "gcn", "shipped", SHORT, splits=(0, 1), protocol="paper-heterophily")


class Calls:
    """Counts trials and final runs."""

    def __init__(self):
        self.trials = self.groups = self.runs = 0

    def take(self):
        found = (self.trials, self.runs)
        self.trials = self.groups = self.runs = 0
        return found


@pytest.fixture
def calls(monkeypatch):
    counts = Calls()

    def counted_trials(graph, model, trials, **options):
        counts.groups += 1
        counts.trials += len(trials)
        return run_trials(graph, model, trials, **options)

    def counted_run(*arguments, **options):
        counts.runs += 1
        return fit_run(*arguments, **options)

    monkeypatch.setattr(module, "run_trials", counted_trials)
    monkeypatch.setattr(module, "fit_run", counted_run)
    return counts


@pytest.fixture
def out(save_as, tmp_path):
    save_as("texas")
    return tmp_path / "out"


def do(cell, out):
    record = do_cell(cell, out, Execution())
    assert read_cell(out / "cells", cell.name) == record
    return record


def left_over(out):
    return [*out.glob("work/*"), *out.glob("search/*")]


# What a record holds.


def test_a_tuned_cell_is_the_best_trial_by_validation_on_all_splits(
    out, small_graph, tmp_path, lasting
):
    record = do(CELL, out)
    assert record.cell == CELL.as_dict()
    assert record.search is not None
    trials = [trial | SHORT for trial in planned_trials("gcn", "texas", 5)]
    alone = [run_trials(small_graph, "gcn", [one], splits=[1], seeds=2)[0] for one in trials]
    for found, trial, own in zip(record.search["trials"], trials, alone, strict=True):
        assert list(found) == ["settings", "val_score_mean", "val_score", "val_loss", "seconds"]
        assert found["settings"] == trial
        assert found["val_score"] == own["val_score"]
        assert found["val_loss"] == pytest.approx(own["val_loss"])
    means = [(-np.mean(own["val_score"]), np.mean(own["val_loss"])) for own in alone]
    best = min(range(5), key=lambda number: means[number])
    assert record.search["best"] == best
    settings = settings_dict(make_settings(find_model("gcn").settings, trials[best]))
    spec = RunSpec("texas", "gcn", settings, (0, 1), protocol="paper-heterophily")
    prepare_folder(tmp_path / "run", spec, resume=False, overwrite=False)
    named = Graph.__new__(Graph)
    named.__dict__.update(small_graph.__dict__ | {"name": "texas"})
    expected = json.loads(json.dumps(fit_run(spec, named, tmp_path / "run").metrics))
    assert lasting(record.metrics) == lasting(expected)
    assert left_over(out) == []


def test_a_cell_without_a_search_takes_its_settings(out, calls):
    record = do(PLAIN, out)
    assert record.search is None
    assert calls.take() == (0, 1)
    settings = record.metrics["config"]["settings"]
    assert settings == settings_dict(make_settings(find_model("gcn").settings, SHORT))


# What is done again.


def test_what_is_done_is_not_done_again(out, calls):
    first = do(CELL, out)
    assert calls.take() == (5, 1)
    assert do(CELL, out) == first
    assert calls.take() == (0, 0)


@pytest.mark.parametrize(
    "change", [{"seeds": 2}, {"splits": (1,)}, {"splits": (1, 0)}], ids=["seeds", "one", "order"]
)
def test_other_final_runs_leave_the_search_alone(out, calls, change):
    first = do(CELL, out)
    calls.take()
    second = do(replace(CELL, **change), out)
    assert calls.take() == (0, 1)
    assert second.search == first.search
    assert second.identity != first.identity


@pytest.mark.parametrize(
    "change",
    [{"search_splits": (0,)}, {"search_seeds": 1}, {"settings": SHORT | {"hidden_dim": 5}}],
    ids=["splits", "seeds", "settings"],
)
def test_another_search_is_done_whole(out, calls, change):
    do(CELL, out)
    calls.take()
    cell = replace(CELL, **change)
    do(cell, out)
    assert calls.take()[0] == cell.trials
    do(cell, out)
    assert calls.take() == (0, 0)


def test_only_trials_that_are_new_are_trained(out, calls, tmp_path, lasting):
    do(CELL, out)
    calls.take()
    fewer, more = replace(CELL, trials=2), replace(CELL, trials=7)
    for cell, new in ((fewer, 0), (CELL, 3), (more, 2)):
        found = do(cell, out)
        assert calls.take()[0] == new
        whole = do(cell, tmp_path / f"{cell.trials}")
        calls.take()
        assert lasting(dataclasses.asdict(found)) == lasting(dataclasses.asdict(whole))
    do(more, out)
    assert calls.take() == (0, 0)


def test_a_changed_default_is_a_changed_trial(out, calls, monkeypatch):
    """The first trial of gcn is its defaults."""
    do(CELL, out)
    calls.take()
    content = verify_checksum(json.loads((out / "cells" / f"{CELL.name}.json").read_text()))
    content["search"]["defaults"]["layers"] += 1  # as if it was another one on that day
    (out / "cells" / f"{CELL.name}.json").write_text(json.dumps(content))
    changed = sum("layers" not in trial["settings"] for trial in content["search"]["trials"])
    assert 0 < changed < 5
    do(CELL, out)
    assert calls.take()[0] == changed


def test_a_setting_that_came_later_changes_nothing(out, calls):
    first = do(CELL, out)
    calls.take()
    content = verify_checksum(json.loads((out / "cells" / f"{CELL.name}.json").read_text()))
    del content["search"]["defaults"]["precision"]
    del content["metrics"]["config"]["settings"]["precision"]
    (out / "cells" / f"{CELL.name}.json").write_text(json.dumps(content))
    assert do(CELL, out).metrics["test_score"] == first.metrics["test_score"]
    assert calls.take() == (0, 0)


def test_a_search_that_ends_with_the_same_settings_keeps_the_final_run(out, calls, monkeypatch):
    monkeypatch.setattr(cells, "planned_trials", lambda *_: [{"lr": 0.02}])
    first = do(CELL, out)
    calls.take()
    monkeypatch.setattr(cells, "planned_trials", lambda *_: [{"lr": -1.0}, {"lr": 0.02}])
    second = do(CELL, out)
    assert calls.take() == (2, 0)
    assert (second.metrics, second.identity) == (first.metrics, first.identity)
    assert second.search["best"] == 1
    assert do(CELL, out) == second
    monkeypatch.setattr(cells, "planned_trials", lambda *_: [{"lr": 0.03}])
    do(CELL, out)
    assert calls.take() == (1, 1)


def test_a_search_that_is_new_or_gone_counts(out, calls):
    do(replace(PLAIN, variant="tuned"), out)
    calls.take()
    do(CELL, out)
    assert calls.take()[0] == 5
    record = do(replace(PLAIN, variant="tuned"), out)
    assert record.search is None


def changed_graphs(graph):
    """The graph with other attributes, edges, labels of test nodes, and nodes of a split."""
    masks = {part: getattr(graph.splits, part).copy() for part in ("train", "val", "test")}
    x, edges, y = graph.x.copy(), graph.edge_index[:, 1:], graph.y.copy()
    x[0, 0] += 1
    y[np.flatnonzero(masks["test"].any(axis=1))[0]] += 1
    y %= graph.num_classes
    moved = {part: mask.copy() for part, mask in masks.items()}
    for split in range(2):
        node = np.flatnonzero(moved["val"][:, split])[0]
        moved["val"][node, split], moved["test"][node, split] = False, True

    def made(x=graph.x, edges=graph.edge_index, y=graph.y):
        named = {f"{part}_mask": mask for part, mask in masks.items()}
        return Graph(x, edges, y, **named, name=graph.name)

    return {
        "attributes": made(x=x),
        "edges": made(edges=edges),
        "labels": made(y=y),
        "splits": graph.with_splits(Splits(moved["train"], moved["val"], moved["test"])),
    }


@pytest.mark.slow
@pytest.mark.parametrize("what", ["attributes", "edges", "labels", "splits"])
def test_another_graph_of_the_same_name_is_another_cell(out, save_as, small_graph, calls, what):
    do(CELL, out)
    do(PLAIN, out)
    calls.take()
    save_as("texas", changed_graphs(small_graph)[what])
    do(PLAIN, out)
    assert calls.take() == (0, 1)
    do(CELL, out)
    assert calls.take() == (5, 1)


def test_neither_version_nor_device_are_part_of_an_identity(out, calls, monkeypatch):
    first = do(CELL, out)
    monkeypatch.setattr(run_module, "__version__", "99")
    calls.take()
    assert do_cell(CELL, out, Execution(device="cuda")) == first
    assert calls.take() == (0, 0)
    assert "version" in first.metrics
    assert first.metrics["config"]["device"] == "cpu"


def test_a_damaged_record_is_made_anew(out, calls, lasting):
    first = do(CELL, out)
    calls.take()
    (out / "cells" / f"{CELL.name}.json").write_text("{")
    assert lasting(dataclasses.asdict(do(CELL, out))) == lasting(dataclasses.asdict(first))
    assert calls.take() == (5, 1)


# What goes on.


def interrupt(monkeypatch, after):
    """Let so many groups of trials through, then stop."""
    left = after

    def stopping(*arguments, **options):
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        return run_trials(*arguments, **options)

    monkeypatch.setattr(module, "run_trials", stopping)


def test_a_search_stopped_between_groups_goes_on_with_the_rest(out, tmp_path, monkeypatch, lasting):
    whole = do_cell(CELL, tmp_path / "whole", Execution())
    interrupt(monkeypatch, after=1)
    with pytest.raises(KeyboardInterrupt):
        do_cell(CELL, out, Execution())
    assert [path.name for path in left_over(out)] == [f"{CELL.name}.json"]
    begun = json.loads((out / "search" / f"{CELL.name}.json").read_text())
    done = len(begun["trials"])
    assert 0 < done < 5
    later = []

    def noted(graph, model, trials, **options):
        later.append(len(trials))
        return run_trials(graph, model, trials, **options)

    monkeypatch.setattr(module, "run_trials", noted)
    found = do(CELL, out)
    assert sum(later) == 5 - done
    assert lasting(dataclasses.asdict(found)) == lasting(dataclasses.asdict(whole))
    assert left_over(out) == []


@pytest.mark.parametrize("text", ["", "[]", '{"identity": "other", "trials": {}}', "{}"])
def test_the_file_of_another_search_is_not_gone_on_with(out, calls, text):
    (out / "search").mkdir(parents=True)
    (out / "search" / f"{CELL.name}.json").write_text(text)
    do(CELL, out)
    assert calls.take() == (5, 1)


def stop_in_final_run(cell, out, epochs):
    left = epochs

    def should_stop():
        nonlocal left
        left -= 1
        return left <= 0

    with pytest.raises(KeyboardInterrupt):
        do_cell(cell, out, Execution(should_stop=should_stop))


def test_a_stopped_final_run_goes_on_from_its_state(out, tmp_path, calls, lasting):
    whole = do_cell(PLAIN, tmp_path / "whole", Execution())
    stop_in_final_run(PLAIN, out, 3)
    assert list(out.glob(f"work/{PLAIN.name}/*/state/state-000.safetensors"))
    epochs = []
    found = do_cell(PLAIN, out, Execution(report=lambda now: epochs.append(now.epoch)))
    assert epochs == [4]  # the last of four
    assert lasting(dataclasses.asdict(found)) == lasting(dataclasses.asdict(whole))
    assert left_over(out) == []


def test_a_final_run_begun_by_another_version_begins_anew(out, monkeypatch):
    stop_in_final_run(PLAIN, out, 3)
    for own in (run_module, run_metrics):
        monkeypatch.setattr(own, "__version__", "99")
    epochs = []
    found = do_cell(PLAIN, out, Execution(report=lambda now: epochs.append(now.epoch)))
    assert epochs == [1, 2, 3, 4]
    assert found.metrics["version"] == "99"
    assert left_over(out) == []


def test_a_finished_run_without_a_record_is_not_trained_again(out, calls, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_cell", stop)
        with pytest.raises(KeyboardInterrupt):
            do_cell(CELL, out, Execution())
    assert calls.take() == (5, 1)
    do(CELL, out)
    assert calls.take() == (0, 0)


def test_what_a_crash_left_behind_a_record_is_tidied(out):
    do(PLAIN, out)
    (out / "work" / PLAIN.name / "abc").mkdir(parents=True)
    (out / "search").mkdir()
    (out / "search" / f"{PLAIN.name}.json").write_text("{}")
    do(PLAIN, out)
    assert left_over(out) == []


# What fails.


def test_a_failing_trial_is_noted_and_the_best_of_the_others_chosen(out, monkeypatch):
    monkeypatch.setattr(cells, "planned_trials", lambda *_: [{"lr": -1}, {}, {"dropout": "x"}])
    search = do(CELL, out).search
    first, second, third = search["trials"]
    assert first == {"settings": {"lr": -1} | SHORT, "failed": first["failed"], "is_passing": False}
    assert "lr" in first["failed"]
    assert "dropout" in third["failed"]
    assert len(second["val_score"]) == 2
    assert search["best"] == 1


def test_what_failed_for_lack_of_memory_is_tried_again(out, calls, monkeypatch, tmp_path, lasting):
    whole = do(CELL, tmp_path / "whole")

    def failing(graph, model, trials, **options):
        raise HPGMNError("Out of memory.")

    def scarce(graph, model, trials, **options):
        if any(trial.get("hidden_dim", 0) for trial in trials):
            raise HPGMNError("Out of memory.")
        return run_trials(graph, model, trials, **options)

    counted = module.run_trials
    monkeypatch.setattr(module, "run_trials", failing)
    with pytest.raises(HPGMNError, match="Out of memory"):
        do_cell(CELL, out, Execution())
    monkeypatch.setattr(module, "run_trials", scarce)
    search = do(CELL, out).search
    failed = sum("failed" in trial for trial in search["trials"])
    assert 0 < failed < 5
    monkeypatch.setattr(module, "run_trials", counted)
    calls.take()
    assert lasting(dataclasses.asdict(do(CELL, out))) == lasting(dataclasses.asdict(whole))
    assert calls.take()[0] == failed


def test_trials_that_do_not_fit_together_are_trained_alone(out, tmp_path, monkeypatch, lasting):
    whole = do_cell(CELL, tmp_path / "whole", Execution())

    def narrow(graph, model, trials, **options):
        if len(trials) > 1:
            raise HPGMNError("Out of memory.")
        return run_trials(graph, model, trials, **options)

    monkeypatch.setattr(module, "run_trials", narrow)
    assert lasting(dataclasses.asdict(do(CELL, out))) == lasting(dataclasses.asdict(whole))


def test_a_search_without_any_success_fails_with_the_first_reason(out, monkeypatch):
    monkeypatch.setattr(cells, "planned_trials", lambda *_: [{"lr": -1}])
    with pytest.raises(HPGMNError, match=r"Every trial of texas-gcn-tuned failed\. .*lr"):
        do_cell(CELL, out, Execution())
    assert read_cell(out / "cells", CELL.name) is None


def test_memory_is_given_back_on_a_gpu_only(monkeypatch):
    told = []
    monkeypatch.setattr(module.torch.cuda, "empty_cache", lambda: told.append("emptied"))
    free_memory("cpu")
    assert told == []
    free_memory("cuda")
    assert told == ["emptied"]


def test_equal_shapes_are_trained_together_and_failures_one_by_one():
    trials = [("mlp", {"lr": 0.1}), ("gcn", {}), ("mlp", {"lr": 0.2}), ("mlp", {"lr": -1})]
    calls: list[list[int]] = []

    def train(positions):
        calls.append(list(positions))
        if len(positions) > 1 or positions == [2]:
            raise HPGMNError(f"{positions} do not fit.")
        return [{"position": position} for position in positions]

    results = list(module.run_trials_by_shape(trials, train))
    assert calls == [[0, 2], [0], [2], [1], [3]]
    assert results[0][0] == {"position": 0}
    assert str(results[0][2]) == "[2] do not fit."
    assert results[1:] == [{1: {"position": 1}}, {3: {"position": 3}}]
