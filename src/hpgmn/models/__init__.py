"""MODELS: every model by name, with its settings, its stages and where it comes from."""

from __future__ import annotations

from hpgmn.base.errors import HPGMNError, unknown_name
from hpgmn.models import hpgmn, propagated
from hpgmn.models.baselines import (
    appnp,
    bmgcn,
    chebnet,
    cpgnn,
    dirgcn,
    dssl,
    fsgnn,
    gcn,
    gcn_jk,
    gcnii,
    gprgnn,
    h2gcn,
    linkx,
    lwgcn,
    mixhop,
    mlp,
    mmp,
)
from hpgmn.models.own import is_own, own_model
from hpgmn.models.stage import ModelEntry

MODELS: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in (
        hpgmn.ENTRY,
        *propagated.ENTRIES,
        mlp.ENTRY,
        gcn.ENTRY,
        gcn_jk.ENTRY,
        mixhop.ENTRY,
        chebnet.ENTRY,
        gcnii.ENTRY,
        appnp.ENTRY,
        gprgnn.ENTRY,
        h2gcn.ENTRY,
        bmgcn.ENTRY,
        cpgnn.ENTRY,
        mmp.ENTRY,
        lwgcn.ENTRY,
        dssl.ENTRY,
        linkx.ENTRY,
        fsgnn.ENTRY,
        dirgcn.ENTRY,
    )
}


def find_model(name: str) -> ModelEntry:
    """The model of that name, or the user's own behind ``package.module:Class``."""
    if is_own(name):
        return own_model(name)
    if name not in MODELS:
        message = unknown_name("model", name, MODELS)
        raise HPGMNError(f"{message} Name one of your own as package.module:Class.")
    return MODELS[name]
