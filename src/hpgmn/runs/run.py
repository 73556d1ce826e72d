"""A run as an object: returned by ``hpgmn.train``, or opened from its folder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpgmn.base.calibration import decision_threshold, predicted_classes, threshold_offset
from hpgmn.base.errors import HPGMNError, Remedy, SettingError, format_score, unit_of
from hpgmn.base.tasks import is_known
from hpgmn.base.thresholds import choose_threshold, parse_threshold
from hpgmn.graph import Array, Graph
from hpgmn.graph.calibration import reserve_calibration
from hpgmn.runs.folder import (
    COMPARISON_FILE,
    HISTORY_FILE,
    METRICS_FILE,
    PREDICTIONS_FILE,
    preparation_options,
    read_trained_graph,
    require_file,
)
from hpgmn.runs.outputs import read_history, read_metrics
from hpgmn.runs.predictions import (
    Predictions,
    check_options,
    half_widths,
    ranked_class,
    reserved_sets,
)
from hpgmn.runs.spec import CONFIG_FILE, RunSpec, check_threshold, read_spec
from hpgmn.training.checks import class_number, positive_class
from hpgmn.training.ensemble import ENSEMBLE, ENSEMBLE_FILE, Predictor, SavedEnsemble
from hpgmn.training.saved import MODEL_FILE, SavedModel

if TYPE_CHECKING:
    from hpgmn.explain import EnsembleExplanation, Explanation, ModelExplanation

logger = logging.getLogger(__name__)


def open_run(folder: str | Path, model: str | None = None, device: str = "cpu") -> Run:
    """Open a finished run folder, also one of an earlier version.

    Args:
        folder: a folder that ``hpgmn.train`` or ``hpgmn train`` wrote.
        model: ``package.module:Class`` of your own model, where the run has one; only then is its
            code imported.
        device: where predictions are computed: "cpu" or "cuda".
    """
    path = Path(folder)
    if (path / COMPARISON_FILE).is_file():
        folders = sorted(str(config.parent) for config in path.glob(f"[!.]*/{CONFIG_FILE}"))
        raise HPGMNError(
            f"{path} holds the runs of several models.", f"Choose one: {', '.join(folders)}"
        )
    require_file(path, CONFIG_FILE)
    spec = read_spec(path)
    saved: Predictor
    if spec.model == ENSEMBLE:
        require_file(path, ENSEMBLE_FILE)
        saved = SavedEnsemble.read(path, model)
    else:
        require_file(path, MODEL_FILE)
        single = SavedModel.read(path / MODEL_FILE, model)
        single.require_stages()
        saved = single
    if spec.model != saved.name:
        raise HPGMNError(
            f"{path} holds the {CONFIG_FILE} of {spec.model} and the {MODEL_FILE} of {saved.name}.",
            "Restore the files of one run",
        )
    return Run(path, spec, saved, device=device)


class Run:
    """A trained run: predicts, evaluates and explains.

    The model and the trained graph are read once and kept; nothing is printed.

    Args:
        graph: the trained graph, if it is in memory.
        metrics: the content of ``metrics.json``, if it is in memory.
        device: where predictions are computed.
    """

    def __init__(
        self,
        folder: Path,
        spec: RunSpec,
        model: Predictor,
        *,
        graph: Graph | None = None,
        metrics: Mapping[str, Any] | None = None,
        device: str = "cpu",
    ) -> None:
        self.folder, self.spec, self.model, self.device = folder, spec, model, device
        self._by_split: dict[int, Predictor] = {}
        if graph is not None:
            self.graph = graph
        if metrics is not None:
            self.metrics = dict(metrics)

    def __repr__(self) -> str:
        score, metric = self.metrics.get("test_score_mean"), self.spec.metric
        about = f"{self.spec.model} on {self.metrics['graph']}"
        if score is not None:
            about += f", test {metric} {format_score(metric, score)}{unit_of(metric)}"
        return f"Run({str(self.folder)!r}: {about})"

    def _repr_html_(self) -> str:
        from hpgmn.report.notebook import run_html
        from hpgmn.runs.report_data import read_report_data

        return run_html(read_report_data(self.folder), repr(self))

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The content of ``metrics.json``."""
        return read_metrics(self.folder / METRICS_FILE)

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The learning curves: a row for each split, seed, stage and epoch (of each member)."""
        return read_history(self.folder / HISTORY_FILE)

    @cached_property
    def graph(self) -> Graph:
        """The graph that the run was trained on: its copy in the folder, or else its source."""
        return read_trained_graph(self.folder, self.spec, self.model.metadata)

    def load_graph(
        self,
        source: str | Path | None = None,
        *,
        add: bool = False,
        columns: Mapping[str, Any] | None = None,
        notify: Callable[[str], None] = logger.info,
    ) -> Graph:
        """Load a graph whose columns are prepared like those of the trained graph.

        Args:
            source: a dataset, graph file or tables; None for the trained graph.
            add: the tables hold only new nodes and edges, to be added to the trained graph.
            columns: the roles of columns, where names differ from those of the training.
            notify: called with remarks about the columns.
        """
        from hpgmn.graph.datasets import load

        if source is None:
            return self.graph.full
        if add:
            return load(source, **(columns or {}), onto=self.graph, log=notify)
        options = {**preparation_options(self.model.metadata), **(columns or {})}
        graph = load(source, **options, earlier_ids=self.model.node_ids, log=notify)
        if self.spec.protocol is not None and self._is_trained(graph):
            return load(source, self.spec.protocol)
        return graph

    def _resolve(self, graph: Graph | str | Path | None, add: bool = False) -> Graph:
        if isinstance(graph, Graph):
            if add:
                raise SettingError(
                    "A graph in memory is complete already.",
                    "Add to it with load(tables, onto=graph)",
                )
            return graph
        return self.load_graph(graph, add=add)

    def _is_trained(self, graph: Graph) -> bool:
        """Whether a graph is the trained one, also with later edges."""
        trained, fingerprint = self.__dict__.get("graph"), self.model.metadata["fingerprint"]
        return graph.fingerprint == fingerprint or (trained is not None and graph is trained.full)

    def models_of(self, split: int | None = None) -> tuple[int, Predictor]:
        """Return the number of a split (None: the first) and the models of its seeds."""
        number = self.spec.splits[0] if split is None else split
        if number not in self._by_split:
            replicas = self.model.replicas
            places = [place for place, replica in enumerate(replicas) if replica.split == number]
            if not places:
                known = ", ".join(map(str, self.spec.splits))
                raise HPGMNError(f"The run has no split {number}.", f"Choose from: {known}")
            is_all = len(places) == len(replicas)
            self._by_split[number] = self.model if is_all else self.model.choose(places)
        return number, self._by_split[number]

    def predict(
        self,
        graph: Graph | str | Path | None = None,
        split: int | None = None,
        *,
        add: bool = False,
        only_new: bool = False,
        min_confidence: float = 0.0,
        threshold: str | float | None = None,
        top: int | None = None,
        of: str | None = None,
        all_nodes: bool = False,
        coverage: float | None = None,
        by_class: bool = False,
    ) -> Predictions:
        """Predict the class or target of each node: averaged over seeds, never over splits.

        Args:
            graph: another graph; None for the trained one.
            split: whose models predict; None for the first.
            add: ``graph`` holds tables of new nodes and edges only, to be added to the trained
                graph.
            only_new: leave out the nodes that the model was trained on.
            min_confidence: below this confidence a prediction is None.
            threshold: of two classes, the probability from which the positive one is predicted, or
                a rule to choose it on validation nodes, such as "recall=0.8" [the run's].
            top: return this many nodes, those with the highest probability of a class first, with
                the main reason of each; of a regression those with the highest prediction.
            of: that class [the positive one of two].
            all_nodes: with ``top``, rank labelled nodes too [unlabelled ones only].
            coverage: give each node the smallest set of classes that holds the true one with this
                probability; for runs trained with ``conformal``.
            by_class: with ``coverage``, hold it for the nodes of each class.
        """
        check_options(bool(self.model.class_names), min_confidence, coverage, bool(threshold or of))
        ranked = ranked_class(top, of, self.model.class_names, lambda: self.positive)
        loaded = self._resolve(graph, add)
        number, models = self.models_of(split)
        known = None if self._is_trained(loaded) else models.known_positions(loaded)
        new = None if known is None else np.flatnonzero(known < 0)
        nodes = self._new_nodes(loaded, new) if only_new else None
        if top is not None and not all_nodes:
            nodes = self._unlabelled_nodes(loaded, nodes)
        probabilities = models.mean_probabilities(loaded, self.device, nodes=nodes).numpy()
        reasons = None
        if ranked is not None:
            from hpgmn.explain.reasons import main_reasons

            order = np.argsort(-probabilities[:, ranked], kind="stable")[:top]
            probabilities = probabilities[order]
            nodes = order if nodes is None else nodes[order]
            if models.class_names:
                reasons = main_reasons(models, loaded, nodes, ranked, self.device)
        calibration = models.mean_calibration[0]
        if threshold is not None:
            calibration = calibration.copy()
            calibration[2] = self._threshold_offset(str(threshold), number)
        names = np.asarray(models.class_names, dtype=object)
        confidence = np.empty(0)
        if names.size:
            classes = predicted_classes(probabilities, calibration)
            confidence = probabilities[np.arange(len(classes)), classes]
            labels = names[classes]
            labels[confidence < min_confidence] = None
        else:
            labels, probabilities = probabilities[:, 0], probabilities[:, :0]
        sets = None
        if coverage is not None:
            sets = self._prediction_sets(probabilities, number, coverage, by_class)
        ids = loaded.node_ids if loaded.node_ids is not None else np.arange(loaded.num_nodes)
        ids = ids if nodes is None else ids[nodes]
        if loaded.preparation is not None:
            from hpgmn.graph.conversion import original_ids

            ids = original_ids(ids, loaded.preparation)
        return Predictions(
            node_ids=ids,
            labels=labels,
            confidence=confidence,
            probabilities=probabilities,
            class_names=models.class_names,
            split=number,
            seeds=len(models.members if isinstance(models, SavedEnsemble) else models.replicas),
            num_new=None if new is None else len(new),
            of=None if ranked is None or not names.size else str(names[ranked]),
            reasons=reasons,
            half_widths={} if names.size else half_widths(self.metrics, number),
            sets=sets,
            threshold=(
                (str(names[self.positive]), decision_threshold(calibration, self.positive))
                if names.size == 2 and calibration[2].any()
                else None
            ),
        )

    @property
    def positive(self) -> int:
        """The positive class of two: that of the metric, or the rarer one."""
        recorded = self.spec.positive or self.metrics.get("ranking", {}).get("positive")
        labels, names = self.model.train_labels, self.model.class_names
        return class_number(positive_class("average_precision", labels, names, recorded), names)

    def _unlabelled_nodes(self, graph: Graph, nodes: Array | None) -> Array:
        """Return the positions without a label, among some nodes or all."""
        chosen = np.arange(graph.num_nodes) if nodes is None else nodes
        unlabelled = chosen[~is_known(graph.y[chosen])]
        if not unlabelled.size:
            remedy = Remedy("Rank all nodes", option="all_nodes", value=True, flag="all-nodes")
            raise HPGMNError(f"Every node of '{graph.name}' has a label already.", remedy)
        return np.asarray(unlabelled)

    def _threshold_offset(self, rule: str, split: int) -> Array:
        """Return the decision offset (2,) of a threshold, chosen on validation nodes."""
        names = self.model.class_names
        check_threshold(rule, len(names), self.model.metadata["graph"])
        chances, is_positive = np.zeros(0), np.zeros(0, bool)
        if parse_threshold(rule).kind != "value":
            if self.spec.refit:
                raise SettingError(
                    "The model was trained again on the validation nodes, so none are left to "
                    "choose a threshold on.",
                    Remedy("Give a probability", option="threshold", value=0.5)
                    | Remedy("Choose it in training", command="train", option="threshold"),
                )
            found, labels = self._predict_part(split, "val")
            chances, is_positive = found[:, self.positive], labels == self.positive
        value = choose_threshold(rule, chances, is_positive, logger.warning)
        return threshold_offset(value, self.positive)

    def _predict_part(self, number: int, part: str) -> tuple[Array, Array]:
        """Return probabilities (n, C) and labels (n,) of the nodes of one role in a split."""
        split = self.graph.split(number)
        if self.spec.conformal:
            split = reserve_calibration(split, number, self.graph.node_ids)
        nodes = np.flatnonzero(getattr(split, part))
        models = self.models_of(number)[1]
        # Selection sees no later edges; reserved nodes stand for those to predict.
        graph = self.graph if part == "val" else self.graph.full
        chances = models.mean_probabilities(graph, self.device, nodes=nodes)
        return chances.numpy(), self.graph.y[nodes]

    def _prediction_sets(
        self, probabilities: Array, split: int, coverage: float, by_class: bool
    ) -> Array:
        """Return (M, C) the classes in the set of each node, from the nodes reserved for it."""
        if not self.spec.conformal:
            raise SettingError(
                "The run has reserved no nodes for prediction sets.",
                Remedy("Train it with some", command="train", option="conformal", value=True),
            )
        reserved = self._predict_part(split, "calibration")
        return reserved_sets(
            probabilities, *reserved, self.model.class_names, coverage, by_class=by_class
        )

    def _new_nodes(self, graph: Graph, new: Array | None) -> Array:
        """Return the positions of new nodes, or refuse where none can be recognised."""
        remedy = Remedy("Predict all nodes", option="only_new", value=False, flag="all-nodes")
        if self.model.node_ids is None or graph.node_ids is None:
            raise HPGMNError(
                "New nodes are recognised by node_ids, and one of the graphs has none.", remedy
            )
        if new is None or not len(new):
            raise HPGMNError(
                f"The model was trained on every node of '{graph.name}': none is new.", remedy
            )
        return new

    def evaluate(
        self,
        graph: Graph | str | Path | None = None,
        metrics: str | Sequence[str] | None = None,
        *,
        add: bool = False,
        only_new: bool | None = None,
    ) -> dict[str, Any]:
        """Score the test nodes, or the labelled nodes of another graph, by metric and by class.

        Test nodes are scored from the predictions that the training stored. Of another graph, nodes
        that the run was trained or validated on (by their ids) are left out.

        Args:
            graph: another graph; None for the trained one.
            metrics: names of metrics, in a list or with commas [that of the run and all others but
                precision@K].
            add: ``graph`` holds tables of new nodes and edges only, to be added to the trained
                graph.
            only_new: score the nodes that the trained graph does not have [with ``add``].
        """
        from hpgmn.runs.evaluation import (
            metric_names,
            predict_labelled,
            score_intervals,
            score_predictions,
            stored_predictions,
        )

        model, trained = self.model, self.model.metadata["graph"]
        names = metric_names(metrics, self.spec.metric, len(model.class_names), trained)
        stored = self.folder / PREDICTIONS_FILE
        if graph is None and stored.is_file():
            about: dict[str, Any] = {"graph": trained, "nodes": "test nodes"}
            logits, y, masks = stored_predictions(model, stored)
        else:
            loaded, new = self._resolve(graph, add), None
            if add if only_new is None else only_new:
                known = model.known_positions(loaded)
                new = self._new_nodes(loaded, None if known is None else np.flatnonzero(known < 0))
            logits, masks, about = predict_labelled(model, loaded, self.device, self.folder, new)
            y = loaded.y
        positive = self.positive if len(model.class_names) == 2 else 1
        scored = score_predictions(logits, y, masks, names, model.class_names, positive)
        if len(model.class_names) == 2:
            scored["threshold"] = [decision_threshold(row, positive) for row in model.calibration]
        if not model.class_names:
            scored["intervals"] = score_intervals(logits, y, masks, self.metrics)
        return {"model": self.spec.model, **about, **scored}

    def explain(
        self,
        node: int | str | None = None,
        *,
        split: int | None = None,
        graph: Graph | str | Path | None = None,
        add: bool = False,
    ) -> Explanation | ModelExplanation | EnsembleExplanation:
        """Explain the class of a node, or what the model has learned (None).

        Args:
            node: the node's id, or its position in a graph without ids.
            split: whose models are explained; None for the first.
            graph: another graph; None for the trained one.
            add: ``graph`` holds tables of new nodes and edges only, to be added to the trained
                graph.
        """
        loaded = self._resolve(graph, add)
        _, models = self.models_of(split)
        if isinstance(models, SavedEnsemble):
            from hpgmn.explain.ensemble import explain_ensemble

            return explain_ensemble(models, loaded, node, device=self.device)
        assert isinstance(models, SavedModel)
        if node is None:
            from hpgmn.explain.model import explain_model

            return explain_model(models, loaded, device=self.device)
        from hpgmn.explain.node import explain_node

        return explain_node(models, loaded, node, device=self.device)

    def statistics(
        self,
        graph: Graph | str | Path | None = None,
        nodes: Sequence[int | str] | None = None,
        *,
        split: int | None = None,
    ) -> dict[str, Array]:
        """Return the rows that the model reads of its statistics: the inputs of the ONNX file.

        Args:
            graph: another graph; None for the trained one.
            nodes: ids, or positions in a graph without ids; None for all.
            split: whose models read them; None for the first.

        Returns:
            By name (M, width), or (seeds, M, width) if the rows differ between several seeds.
        """
        from hpgmn.explain.node import find_node
        from hpgmn.runs.export import require_rows, statistic_rows

        model = require_rows(self.models_of(split)[1], self.folder)
        loaded = self._resolve(graph)
        chosen = None if nodes is None else [find_node(loaded, node) for node in nodes]
        return statistic_rows(model, loaded, chosen, self.device)

    def export_onnx(self, path: str | Path, split: int | None = None) -> Path:
        """Write the models of a split as ONNX, with a description of the inputs beside it.

        Args:
            split: whose models; None for the first.

        Returns:
            The path of the description, ``path`` with ".json" added.
        """
        from hpgmn.runs.export import export_onnx, require_rows

        model, features = require_rows(self.models_of(split)[1], self.folder), None
        with suppress(HPGMNError):  # the graph may be gone
            features = self.graph.feature_names
        return export_onnx(model, Path(path), features)

    def report(self) -> Path:
        """Write ``report.html`` from the files of the run folder and return its path."""
        from hpgmn.runs.report_data import write_report

        return write_report(self.folder)
