"""The probability from which a class is predicted, chosen on validation nodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpgmn.base.errors import Remedy, SettingError

Array = NDArray[Any]

_RULE = re.compile(r"(f1)|(?:(precision|recall)=)?(\d*\.?\d+)|cost=(\d*\.?\d+):(\d*\.?\d+)")
_SMALLEST = 1e-6  # thresholds of 0 and 1 have no log-odds


@dataclass(frozen=True)
class ThresholdRule:
    """What a threshold is chosen for.

    Attributes:
        kind: "f1", "precision", "recall", "cost" or "value".
        target: of precision and recall; the threshold itself of "value".
        costs: of a missed positive node and of a false alarm.
    """

    kind: str
    target: float = 0.0
    costs: tuple[float, float] = (1.0, 1.0)


def parse_threshold(text: str) -> ThresholdRule:
    """Return the rule that a text means, or raise SettingError.

    >>> parse_threshold("recall=0.8")
    ThresholdRule(kind='recall', target=0.8, costs=(1.0, 1.0))
    """
    match = _RULE.fullmatch(str(text).strip())
    if match and match[1]:
        return ThresholdRule("f1")
    if match and match[3] and 0 < float(match[3]) < 1 + (match[2] is not None) * 1e-12:
        return ThresholdRule(match[2] or "value", float(match[3]))
    if match and match[4] and float(match[4]) > 0 and float(match[5]) > 0:
        return ThresholdRule("cost", costs=(float(match[4]), float(match[5])))
    raise SettingError(
        f"Unknown threshold '{text}'.",
        Remedy(
            "Choose f1, precision=0.9, recall=0.8, cost=10:1 (a missed node costs ten false "
            "alarms), or a probability between 0 and 1",
            option="threshold",
        ),
    )


def count_alarms(scores: Array, positive: Array) -> tuple[Array, Array, Array]:
    """Return every distinct score, descending, with the positive and all nodes from there up.

    >>> count_alarms(np.array([0.1, 0.9, 0.9]), np.array([True, True, False]))[1].tolist()
    [1, 2]
    """
    order = np.argsort(-scores, kind="stable")
    level = scores[order]
    last = np.flatnonzero(np.append(level[1:] != level[:-1], True))
    return level[last], np.cumsum(positive[order])[last], last + 1.0


def choose_threshold(
    rule: str, probability: Array, positive: Array, warn: Callable[[str], None] = lambda line: None
) -> float:
    """Return the threshold that follows a rule on some nodes; nodes at or above it are positive.

    "f1" maximises F1, "cost=10:1" minimises ten times the missed nodes plus the false alarms,
    "precision=P" finds as many nodes as it can with at least that precision, "recall=R" is as
    precise as it can be with at least that recall. It lies halfway to the next probability.

    Args:
        probability: (n,) of the positive class.
        positive: (n,) whether a node is of that class.
        warn: called if the rule cannot be followed, which gives the best precision there is, or
            0.5 without positive nodes.
    """
    wanted = parse_threshold(rule)
    if wanted.kind == "value":
        return wanted.target
    number = int(positive.sum())
    if not number:
        warn(f"No validation node is of the positive class: the threshold is 0.5, not '{rule}'.")
        return 0.5
    levels, hits, alarms = count_alarms(probability, positive)
    precision, recall = hits / alarms, hits / number
    if wanted.kind == "f1":
        at = int((2 * hits / (alarms + number)).argmax())
    elif wanted.kind == "recall":
        at = int(np.flatnonzero(recall >= wanted.target - 1e-12)[0])
    elif wanted.kind == "precision":
        enough = np.flatnonzero(precision >= wanted.target - 1e-12)
        if enough.size:
            at = int(enough[-1])
        else:
            at = int(np.flatnonzero(precision == precision.max())[-1])
            warn(
                f"No threshold has a precision of {wanted.target:g} on validation nodes: the "
                f"highest is {precision[at]:.3g}, with a recall of {recall[at]:.3g}."
            )
    else:
        missed, false_alarm = wanted.costs
        cost = missed * (number - hits) + false_alarm * (alarms - hits)
        at = int(cost.argmin()) if cost.min() < missed * number else -1
    levels = np.concatenate([[1.0], levels, [0.0]])  # at = -1: no node is positive
    value = (levels[at + 1] + levels[at + 2]) / 2
    return float(np.clip(value, _SMALLEST, 1 - _SMALLEST))
