"""``hpgmn export`` writes two files, and refuses in one line."""

import json

import numpy as np
import pytest

import hpgmn
from hpgmn.cli import main


def test_the_models_of_a_split_are_written(trained, tmp_path, capsys):
    runtime = pytest.importorskip("onnxruntime")
    path = tmp_path / "m.onnx"
    assert main(["export", str(trained), "--onnx", str(path), "--split", "0"]) == 0
    said = capsys.readouterr().err
    assert str(path) in said
    assert json.loads((tmp_path / "m.onnx.json").read_text())["split"] == 0
    run = hpgmn.open_run(trained)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    [result] = session.run(None, run.statistics(split=0))
    np.testing.assert_allclose(result, run.predict(split=0).probabilities, atol=1e-5)


def test_mistakes_get_one_line(trained, tmp_path, capsys):
    for words, fact in (
        ([str(trained), "--onnx", str(tmp_path / "m.onnx"), "--split", "7"], "split 7"),
        ([str(tmp_path), "--onnx", str(tmp_path / "m.onnx")], "config.yaml"),
        ([str(trained), "--onnx", "s3://bucket/m.onnx"], "s3:/bucket"),
        ([str(trained)], "--onnx"),
    ):
        assert main(["export", *words]) == 2
        [line] = capsys.readouterr().err.strip().splitlines()
        assert fact in line
    assert not (tmp_path / "m.onnx").exists()
