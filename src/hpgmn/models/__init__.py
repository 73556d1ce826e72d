"""The registry of models, read from ``models.yaml``: a model is imported on use only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpgmn.base.errors import HPGMNError
from hpgmn.base.parsing import load_yaml

if TYPE_CHECKING:
    from hpgmn.models.stage import ModelEntry


class Listing(NamedTuple):
    """An entry of ``models.yaml``: what is known of a model without importing it."""

    module: str
    summary: str
    citation: str


@cache
def listings() -> dict[str, Listing]:
    """Return every model's listing by name."""
    content = load_yaml(Path(__file__).with_name("models.yaml"))
    return {name: Listing(**listing) for name, listing in content.items()}


class _Models(Mapping[str, "ModelEntry"]):
    """Every model by name; a lookup imports the model's module."""

    def __getitem__(self, name: str) -> ModelEntry:
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(listings())

    def __len__(self) -> int:
        return len(listings())

    def __contains__(self, name: object) -> bool:
        return name in listings()


@cache
def _load(name: str) -> ModelEntry:
    listing = listings()[name]
    module, _, attribute = listing.module.partition(":")
    entry: ModelEntry = getattr(import_module(f"hpgmn.models.{module}"), attribute or "ENTRY")
    return replace(entry, summary=listing.summary, citation=listing.citation)


MODELS: Mapping[str, ModelEntry] = _Models()


def is_custom(name: str) -> bool:
    """Return whether a model's name is that of a user's class, ``package.module:Class``.

    >>> is_custom("my_model:TwoHop"), is_custom("gcn")
    (True, False)
    """
    return ":" in name


def find_model(name: str) -> ModelEntry:
    """Return the model of that name, or the user's behind ``package.module:Class``."""
    if is_custom(name):
        from hpgmn.models.custom import custom_model

        return custom_model(name)
    if name not in MODELS:
        error = HPGMNError.unknown("model", name, MODELS)
        assert error.remedy is not None
        raise HPGMNError(error.message, error.remedy | "Name your own as package.module:Class")
    return MODELS[name]
