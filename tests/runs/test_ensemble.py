"""An ensemble as a run: its weights, its folder, and everything that opens it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import settings_dict
from hpgmn.evaluation.selection import select_weights
from hpgmn.graph.files import write_graph
from hpgmn.runs.ensemble import ensemble_weights, write_ensemble
from hpgmn.runs.fit import TrainedMember, Training, make_monitor
from hpgmn.runs.folder import prepare_folder
from hpgmn.runs.portfolio import Member
from hpgmn.runs.run import Run, open_run
from hpgmn.runs.spec import RunSpec
from hpgmn.runs.train import explain_run

SPLITS = (1, 0)
WEIGHTS = {
    "memory": [0.5, 0.0, 0.25, 0.25],
    "a/b": [0.25, 0.25, 0.0, 0.5],
    "linkx": [0.0, 0.0, 0.0, 0.0],
}


@pytest.fixture
def trained(small_members, small_graph, tmp_path):
    path = tmp_path / "small.npz"
    write_graph(small_graph, path)
    members = []
    for name, (model, fitted) in small_members.items():
        settings = settings_dict(model.replicas[0].settings)
        spec = RunSpec(str(path), model.name, settings, SPLITS, seeds=2)
        member = Member(name, model.name, {"epochs": 3})
        members.append(TrainedMember(member, spec, fitted, model, seconds=1.5))
    return members


@pytest.fixture
def spec(trained):
    return RunSpec(trained[0].spec.graph, "ensemble", {}, SPLITS, seeds=2)


@pytest.fixture
def fitted(spec, small_graph, trained, tmp_path):
    folder = tmp_path / "run"
    prepare_folder(folder, spec, resume=False, overwrite=False)
    return write_ensemble(Training.start(spec, small_graph, folder), trained, WEIGHTS)


@pytest.fixture
def run(spec, small_graph, fitted, tmp_path):
    return Run(tmp_path / "run", spec, fitted.model, graph=small_graph, metrics=fitted.metrics)


def test_weights_come_from_the_validation_nodes_of_each_split(spec, small_graph, trained):
    splits = [small_graph.split(number) for number in SPLITS]
    weights = ensemble_weights(spec, small_graph, trained, splits)
    for row, split in enumerate(splits):
        places = slice(2 * row, 2 * row + 2)
        val = torch.from_numpy(np.flatnonzero(split.val))
        logits = [
            member.fitted.logits[place][val] * member.model.calibration[place, 0, 0]
            for member in trained
            for place in (2 * row, 2 * row + 1)
        ]
        expected = select_weights(torch.stack(logits), small_graph.y[split.val])
        found = np.concatenate([weights[member.name][places] for member in trained])
        np.testing.assert_allclose(found, expected)
        assert found.sum() == pytest.approx(1)


def test_weights_do_not_depend_on_labels_of_test_nodes(spec, small_graph, trained):
    splits = [small_graph.split(number) for number in SPLITS]
    before = ensemble_weights(spec, small_graph, trained, splits)
    is_unseen = ~(splits[0].val | splits[1].val)
    small_graph.y.flags.writeable = True
    small_graph.y[is_unseen] = (small_graph.y[is_unseen] + 1) % 3
    assert ensemble_weights(spec, small_graph, trained, splits) == before


def test_an_ensemble_is_opened_as_any_run(run, small_graph):
    opened = open_run(run.folder)
    for split in (None, 0):
        first, second = run.predict(split=split), opened.predict(split=split)
        np.testing.assert_allclose(first.probabilities, second.probabilities, atol=1e-6)
        assert first.labels.tolist() == second.labels.tolist()
        assert first.split == (1 if split is None else 0)
    stored = pq.read_table(run.folder / "predictions.parquet").to_pylist()
    rows = [row for row in stored if row["split"] == 1]
    assert [row["prediction"] for row in rows] == run.predict().labels.tolist()
    assert len(stored) == 2 * small_graph.num_nodes


@pytest.mark.slow
def test_a_new_process_predicts_the_same_bits(run, tmp_path):
    out = tmp_path / "p.npy"
    code = (
        "import sys, numpy, hpgmn.runs.run as r;"
        "numpy.save(sys.argv[2], r.open_run(sys.argv[1]).predict().probabilities)"
    )
    subprocess.run([sys.executable, "-c", code, run.folder, out], check=True)
    np.testing.assert_array_equal(np.load(out), open_run(run.folder).predict().probabilities)


def test_evaluate_equals_the_metrics(run, small_graph):
    result = open_run(run.folder).evaluate()
    assert result["score"] == run.metrics["test_score"]
    assert result["model"] == run.metrics["model"] == "ensemble"
    assert run.metrics["seeds"] == 1
    assert run.metrics["config"]["seeds"] == 2
    predicted = run.model.logits(small_graph).argmax(dim=-1).numpy()
    for row, number in enumerate(SPLITS):
        test = small_graph.split(number).test
        expected = (predicted[row] == small_graph.y)[test].mean()
        assert run.metrics["test_score"][row] == pytest.approx(expected)


def test_metrics_describe_the_members(run, small_graph, trained):
    rows = run.metrics["members"]
    assert [(row["name"], row["weight"]) for row in rows] == [
        ("memory", 0.5),
        ("a/b", 0.5),
        ("linkx", 0.0),
    ]
    by_name = {row["name"]: row for row in rows}
    assert by_name["linkx"]["contribution"] == 0
    assert by_name["memory"]["model"] == "hpgmn"
    assert by_name["memory"]["settings"] == {"epochs": 3}
    assert by_name["memory"]["seconds"] == 1.5
    alone = float(trained[0].fitted.val_score.mean())
    assert by_name["memory"]["val_score"] == pytest.approx(alone)
    # Without "memory", the two seeds of "a/b" have a half each in split 1, the second all of 0.
    lost = []
    for row, number in enumerate(SPLITS):
        shares = [(0, 0.5), (1, 0.5)] if row == 0 else [(3, 1.0)]
        logits = trained[1].fitted.logits
        mixed = sum(share * logits[place].log_softmax(dim=-1) for place, share in shares)
        val = small_graph.split(number).val
        lost.append((mixed.argmax(dim=-1).numpy() == small_graph.y)[val].mean())
    expected = np.mean(run.metrics["val_score"]) - np.mean(lost)
    assert by_name["memory"]["contribution"] == pytest.approx(expected, abs=1e-6)


def test_members_are_ordinary_runs_without_those_of_no_weight(run, trained, small_graph):
    folders = sorted(path.name for path in (run.folder / "members").iterdir())
    assert folders == ["a-b-c14cddc0", "memory"]
    member = open_run(run.folder / "members" / "memory")
    assert member.spec == trained[0].spec
    torch.testing.assert_close(
        member.model.logits(small_graph), trained[0].fitted.logits[[0, 2, 3]]
    )
    lines = (run.folder / "history.jsonl").read_text().splitlines()
    names = {json.loads(line)["member"] for line in lines}
    assert names == {"memory", "a/b"}


def test_a_moved_folder_opens(run, tmp_path):
    expected = open_run(run.folder).predict().probabilities
    shutil.move(run.folder, tmp_path / "elsewhere")
    np.testing.assert_array_equal(
        open_run(tmp_path / "elsewhere").predict().probabilities, expected
    )


@pytest.mark.parametrize("name", ["ensemble.json", "members/memory/model.safetensors"])
def test_a_missing_file_is_named(run, name):
    (run.folder / name).unlink()
    with pytest.raises(HPGMNError, match=Path(name).name) as caught:
        open_run(run.folder)
    assert "\n" not in str(caught.value)


def test_an_ensemble_is_replaced_and_restored(run, spec):
    from hpgmn.runs.folder import restore_backup

    expected = open_run(run.folder).predict().probabilities
    prepare_folder(run.folder, spec, resume=False, overwrite=True)
    assert not (run.folder / "members").exists()
    assert not (run.folder / "ensemble.json").exists()
    restore_backup(run.folder)
    np.testing.assert_array_equal(open_run(run.folder).predict().probabilities, expected)


def test_the_page_shows_the_members(run):
    page = run.report().read_text()
    for name in ("memory", "a/b", "linkx"):
        assert f">{name}<" in page
    assert "weighted mean of the log-probabilities of 2 of 3 trained members" in page
    assert "Of the member memory." in page


@pytest.mark.slow
def test_one_member_is_explained_after_the_training(run):
    explain_run(run, make_monitor(None, None, None))
    page = (run.folder / "report.html").read_text()
    assert run.report().read_text() == page
    assert json.loads((run.folder / "understanding.json").read_text())["model"] == "hpgmn"


def test_commands_open_an_ensemble(run, hpgmn):
    content = json.loads(hpgmn("explain", run.folder, "--node", 3, "--json").out)
    assert content == json.loads(json.dumps(open_run(run.folder).explain(3).as_dict()))
    assert [member["name"] for member in content["members"]] == ["memory", "a/b"]
    assert "memory" in hpgmn("explain", run.folder).out
    answer = hpgmn("predict", run.folder, "--out", "p.csv")
    assert (answer.code, answer.err.count("\n")) == (0, 1)
    assert "2 members" in answer.err
    assert len(Path("p.csv").read_text().splitlines()) == 19
    result = json.loads(hpgmn("evaluate", run.folder, "--json").out)
    assert result["score"] == run.metrics["test_score"]
    (run.folder / "ensemble.json").write_text("{")
    for command in ("explain", "predict", "evaluate"):
        answer = hpgmn(command, run.folder)
        assert (answer.code, answer.err.count("\n")) == (2, 1)
