"""A small graph under the names of datasets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # imported late, as in the conftest above
    from hpgmn.graph import Graph


@pytest.fixture
def save_as(
    small_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Saves the small graph, or another, as a dataset in a folder that ``HPGMN_DATA`` names."""
    from hpgmn.graph.files import write_graph

    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("HPGMN_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))

    def save(name: str, graph: Graph | None = None) -> Path:
        write_graph(small_graph if graph is None else graph, folder / f"{name}.npz")
        return folder

    return save
