"""MODELS: every model by name, with its settings, its stages and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpgmn.config import TrainSettings
from hpgmn.errors import HPGMNError, unknown_name
from hpgmn.models import hpgmn, propagated
from hpgmn.models.stage import StageBuilder

_PAPER = (
    "Junjie Xu, Enyan Dai, Xiang Zhang, Suhang Wang. HP-GMN: Graph Memory Networks for "
    "Heterophilous Graphs. ICDM 2022."
)


@dataclass(frozen=True)
class ModelEntry:
    """A model as the commands know it.

    Attributes:
        name: what ``--model`` takes.
        summary: one line.
        citation: the source.
        settings: the dataclass of its settings.
        stages: its stages in order.
    """

    name: str
    summary: str
    citation: str
    settings: type[TrainSettings]
    stages: Mapping[str, StageBuilder]


MODELS: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in (
        ModelEntry(
            "hpgmn",
            "graph memory network on local statistics, for heterophilous graphs",
            _PAPER,
            hpgmn.HPGMNSettings,
            hpgmn.STAGES,
        ),
        ModelEntry(
            "hpgmn-gcn",
            "the memory on a GCN's representation, for homophilous graphs",
            _PAPER,
            propagated.PropagatedSettings,
            propagated.stages("gcn"),
        ),
        ModelEntry(
            "hpgmn-appnp",
            "the memory on an APPNP's representation, for homophilous graphs",
            _PAPER,
            propagated.PropagatedSettings,
            propagated.stages("appnp"),
        ),
    )
}


def find_model(name: str) -> ModelEntry:
    """The model of that name."""
    if name not in MODELS:
        raise HPGMNError(unknown_name("model", name, MODELS))
    return MODELS[name]
