"""Modules for your own training loop.

Parameters have R replicas as their leading dimension; with one replica it is 1, and ``Memory`` and
the penalties also take queries without it. Random numbers are functions of a key: call
``initialise(model, keys)`` once before training, and pass ``Noise(keys, epoch)`` for dropout. A
``Memory`` alone starts with random patterns and needs neither (``examples/pyg_loop.py``).
"""

from hpgmn.base.randomness import DropRate, Noise, stable_key
from hpgmn.models.hpgmn import HPGMN, HPGMNSettings, LabelEstimator, pseudo_labels
from hpgmn.models.layers import MLP, Linear, Output, StatisticMLP, initialise
from hpgmn.models.memory import (
    Memory,
    MemoryHead,
    MemorySettings,
    entropy_penalty,
    kpattern_penalty,
    norm_penalty,
)
from hpgmn.models.propagated import PropagatedHPGMN, PropagatedSettings

__all__ = [
    "HPGMN",
    "MLP",
    "DropRate",
    "HPGMNSettings",
    "LabelEstimator",
    "Linear",
    "Memory",
    "MemoryHead",
    "MemorySettings",
    "Noise",
    "Output",
    "PropagatedHPGMN",
    "PropagatedSettings",
    "StatisticMLP",
    "entropy_penalty",
    "initialise",
    "kpattern_penalty",
    "norm_penalty",
    "pseudo_labels",
    "stable_key",
]
