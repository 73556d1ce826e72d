"""Run the laboratory's commands as a user types them, in a temporary folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hpgmn.graph import Graph


@dataclass(frozen=True)
class Answer:
    """The exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Answer]


@pytest.fixture
def hpgmn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run ``hpgmn …`` in ``tmp_path``."""
    from hpgmn.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    return run


@pytest.fixture
def graph_file(small_graph: Graph, tmp_path: Path) -> Path:
    """Write the small graph as a file."""
    from hpgmn.graph.files import write_graph

    path = tmp_path / "small.npz"
    write_graph(small_graph, path)
    return path
