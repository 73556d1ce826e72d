"""The settings of HP-GMN for large graphs, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpgmn.base.settings import make_settings
from hpgmn.models import find_model

LARGE: dict[str, Any] = {
    # None of these has a column per node, so the weights do not grow with the graph.
    "statistics": "attributes,class_counts,class_means",
    "neighbors": "both",  # who pays and who is paid are different neighbours
    "class_means_form": "half",  # a batch reads rows; half precision halves the largest array
    "batch_size": 4096,  # large enough for fast products, small enough for many steps an epoch
    "epochs": 20,  # an epoch has N/8192 steps: 20 are many where N is large
    "patience": 0,  # a stop by chance would make times incomparable
    "lr": 0.01,
    "hidden_dim": 64,
    "num_patterns": 50,
    "encoder_layers": 1,
    # Thousands of train nodes of each class: little is left to regularise.
    "dropout": 0.2,
    "attributes_dropout": 0.0,
    "class_means_dropout": 0.0,
    "weight_decay": 1e-5,
    # An estimator on the attributes alone is done after a few passes over so many nodes.
    "estimator_epochs": 5,
    "estimator_patience": 0,
    "estimator_dropout": 0.0,
    "estimator_weight_decay": 1e-5,
}
"""What growth and peers train HP-GMN with; ``--set`` changes any of it."""


def large(changes: Mapping[str, Any]) -> Any:
    """HP-GMN's settings for a large graph with some changes, every one checked."""
    return make_settings(find_model("hpgmn").settings, LARGE | dict(changes))
