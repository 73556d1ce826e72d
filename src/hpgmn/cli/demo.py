"""``hpgmn demo``: the built-in graph, end to end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from hpgmn.base.errors import HPGMNError, mean_and_deviation
from hpgmn.cli.console import monitored, print_table, say


def demo(
    out_folder: Annotated[Path, typer.Option("--out", help="The run folder.")] = Path("runs/demo"),
    nodes: Annotated[int, typer.Option(help="Nodes of the generated graph.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the generated graph.")] = 0,
) -> None:
    """Generate the built-in trading network, train, score and explain."""
    from hpgmn.graph.homophily import node_homophily
    from hpgmn.graph.synthetic import trading_network
    from hpgmn.runs.train import graph_file, train

    network = trading_network(num_nodes=nodes, seed=seed)
    graph = network.graph
    path = graph_file(out_folder, graph)
    say(f"{graph}, node homophily {node_homophily(graph):.2f}: most trades are between classes.")
    started = time.perf_counter()
    overwrite = _is_demo(out_folder, path)
    metrics: dict[str, dict[str, Any]] = {}
    with monitored() as callbacks:
        options: dict[str, Any] = {"splits": [0, 1, 2], "overwrite": overwrite, **callbacks}
        metrics["hpgmn"] = train(graph, model="hpgmn", out=out_folder, **options).metrics
        for name in ("mlp", "gcn"):
            metrics[name] = train(path, model=name, out=out_folder / name, **options).metrics
    estimator = metrics["hpgmn"]["label_estimator"]
    rows = [
        (
            "label estimator (attributes only)",
            mean_and_deviation(estimator["test_accuracy_mean"], estimator["test_accuracy_std"]),
        )
    ]
    titles = {"mlp": "MLP (attributes only)", "gcn": "GCN (averages neighbours)", "hpgmn": "HP-GMN"}
    for name, title in titles.items():
        row = metrics[name]
        rows.append((title, mean_and_deviation(row["test_score_mean"], row["test_score_std"])))
    rows.append(("best attainable", f"{100 * network.best_accuracy:.1f}"))
    title = f"{graph.name}: 3 splits"
    print_table(("model", "test accuracy %"), rows, title=title, has_lines=True)
    seconds = time.perf_counter() - started
    say(f"{seconds:.0f} seconds. The page: {out_folder / 'report.html'}")


def _is_demo(folder: Path, graph: Path) -> bool:
    """Return whether a run folder is an earlier demo's, which may be replaced."""
    from hpgmn.runs.spec import read_spec

    try:
        return Path(read_spec(folder).graph).name == graph.name
    except HPGMNError:
        return graph.exists()
