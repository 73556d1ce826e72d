"""Estimators of scikit-learn on graphs, nodes and tables."""

from hpgmn.estimators.classifier import HPGMNClassifier as HPGMNClassifier
from hpgmn.estimators.classifier import HPGMNRegressor as HPGMNRegressor
