"""What columns and statistics contribute to the prediction of a node.

The effect of a column is its Shapley value for the log-odds of a class, which unlike a probability
do not saturate: coalitions of columns keep the node's values, the others have those of a baseline,
and everything else about the node and its neighbours stays. A column of a table is one player with
all its attributes, such as one for each word. The baseline is the mean of the train nodes, of
sparse attributes their median.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.sparse import scale_attributes
from hpgmn.base.tasks import target_scale
from hpgmn.explain.explanation import TARGETS_NOTE, ColumnEffect
from hpgmn.explain.replicas import (
    ReplicaView,
    by_name,
    mean_outputs,
    players,
    shapley_values,
    subset_values,
)
from hpgmn.graph import Array, Graph
from hpgmn.models.layers import RowModel
from hpgmn.models.stage import logits
from hpgmn.statistics.operators import DenseRows

EVALUATIONS = 4096
"""About how often the model is evaluated for one node: exact values for up to 12 columns."""
FEW_EVALUATIONS = 1024
"""The same for each of many nodes."""
MOST_PASSES = 256
"""The same where each evaluation is a pass over the whole graph."""
MOST_COLUMNS = 2000
"""Most columns of a node that are sampled."""

_NUMBERS = 2**22  # attributes of all rows evaluated at once
_ROWS, _FEWEST_NODES = 100_000, 10  # rows evaluated for the importance of columns

Evaluate = Callable[[Array], Array]
"""Rows of attributes (B, F) → (B,) what is explained."""


# Columns of the user's data


@dataclass(frozen=True, eq=False)
class DataColumns:
    """The columns behind the attributes of a graph.

    Attributes:
        names: M of them.
        owner: (F,) the column of each attribute.
        preparation: how tables became attributes; None for a graph that is not from tables.
    """

    names: tuple[str, ...]
    owner: Array
    preparation: Any = None

    @classmethod
    def of(cls, graph: Graph) -> DataColumns:
        """Return the columns of the tables, or each attribute as a column."""
        if graph.preparation is not None:
            from hpgmn.tables.preparation import Preparation

            preparation = Preparation.from_dict(graph.preparation)
            names = tuple(column.name for column in preparation.columns)
            widths = [len(column.feature_names) for column in preparation.columns]
            if sum(widths) == graph.num_features:
                return cls(names, np.repeat(np.arange(len(names)), widths), preparation)
        features = graph.feature_names
        if features is None:
            features = np.array([f"attribute {number}" for number in range(graph.num_features)])
        return cls(tuple(map(str, features)), np.arange(graph.num_features))

    def value(self, number: int, row: Array) -> float | str | None:
        """Return a node's value of a column in its original unit; None if it is missing."""
        attributes = row[self.owner == number]
        if self.preparation is None:
            return float(attributes[0])
        value: float | str | None = self.preparation.original(number, attributes)
        return value


def attribute_row(graph: Graph, node: int) -> Array:
    """Return (F,) the attributes of a node."""
    row: Any = graph.x[[node]]
    return np.asarray(row.toarray() if sp.issparse(row) else row, np.float32).reshape(-1)


def baseline_row(replica: ReplicaView) -> Array:
    """Return (F,) the mean attributes of the train nodes, of sparse ones the median."""
    x: Any = replica.graph.x[replica.reference_nodes]
    if not sp.issparse(x):
        return np.asarray(x.mean(axis=0, dtype=np.float64), np.float32)
    row = np.zeros(x.shape[1], np.float32)
    usual = np.flatnonzero(2 * np.bincount(x.indices, minlength=x.shape[1]) >= x.shape[0])
    row[usual] = np.median(x[:, usual].toarray(), axis=0)
    return row


# Shapley values


