"""From two tables to predictions: audit the graph, train on what is labelled, predict the rest.

python own_tables.py
"""

import csv
import tempfile
from pathlib import Path

import hpgmn

# Two tables as a company might keep them, made from the built-in trading network: accounts with
# columns of any type, some labels missing, and payments between them.
network = hpgmn.trading_network(num_nodes=800, seed=0).graph
REGIONS = ("north", "south", "")  # the empty one is unknown
names = [f"account-{number}" for number in range(network.num_nodes)]
folder = Path(tempfile.mkdtemp()) / "accounts"
folder.mkdir()
with (folder / "nodes.csv").open("w", newline="") as file:
    rows = csv.writer(file)
    habits = [f"habit_{number}" for number in range(network.num_features)]
    rows.writerow(["id", *habits, "region", "label"])
    for node, name in enumerate(names):
        label = "" if node % 5 == 0 else network.class_names[network.y[node]]
        rows.writerow([name, *network.x[node], REGIONS[node % 3], label])
with (folder / "edges.csv").open("w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["source", "target"])
    rows.writerows([names[payer], names[paid]] for payer, paid in network.edge_index.T)

# Columns are audit by their names. Numbers are standardised, words become attributes of their own,
# missing values marked. Without a split column ten random splits of labelled nodes are drawn.
graph = hpgmn.load(folder)
print(graph)

# Check the data; with training=True the audit also measures whether the graph helps.
audit = hpgmn.audit(graph, training=False)
for finding in audit.findings:
    print(f"{finding.severity}: {finding.message}")

# Train; the validation nodes choose the epoch and scale the probabilities.
model = hpgmn.HPGMNClassifier(seed=0, epochs=80).fit(graph, split=0)
print(f"test accuracy {model.score(graph, graph.split(0).test):.3f}")

# Predict the unlabelled accounts.
unknown = graph.y < 0
probabilities = model.predict_proba(graph)[unknown]
with (folder / "predictions.csv").open("w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["id", "prediction", "confidence"])
    for name, row in zip(graph.node_ids[unknown], probabilities, strict=True):
        rows.writerow([name, model.classes_[row.argmax()], round(float(row.max()), 4)])
print(f"{unknown.sum()} predictions in {folder / 'predictions.csv'}")
