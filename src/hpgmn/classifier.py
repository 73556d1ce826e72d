"""HPGMNClassifier: fit and predict on a graph, in the manner of scikit-learn."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
import yaml
from torch import Tensor

from hpgmn.base.errors import GraphError, HPGMNError, SettingError
from hpgmn.base.files import write_error, write_text
from hpgmn.base.metrics import calibrated_probabilities, require_metric
from hpgmn.base.settings import make_settings, read_yaml, to_plain
from hpgmn.evaluation.scores import scores
from hpgmn.explain import Explanation, ModelExplanation, explain_model, explain_node
from hpgmn.graph import Array, Graph, Split, Splits
from hpgmn.models import find_model
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.models.stage import Replica
from hpgmn.training.checks import check_split, class_number, positive_class, seen_labels
from hpgmn.training.replicas import fit_replicas
from hpgmn.training.saved import MODEL_FILE, SavedModel

logger = logging.getLogger(__name__)

PARAMETERS_FILE = "classifier.yaml"

_OWN: dict[str, Any] = {
    "seed": 0,
    "model": "hpgmn",
    "device": "cpu",
    "metric": "accuracy",
    "positive": None,
    "calibrate": True,
}


def _signature() -> inspect.Signature:
    """Every keyword of the default model, for help() and editors."""
    values = _OWN | {info.name: info.default for info in dataclasses.fields(HPGMNSettings)}
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
            for name, value in values.items()
        ]
    )


class UnknownHyperparameterError(SettingError, TypeError):
    """A keyword that no setting has: an error of ours, and what Python raises for such a call."""


class HPGMNClassifier:
    """A node classifier whose every hyperparameter is a keyword.

    Args:
        seed: the seed of the initial values and of dropout.
        model: "hpgmn", or another name of ``hpgmn models``.
        device: "cpu" or "cuda".
        metric: what chooses the best epoch on the validation nodes: accuracy, balanced_accuracy,
            macro_f1, roc_auc, average_precision or, for two classes, precision@K.
        positive: the class that average_precision and precision@K of two classes look for; None
            for the rarest among train and validation nodes.
        calibrate: whether probabilities are scaled by a temperature fitted to the validation nodes;
            the predicted classes are the same.
        **settings: any key of ``hpgmn settings``; what is not given has its default.

    Learned attributes: ``saved_`` (the trained model), ``classes_`` (names), ``val_score_``.

    >>> from hpgmn import trading_network
    >>> graph = trading_network(num_nodes=200, seed=1).graph
    >>> model = HPGMNClassifier(seed=0, epochs=5, hidden_dim=8, neighbors="both")
    >>> model.fit(graph, split=0).predict(graph).shape
    (200,)
    """

    __signature__ = _signature()
    seed: int
    model: str
    device: str
    metric: str
    positive: str | None
    calibrate: bool

    def __init__(self, **parameters: Any) -> None:
        self._store(parameters)

    def _store(self, parameters: dict[str, Any]) -> None:
        values = _OWN | parameters
        name = values["model"]
        entry = find_model(str(name))
        known = {info.name: info.default for info in dataclasses.fields(entry.settings)}
        for key in values:
            if key not in known and key not in _OWN:
                raise UnknownHyperparameterError(
                    str(SettingError.unknown("hyperparameter", key, [*_OWN, *known]))
                )
        self._names = [*_OWN, *known]
        for key in self._names:
            setattr(self, key, values.get(key, known.get(key)))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Every hyperparameter, as scikit-learn asks for them."""
        return {key: getattr(self, key) for key in self._names}

    def set_params(self, **parameters: Any) -> HPGMNClassifier:
        """Change hyperparameters; with another model, those it does not know are dropped."""
        kept = self.get_params()
        if parameters.get("model", self.model) != self.model:
            fields = dataclasses.fields(find_model(str(parameters["model"])).settings)
            known = {info.name for info in fields} | set(_OWN)
            kept = {key: value for key, value in kept.items() if key in known}
            for key in set(self._names) - known:
                delattr(self, key)
        self._store(kept | parameters)
        return self

    def _changed(self) -> dict[str, Any]:
        """The hyperparameters that differ from their defaults."""
        entry = find_model(self.model)
        usual = _OWN | {info.name: info.default for info in dataclasses.fields(entry.settings)}
        return {key: value for key, value in self.get_params().items() if value != usual[key]}

    def __repr__(self) -> str:
        changed = ", ".join(f"{key}={value!r}" for key, value in self._changed().items())
        return f"HPGMNClassifier({changed})"

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
        return facts_html("HPGMNClassifier", facts)

    def fit(
        self, graph: Graph, split: int = 0, *, train: Array | None = None, val: Array | None = None
    ) -> HPGMNClassifier:
        """Train on a stored split, or on the nodes of two masks.

        Args:
            graph: the graph.
            split: the number of a stored split.
            train: (N,) mask of the train nodes, instead of a stored split.
            val: (N,) mask of the validation nodes, which choose the best epoch.
        """
        self._check_own()
        chosen = _split(graph, split, train, val)
        for line in check_split(graph, chosen, split if train is None else "given"):
            logger.warning("Graph '%s'. %s", graph.name, line)
        require_metric(self.metric, graph.num_classes, f"'{graph.name}'")
        seen = seen_labels(graph, [chosen])
        sought = positive_class(self.metric, seen, graph.class_names, self.positive)
        entry = find_model(self.model)
        own = {k: v for k, v in self.get_params().items() if k not in _OWN}
        replica = Replica(split, self.seed, make_settings(entry.settings, own))
        masks = [(chosen.train, chosen.val)]
        fitted = fit_replicas(
            graph,
            entry,
            [replica],
            masks,
            device=self.device,
            metric=self.metric,
            positive=class_number(sought, graph.class_names),
        )
        self.positive_ = sought
        scaled_on = [chosen.val] if self.calibrate else None
        self.saved_ = SavedModel.of(entry, fitted, graph, [chosen.train], scaled_on)
        self.classes_ = np.asarray(graph.class_names)
        self.val_score_ = float(fitted.val_score[0])
        return self

    def _check_own(self) -> None:
        """Refuse hyperparameters that no settings check, as those of the settings are."""
        if isinstance(self.seed, bool) or not isinstance(self.seed, int | np.integer):
            raise SettingError(f"seed must be a whole number (got {self.seed!r}).")
        if not isinstance(self.calibrate, bool | np.bool_):
            raise SettingError(f"calibrate must be True or False (got {self.calibrate!r}).")
        for name in ("metric", "positive"):
            value = getattr(self, name)
            if not (isinstance(value, str) or (name == "positive" and value is None)):
                raise SettingError(f"{name} must be a name (got {value!r}).")
        _require_device(self.device)

    def _logits(self, graph: Graph) -> Tensor:
        """(1, N, C) of every node."""
        if not hasattr(self, "saved_"):
            raise HPGMNError("This HPGMNClassifier is not fitted.", "Call fit(graph) first.")
        _require_device(self.device)
        return self.saved_.logits(graph, self.device)

    def predict_proba(self, graph: Graph) -> Array:
        """(N, C) class probabilities of every node, of this graph or another."""
        return np.asarray(
            calibrated_probabilities(self._logits(graph), self.saved_.temperatures)[0].numpy()
        )

    def predict(self, graph: Graph) -> Array:
        """(N,) the class number of every node; ``classes_`` has the names."""
        return np.asarray(self._logits(graph)[0].argmax(dim=-1).numpy())

    def score(self, graph: Graph, mask: Array | None = None) -> float:
        """The metric on the labelled nodes of a mask (all labelled nodes without one)."""
        logits = self._logits(graph)
        chosen = graph.y >= 0
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
        number = class_number(self._sought(), self.saved_.class_names)
        return scores(logits, graph.y, [chosen], self.metric, number)[0]

    def _sought(self) -> str | None:
        """The class that the metric looks for; of an earlier version's model the rarest."""
        asked = self.positive or getattr(self, "positive_", None)
        return positive_class(self.metric, self.saved_.train_labels, self.saved_.class_names, asked)

    @overload
    def explain(self, graph: Graph, node: None = None) -> ModelExplanation: ...

    @overload
    def explain(self, graph: Graph, node: int | str) -> Explanation: ...

    def explain(
        self, graph: Graph, node: int | str | None = None
    ) -> Explanation | ModelExplanation:
        """Why a node has its class, or what the whole model has learned.

        Args:
            graph: the graph, of the training or another.
            node: the node's id (its position where the graph has no ids); None for the model.
        """
        if not hasattr(self, "saved_"):
            raise HPGMNError(
                "This HPGMNClassifier is not fitted.", "Call fit(graph) before explain."
            )
        _require_device(self.device)
        if node is None:
            return explain_model(self.saved_, graph, device=self.device)
        return explain_node(self.saved_, graph, node, device=self.device)

    def save(self, folder: str | Path) -> None:
        """Write the trained model into a folder."""
        if not hasattr(self, "saved_"):
            raise HPGMNError("This HPGMNClassifier is not fitted.", "Call fit(graph) before save.")
        target = Path(folder)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(target, error) from None
        self.saved_.write(target / MODEL_FILE)
        content = {key: to_plain(value) for key, value in self.get_params().items()}
        content["positive"] = self._sought()  # which may rest on validation nodes
        text = yaml.safe_dump(content, sort_keys=False)
        write_text(target / PARAMETERS_FILE, text)

    @classmethod
    def load(cls, folder: str | Path, model: str | None = None) -> HPGMNClassifier:
        """A saved classifier, or the first replica of a run folder.

        Args:
            folder: what ``save`` or ``hpgmn train`` wrote.
            model: the name of your own model, where the folder holds one: only then is its code
                imported.
        """
        source = Path(folder)
        if not (source / MODEL_FILE).is_file():
            raise HPGMNError(
                f"{source} holds no {MODEL_FILE}.",
                "Give a folder that save() or `hpgmn train` wrote.",
            )
        saved = SavedModel.read(source / MODEL_FILE, model).choose([0])
        own = [info.name for info in dataclasses.fields(saved.entry.settings)]
        settings = {key: getattr(saved.replicas[0].settings, key) for key in own}
        for name in (PARAMETERS_FILE, "config.yaml"):  # of save(), of a run
            if (source / name).is_file():
                content = read_yaml(source / name)
                settings |= {
                    key: content.get(key, _OWN[key]) for key in ("metric", "positive", "calibrate")
                }
                break
        loaded = cls(model=saved.entry.name, seed=saved.replicas[0].seed, **settings)
        loaded.saved_ = saved
        loaded.classes_ = np.asarray(saved.class_names)
        return loaded


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
