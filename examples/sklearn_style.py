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

# Choose settings by the validation nodes of every split. Test nodes are not looked at here.
best_score, best, fitted = -1.0, {}, []
for chosen in ParameterGrid({"neighbors": ["both", "undirected"], "lr": [0.01, 0.03]}):
    # A clone has the same settings and has learned nothing; fit returns the classifier.
    tried = [clone(model).set_params(**chosen).fit(graph, split=split) for split in SPLITS]
    score = np.mean([one.val_score_ for one in tried])
    print(f"validation accuracy {score:.3f} with {chosen}")
    if score > best_score:
        best_score, best, fitted = score, chosen, tried

# The chosen settings alone, on the test nodes of every split.
pairs = zip(fitted, SPLITS, strict=True)
scores = [one.score(graph, graph.split(split).test) for one, split in pairs]
print(f"test accuracy {np.mean(scores):.3f} ± {np.std(scores, ddof=1):.3f} with {best}")

# The class of each node by name, and how sure the first split's classifier is.
classes = fitted[0].classes_[fitted[0].predict(graph)]
print(f"node 0: {classes[0]}, probability {fitted[0].predict_proba(graph)[0].max():.2f}")
