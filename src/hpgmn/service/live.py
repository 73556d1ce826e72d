"""A trained run on a graph that grows: predictions follow from ego networks.

A node's prediction depends on its neighbourhood (:func:`receptive_field`). Additions mark the
predictions that they may change as stale; these are recomputed when they are read, on the small
graph around them. A model without a finite radius is recomputed on the whole graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from hpgmn.base.calibration import predicted_classes
from hpgmn.base.errors import HPGMNError
from hpgmn.base.tasks import is_known
from hpgmn.graph import Array, Graph
from hpgmn.runs.predictions import half_widths, ranked_class
from hpgmn.runs.run import Run
from hpgmn.service.growing import GrowingArray, GrowingGraph
from hpgmn.service.rows import Row, RowReader
from hpgmn.tables.reading import TableData
from hpgmn.training.ensemble import SavedEnsemble
from hpgmn.training.receptive_field import receptive_field

WHOLE_SHARE = 0.25
"""The share of all nodes from which one pass over the graph is cheaper than an ego network."""


class LiveRun:
    """A trained run whose graph grows by nodes and edges; predictions follow.

    Columns are prepared as in training: scales, categories and classes are frozen. One thread may
    call the methods; :meth:`read` and the sizes are for any thread.

    Args:
        split: whose models predict; None for the first.
    """

    def __init__(self, run: Run, split: int | None = None) -> None:
        has_ids, run = run.graph.node_ids is not None, _with_node_ids(run)
        self.run = run
        self.split, self._model = run.models_of(split)
        self.class_names = self._model.class_names
        graph = run.graph.full
        roles = (graph.preparation or {"roles": {}})["roles"]
        self._has_whole_ids = not has_ids or bool(roles.get("has_whole_ids"))
        self._half_widths = {} if self.class_names else half_widths(run.metrics, self.split)
        self._radius = receptive_field(self._model)
        self._reader, self._growing = RowReader(graph), GrowingGraph(graph)
        self._positions = {name: number for number, name in enumerate(self._growing.ids)}
        self._graph: Graph | None = graph  # None after a change
        probabilities = self._compute(graph, np.arange(graph.num_nodes))
        self._probabilities = GrowingArray(probabilities)
        self._stale = GrowingArray(np.zeros(graph.num_nodes, bool))

    @property
    def ids(self) -> list[str]:
        """The ids of the nodes of the current graph."""
        return self._growing.ids

    @property
    def num_nodes(self) -> int:
        """The nodes of the current graph."""
        return len(self._positions)

    @property
    def num_edges(self) -> int:
        """The listed edges of the current graph."""
        return self._growing.num_edges

    @cached_property
    def positive(self) -> str | None:
        """The class that ranks nodes by default; None unless there are two classes."""
        return self.class_names[self.run.positive] if len(self.class_names) == 2 else None

    @property
    def graph(self) -> Graph:
        """The current graph, kept until the next change."""
        if self._graph is None:
            self._graph = self._growing.whole()
        return self._graph

    def refresh(self) -> None:
        """Compute all predictions that are stale."""
        self._refresh(np.flatnonzero(self._stale.values))

    def read(self, ids: Sequence[str | int]) -> list[dict[str, Any]] | None:
        """Return the predictions of some nodes; None if one has to be computed first."""
        positions = self._find(ids)
        if self._stale.values[positions].any():
            return None
        return self._rows([str(name) for name in ids], self._probabilities.values[positions])

    def predict(self, ids: Sequence[str | int]) -> list[dict[str, Any]]:
        """Return the predictions of some nodes of the current graph."""
        positions = self._find(ids)
        self._refresh(positions[self._stale.values[positions]])
        return self._rows([str(name) for name in ids], self._probabilities.values[positions])

    def predict_new(self, nodes: Sequence[Row], edges: Sequence[Row]) -> list[dict[str, Any]]:
        """Return the predictions that new nodes would have; nothing is added."""
        data, num_nodes = self.prepare(nodes, edges), self.num_nodes
        ids = data.node_ids.tolist()
        if not ids:
            return []
        ends = np.unique(data.edge_index)
        old, new = ends[ends < num_nodes], np.arange(len(ids))
        # The new nodes are one step away; aggregates of the old ends need all of their edges.
        steps = max((self._radius or 0) - 1, int(self._growing.has_aggregates))
        graph, places = self._ego_network(old, steps) or (self.graph, old)
        order = np.searchsorted(np.append(old, num_nodes + new), data.edge_index)
        places = np.append(places, graph.num_nodes + new)
        grown = GrowingGraph(graph)
        grown.add(replace(data, edge_index=places[order]))
        return self._rows(ids, self._compute(grown.whole(), graph.num_nodes + new))

    def prepare(self, nodes: Sequence[Row], edges: Sequence[Row]) -> TableData:
        """Check new nodes and edges completely; nothing is added."""
        return self._reader.read(nodes, edges, self._positions)

    def apply(self, data: TableData) -> None:
        """Add nodes and edges that :meth:`prepare` returned for the current graph."""
        ids, num_nodes = data.node_ids.tolist(), self.num_nodes
        touched = self._growing.add(data)
        self._graph = None
        width = self._probabilities.values.shape[1]
        self._probabilities.append(np.zeros((len(ids), width), np.float32))
        self._stale.append(np.ones(len(ids), bool))
        self._mark(touched)
        self._positions |= {name: num_nodes + number for number, name in enumerate(ids)}

    def _mark(self, touched: Array) -> None:
        """Mark predictions as stale that new edges of some nodes may change."""
        stale, radius = self._stale.values, self._radius
        if radius is None:
            stale[:] = True
        elif radius or self._growing.has_aggregates:
            # New edges matter to nodes one step less away, new attributes of their ends do not.
            reach = radius - (not self._growing.has_aggregates)
            found = self._growing.ball(touched, reach, len(stale))
            assert found is not None
            stale[found[0]] = True

    def top(self, k: int, of: str | None = None) -> list[dict[str, Any]]:
        """Return the unlabelled nodes with the highest probability of a class, with reasons.

        Args:
            of: the class [the positive one of two]; of a regression the prediction ranks.
        """
        ranked = ranked_class(k, of, self.class_names, lambda: self.run.positive)
        assert ranked is not None
        self.refresh()
        nodes = np.flatnonzero(~is_known(self._growing.y.values))
        values = self._probabilities.values
        nodes = nodes[np.argsort(-values[nodes, ranked], kind="stable")[:k]]
        rows = self._rows([self._growing.ids[node] for node in nodes], values[nodes])
        reasons: Array = np.full(len(rows), None)
        if self.class_names and rows:
            from hpgmn.explain.reasons import main_reasons

            reasons = main_reasons(self._model, self.graph, nodes, ranked, self.run.device)
        return [row | {"reason": reason} for row, reason in zip(rows, reasons, strict=True)]

    def explain(self, node_id: str | int) -> dict[str, Any]:
        """Explain the prediction of a node of the current graph."""
        self._find([node_id])
        return self.run.explain(str(node_id), split=self.split, graph=self.graph).as_dict()

    def _find(self, ids: Sequence[str | int]) -> Array:
        """Return the positions of ids; refuse an unknown one."""
        found = [self._positions.get(str(name), -1) for name in ids]
        if -1 in found:
            raise HPGMNError(
                f"There is no node '{ids[found.index(-1)]}' in the graph.",
                "Add it first, or predict it as a new node",
            )
        return np.asarray(found, np.int64)

    def _refresh(self, nodes: Array) -> None:
        """Recompute stale predictions of some nodes, or of all if they are many."""
        if not nodes.size:
            return
        nodes = np.unique(nodes)
        found = self._ego_network(nodes, self._radius or 0)
        if found is None:
            nodes = np.flatnonzero(self._stale.values)
            found = self.graph, nodes
        self._probabilities.values[nodes] = self._compute(*found)
        self._stale.values[nodes] = False

    def _ego_network(self, nodes: Array, radius: int) -> tuple[Graph, Array] | None:
        """Return the graph around nodes and their positions in it; None if a large one is read."""
        if self._radius is None:
            return None
        limit = int(WHOLE_SHARE * self._growing.num_nodes)
        return self._growing.ego_network(nodes, radius, limit)

    def _compute(self, graph: Graph, nodes: Array) -> Array:
        """Return the probabilities of nodes at ascending positions."""
        values: Array = self._model.mean_probabilities(graph, self.run.device, nodes=nodes).numpy()
        return values

    def _rows(self, ids: Sequence[str], probabilities: Array) -> list[dict[str, Any]]:
        """Return predictions as plain values."""
        names, lists = self.class_names, probabilities.tolist()
        shown = [int(one) if self._has_whole_ids and one.isdecimal() else one for one in ids]
        if not names:
            return [
                {"id": name, "prediction": value, "intervals": self._intervals(value)}
                for name, (value,) in zip(shown, lists, strict=True)
            ]
        classes = predicted_classes(probabilities, self._model.mean_calibration[0]).tolist()
        return [
            {
                "id": name,
                "prediction": names[label],
                "confidence": values[label],
                "probabilities": dict(zip(names, values, strict=True)),
            }
            for name, label, values in zip(shown, classes, lists, strict=True)
        ]

    def _intervals(self, value: float) -> dict[str, float | None]:
        """Return the ends of a regression's intervals, such as "low_80"; None: infinite."""
        return {
            f"{end}_{100 * coverage:g}": None if half is None else value + sign * half
            for coverage, half in self._half_widths.items()
            for end, sign in (("low", -1), ("high", 1))
        }


def _with_node_ids(run: Run) -> Run:
    """Return the run itself, or the same with positions as ids if its graph has none."""
    if run.graph.node_ids is not None:
        return run
    names, graph = np.arange(run.graph.num_nodes).astype(str), copy(run.graph)
    graph.node_ids = names
    model: Any = run.model
    if isinstance(model, SavedEnsemble):
        members = {key: replace(one, node_ids=names) for key, one in model.members.items()}
        model = replace(model, members=members)
    else:
        model = replace(model, node_ids=names)
    return Run(run.folder, run.spec, model, graph=graph, metrics=run.metrics, device=run.device)
