"""The command train-shards in one process: what it writes, continues and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hpgmn.cli import main
from hpgmn.graph import Graph

SETTINGS = ["statistics=attributes", "batch_size=3", "epochs=2", "hidden_dim=4", "num_patterns=3"]
OPTIONS = [word for value in SETTINGS for word in ("--set", value)]


@pytest.fixture
def rows(tmp_path: Path, small_graph: Graph) -> Path:
    """The attributes of the small graph in two ranges, as anyone could write them."""
    folder, split = tmp_path / "rows", small_graph.split(0)
    arrays = {"attributes": small_graph.x.astype(np.float16), "y": small_graph.y}
    arrays |= {part: getattr(split, part) for part in ("train", "val", "test")}
    for number, (start, stop) in enumerate([(0, 10), (10, 18)]):
        (folder / f"rows-{number:05d}").mkdir(parents=True)
        for name, values in arrays.items():
            np.save(folder / f"rows-{number:05d}" / f"{name}.npy", values[start:stop])
    manifest = {
        "num_nodes": 18,
        "ranges": [[0, 10], [10, 18]],
        "class_names": list(small_graph.class_names),
        "statistics": {"attributes": {"width": 5}},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_a_run_is_written_and_printed(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["train-shards", str(rows), "--out", str(out), "--device", "cpu", *OPTIONS]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "accuracy" in told.out
    assert f"Run folder: {out}" in told.err
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["graph"] == "rows"
    assert metrics["config"]["settings"]["hidden_dim"] == 4
    assert (out / "report.html").exists()
    assert main(words) == 2
    assert "exists. Continue it with --resume" in capsys.readouterr().err
    assert main([*words, "--resume"]) == 2
    assert "is finished" in capsys.readouterr().err
    (out / "report.html").unlink()
    assert main([*words, "--resume"]) == 0
    assert (out / "report.html").exists()
    assert main([*words, "--overwrite", "--seeds", "2"]) == 0
    assert json.loads((out / "metrics.json").read_text())["seeds"] == 2


def test_an_interrupted_run_goes_on(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train-shards", str(rows), "--out", str(tmp_path / "run"), "--device", "cpu", *OPTIONS]
    monkeypatch.setattr("hpgmn.distributed.training.SAVE_SECONDS", 0.0)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hpgmn.distributed.training.end", stop)
        assert main(words) == 130
    assert (tmp_path / "run" / "state" / "state.safetensors").exists()
    trained = []
    monkeypatch.setattr(
        "hpgmn.distributed.training.ParallelTraining.epoch", lambda *_: trained.append(1)
    )
    assert main([*words, "--resume"]) == 0  # both epochs were saved: none is trained again
    assert not trained


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume", "--overwrite"], "--resume and --overwrite exclude each other"),
        (["--engine", "dask"], "Unknown engine 'dask'. Choose from: local, ray."),
        (["--set", "batch_size=0"], "Add --set batch_size=1024"),
        (["--device", "tpu"], "Unknown device 'tpu'"),
    ],
)
def test_wrong_options_are_told_in_a_sentence(
    words: list[str],
    message: str,
    rows: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["train-shards", str(rows), "--out", str(tmp_path / "run"), *OPTIONS, *words]
    assert main(given) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_ray_is_asked_with_the_same_words(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {}

    def train_with_ray(*given: object, **options: object) -> None:
        asked.update(options, given=given)

    monkeypatch.setattr("hpgmn.distributed.train_with_ray", train_with_ray)
    words = ["train-shards", str(rows), "--out", str(tmp_path / "run"), "--engine", "ray"]
    assert main([*words, "--workers", "3", "--device", "cpu", "--address", "host:1"]) == 0
    assert asked["given"] == (rows, tmp_path / "run", 3)
    assert asked["address"] == "host:1"
    assert asked["device"] == "cpu"
