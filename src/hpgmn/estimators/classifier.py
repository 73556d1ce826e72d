"""HPGMNClassifier and HPGMNRegressor: estimators of scikit-learn on graphs, nodes and tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin

from hpgmn.base.calibration import calibrated_probabilities
from hpgmn.estimators.estimator import NodeEstimator
from hpgmn.graph import Array


class HPGMNClassifier(ClassifierMixin, NodeEstimator):  # type: ignore[misc]
    """A classifier of nodes whose every setting is a keyword.

    Args:
        graph: the graph whose nodes ``fit(nodes, labels)`` names; None where ``fit`` gets a graph,
            or a table, which is a graph without edges.
        model: "hpgmn", another name of ``hpgmn models``, ``package.module:Class``, or a class
            derived from ``torch.nn.Module``.
        seed: the seed of the initial values, of dropout and of the validation nodes.
        device: "cpu" or "cuda".
        metric: what chooses the best epoch on the validation nodes: accuracy [by default],
            balanced_accuracy, macro_f1, roc_auc, average_precision or, for two classes,
            precision@K.
        positive: the class that average_precision and precision@K of two classes look for; None
            for the rarest among train and validation nodes.
        calibrate: whether probabilities are calibrated on the validation nodes.
        validation_fraction: the share of the nodes or rows of ``fit(X, y)`` that are validation
            nodes.
        callbacks: functions called with :class:`~hpgmn.training.replicas.Progress` after each
            epoch.
        settings: settings that are not keywords, those of your own model.

    Every other keyword is a setting of ``hpgmn settings``; None is the default of the model.

    Learned attributes: ``classes_``, ``val_score_``, ``history_`` (a dict for each epoch of each
    stage), ``n_iter_`` (epochs of the last stage), ``patterns_`` (of the memory), ``saved_`` (the
    trained model).

    >>> from hpgmn import trading_network
    >>> graph = trading_network(num_nodes=200, seed=1).graph
    >>> model = HPGMNClassifier(seed=0, epochs=5, hidden_dim=8, neighbors="both")
    >>> model.fit(graph, split=0).predict(graph).shape
    (200,)
    """

    score = NodeEstimator.score  # not the accuracy of the mixin

    def predict_proba(self, X: Any) -> Array:
        """Return (n, C) probabilities of ``classes_``; X is as in :meth:`predict`."""
        return self._of_nodes(
            X,
            lambda graph: calibrated_probabilities(self._logits(graph), self.saved_.calibration)[0],
        )

    def predict(self, X: Any) -> Array:
        """Return (n,) the class of each node or row.

        Args:
            X: a graph, that of the training or another; nodes of the parameter ``graph``; or a
                table, if the training was on one.
        """
        numbers = self._of_nodes(X, lambda graph: self._decision_logits(graph)[0].argmax(dim=-1))
        return np.asarray(self.classes_[numbers])


class HPGMNRegressor(RegressorMixin, NodeEstimator):  # type: ignore[misc]
    """A regressor of nodes whose every setting is a keyword: the labels are numbers.

    Keywords and learned attributes are those of :class:`HPGMNClassifier`, but for classes; the
    metric is r2 [by default], rmse, mae or spearman.

    >>> from hpgmn import Graph, random_splits
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(100, 3))
    >>> graph = Graph(x, random.integers(100, size=(2, 300)), x.sum(axis=1))
    >>> graph = graph.with_splits(random_splits(graph))
    >>> HPGMNRegressor(epochs=5, hidden_dim=8).fit(graph).predict(graph).shape
    (100,)
    """

    _is_regression = True
    score = NodeEstimator.score  # not the R² of the mixin

    def predict(self, X: Any) -> Array:
        """Return (n,) the target of each node or row; X is as in HPGMNClassifier."""
        return self._of_nodes(X, lambda graph: self._logits(graph)[0, :, 0])
