"""Small tables, of which the first part is trained on."""

import numpy as np

SHORT = {"epochs": 4, "estimator_epochs": 4, "hidden_dim": 8, "num_patterns": 3}
SHORT |= {"patience": 0, "estimator_patience": 0}
NUM_NODES, NUM_OLD, NUM_EDGES = 90, 70, 160


def tables(seed=0, *, regression=False, edge_columns=()):
    """Rows of nodes and of edges; an edge has a weight, a type, an amount, a kind and a time."""
    random = np.random.default_rng(seed)
    y = random.integers(2, size=NUM_NODES)
    kinds = random.choice(["red", "blue"], NUM_NODES).tolist()
    nodes = [
        {
            "id": f"n{number}",
            "size": float(random.normal() + 2 * y[number]),
            "kind": kinds[number],
            "label": float(random.normal()) if regression else ("no", "yes")[y[number]],
        }
        for number in range(NUM_NODES)
    ]
    ends = random.integers(NUM_NODES, size=(NUM_EDGES, 2))
    ends[:5, 1] = ends[:5, 0]  # self-loops
    ends[5:20] = ends[20:35]  # repeats
    values = {
        "weight": (random.random(NUM_EDGES) + 0.5).tolist(),
        "way": random.choice(["a", "b", "c"], NUM_EDGES).tolist(),
        "amount": random.exponential(50, NUM_EDGES).tolist(),
        "time": [f"2025-0{1 + number % 9}-1{number % 7}" for number in range(NUM_EDGES)],
    }
    edges = [
        {"source": f"n{source}", "target": f"n{target}"}
        | {name: values[name][number] for name in edge_columns}
        for number, (source, target) in enumerate(ends.tolist())
    ]
    return nodes, edges


def columns(rows, names=None):
    """Rows as a table."""
    return {name: [row[name] for row in rows] for name in names or rows[0]}


def is_old(edge):
    return all(int(edge[end][1:]) < NUM_OLD for end in ("source", "target"))
