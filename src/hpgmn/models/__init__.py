"""MODELS: every model by name, with its settings, its stages and where it comes from."""

from __future__ import annotations

from hpgmn.errors import HPGMNError, unknown_name
from hpgmn.models import gcn, hpgmn, mlp, propagated
from hpgmn.models.stage import ModelEntry

MODELS: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in (
        hpgmn.ENTRY,
        *propagated.ENTRIES,
        mlp.ENTRY,
        gcn.ENTRY,
    )
}


def find_model(name: str) -> ModelEntry:
    """The model of that name."""
    if name not in MODELS:
        raise HPGMNError(unknown_name("model", name, MODELS))
    return MODELS[name]
