"""The estimator that HPGMNClassifier and HPGMNRegressor share: fitting, scoring, saving."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, cast, overload

import numpy as np
import torch
import yaml
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    column_or_1d,
    validate_data,
)
from torch import Tensor, nn
from torch.nn.functional import pad

from hpgmn.base.calibration import Calibrator, decision_logits
from hpgmn.base.errors import HPGMNError, Remedy, SettingError
from hpgmn.base.files import write_error, write_text
from hpgmn.base.metrics import BALANCED_METRICS, plain_score, require_metric
from hpgmn.base.settings import FitSettings, make_settings, read_yaml, settings_names
from hpgmn.base.tasks import is_target
from hpgmn.estimators.inputs import (
    InputError,
    choose_split,
    class_numbers,
    class_values,
    edgeless_graph,
    label_nodes,
    labelled_nodes,
    node_positions,
    pick_labels,
    split_labelled,
    to_graph,
)
from hpgmn.estimators.parameters import CommonParameters, Parameters
from hpgmn.evaluation.scores import scores
from hpgmn.explain import Explanation, ModelExplanation, explain_model, explain_node
from hpgmn.explain.replicas import memory_head, open_replicas
from hpgmn.graph import Array, Graph, Split
from hpgmn.models import find_model, task_settings
from hpgmn.models.custom import require_importable
from hpgmn.models.stage import Replica, require_task
from hpgmn.training.checks import check_split, class_number, positive_class, seen_labels
from hpgmn.training.ensemble import ENSEMBLE_FILE, MEMBERS_FOLDER
from hpgmn.training.replicas import Progress, fit_replicas
from hpgmn.training.saved import MODEL_FILE, SavedModel

logger = logging.getLogger(__name__)

PARAMETERS_FILE = "classifier.yaml"

_SETTINGS = set(Parameters.__dataclass_fields__) - set(CommonParameters.__dataclass_fields__)
_STORED = ("metric", "positive", "calibrate")  # of PARAMETERS_FILE and of a run's config.yaml


class UnfittedError(HPGMNError, NotFittedError):  # type: ignore[misc]
    """An estimator is used before ``fit``: an error of ours, and the one of scikit-learn."""


class MissingPartError(HPGMNError, AttributeError):
    """The model has no such part, for example no memory."""


class NodeEstimator(Parameters, BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor have in common."""

    _is_regression: ClassVar[bool] = False

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that tables may be sparse."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __sklearn_clone__(self) -> Self:
        """Share graph and callbacks: each fold of a search would copy them."""
        values = {
            name: value if name in ("graph", "callbacks") else clone(value, safe=False)
            for name, value in self.get_params(deep=False).items()
        }
        copied = type(self)(**values)
        if hasattr(self, "_metadata_request"):
            copied._metadata_request = clone(self._metadata_request, safe=False)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the trained model as the bytes of its safetensors file."""
        state = dict(vars(self))
        if "saved_" in state:
            require_importable(self.model)
            with tempfile.TemporaryDirectory() as folder:
                self.saved_.write(Path(folder) / MODEL_FILE)
                content = (Path(folder) / MODEL_FILE).read_bytes()
            state["saved_"] = (self.saved_.entry.name, content)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "saved_" in state:
            with tempfile.TemporaryDirectory() as folder:
                path, (model, content) = Path(folder) / MODEL_FILE, state["saved_"]
                path.write_bytes(content)
                self.saved_ = SavedModel.read(path, model)

    @property
    def _metric(self) -> str:
        return self.metric or ("r2" if self._is_regression else "accuracy")

    # Fitting.

    def fit(
        self,
        X: Any,
        y: Any = None,
        split: int = 0,
        *,
        train: Array | None = None,
        val: Array | None = None,
    ) -> Self:
        """Train on the splits of a graph, on nodes of the parameter ``graph``, or on a table.

        Args:
            X: a graph (also of PyTorch Geometric or networkx); (n,) positions or ids of nodes of
                ``graph``; without ``graph`` a table (n, F) of numbers.
            y: (n,) labels of nodes or rows. Of nodes they default to those of the graph; only the
                labels passed are used. With a graph: the number of the split.
            split: the number of a stored split of a graph.
            train: (N,) mask of the train nodes of a graph, instead of a stored split.
            val: (N,) mask of the validation nodes, which choose the best epoch.
        """
        self._check_common()
        graph = to_graph(X)
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)  # of an earlier fit on another kind of input
        if graph is not None:
            number = split if y is None else y
            chosen = choose_split(graph, number, train, val)
            self._fit(graph, chosen, {}, int(number) if train is None else None)
            self._set_classes(class_values(graph.class_names))
            return self
        if train is not None or val is not None or split:
            raise SettingError("split, train and val are about a graph.", "Pass fit(graph)")
        defaults: dict[str, Any] = {}
        if self.graph is None:
            X, y = validate_data(self, X, y, accept_sparse="csr", y_numeric=self._is_regression)
            graph, nodes = edgeless_graph(X), np.arange(X.shape[0])
            defaults["statistics"] = ("attributes",)  # all that other rows have
        else:
            graph = self._own_graph()
            nodes = node_positions(graph, X)
            y = pick_labels(graph, nodes) if y is None else column_or_1d(y, warn=True)
            kind = "numeric" if self._is_regression else None
            y = check_array(y, ensure_2d=False, dtype=kind, input_name="y")
            check_consistent_length(nodes, y)
        if not self._is_regression:
            check_classification_targets(y)
        graph, classes = label_nodes(graph, nodes, y, is_regression=self._is_regression)
        self._fit(graph, split_labelled(graph, self.validation_fraction, self.seed), defaults)
        self._set_classes(classes)
        return self

    def _own_graph(self, preparation: Mapping[str, Any] | None = None) -> Graph:
        graph = to_graph(self.graph, preparation)
        if graph is None:
            raise SettingError(
                f"graph must be a graph (got {type(self.graph).__name__}).",
                "Pass an hpgmn.Graph, or one of PyTorch Geometric or networkx",
            )
        return graph

    def _set_classes(self, classes: Array) -> None:
        if not self._is_regression:
            self.classes_ = classes

    def _fit(
        self, graph: Graph, chosen: Split, defaults: dict[str, Any], number: int | None = None
    ) -> None:
        """Train on a split, which has a number if the graph stores it."""
        for line in check_split(graph, chosen, "given" if number is None else number):
            logger.warning("Graph '%s'. %s", graph.name, line)
        if graph.is_regression != self._is_regression:
            kind, other = "classes", "HPGMNClassifier"
            if graph.is_regression:
                kind, other = "numbers", "HPGMNRegressor"
            raise HPGMNError(f"The labels of '{graph.name}' are {kind}.", f"Use {other}")
        metric = self._metric
        require_metric(metric, graph.num_classes, f"'{graph.name}'")
        labels = seen_labels(graph, [chosen])
        requested = None if self.positive is None else str(self.positive)
        positive = positive_class(metric, labels, graph.class_names, requested)
        entry = find_model(self.model)
        settings = make_settings(entry.settings, self._settings(entry.settings, defaults))
        require_task(entry, settings, graph)

        def report(progress: Progress) -> None:
            if progress.is_epoch:
                for callback in self.callbacks or ():
                    callback(progress)

        fitted = fit_replicas(
            graph,
            entry,
            [Replica(number or 0, self.seed, settings)],
            [(chosen.train, chosen.val)],
            device=self.device,
            metric=metric,
            positive=class_number(positive, graph.class_names),
            report=report if self.callbacks else None,
        )
        self.positive_ = positive
        method = "affine" if getattr(settings, "class_weights", "none") != "none" else "temperature"
        self.saved_ = SavedModel.of(
            *(entry, fitted, graph, [chosen.train]),
            val=[chosen.val] if self.calibrate else None,
            calibrator=Calibrator(method, metric in BALANCED_METRICS),
        )
        self.val_score_ = plain_score(metric, float(fitted.val_score[0]))
        self.history_ = [
            {"stage": stage, "epoch": epoch, **dict(zip(columns, row, strict=True))}
            for stage, columns in fitted.history.items()
            for epoch, row in enumerate(torch.stack([*columns.values()])[..., 0].T.tolist(), 1)
        ]
        self.n_iter_ = sum(row["stage"] == self.history_[-1]["stage"] for row in self.history_)

    def _settings(self, kind: type[FitSettings], defaults: dict[str, Any]) -> dict[str, Any]:
        """Return the settings that are not the model's own defaults."""
        parameters = self.get_params(deep=False).items()
        named = {k: v for k, v in parameters if v is not None and k in _SETTINGS}
        if twice := named.keys() & (self.settings or {}):
            raise SettingError(f"{sorted(twice)[0]} is given twice.", "Leave it out of settings")
        known = settings_names(kind)
        values = {name: value for name, value in defaults.items() if name in known}
        values |= {**(self.settings or {}), **named}
        return task_settings(kind, values, is_regression=self._is_regression)

    def _check_common(self) -> None:
        """Refuse invalid parameters that are not settings of a model."""
        if isinstance(self.seed, bool) or not isinstance(self.seed, int | np.integer):
            raise SettingError(f"seed must be a whole number (got {self.seed!r}).")
        for name, kinds, expected in (
            ("calibrate", bool | np.bool_, "True or False"),
            ("metric", str | None, "a name"),
            ("positive", str | int | np.integer | None, "the name of a class"),
            ("model", str | type, "the name of a model, or a class"),
            ("settings", Mapping | None, "a dict"),
        ):
            if not isinstance(getattr(self, name), cast(Any, kinds)):
                raise SettingError(f"{name} must be {expected} (got {getattr(self, name)!r}).")
        is_list = isinstance(self.callbacks, Sequence | None)
        if not is_list or not all(map(callable, self.callbacks or ())):
            raise SettingError(f"callbacks must be a list of functions (got {self.callbacks!r}).")
        _require_device(self.device)

    def _require_fitted(self) -> SavedModel:
        if not hasattr(self, "saved_"):
            name = type(self).__name__
            raise UnfittedError(f"This {name} is not fitted.", "Call fit(graph) first")
        return self.saved_

    # Using the trained model.

    def _locate(self, X: Any) -> tuple[Graph, Array | None]:
        """Return the graph to predict on and the nodes of X, None where X is a graph."""
        preparation = self._require_fitted().metadata.get("preparation")
        _require_device(self.device)
        graph = to_graph(X, preparation)
        if graph is not None:
            return graph, None
        if hasattr(self, "n_features_in_"):
            X = validate_data(self, X, accept_sparse="csr", reset=False)
            return edgeless_graph(X), np.arange(X.shape[0])
        if self.graph is None:
            raise InputError(
                f"The model was trained on a graph (got {type(X).__name__}).",
                Remedy("Pass a graph") | Remedy("Name the graph of these nodes", option="graph"),
            )
        graph = self._own_graph(preparation)
        return graph, node_positions(graph, X)

    def _of_nodes(self, X: Any, compute: Callable[[Graph], Tensor]) -> Array:
        """Return the rows of X of what is computed for all nodes of a graph."""
        graph, nodes = self._locate(X)
        values = compute(graph).cpu().numpy()
        return np.asarray(values if nodes is None else values[nodes])

    def _logits(self, graph: Graph) -> Tensor:
        return self.saved_.logits(graph, self.device)

    def _decision_logits(self, graph: Graph) -> Tensor:
        return decision_logits(self._logits(graph), self.saved_.calibration)

    def score(
        self, X: Any, y: Any = None, *, mask: Array | None = None, metric: str | None = None
    ) -> float:
        """Return the metric of labelled nodes or rows.

        Args:
            X: a graph, nodes or a table, as in :meth:`predict`.
            y: (n,) labels of nodes or rows; those of nodes default to the graph's. With a graph
                (N,) the mask of the nodes to score [all labelled ones].
            mask: the same by name.
            metric: instead of the parameter ``metric``. Of nodes and rows rmse and mae are
                negative, since searches of scikit-learn maximise.
        """
        graph, nodes = self._locate(X)
        saved, metric = self.saved_, metric or self._metric
        require_metric(metric, len(saved.class_names), f"'{graph.name}'")
        number = class_number(self._positive_class(metric), saved.class_names)
        is_graph = nodes is None
        if nodes is None:
            nodes, y = labelled_nodes(graph, y if mask is None else mask), None
        is_named = y is None  # labels of a graph are the names of its classes
        y = pick_labels(graph, nodes) if is_named else column_or_1d(y)
        check_consistent_length(nodes, y)
        logits = self._decision_logits(graph)[:, nodes]
        if self._is_regression:
            labels = np.asarray(y, np.float64)
        else:
            classes = class_values(saved.class_names) if is_named else self.classes_
            labels, unseen = class_numbers(classes, y)
            # A class that was not seen in training is never predicted.
            logits = pad(logits, (0, unseen), value=float(logits.min()) - 100)
        value = scores(logits, labels, [np.ones(len(labels), bool)], metric, number)[0]
        return value if is_graph else plain_score(metric, value)

    def _positive_class(self, metric: str) -> str | None:
        """Return the class that the metric looks for; of an earlier version's model the rarest."""
        saved = self.saved_
        named = getattr(self, "positive_", None) if self.positive is None else str(self.positive)
        return positive_class(metric, saved.train_labels, saved.class_names, named)

    def embed(self, X: Any) -> Array:
        """Return (n, D) what the memory compares with its patterns: the query of each node."""

        def queries(graph: Graph) -> Tensor:
            view = open_replicas(self.saved_, graph, self.device)[0]
            if memory_head(view.stage.model) is None:
                raise self._missing("query")
            return view.queries(np.arange(graph.num_nodes))

        return self._of_nodes(X, queries)

    def attention(self, X: Any) -> Array:
        """Return (n, K) the attention of each node over the patterns of the memory."""

        def attention(graph: Graph) -> Tensor:
            values = open_replicas(self.saved_, graph, self.device)[0].attention
            if values is None:
                raise self._missing("memory")
            return values

        return self._of_nodes(X, attention)

    @property
    def patterns_(self) -> Array:
        """(K, D) the patterns of the memory."""
        parameters = list(self._require_fitted().done.values())[-1]
        if "head.memory.patterns" not in parameters:
            raise self._missing("memory")
        return np.asarray(parameters["head.memory.patterns"][0].numpy())

    def _missing(self, part: str) -> MissingPartError:
        return MissingPartError(
            f"The model {self.saved_.name} was trained without a {part}.",
            Remedy("Train hpgmn with its memory", option="model", value="hpgmn"),
        )

    @overload
    def explain(self, graph: Any, node: None = None) -> ModelExplanation: ...

    @overload
    def explain(self, graph: Any, node: int | str) -> Explanation: ...

    def explain(self, graph: Any, node: int | str | None = None) -> Explanation | ModelExplanation:
        """Explain why a node has its class, or what the whole model has learned.

        Args:
            graph: the training graph or another.
            node: the node's id (its position where the graph has no ids); None for the model.
        """
        found, _ = self._locate(graph)
        if node is None:
            return explain_model(self.saved_, found, device=self.device)
        return explain_node(self.saved_, found, node, device=self.device)

    def save(self, folder: str | Path) -> None:
        """Write the trained model into a folder; the graph is not written."""
        saved, target = self._require_fitted(), Path(folder)
        require_importable(self.model)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(target, error) from None
        saved.write(target / MODEL_FILE)
        content = {
            "model": saved.entry.name,
            "metric": self._metric,
            "positive": self._positive_class(self._metric),  # may rest on validation nodes
            "calibrate": bool(self.calibrate),
            "classes": getattr(self, "classes_", np.empty(0)).tolist(),
            "n_features_in": getattr(self, "n_features_in_", None),
        }
        write_text(target / PARAMETERS_FILE, yaml.safe_dump(content, sort_keys=False))

    @classmethod
    def load(cls, folder: str | Path, model: str | type[nn.Module] | None = None) -> Self:
        """Load a saved estimator, or the first replica of a run folder.

        Args:
            folder: what ``save`` or ``hpgmn train`` wrote.
            model: your own model or its name, where the folder holds one: only then is its code
                imported.
        """
        source = Path(folder)
        if (source / ENSEMBLE_FILE).is_file():
            raise HPGMNError(
                f"{source} holds an ensemble, not one model.",
                f"Open it with hpgmn.open_run, or load one of {source / MEMBERS_FOLDER}",
            )
        if not (source / MODEL_FILE).is_file():
            raise HPGMNError(
                f"{source} holds no {MODEL_FILE}.",
                "Give a folder that save() or `hpgmn train` wrote.",
            )
        name = find_model(model).name if isinstance(model, type) else model
        saved = SavedModel.read(source / MODEL_FILE, name).choose([0])
        if is_target(saved.train_labels) != cls._is_regression:
            kind = "HPGMNRegressor" if is_target(saved.train_labels) else "HPGMNClassifier"
            raise HPGMNError(f"{source} holds a model of {kind}.", f"Load it with {kind}")
        replica, content = saved.replicas[0], {}
        settings = dict(vars(replica.settings))
        values = {name: settings.pop(name) for name in list(settings) if name in _SETTINGS}
        for name in (PARAMETERS_FILE, "config.yaml"):  # of save(), of a run
            if (source / name).is_file():
                content = read_yaml(source / name)
                values |= {name: content[name] for name in _STORED if name in content}
                break
        loaded = cls(model=saved.entry.name, seed=replica.seed, settings=settings or None, **values)
        loaded.saved_ = saved
        classes = content.get("classes") or ()
        is_same = list(map(str, classes)) == list(saved.class_names)
        loaded._set_classes(np.asarray(classes) if is_same else class_values(saved.class_names))
        if content.get("n_features_in"):
            loaded.n_features_in_ = saved.metadata["num_features"]
        return loaded


def _require_device(device: str) -> None:
    kind, _, number = str(device).partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise SettingError.unknown("device", str(device), ("cpu", "cuda"))
    if kind == "cuda" and not torch.cuda.is_available():
        raise HPGMNError("No CUDA device is available.", "Use device='cpu'.")
