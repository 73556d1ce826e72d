"""A run as an object: returned by ``hpgmn.train``, or opened from its folder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpgmn.base.calibration import decision_logits, predicted_classes
from hpgmn.base.errors import HPGMNError, Remedy, SettingError
from hpgmn.base.files import atomic_write
from hpgmn.graph import Array, Graph
from hpgmn.runs.folder import (
    COMPARISON_FILE,
    GRAPH_FILE,
    METRICS_FILE,
    PREDICTIONS_FILE,
    backup_note,
)
from hpgmn.runs.outputs import read_metrics
from hpgmn.runs.spec import CONFIG_FILE, RunSpec, read_spec
from hpgmn.training.ensemble import ENSEMBLE, ENSEMBLE_FILE, Predictor, SavedEnsemble
from hpgmn.training.saved import MODEL_FILE, SavedModel

if TYPE_CHECKING:
    import pyarrow as pa

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
    _require_file(path, CONFIG_FILE)
    spec = read_spec(path)
    saved: Predictor
    if spec.model == ENSEMBLE:
        _require_file(path, ENSEMBLE_FILE)
        saved = SavedEnsemble.read(path, model)
    else:
        _require_file(path, MODEL_FILE)
        single = SavedModel.read(path / MODEL_FILE, model)
        single.require_stages()
        saved = single
    if spec.model != saved.name:
        raise HPGMNError(
            f"{path} holds the {CONFIG_FILE} of {spec.model} and the {MODEL_FILE} of {saved.name}.",
            "Restore the files of one run",
        )
    return Run(path, spec, saved, device=device)


def _require_file(folder: Path, name: str) -> None:
    """Refuse a folder without a file that every finished run has."""
    if not (folder / name).is_file():
        note = backup_note(folder)
        remedy = Remedy("Choose a folder of `hpgmn train`") | Remedy(
            "Resume the interrupted run", option="resume", value=True
        )
        raise HPGMNError(
            f"{folder} is not a finished run folder: {name} is missing. {note}".rstrip(), remedy
        )


@dataclass(frozen=True)
class Predictions:
    """Classes and probabilities of nodes, averaged over the seeds of one split.

    Attributes:
        node_ids: (M,) the nodes' ids, or their positions in a graph without ids.
        labels: (M,) names of the predicted classes, None below the required confidence.
        probabilities: (M, C) calibrated.
        class_names: C of them.
        split: whose models predict.
        seeds: how many were averaged; of an ensemble, members.
        num_new: nodes of the graph that the model was not trained on; None for the trained graph.
    """

    node_ids: Array
    labels: Array
    probabilities: Array
    class_names: tuple[str, ...]
    split: int
    seeds: int
    num_new: int | None

    @property
    def confidence(self) -> Array:
        """(M,) the probability of the most probable class."""
        return np.asarray(self.probabilities.max(axis=1))

    def to_table(self) -> pa.Table:
        """Return a pyarrow table: node_id, prediction, confidence and a probability per class."""
        import pyarrow as pa

        columns: dict[str, Any] = {
            "node_id": self.node_ids,
            "prediction": pa.array(self.labels.tolist(), pa.string()),
            "confidence": self.confidence,
        }
        for number, name in enumerate(self.class_names):
            columns[f"probability_{name}"] = self.probabilities[:, number]
        return pa.table(columns)

    def write(self, path: str | Path) -> None:
        """Write the table as FILE.csv or FILE.parquet; the write is atomic."""
        import pyarrow.csv
        import pyarrow.parquet

        target = Path(path)
        if target.suffix not in (".csv", ".parquet"):
            raise SettingError(f"The file must end in .csv or .parquet (got '{target}').")
        table = self.to_table()
        with atomic_write(target) as draft:
            if target.suffix == ".csv":
                pyarrow.csv.write_csv(table, draft)
            else:
                pyarrow.parquet.write_table(table, draft, write_page_checksum=True)


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
        score = self.metrics.get("test_score_mean")
        shown = "" if score is None else f", test {self.spec.metric} {100 * score:.1f} %"
        return f"Run({str(self.folder)!r}: {self.spec.model} on {self.metrics['graph']}{shown})"

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The content of ``metrics.json``."""
        return read_metrics(self.folder / METRICS_FILE)

    @cached_property
    def graph(self) -> Graph:
        """The graph that the run was trained on: its copy in the folder, or else its source."""
        from hpgmn.graph.datasets import load
        from hpgmn.graph.files import read_graph

        source, copy = self.spec.graph, self.folder / GRAPH_FILE
        remedy = Remedy("Restore it") | "Name the graph"
        if copy.is_file():
            remedy |= f"Delete it to read {source} instead"
        elif source.endswith(".npz") and not Path(source).exists():
            stored = self.folder / Path(source).name  # a graph in memory, by an earlier version
            source = str(stored) if stored.is_file() else source
        try:
            if copy.is_file():
                graph = read_graph(copy)
            else:
                graph = load(source, self.spec.protocol, **self._preparation(trained=True))
        except HPGMNError as error:
            remedy = remedy if error.remedy is None else error.remedy | remedy
            raise type(error)(error.message, remedy) from None
        if graph.fingerprint != self.model.metadata["fingerprint"]:
            source = str(copy) if copy.is_file() else self.spec.graph
            raise HPGMNError(f"{source} is no longer the graph the model was trained on.", remedy)
        return graph

    def _preparation(self, trained: bool = False) -> dict[str, Any]:
        fitted = self.model.metadata.get("preparation")  # earlier versions: none
        roles = fitted["roles"] if trained and fitted else {}
        dates = {name: roles[name] for name in ("edge_time", "as_of") if roles.get(name)}
        return {"preparation": fitted, "prepare": fitted is not None, **dates}

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
        options = {**self._preparation(), **(columns or {})}
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
    ) -> Predictions:
        """Predict the class of each node: averaged over seeds, never over splits.

        Args:
            graph: another graph; None for the trained one.
            split: whose models predict; None for the first.
            add: ``graph`` holds tables of new nodes and edges only, to be added to the trained
                graph.
            only_new: leave out the nodes that the model was trained on.
            min_confidence: below this confidence a prediction is None.
        """
        if not 0 <= min_confidence <= 1:
            raise SettingError(f"min_confidence must be 0 to 1 (got {min_confidence:g}).")
        loaded = self._resolve(graph, add)
        number, models = self.models_of(split)
        known = None if self._is_trained(loaded) else models.known_positions(loaded)
        new = None if known is None else np.flatnonzero(known < 0)
        nodes = self._new_nodes(loaded, new) if only_new else None
        probabilities = models.mean_probabilities(loaded, self.device, nodes=nodes).numpy()
        names = np.asarray(models.class_names, dtype=object)
        labels = names[predicted_classes(probabilities, models.mean_calibration[0])]
        labels[probabilities.max(axis=1) < min_confidence] = None
        ids = loaded.node_ids if loaded.node_ids is not None else np.arange(loaded.num_nodes)
        ids = ids if nodes is None else ids[nodes]
        if loaded.preparation is not None:
            from hpgmn.graph.conversion import original_ids

            ids = original_ids(ids, loaded.preparation)
        return Predictions(
            node_ids=ids,
            labels=labels,
            probabilities=probabilities,
            class_names=models.class_names,
            split=number,
            seeds=len(models.members if isinstance(models, SavedEnsemble) else models.replicas),
            num_new=None if new is None else len(new),
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
        *,
        add: bool = False,
        only_new: bool | None = None,
    ) -> dict[str, Any]:
        """Score the test nodes, or the labelled nodes of another graph, by metric and by class.

        Of another graph, nodes that the run was trained or validated on (by their ids) are left
        out.

        Args:
            graph: another graph; None for the trained one.
            add: ``graph`` holds tables of new nodes and edges only, to be added to the trained
                graph.
            only_new: score the nodes that the trained graph does not have [with ``add``].
        """
        from hpgmn.base.metrics import METRICS
        from hpgmn.evaluation.scores import Score, class_report, scores
        from hpgmn.training.checks import class_number, positive_class

        loaded, model = self._resolve(graph, add), self.model
        only_new = add if only_new is None else only_new
        if (loaded.y < 0).all():
            raise HPGMNError(
                f"Graph '{loaded.name}' has no labels to score against.",
                "Give labels, or predict instead",
            )
        if loaded.class_names[: len(model.class_names)] != model.class_names[: loaded.num_classes]:
            raise HPGMNError(
                f"The classes of '{loaded.name}' are not those of the model: "
                f"{', '.join(model.class_names)}.",
                "Give them in the same order",
            )
        is_trained = self._is_trained(loaded)
        if only_new:
            masks = self._new_masks(loaded)
        else:
            masks = self._test_masks(loaded) if is_trained else self._unseen_masks(loaded)
        logits = decision_logits(model.logits(loaded, self.device), model.calibration)
        metrics = list(dict.fromkeys([self.spec.metric, *METRICS]))  # that of the run first
        positive = self.spec.positive or positive_class(
            "average_precision", model.train_labels, model.class_names
        )
        number = class_number(positive, model.class_names)
        scored = {name: Score.of(scores(logits, loaded.y, masks, name, number)) for name in metrics}
        score = scored[self.spec.metric]
        left_out = [int((loaded.y >= 0).sum() - mask.sum()) for mask in masks]
        return {
            "graph": loaded.name,
            "model": self.spec.model,
            "nodes": "new nodes"
            if only_new
            else "test nodes"
            if is_trained
            else _scored_nodes(left_out),
            "runs": len(masks),
            **({} if is_trained else {"left_out": left_out}),
            "metric": self.spec.metric,
            "positive": positive,
            "score_mean": score.mean,
            "score_std": score.std,
            "score": list(score.values),
            "metrics": {
                name: {"mean": value.mean, "std": value.std} for name, value in scored.items()
            },
            "classes": class_report(
                logits.argmax(dim=-1).numpy(), loaded.y, masks, model.class_names
            ),
        }

    def _test_masks(self, graph: Graph) -> list[Array]:
        """Return the test nodes of each replica on the trained graph."""
        masks = [graph.split(replica.split).test for replica in self.model.replicas]
        if not all(mask.any() for mask in masks):
            raise HPGMNError(
                f"'{graph.name}' has splits without test nodes: nothing can be scored.",
                "Name another labelled graph",
            )
        if (np.stack(masks) & (self.model.train_labels >= 0)).any():
            raise HPGMNError(
                f"The splits of '{graph.name}' changed: train nodes of the model are test nodes "
                "now.",
                "Restore the splits, or train again",
            )
        return masks

    def _new_masks(self, graph: Graph) -> list[Array]:
        """Return the labelled nodes that the trained graph does not have, for each replica."""
        known = self.model.known_positions(graph)
        new = self._new_nodes(graph, None if known is None else np.flatnonzero(known < 0))
        mask = np.zeros(graph.num_nodes, bool)
        mask[new[graph.y[new] >= 0]] = True
        if not mask.any():
            raise HPGMNError(
                f"None of the {len(new):,} new nodes of '{graph.name}' has a label.",
                "Give labels, or predict instead",
            )
        return [mask for _ in self.model.replicas]

    def _unseen_masks(self, graph: Graph) -> list[Array]:
        """Return the labelled nodes of another graph that a replica has not seen."""
        from hpgmn.runs.outputs import read_used_ids

        known = graph.y >= 0
        if graph.node_ids is None or self.model.node_ids is None:
            return [known for _ in self.model.replicas]
        path = self.folder / PREDICTIONS_FILE
        used = read_used_ids(path) if path.is_file() else {}
        masks = []
        for replica, labels in zip(self.model.replicas, self.model.train_labels, strict=True):
            trained = self.model.node_ids[labels >= 0].tolist()
            ids = [*trained, *used.get(replica.split, ())]
            masks.append(known & ~np.isin(graph.node_ids, ids))
        if not all(mask.any() for mask in masks):
            raise HPGMNError(
                f"The run was trained or validated on every labelled node of '{graph.name}': "
                "nothing is left to score.",
                "Give other labelled nodes, or evaluate the trained graph",
            )
        return masks

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

    def report(self) -> Path:
        """Write ``report.html`` from the files of the run folder and return its path."""
        from hpgmn.runs.report_data import write_report

        return write_report(self.folder)


def _scored_nodes(left_out: list[int]) -> str:
    """Describe the scored nodes of another graph."""
    if not any(left_out):
        return "all labelled nodes"
    low, high = min(left_out), max(left_out)
    count = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"all labelled nodes but {count} that the run was trained or validated on"
