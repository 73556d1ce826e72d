"""The measured process answers with a result, with a sentence, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn_lab.bench import graphs, worker


def answer(tmp_path: Path, **arguments: Any) -> tuple[int, Any]:
    asked, answered = tmp_path / "asked.json", tmp_path / "answer.json"
    asked.write_text(json.dumps({"task": "graph", "arguments": arguments}))
    code = worker.main([str(asked), str(answered)])
    return code, json.loads(answered.read_text()) if answered.exists() else None


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (HPGMNError("Wrong."), "Wrong."),
        (MemoryError(), "out of memory"),
    ],
)
def test_failures_are_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: Exception, words: str
) -> None:
    def make(**_: Any) -> None:
        raise raised

    monkeypatch.setattr(graphs, "make", make)
    assert answer(tmp_path) == (0, {"failed": words})


def test_the_arguments_reach_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "make", lambda **given: {"given": given})
    assert answer(tmp_path, a=1, b=[2]) == (0, {"given": {"a": 1, "b": [2]}})


def test_an_interrupted_process_leaves_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(graphs, "make", make)
    assert answer(tmp_path) == (130, None)


def test_every_task_exists() -> None:
    import importlib

    for module, function in worker.TASKS.values():
        assert callable(getattr(importlib.import_module(f"hpgmn_lab.bench.{module}"), function))
