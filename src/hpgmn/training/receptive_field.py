"""How far a prediction reads: what a node's output depends on."""

from __future__ import annotations

from typing import Any

from hpgmn.statistics import averaged_statistic
from hpgmn.training.ensemble import Predictor, SavedEnsemble
from hpgmn.training.saved import SavedModel

_DIRECT = ("class_counts", "class_means", "target_means", "adjacency")


def receptive_field(model: Predictor) -> int | None:
    """Return the radius r within which the graph determines a node's output; None: unknown.

    The output depends on the attributes and train labels of nodes at most r edges away, in any
    direction, and on the edges of nodes at most r - 1 edges away.
    """
    if isinstance(model, SavedEnsemble):
        radii = [receptive_field(member) for member in model.members.values()]
        return None if None in radii else max(radius or 0 for radius in radii)
    assert isinstance(model, SavedModel)
    if model.entry.name == "mlp":
        return 0
    if model.entry.name != "hpgmn":
        return None
    settings = model.replicas[0].settings
    radii = [_radius_of(name, settings) for name in settings.statistics]
    if None in radii:
        return None
    radius = max(radius or 0 for radius in radii)
    return 2 * radius if "refinement" in model.done else radius


def _radius_of(name: str, settings: Any) -> int | None:
    """Return the radius of a statistic."""
    inner = averaged_statistic(name)
    if inner is not None:
        radius = _radius_of(inner, settings)
        return None if radius is None else radius + 1
    if name == "message_passing":  # matrices are normalised by the degrees of both ends
        return int(settings.mp_layers) + 1
    if name == "hops":
        return int(settings.hops)
    if name == "attributes":
        return 0
    return 1 if name in _DIRECT else None
