"""Type checkers see the keywords of the estimators."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hpgmn

RIGHT = """
import hpgmn
from hpgmn.training.replicas import Progress


def show(progress: Progress) -> None:
    print(progress.epoch)


model = hpgmn.HPGMNClassifier(
    hidden_dim=3, lr=0.1, statistics=["attributes"], memory_dim=None, callbacks=[show]
)
width: int | None = model.hidden_dim
"""
WRONG = """
import hpgmn

hpgmn.HPGMNClassifier(hiden=3, lr="fast")
hpgmn.HPGMNRegressor(epochs="many")
"""


@pytest.mark.slow
def test_mypy_rejects_unknown_keywords_and_wrong_types(tmp_path):
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "right.py", "wrong.py"],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(Path(hpgmn.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(("right", "wrong"))]
    unknown, wrong, many = lines
    assert unknown.startswith("wrong.py:4: error")
    assert '"hiden"' in unknown
    assert wrong.startswith("wrong.py:4: error")
    assert '"lr"' in wrong
    assert many.startswith("wrong.py:5: error")
    assert '"epochs"' in many
