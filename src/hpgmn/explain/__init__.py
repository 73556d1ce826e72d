"""Explain the prediction of a node, and what a model has learned."""

from hpgmn.explain.explanation import Explanation, ModelExplanation
from hpgmn.explain.model import explain_model
from hpgmn.explain.neighbors import removal_effects
from hpgmn.explain.node import explain_node

__all__ = ["Explanation", "ModelExplanation", "explain_model", "explain_node", "removal_effects"]
