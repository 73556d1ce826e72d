"""A trained run on a graph that grows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from hpgmn.base.calibration import predicted_classes
from hpgmn.base.errors import HPGMNError, Remedy, nearest
from hpgmn.base.tasks import is_known
from hpgmn.graph import Array, Graph
from hpgmn.graph.conversion import extend
from hpgmn.runs.predictions import half_widths, ranked_class
from hpgmn.runs.run import Run
from hpgmn.service.rows import Addition, Row, RowReader
from hpgmn.training.ensemble import SavedEnsemble

_SMALL = 1000  # nodes among which a similar id is looked for


class LiveRun:
    """A trained run whose graph grows by nodes and edges; predictions follow.

    Columns are prepared as in training: scales, categories and classes are frozen.

    Args:
        split: whose models predict; None for the first.
    """

    def __init__(self, run: Run, split: int | None = None) -> None:
        has_ids, run = run.graph.node_ids is not None, _with_node_ids(run)
        self.run = run
        self.split, self._model = run.models_of(split)
        self.class_names = self._model.class_names
        self._graph = run.graph.full
        assert self._graph.node_ids is not None
        self._reader = RowReader(self._graph)
        self._positions = {name: i for i, name in enumerate(self._graph.node_ids.tolist())}
        roles = (self._graph.preparation or {"roles": {}})["roles"]
        self._has_whole_ids = not has_ids or bool(roles.get("has_whole_ids"))
        self._half_widths = {} if self.class_names else half_widths(run.metrics, self.split)
        self._lock = threading.RLock()
        self._probabilities: Array | None = None

    @property
    def num_nodes(self) -> int:
        """The nodes of the current graph."""
        return self._graph.num_nodes

    @property
    def num_edges(self) -> int:
        """The listed edges of the current graph."""
        return self._graph.num_listed_edges

    @cached_property
    def positive(self) -> str | None:
        """The class of the ranking; None of a regression or more than two classes."""
        return self.class_names[self.run.positive] if len(self.class_names) == 2 else None

    @property
    def graph(self) -> Graph:
        """The current graph."""
        return self._graph

    def predict(self, ids: Sequence[str | int]) -> list[dict[str, Any]]:
        """Return the predictions of some nodes of the current graph."""
        positions = self._find(ids)
        with self._lock:
            if self._probabilities is None:
                self._probabilities = self._compute(self._graph)
            return self._rows(ids, self._probabilities[positions])

    def predict_new(self, nodes: Sequence[Row], edges: Sequence[Row]) -> list[dict[str, Any]]:
        """Return the predictions that new nodes would have; nothing is added."""
        with self._lock:
            addition = self.prepare(nodes, edges)
            larger = self._extended(addition)
            return self._rows(addition.ids, self._compute(larger)[self.num_nodes :])

    def prepare(self, nodes: Sequence[Row], edges: Sequence[Row]) -> Addition:
        """Check new nodes and edges completely; nothing is added."""
        return self._reader.read(nodes, edges, self._positions)

    def apply(self, addition: Addition) -> None:
        """Add nodes and edges that :meth:`prepare` returned."""
        with self._lock:
            for name in addition.ids:
                if name in self._positions:
                    raise HPGMNError(f"Node '{name}' was added meanwhile.", "Prepare it again")
            self._graph = self._extended(addition)
            for name in addition.ids:
                self._positions[name] = len(self._positions)
            self._probabilities = None

    def top(self, k: int, of: str | None = None) -> list[dict[str, Any]]:
        """Return the unlabelled nodes with the highest probability of a class, with reasons.

        Args:
            of: the class [the positive one of two]; of a regression the prediction ranks.
        """
        ranked = ranked_class(k, of, self.class_names, lambda: self.run.positive)
        with self._lock:
            if self._probabilities is None:
                self._probabilities = self._compute(self._graph)
            nodes = np.flatnonzero(~is_known(self._graph.y))
            order = np.argsort(-self._probabilities[nodes, ranked], kind="stable")[:k]
            nodes = nodes[order]
            names = [self._graph.node_ids[node] for node in nodes]
            rows = self._rows(names, self._probabilities[nodes])
            reasons: Array = np.full(len(rows), None)
            if self.class_names and rows:
                from hpgmn.explain.reasons import main_reasons

                reasons = main_reasons(self._model, self._graph, nodes, ranked, self.run.device)
            return [row | {"reason": reason} for row, reason in zip(rows, reasons, strict=True)]

    def explain(self, node_id: str | int) -> dict[str, Any]:
        """Explain the prediction of a node of the current graph."""
        self._find([node_id])
        with self._lock:
            return self.run.explain(str(node_id), split=self.split, graph=self.graph).as_dict()

    def _find(self, ids: Sequence[str | int]) -> Array:
        """Return the positions of ids; refuse an unknown one."""
        found = [self._positions.get(str(name), -1) for name in ids]
        if -1 in found:
            unknown = str(ids[found.index(-1)])
            is_small = len(self._positions) <= _SMALL  # comparing texts is slow
            best = nearest(unknown, self._positions, 0.75) if is_small else None
            remedy = Remedy("Add it first, or predict it as a new node")
            raise HPGMNError(
                f"There is no node '{unknown}' in the graph.",
                remedy if best is None else Remedy(f"Did you mean '{best}'?"),
            )
        return np.asarray(found, np.int64)

    def _extended(self, addition: Addition) -> Graph:
        data = replace(addition.data, edge_index=addition.ends(self.num_nodes))
        graph: Graph = extend(self._graph, data, self._graph.name)
        return graph

    def _compute(self, graph: Graph) -> Array:
        values: Array = self._model.mean_probabilities(graph, self.run.device).numpy()
        return values

    def _rows(self, ids: Sequence[str | int], probabilities: Array) -> list[dict[str, Any]]:
        """Return predictions as plain values."""
        names = self.class_names
        rows: list[dict[str, Any]] = []
        if names:
            classes = predicted_classes(probabilities, self._model.mean_calibration[0]).tolist()
        for number, (name, values) in enumerate(zip(ids, probabilities.tolist(), strict=True)):
            row: dict[str, Any] = {"id": self._original(str(name))}
            if names:
                row["prediction"] = names[classes[number]]
                row["confidence"] = values[classes[number]]
                row["probabilities"] = dict(zip(names, values, strict=True))
            else:
                row["prediction"] = values[0]
                row["intervals"] = self._intervals(values[0])
            rows.append(row)
        return rows

    def _intervals(self, value: float) -> dict[str, float | None]:
        """Return the ends of a regression's intervals, such as "low_80"; None: infinite."""
        return {
            f"{end}_{100 * coverage:g}": None if half is None else value + sign * half
            for coverage, half in self._half_widths.items()
            for end, sign in (("low", -1), ("high", 1))
        }

    def _original(self, name: str) -> str | int:
        """Return an id of the type that it had in the node table."""
        return int(name) if self._has_whole_ids and name.isdecimal() else name


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
