"""A small graph under the names of datasets."""

import pytest


@pytest.fixture
def save_as(small_graph, tmp_path, monkeypatch):
    """Saves the small graph, or another, as a dataset in a folder that ``HPGMN_DATA`` names."""
    from hpgmn.graph.files import write_graph

    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("HPGMN_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))

    def save(name, graph=None):
        write_graph(small_graph if graph is None else graph, folder / f"{name}.npz")
        return folder

    return save
