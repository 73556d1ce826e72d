"""What every model returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Output:
    """Logits, penalties and, when asked for, what happened inside.

    Attributes:
        logits: (R, B, C).
        penalties: each (R,), by name; the trainer weighs them with ``<name>_weight``.
        details: attention, gate and the like, by name; empty unless asked for.
    """

    logits: Tensor
    penalties: dict[str, Tensor] = field(default_factory=dict)
    details: dict[str, Tensor] = field(default_factory=dict)
