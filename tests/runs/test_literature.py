"""The literature's settings: known names, allowed values, and graphs that borrow them."""

from __future__ import annotations

import pytest

from hpgmn.base.settings import make_settings
from hpgmn.graph.datasets import DATASETS
from hpgmn.models import find_model
from hpgmn.runs.literature import _entries, literature


@pytest.mark.parametrize("model", sorted(_entries()))
def test_every_entry_can_be_trained(model: str) -> None:
    for graph, settings in _entries()[model].items():
        assert graph == "default" or graph in DATASETS
        made = make_settings(find_model(model).settings, settings)
        assert made.epochs <= 2000


def test_a_filtered_graph_borrows_from_the_whole_one() -> None:
    assert literature("dirgcn", "chameleon-filtered") == literature("dirgcn", "chameleon") != {}
    assert literature("fsgnn", "cornell") == literature("fsgnn", "cornell-geomgcn") != {}
    assert literature("gprgnn", "cornell") == _entries()["gprgnn"]["cornell"]


def test_without_an_entry_the_defaults_stand() -> None:
    assert literature("gcn", "texas") == {}
    assert literature("dirgcn", "texas") == {}
    assert literature("h2gcn", "texas") == _entries()["h2gcn"]["default"]


def test_the_answer_is_the_callers_own() -> None:
    literature("dirgcn", "squirrel")["layers"] = 99
    assert literature("dirgcn", "squirrel")["layers"] == 4
