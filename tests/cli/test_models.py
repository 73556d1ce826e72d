"""``hpgmn models`` as a table and as JSON."""

import json
from collections.abc import Callable
from typing import Any

from hpgmn.models import MODELS

Command = Callable[..., Any]


def test_models_as_json_have_their_citation(hpgmn):
    rows = json.loads(hpgmn("models", "--json").out)
    assert [row["name"] for row in rows] == list(MODELS)
    for row in rows:
        assert row["citation"] == MODELS[row["name"]].citation
        assert row["summary"] == MODELS[row["name"]].summary


def test_models_as_a_table(hpgmn):
    text = " ".join(hpgmn("models").out.replace("│", " ").split())
    for name in MODELS:
        assert name in text
    assert "ICDM" in text
