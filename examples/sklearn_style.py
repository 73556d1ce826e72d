"""HPGMNClassifier with scikit-learn: a grid over the validation nodes of splits, then over nodes.

python sklearn_style.py
"""

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, ParameterGrid, StratifiedKFold, cross_val_score

import hpgmn

graph = hpgmn.trading_network(num_nodes=500, seed=0).graph  # comes with ten splits
SPLITS = range(3)
model = hpgmn.HPGMNClassifier(seed=0, epochs=40, estimator_epochs=60, hidden_dim=32)
print(f"{len(model.get_params())} parameters, of which changed: {model}")

# Graph-wise: choose settings by the validation nodes of every split. Test nodes are not used here.
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
classes, probabilities = fitted[0].predict(graph), fitted[0].predict_proba(graph)
print(f"node 0: {classes[0]}, probability {probabilities[0].max():.2f}")

# Node-wise: X is an array of nodes, so that scikit-learn's own tools divide them.
nodes, labels = np.arange(graph.num_nodes), np.asarray(graph.class_names)[graph.y]
node_model = clone(model).set_params(graph=graph)
folds = StratifiedKFold(3, shuffle=True, random_state=0)
print(f"cross-validated accuracy {cross_val_score(node_model, nodes, labels, cv=folds).mean():.3f}")
grid = {"model": ["hpgmn", "mlp"], "estimator_epochs": [None], "lr": [0.03]}
search = GridSearchCV(node_model, grid, cv=folds).fit(nodes, labels)
print(f"GridSearchCV chooses {search.best_params_['model']}")
