"""What metrics.json says of a training, against numbers worked out by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import RUN_FORMAT
from hpgmn.runs.metrics import Result, read_metrics, run_metrics, write_metrics
from hpgmn.runs.spec import RunSpec

SPEC = RunSpec("somewhere", "hpgmn", {"epochs": 4}, (3,), seeds=2)
SUMMARY = {"num_nodes": 9, "class_names": ["no", "yes"]}
Y = np.array([0, 1, 1, 0, 1])
VAL = np.array([True, False, False, False, False])
TEST = ~VAL
HISTORY = {"main": {"loss": torch.zeros(4, 2)}}


def result(**changes):
    """Two seeds, which are right in three and in two of four test nodes."""
    margins = torch.tensor([[-1.0, 2.0, 3.0, -1.0, -4.0], [-1.0, 2.0, -1.0, 1.0, 4.0]])
    made = Result(
        logits=torch.stack([-margins, margins], dim=-1) / 2,
        y=Y,
        val=[VAL] * 2,
        test=[TEST] * 2,
        temperatures=[1.5, 2.0],
        mean_temperatures=[0.5, 0.5],
        val_score=torch.tensor([1.0, 0.5]),
        best_epoch=torch.tensor([4, 2]),
        history=HISTORY,
        seconds={"statistics": 1.0, "training": 2.0},
    )
    return replace(made, **changes)


def test_scores_are_those_of_the_test_nodes():
    found = run_metrics(SPEC, result(), "the graph", SUMMARY)
    assert found["test_score"] == [0.75, 0.5]
    assert found["test_score_mean"] == found["test_accuracy_mean"] == 0.625
    assert found["test_score_std"] == pytest.approx(0.25 / 2**0.5)
    # Averaged probabilities: 1, 1 (0.95 and 0.27), 0 or 1 by a tie, 0 (0.02 and 0.98) by a tie.
    assert found["ensemble"]["seeds"] == 2
    assert len(found["ensemble"]["test_score"]) == 1
    assert found["val_score"] == [1.0, 0.5]
    assert found["epochs"] == [4, 2]
    assert found["epochs_trained"] == {"main": 4}
    assert (found["seconds_statistics"], found["seconds_training"]) == (1.0, 2.0)
    assert (found["graph"], found["graph_summary"]) == ("the graph", SUMMARY)
    assert found["calibration"]["temperature"] == [1.5, 2.0]
    assert found["calibration"]["mean_temperature"] == [0.5]
    assert found["config"] == SPEC.as_dict()
    assert found["positive"] is found["label_estimator"] is None


def test_the_estimator_is_scored_where_its_guesses_are_known():
    own = result()
    found = run_metrics(SPEC, replace(own, guesses=own.logits.flip(-1)), "g", SUMMARY)
    assert found["label_estimator"]["test_accuracy_mean"] == 1 - 0.625


def test_a_positive_class_is_the_one_that_is_looked_for():
    spec = replace(SPEC, metric="precision@1", positive="no")
    found = run_metrics(spec, result(), "g", SUMMARY)
    assert found["test_score"] == [0.0, 0.0]  # the surest "no" of each is a "yes"
    found = run_metrics(replace(spec, positive="yes"), result(), "g", SUMMARY)
    assert found["test_score"] == [1.0, 1.0]


def test_without_test_nodes_or_with_one_seed_there_is_less():
    found = run_metrics(SPEC, result(test=[~TEST & ~VAL] * 2), "g", SUMMARY)
    assert (found["test_score_mean"], found["test_score"]) == (None, [])
    assert "ensemble" not in found
    one = {key: getattr(result(), key)[:1] for key in ("val", "test", "temperatures")}
    one |= {"logits": result().logits[:1], "mean_temperatures": [1.0]}
    found = run_metrics(replace(SPEC, seeds=1), result(**one), "g", SUMMARY)
    assert found["test_score"] == [0.75]
    assert "ensemble" not in found


def test_metrics_that_were_changed_are_refused(tmp_path):
    path = tmp_path / "metrics.json"
    write_metrics(path, {"format": RUN_FORMAT, "test_score": [0.25], 3: "a number as key"})
    assert read_metrics(path) == {
        "format": RUN_FORMAT,
        "test_score": [0.25],
        "3": "a number as key",
    }
    path.write_text(path.read_text().replace("0.25", "0.75"))
    with pytest.raises(
        HPGMNError, match=r"metrics\.json is damaged: its checksum differs\. Restore"
    ):
        read_metrics(path)
    path.write_text('{"test_score": [0.5]}')  # of an earlier version
    assert read_metrics(path) == {"test_score": [0.5]}
    path.write_text(json.dumps({"format": RUN_FORMAT + 1}))
    with pytest.raises(HPGMNError, match="written by a newer hpgmn"):
        read_metrics(path)
    path.write_text("[]")
    with pytest.raises(HPGMNError, match=r"is damaged: it is not a mapping"):
        read_metrics(path)
    with pytest.raises(HPGMNError, match=r"^Cannot read .*No such file.*train that run again"):
        read_metrics(tmp_path / "none.json")
