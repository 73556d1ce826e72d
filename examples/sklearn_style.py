"""HPGMNClassifier as scikit-learn users know it: clone, a small grid, cross-validation over splits.

pip install scikit-learn; python sklearn_style.py
"""

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

import hpgmn

graph = hpgmn.trading_network(num_nodes=500, seed=0).graph  # comes with ten splits
SPLITS = range(3)
model = hpgmn.HPGMNClassifier(seed=0, epochs=40, estimator_epochs=60, hidden_dim=32)
print(f"{len(model.get_params())} hyperparameters, of which changed: {model}")

# Choose settings by the validation nodes of every split. Test nodes are not used here.
best_score, best, fitted = -1.0, {}, []
for parameters in ParameterGrid({"neighbors": ["both", "undirected"], "lr": [0.01, 0.03]}):
    # A clone has the same settings and no fitted state; fit returns the classifier.
    candidates = [clone(model).set_params(**parameters).fit(graph, split=split) for split in SPLITS]
    score = np.mean([classifier.val_score_ for classifier in candidates])
    print(f"validation accuracy {score:.3f} with {parameters}")
    if score > best_score:
        best_score, best, fitted = score, parameters, candidates

# The chosen settings alone, on the test nodes of every split.
pairs = zip(fitted, SPLITS, strict=True)
scores = [classifier.score(graph, graph.split(split).test) for classifier, split in pairs]
print(f"test accuracy {np.mean(scores):.3f} ± {np.std(scores, ddof=1):.3f} with {best}")

# The class of each node by name, and the confidence of the first split's classifier.
classes = fitted[0].classes_[fitted[0].predict(graph)]
print(f"node 0: {classes[0]}, probability {fitted[0].predict_proba(graph)[0].max():.2f}")
