"""HPGMNClassifier and HPGMNRegressor: fit and predict in the manner of scikit-learn."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, overload

import numpy as np
import torch
import yaml
from torch import Tensor

from hpgmn.base.calibration import Calibrator, calibrated_probabilities, decision_logits
from hpgmn.base.errors import GraphError, HPGMNError, SettingError
from hpgmn.base.files import write_error, write_text
from hpgmn.base.metrics import BALANCED_METRICS, plain_score, require_metric
from hpgmn.base.settings import make_settings, read_yaml, to_plain
from hpgmn.base.tasks import is_known, is_target
from hpgmn.evaluation.scores import scores
from hpgmn.explain import Explanation, ModelExplanation, explain_model, explain_node
from hpgmn.graph import Array, Graph, Split, Splits
from hpgmn.models import find_model, task_settings
from hpgmn.models.stage import Replica, require_task
from hpgmn.training.checks import check_split, class_number, positive_class, seen_labels
from hpgmn.training.ensemble import ENSEMBLE_FILE, MEMBERS_FOLDER
from hpgmn.training.replicas import fit_replicas
from hpgmn.training.saved import MODEL_FILE, SavedModel

logger = logging.getLogger(__name__)

PARAMETERS_FILE = "classifier.yaml"

_COMMON: dict[str, Any] = {
    "seed": 0,
    "model": "hpgmn",
    "device": "cpu",
    "metric": "accuracy",
    "positive": None,
    "calibrate": True,
}


class UnknownHyperparameterError(SettingError, TypeError):
    """A keyword that no setting has: an error of ours, and what Python raises for such a call."""


class _NodeEstimator:
    """What classifier and regressor have in common."""

    _common: ClassVar[Mapping[str, Any]] = _COMMON
    _is_regression: ClassVar[bool] = False
    seed: int
    model: str
    device: str
    metric: str
    positive: str | None
    calibrate: bool

    def __init__(self, **parameters: Any) -> None:
        self._store(parameters)

    def __init_subclass__(cls) -> None:
        """Give every keyword of the default model to help() and editors."""
        kind, defaults = inspect.Parameter.KEYWORD_ONLY, cls._defaults("hpgmn")
        cls.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, kind, default=value) for name, value in defaults.items()]
        )

    @classmethod
    def _defaults(cls, model: str) -> dict[str, Any]:
        """Return every hyperparameter with its default."""
        settings = find_model(model).settings
        own = {info.name: info.default for info in dataclasses.fields(settings)}
        changed = task_settings(settings, {}, is_regression=cls._is_regression)
        return {**cls._common, **own, **changed}

    def _store(self, parameters: dict[str, Any]) -> None:
        defaults = self._defaults(str(parameters.get("model", _COMMON["model"])))
        for name in parameters:
            if name not in defaults:
                raise UnknownHyperparameterError(
                    str(SettingError.unknown("hyperparameter", name, list(defaults)))
                )
        self._names = list(defaults)
        for name, default in defaults.items():
            setattr(self, name, parameters.get(name, default))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return every hyperparameter, as scikit-learn requires."""
        return {name: getattr(self, name) for name in self._names}

    def set_params(self, **parameters: Any) -> Self:
        """Change hyperparameters; with another model, those it does not know are dropped."""
        kept = self.get_params()
        if parameters.get("model", self.model) != self.model:
            known = self._defaults(str(parameters["model"]))
            for name in [name for name in kept if name not in known]:
                delattr(self, name)
                del kept[name]
        self._store(kept | parameters)
        return self

    def _changed(self) -> dict[str, Any]:
        """Return the hyperparameters that differ from their defaults."""
        defaults = self._defaults(self.model)
        return {name: value for name, value in self.get_params().items() if value != defaults[name]}

    def __repr__(self) -> str:
        changed = ", ".join(f"{key}={value!r}" for key, value in self._changed().items())
        return f"{type(self).__name__}({changed})"

    def _repr_html_(self) -> str:
        """Model, changed hyperparameters and what was fitted, for notebooks."""
        from hpgmn.graph.conversion import facts_html

        changed = ", ".join(
            f"{k}={to_plain(v)}" for k, v in self._changed().items() if k != "model"
        )
        facts = [("Model", self.model), ("Differs from the defaults", changed or "nothing")]
        if not hasattr(self, "saved_"):
            facts.append(("Fitted", "no: call fit(graph)"))
        else:
            facts += [("Fitted", "yes"), ("Classes", ", ".join(map(str, self.classes_)))]
        if hasattr(self, "val_score_"):  # a loaded model does not know it
            facts.append((f"Validation {self.metric}", f"{self.val_score_:.3f}"))
        return facts_html(type(self).__name__, facts)

    def fit(
        self, graph: Graph, split: int = 0, *, train: Array | None = None, val: Array | None = None
    ) -> Self:
        """Train on a stored split, or on the nodes of two masks.

        Args:
            split: the number of a stored split.
            train: (N,) mask of the train nodes, instead of a stored split.
            val: (N,) mask of the validation nodes, which choose the best epoch.
        """
        self._check_common()
        chosen = _split(graph, split, train, val)
        for line in check_split(graph, chosen, split if train is None else "given"):
            logger.warning("Graph '%s'. %s", graph.name, line)
        if graph.is_regression != self._is_regression:
            kind, other = "classes", "HPGMNClassifier"
            if graph.is_regression:
                kind, other = "numbers", "HPGMNRegressor"
            raise HPGMNError(f"The labels of '{graph.name}' are {kind}.", f"Use {other}")
        require_metric(self.metric, graph.num_classes, f"'{graph.name}'")
        labels = seen_labels(graph, [chosen])
        positive = positive_class(self.metric, labels, graph.class_names, self.positive)
        entry = find_model(self.model)
        values = {k: v for k, v in self.get_params().items() if k not in self._common}
        settings = make_settings(entry.settings, values)
        require_task(entry, settings, graph)
        fitted = fit_replicas(
            graph,
            entry,
            [Replica(split, self.seed, settings)],
            [(chosen.train, chosen.val)],
            device=self.device,
            metric=self.metric,
            positive=class_number(positive, graph.class_names),
        )
        self.positive_ = positive
        method = "affine" if values.get("class_weights", "none") != "none" else "temperature"
        self.saved_ = SavedModel.of(
            *(entry, fitted, graph, [chosen.train]),
            val=[chosen.val] if self.calibrate else None,
            calibrator=Calibrator(method, self.metric in BALANCED_METRICS),
        )
        self.classes_ = np.asarray(graph.class_names)
        self.val_score_ = plain_score(self.metric, float(fitted.val_score[0]))
        return self

    def _check_common(self) -> None:
        """Refuse invalid hyperparameters that are not settings of a model."""
        if isinstance(self.seed, bool) or not isinstance(self.seed, int | np.integer):
            raise SettingError(f"seed must be a whole number (got {self.seed!r}).")
        if not isinstance(self.calibrate, bool | np.bool_):
            raise SettingError(f"calibrate must be True or False (got {self.calibrate!r}).")
        for name, kinds in (("metric", str), ("positive", str | None)):
            if not isinstance(getattr(self, name), kinds):
                raise SettingError(f"{name} must be a name (got {getattr(self, name)!r}).")
        _require_device(self.device)

    def _require_fitted(self) -> SavedModel:
        if not hasattr(self, "saved_"):
            raise HPGMNError(f"This {type(self).__name__} is not fitted.", "Call fit(graph) first")
        return self.saved_

    def _require_usable(self) -> SavedModel:
        saved = self._require_fitted()
        _require_device(self.device)
        return saved

    def _decision_logits(self, graph: Graph) -> Tensor:
        saved = self._require_usable()
        return decision_logits(saved.logits(graph, self.device), saved.calibration)

    def score(self, graph: Graph, mask: Array | None = None) -> float:
        """Return the metric on the labelled nodes of a mask (all labelled nodes without one)."""
        saved = self._require_usable()
        chosen = is_known(graph.y)
        if mask is not None:
            if np.shape(mask) != chosen.shape:
                raise GraphError(
                    f"mask must be true or false for each of the {graph.num_nodes} nodes (got "
                    f"shape {np.shape(mask)})."
                )
            chosen = chosen & np.asarray(mask, bool)
        if not chosen.any():
            raise GraphError(
                "The mask holds no labelled node, so there is nothing to score.",
                "Give a mask of labelled nodes.",
            )
        number = class_number(self._positive_class(), saved.class_names)
        return scores(self._decision_logits(graph), graph.y, [chosen], self.metric, number)[0]

    def _positive_class(self) -> str | None:
        """Return the class that the metric looks for; of an earlier version's model the rarest."""
        named, saved = self.positive or getattr(self, "positive_", None), self.saved_
        return positive_class(self.metric, saved.train_labels, saved.class_names, named)

    @overload
    def explain(self, graph: Graph, node: None = None) -> ModelExplanation: ...

    @overload
    def explain(self, graph: Graph, node: int | str) -> Explanation: ...

    def explain(
        self, graph: Graph, node: int | str | None = None
    ) -> Explanation | ModelExplanation:
        """Explain why a node has its class, or what the whole model has learned.

        Args:
            graph: the training graph or another.
            node: the node's id (its position where the graph has no ids); None for the model.
        """
        saved = self._require_usable()
        if node is None:
            return explain_model(saved, graph, device=self.device)
        return explain_node(saved, graph, node, device=self.device)

    def save(self, folder: str | Path) -> None:
        """Write the trained model into a folder."""
        saved, target = self._require_fitted(), Path(folder)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(target, error) from None
        saved.write(target / MODEL_FILE)
        content = {name: to_plain(value) for name, value in self.get_params().items()}
        content["positive"] = self._positive_class()  # which may rest on validation nodes
        write_text(target / PARAMETERS_FILE, yaml.safe_dump(content, sort_keys=False))

    @classmethod
    def load(cls, folder: str | Path, model: str | None = None) -> Self:
        """Load a saved classifier, or the first replica of a run folder.

        Args:
            folder: what ``save`` or ``hpgmn train`` wrote.
            model: the name of your own model, where the folder holds one: only then is its code
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
        saved = SavedModel.read(source / MODEL_FILE, model).choose([0])
        if is_target(saved.train_labels) != cls._is_regression:
            kind = "HPGMNRegressor" if is_target(saved.train_labels) else "HPGMNClassifier"
            raise HPGMNError(f"{source} holds a model of {kind}.", f"Load it with {kind}")
        replica = saved.replicas[0]
        values = {
            i.name: getattr(replica.settings, i.name) for i in dataclasses.fields(replica.settings)
        }
        for name in (PARAMETERS_FILE, "config.yaml"):  # of save(), of a run
            if (source / name).is_file():
                content = read_yaml(source / name)
                stored = [n for n in ("metric", "positive", "calibrate") if n in cls._common]
                values |= {name: content.get(name, cls._common[name]) for name in stored}
                break
        loaded = cls(model=saved.entry.name, seed=replica.seed, **values)
        loaded.saved_ = saved
        loaded.classes_ = np.asarray(saved.class_names)
        return loaded


class HPGMNClassifier(_NodeEstimator):
    """A node classifier whose every hyperparameter is a keyword.

    Args:
        seed: the seed of the initial values and of dropout.
        model: "hpgmn", or another name of ``hpgmn models``.
        device: "cpu" or "cuda".
        metric: what chooses the best epoch on the validation nodes: accuracy, balanced_accuracy,
            macro_f1, roc_auc, average_precision or, for two classes, precision@K.
        positive: the class that average_precision and precision@K of two classes look for; None
            for the rarest among train and validation nodes.
        calibrate: whether probabilities are calibrated on the validation nodes.
        **settings: any key of ``hpgmn settings``; what is not given has its default.

    Learned attributes: ``saved_`` (the trained model), ``classes_`` (names), ``val_score_``.

    >>> from hpgmn import trading_network
    >>> graph = trading_network(num_nodes=200, seed=1).graph
    >>> model = HPGMNClassifier(seed=0, epochs=5, hidden_dim=8, neighbors="both")
    >>> model.fit(graph, split=0).predict(graph).shape
    (200,)
    """

    def predict_proba(self, graph: Graph) -> Array:
        """Return the (N, C) class probabilities of every node, of this graph or another."""
        saved = self._require_usable()
        logits = saved.logits(graph, self.device)
        return np.asarray(calibrated_probabilities(logits, saved.calibration)[0].numpy())

    def predict(self, graph: Graph) -> Array:
        """Return the (N,) class number of every node; ``classes_`` has the names."""
        return np.asarray(self._decision_logits(graph)[0].argmax(dim=-1).numpy())


class HPGMNRegressor(_NodeEstimator):
    """A node regressor whose every hyperparameter is a keyword: the labels are numbers.

    Args:
        seed: the seed of the initial values and of dropout.
        model: "hpgmn", or another name of ``hpgmn models``.
        device: "cpu" or "cuda".
        metric: what chooses the best epoch on the validation nodes: r2, rmse, mae or spearman.
        **settings: any key of ``hpgmn settings``; what is not given has its default.

    Learned attributes: ``saved_`` (the trained model) and ``val_score_``.

    >>> from hpgmn import random_splits
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(100, 3))
    >>> graph = Graph(x, random.integers(100, size=(2, 300)), x.sum(axis=1))
    >>> graph = graph.with_splits(random_splits(graph))
    >>> HPGMNRegressor(epochs=5, hidden_dim=8).fit(graph).predict(graph).shape
    (100,)
    """

    _common: ClassVar[Mapping[str, Any]] = {
        "seed": 0,
        "model": "hpgmn",
        "device": "cpu",
        "metric": "r2",
    }
    _is_regression = True
    positive, calibrate = None, False  # about classes

    def predict(self, graph: Graph) -> Array:
        """Return the (N,) predicted target of every node, of this graph or another."""
        saved = self._require_usable()
        return np.asarray(saved.logits(graph, self.device)[0, :, 0].numpy())


def _require_device(device: str) -> None:
    kind, _, number = str(device).partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise SettingError.unknown("device", str(device), ("cpu", "cuda"))
    if kind == "cuda" and not torch.cuda.is_available():
        raise HPGMNError("No CUDA device is available.", "Use device='cpu'.")


def _split(graph: Graph, number: int, train: Array | None, val: Array | None) -> Split:
    if train is None and val is None:
        return graph.split(number)
    if train is None or val is None:
        raise SettingError(
            "Only one of train and val is given.", "Give both, or the number of a stored split."
        )
    return graph.with_splits(Splits(train, val, np.zeros(graph.num_nodes, bool))).split(0)
