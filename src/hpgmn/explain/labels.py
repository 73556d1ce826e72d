"""Which nodes would help most if they were labelled next.

Greedy choice: the next node has the largest product of

- the entropy of its predicted probabilities: how unsure the model is,
- 1 + log(1 + degree): a label is counted by every neighbour,
- the distance of its query to the nearest chosen node: not the same question twice.

Distances are looked at for the :data:`CONSIDERED` nodes of the largest product of the first two.
"""

from __future__ import annotations

import numpy as np

from hpgmn.graph import Array

CONSIDERED = 10_000
"""Most candidates whose queries are compared."""


def entropy(probabilities: Array) -> Array:
    """(N,) the entropy of each row, in nats.

    >>> entropy(np.array([[0.5, 0.5], [0.9, 0.1]])).round(3)
    array([0.693, 0.325])
    """
    logs = np.log(np.maximum(probabilities, 1e-30))
    return np.asarray(-(probabilities * logs).sum(axis=1))


def worth(probabilities: Array, degrees: Array) -> Array:
    """(N,) how much a label of each node is worth on its own."""
    return np.asarray(entropy(probabilities) * (1 + np.log1p(degrees)))


def most_worth(probabilities: Array, degrees: Array, candidates: Array) -> Array:
    """The candidates whose labels are worth most on their own, at most :data:`CONSIDERED`."""
    own = worth(probabilities[candidates], degrees[candidates])
    return np.asarray(candidates[np.sort(np.argsort(-own, kind="stable")[:CONSIDERED])])


def label_next(
    probabilities: Array, degrees: Array, queries: Array, candidates: Array, count: int
) -> list[int]:
    """The nodes to label next, the most helpful first.

    Args:
        probabilities: (N, C) of the prediction.
        degrees: (N,) neighbours of each node.
        queries: (n, D) of the candidates.
        candidates: (n,) nodes without a train label, by position.
        count: at most so many.

    Returns:
        Positions of nodes.
    """
    score = worth(probabilities[candidates], degrees[candidates])
    distance = np.ones(candidates.size)  # the same for all, until one is chosen
    chosen: list[int] = []
    for _ in range(min(count, candidates.size)):
        gain = score * distance
        gain[chosen] = -1
        best = int(gain.argmax())
        apart = np.sqrt(np.square(queries - queries[best]).sum(axis=1))
        distance = apart if not chosen else np.minimum(distance, apart)
        chosen.append(best)
    return [int(node) for node in candidates[chosen]]