def column_shapley(
    evaluate: Evaluate, row: Array, baseline: Array, owner: Array, evaluations: int = EVALUATIONS
) -> tuple[Array, Array]:
    """Return (M,) Shapley values of columns and their standard errors, 0 where they are exact.

    Columns that equal the baseline have no effect. The values of the others add up to
    ``evaluate(row) - evaluate(baseline)``; they are exact if all subsets take at most
    ``evaluations``, otherwise means over random orders of the columns and their reverses.

    Args:
        owner: (F,) the column of each attribute.
    """
    effects, errors = np.zeros((2, int(owner.max()) + 1))
    players = np.unique(owner[row != baseline])
    if not players.size:
        return effects, errors

    def values(present: Array) -> Array:
        """Return (B,) the values of coalitions (B, players)."""
        size, found = max(1, _NUMBERS // row.size), []
        for part in np.split(present, range(size, len(present), size)):
            chosen = np.zeros((len(part), effects.size), bool)
            chosen[:, players] = part
            found.append(evaluate(np.where(chosen[:, owner], row, baseline)))
        return np.concatenate(found).astype(np.float64)

    if players.size <= math.log2(evaluations):
        subsets = np.arange(1 << players.size)
        present = (subsets[:, None] >> np.arange(players.size)) & 1 == 1
        effects[players] = shapley_values(values(present))
        return effects, errors
    if players.size > MOST_COLUMNS:
        raise HPGMNError(
            f"{players.size:,} columns of the node differ from the baseline: more than "
            f"{MOST_COLUMNS:,} are not explained.",
            "Train with fewer columns",
        )
    random = np.random.default_rng(0)
    steps = np.arange(players.size + 1)[:, None]
    gains = np.zeros((max(2, evaluations // (2 * players.size)), players.size))
    for gain in gains:
        order = random.permutation(players.size)
        for either in (order, order[::-1]):
            gain[either] += np.diff(values(np.argsort(either) < steps)) / 2
    effects[players] = gains.mean(axis=0)
    errors[players] = gains.std(axis=0, ddof=1) / math.sqrt(len(gains))
    return effects, errors


class OwnAttributes:
    """A model's outputs for some nodes whose own attributes are replaced.

    HP-GMN encodes the new attributes and keeps its other statistics, boosted trees keep their other
    columns, and other models of rows their other inputs. The rest are run again on the whole graph.
    """

    def __init__(self, replicas: Sequence[ReplicaView], nodes: Array) -> None:
        self.replicas, self.nodes = replicas, nodes

    @cached_property
    def needs_passes(self) -> bool:
        """Whether each evaluation is a pass over the whole graph."""
        first = self.replicas[0]
        is_row_model = (
            isinstance(first.stage.model, RowModel) and "attributes" in first.stage.inputs
        )
        return not (first.reads_statistics or first.columns or is_row_model)

    @cached_property
    def _encodings(self) -> list[dict[str, Tensor]]:
        """Of HP-GMN, for each replica, encodings (1, n, D) of all statistics but attributes."""
        nodes = torch.from_numpy(self.nodes)[None].to(self.replicas[0].task.device)
        with torch.no_grad():
            return [
                {
                    name: replica.module.encoding(name, replica.stage.inputs[name], None, nodes)
                    for name in replica.module.names
                    if name != "attributes"
                }
                for replica in self.replicas
            ]

    def log_odds(self, index: int, label: int, rows: Array) -> Array:
        """Return (B,) the log-odds of a class, or the target, of the node with rows (B, F)."""
        parts = [self._logits(number, index, rows) for number in range(len(self.replicas))]
        logs = mean_outputs(self.replicas, torch.stack(parts)).double()
        if self.replicas[0].is_regression:
            return np.asarray(logs[:, 0].cpu().numpy())
        others = torch.cat([logs[:, :label], logs[:, label + 1 :]], dim=1)
        return np.asarray((logs[:, label] - others.logsumexp(dim=1)).cpu().numpy())

    def _logits(self, number: int, index: int, rows: Array) -> Tensor:
        """Return (B, C) logits of a replica."""
        replica, node = self.replicas[number], int(self.nodes[index])
        model: Any = replica.stage.model
        if replica.columns:
            return replica.values(torch.from_numpy(model.logits_with_attributes(0, node, rows)))
        if self.needs_passes:
            return torch.stack([_pass(replica, node, row) for row in rows])
        scaled = scale_attributes(rows, replica.task.settings[0].attributes_scaling)
        attributes = DenseRows(torch.from_numpy(scaled).to(replica.task.device))
        if replica.reads_statistics:
            inputs: dict[str, Any] = {
                name: encoding[:, index : index + 1].expand(-1, len(rows), -1)
                for name, encoding in self._encodings[number].items()
            }
        else:
            same = torch.full((1, len(rows)), node, device=replica.task.device)
            inputs = {name: value.some(same) for name, value in replica.stage.inputs.items()}
        with torch.no_grad():
            return replica.values(model(inputs | {"attributes": attributes}).logits[0])


def _pass(replica: ReplicaView, node: int, row: Array) -> Tensor:
    """Return (C,) logits of a node with other attributes."""
    x: Any = replica.graph.x
    if sp.issparse(x):
        x = sp.vstack([x[:node], sp.csr_array(row[None]), x[node + 1 :]], format="csr")
    else:
        x = x.copy()
        x[node] = row
    statistics = replica.task.statistics.on(replica.graph.with_attributes(x))
    task = replace(replica.task, statistics=statistics)
    return logits(task, replica.entry, replica.parameters, torch.tensor([node]))[0, 0]


def column_effects(
    replicas: Sequence[ReplicaView],
    nodes: Array,
    labels: Array,
    columns: DataColumns,
    evaluations: int = EVALUATIONS,
) -> tuple[Array, Array]:
    """Return (n, M) effects of own columns on the log-odds of a class, and standard errors.

    Args:
        nodes: (n,) positions.
        labels: (n,) the class of each node.
    """
    first, model = replicas[0], OwnAttributes(replicas, nodes)
    if first.reads_statistics and "attributes" not in first.module.names:
        raise HPGMNError(
            "The model does not read a node's own attributes.",
            Remedy("Train one that does", setting="statistics"),
        )
    if model.needs_passes:
        evaluations = min(evaluations, MOST_PASSES)
        if len(columns.names) > evaluations // 4:
            raise HPGMNError(
                f"{first.entry.name} has to be run again for each of {len(columns.names)} columns, "
                "so they have no effects.",
                "Explain HP-GMN, an MLP, LINKX or boosting, or train with fewer columns",
            )
    baseline = baseline_row(first)
    found = [
        column_shapley(
            partial(model.log_odds, index, label),
            *(attribute_row(first.graph, node), baseline, columns.owner, evaluations),
        )
        for index, (node, label) in enumerate(zip(nodes.tolist(), labels.tolist(), strict=True))
    ]
    effects, errors = zip(*found, strict=True)
    return np.stack(effects), np.stack(errors)


def explain_columns(
    replicas: Sequence[ReplicaView], node: int, label: int, evaluations: int = EVALUATIONS
) -> tuple[tuple[ColumnEffect, ...], list[str]]:
    """Return the effects of a node's own columns, the largest first, and notes about them."""
    columns, position = DataColumns.of(replicas[0].graph), np.array([node])
    try:
        effects, errors = column_effects(
            replicas, position, np.array([label]), columns, evaluations
        )
    except HPGMNError as error:
        return (), [str(error)]
    row = attribute_row(replicas[0].graph, node)
    found = tuple(
        ColumnEffect(
            columns.names[number],
            columns.value(number, row),
            float(effects[0, number]),
            float(errors[0, number]),
        )
        for number in np.argsort(-np.abs(effects[0]), kind="stable").tolist()
        if effects[0, number]
    )
    return found, [_effects_note(replicas)] if found else []


def affordable_nodes(replicas: Sequence[ReplicaView]) -> int:
    """Return for how many nodes the effects of columns take a few seconds, on one core."""
    if OwnAttributes(replicas, np.empty(0, np.int64)).needs_passes:
        return 0
    x: Any = replicas[0].graph.x
    varying = int(x.nnz // x.shape[0] if sp.issparse(x) else x.shape[1])
    return max(_FEWEST_NODES, _ROWS // max(FEW_EVALUATIONS, 4 * varying))


def column_importance(
    replicas: Sequence[ReplicaView], nodes: Array, labels: Array
) -> tuple[dict[str, float], list[str]]:
    """Return the mean absolute effect of own columns, the largest first, and notes about them.

    Fewer than the given nodes are read where there are many columns.
    """
    columns, most = DataColumns.of(replicas[0].graph), affordable_nodes(replicas)
    nodes, labels = nodes[:most], labels[:most]
    if not most:
        return {}, [f"The importance of columns is not computed for {replicas[0].entry.name}."]
    try:
        effects, _ = column_effects(replicas, nodes, labels, columns, FEW_EVALUATIONS)
    except HPGMNError as error:
        return {}, [str(error)]
    sizes = np.abs(effects).mean(axis=0)
    order = [number for number in np.argsort(-sizes, kind="stable").tolist() if sizes[number]]
    importance = {columns.names[number]: float(sizes[number]) for number in order}
    return importance, [f"{_effects_note(replicas)} Sizes are averaged over {len(nodes)} nodes."]


COLUMN_EFFECTS_NOTE = (
    "Contributions of own columns are Shapley values of the log-odds of the class: a node's value "
    "against the mean of the train nodes (of sparse attributes the median), all else unchanged."
)


def _effects_note(replicas: Sequence[ReplicaView]) -> str:
    return TARGETS_NOTE if replicas[0].is_regression else COLUMN_EFFECTS_NOTE


# Statistics


@dataclass(frozen=True, eq=False)
class Shares:
    """What statistics contribute to the class of n nodes.

    Attributes:
        names: S of them; none for models without statistics.
        values: (n, S) Shapley values: of HP-GMN for the log-probability, of trees for the log-odds,
            of a regression for the target.
        baseline: (n,) of HP-GMN, what is explained with the mean encoding of the train nodes.
        columns: (n, W) of trees, the contribution of each column of ``column_names``.
    """

    names: list[str]
    values: Array
    baseline: Array | None = None
    columns: Array | None = None
    column_names: Sequence[str] = ()

    def of(self, index: int) -> tuple[dict[str, float], dict[str, float]]:
        """Return what statistics, and columns of trees, contribute to one of the nodes."""
        columns = np.empty(0) if self.columns is None else self.columns[index]
        return by_name(self.names, self.values[index]), by_name(self.column_names, columns)


def statistic_shares(replicas: Sequence[ReplicaView], nodes: Array, labels: Array) -> Shares:
    """Compute what statistics contribute to a class of each node, both (n,)."""
    first = replicas[0]
    if first.columns:
        columns = _tree_contributions(replicas, nodes, labels)
        owners = np.array([column.statistic for column in first.columns])
        names = list(dict.fromkeys(owners.tolist()))
        sums = [columns[:, owners == name].sum(axis=1) for name in names]
        column_names = [column.name for column in first.columns]
        return Shares(names, np.stack(sums, axis=1), None, columns, column_names)
    if not first.reads_statistics:
        return Shares([], np.empty((len(nodes), 0)))
    subsets = subset_values(replicas, nodes, labels)
    values = [shapley_values(of_node) for of_node in subsets]
    return Shares(players(first), np.array(values), subsets[:, 0])


def _tree_contributions(replicas: Sequence[ReplicaView], nodes: Array, labels: Array) -> Array:
    """Return (n, W) what columns contribute to the log-odds of a class, mean of the replicas.

    Log-odds are the score of the class minus the mean score of the others.
    """
    total = 0.0
    for replica in replicas:
        model: Any = replica.stage.model
        scores = model.contributions(0, nodes)[..., :-1]  # (n, trees, W)
        if replica.is_regression:
            total = total + scores[:, 0] * target_scale(replica.task.reference_labels)[1]
        elif scores.shape[1] == 1:  # of two classes
            total = total + np.where(labels == 1, 1.0, -1.0)[:, None] * scores[:, 0]
        else:
            chosen = scores[np.arange(nodes.size), labels]
            others = (scores.sum(axis=1) - chosen) / (scores.shape[1] - 1)
            total = total + chosen - others
    return np.asarray(total / len(replicas))
