"""Tomorrow's accounts: train on today's two tables, then classify nodes that arrive later.

python new_nodes.py
"""

import csv
import tempfile
from pathlib import Path

import hpgmn

# Two days of one trading network. Accounts 0 to 799 are there today, the other 40 come tomorrow.
network = hpgmn.trading_network(num_nodes=840, seed=0).graph
TODAY = 800
habits = [f"habit_{number}" for number in range(network.num_features)]


def write_day(folder: Path, first: int, last: int) -> None:
    """The accounts of a day, labels known today only, and the payments that are new on that day."""
    folder.mkdir()
    with (folder / "nodes.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", *habits, *(["label"] if first == 0 else [])])
        for node in range(first, last):
            label = [network.class_names[network.y[node]]] if first == 0 else []
            rows.writerow([f"a-{node}", *network.x[node], *label])
    with (folder / "edges.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["source", "target"])
        for payer, paid in network.edge_index.T:
            if first <= max(payer, paid) < last:  # an old account may pay a new one
                rows.writerow([f"a-{payer}", f"a-{paid}"])


with tempfile.TemporaryDirectory() as name:
    write_day(Path(name) / "today", 0, TODAY)
    write_day(Path(name) / "tomorrow", TODAY, network.num_nodes)
    today = hpgmn.load(Path(name) / "today")

    # These statistics do not depend on node identity, so they transfer to new nodes.
    statistics = ("attributes", "class_counts", "class_means")
    model = hpgmn.HPGMNClassifier(seed=0, statistics=statistics, epochs=60).fit(today, split=0)

    # Tomorrow's tables hold only what is new. Their columns are read and scaled as today's were,
    # and their edges may name today's accounts. `hpgmn predict RUN tomorrow --add` does the same.
    tomorrow = hpgmn.load(Path(name) / "tomorrow", onto=today)

print(f"today {today.num_nodes} accounts, tomorrow {tomorrow.num_nodes}")
probabilities = model.predict_proba(tomorrow)[TODAY:]  # new nodes come after the known ones
for node, row in zip(tomorrow.node_ids[TODAY : TODAY + 3], probabilities, strict=False):
    print(f"{node}: {model.classes_[row.argmax()]}, probability {row.max():.2f}")

# The generator knows the true classes of the new accounts.
truth = [network.class_names[label] for label in network.y[TODAY:]]
is_correct = model.classes_[probabilities.argmax(axis=1)] == truth
print(f"correct for {is_correct.mean():.3f} of {len(is_correct)} new accounts")
