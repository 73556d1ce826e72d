"""``hpgmn demo``: a generated graph, end to end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from hpgmn.base.errors import HPGMNError, mean_and_deviation
from hpgmn.cli.console import monitored, print_table, say

_TITLES = {
    "mlp": "MLP (attributes only)",
    "gcn": "GCN (direction selected)",
    "dirgcn": "Dir-GCN (both directions)",
    "hpgmn": "HP-GMN",
    "ensemble": "ensemble",
}


def demo(
    out_folder: Annotated[Path, typer.Option("--out", help="The run folder.")] = Path("runs/demo"),
    nodes: Annotated[int, typer.Option(help="Nodes of the generated graph.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the generated graph.")] = 0,
    time_limit: Annotated[
        float, typer.Option("--time-limit", help="Seconds for the members of the ensemble.")
    ] = 15.0,
) -> None:
    """Generate a network of purchases; train, compare, score and explain."""
    from hpgmn.graph.synthetic import supply_network
    from hpgmn.runs.train import graph_file, train

    network = supply_network(num_nodes=nodes, seed=seed)
    graph = network.graph
    path = graph_file(out_folder, graph)
    say(
        f"{graph}. A firm's sector shows in the sizes of its suppliers of each sector, in no mean "
        "over neighbours."
    )
    started = time.perf_counter()
    metrics: dict[str, dict[str, Any]] = {}
    with monitored() as callbacks:
        options: dict[str, Any] = {"splits": [0, 1], "overwrite": _is_demo(out_folder, path)}
        options |= callbacks
        metrics["hpgmn"] = train(graph, model="hpgmn", out=out_folder, **options).metrics
        options["report"] = False
        for name in ("mlp", "gcn", "dirgcn"):
            metrics[name] = train(path, model=name, out=out_folder / name, **options).metrics
        options |= {"ensemble": True, "time_limit": time_limit, "report": True}
        metrics["ensemble"] = train(path, out=out_folder / "ensemble", **options).metrics
    scores = {
        name: (run["test_score_mean"], run["test_score_std"]) for name, run in metrics.items()
    }
    rows = [(title, mean_and_deviation(*scores[name])) for name, title in _TITLES.items()]
    rows.append(("best attainable", f"{100 * network.best_accuracy:.1f}"))
    title = f"{graph.name}: 2 splits"
    print_table(("model", "test accuracy %"), rows, title=title, has_lines=True)
    best = max(("mlp", "gcn", "dirgcn"), key=lambda name: scores[name][0])
    say(
        f"HP-GMN is {_gap(scores, 'hpgmn', best)} {_TITLES[best].split(' (')[0]}, the best of the "
        f"baselines here. The ensemble is {_gap(scores, 'ensemble', 'hpgmn')} HP-GMN."
    )
    seconds = time.perf_counter() - started
    say(
        f"{seconds:.0f} seconds. The pages: {out_folder / 'report.html'} (HP-GMN) and "
        f"{out_folder / 'ensemble' / 'report.html'}"
    )


def _gap(scores: dict[str, tuple[float, float]], name: str, other: str) -> str:
    points = 100 * (scores[name][0] - scores[other][0])
    return f"{abs(points):.1f} points {'above' if points >= 0 else 'below'}"


def _is_demo(folder: Path, graph: Path) -> bool:
    """Return whether a run folder is an earlier demo's, which may be replaced."""
    from hpgmn.runs.spec import read_spec

    try:
        return Path(read_spec(folder).graph).name == graph.name
    except HPGMNError:
        return graph.exists()
