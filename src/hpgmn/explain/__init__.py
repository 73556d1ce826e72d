"""Explain the prediction of a node, and what a model has learned."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpgmn.explain.explanation import EnsembleExplanation, Explanation, ModelExplanation

if TYPE_CHECKING:
    from hpgmn.explain.model import explain_model
    from hpgmn.explain.neighbors import removal_effects
    from hpgmn.explain.node import explain_node

_HOMES = {"explain_model": "model", "explain_node": "node", "removal_effects": "neighbors"}

__all__ = [
    "EnsembleExplanation",
    "Explanation",
    "ModelExplanation",
    "explain_model",
    "explain_node",
    "removal_effects",
]


def __getattr__(name: str) -> Any:
    """Import a function on first use: the explanation of a node needs none of a model's."""
    if name in _HOMES:
        return getattr(import_module(f"hpgmn.explain.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'hpgmn.explain' has no attribute '{name}'")
