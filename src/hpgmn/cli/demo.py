"""``hpgmn demo``: the built-in graph, end to end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from hpgmn.base.errors import HPGMNError
from hpgmn.base.locking import lock_folder
from hpgmn.base.text import mean_and_deviation
from hpgmn.cli.console import out, say
from hpgmn.cli.several import run_and_report, telling_kept
from hpgmn.cli.train import specification


def demo(
    out_folder: Annotated[Path, typer.Option("--out", help="The run folder.")] = Path("runs/demo"),
    nodes: Annotated[int, typer.Option(help="Nodes of the generated graph.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the generated graph.")] = 0,
) -> None:
    """The built-in trading network, end to end: generate, train, score, explain."""
    from hpgmn.graph.files import write_graph
    from hpgmn.graph.homophily import node_homophily
    from hpgmn.graph.synthetic import trading_network
    from hpgmn.runs.folder import prepare_folder
    from hpgmn.runs.spec import resolve_device

    path = out_folder / "trading-network.npz"
    made = trading_network(num_nodes=nodes, seed=seed)
    graph = made.graph
    say(f"{graph}, node homophily {node_homophily(graph):.2f}: most trades are between classes.")
    started = time.perf_counter()
    runs = {}
    with lock_folder(out_folder):
        ours = _is_demo(out_folder, path)
        for name, folder in (
            ("hpgmn", out_folder),
            ("mlp", out_folder / "mlp"),
            ("gcn", out_folder / "gcn"),
        ):
            given = {"splits": [0, 1, 2], "model": name, "device": resolve_device("auto")}
            spec = specification(str(path), graph, given, [])
            with telling_kept(folder):
                prepare_folder(folder, spec, resume=False, overwrite=ours)
                if name == "hpgmn":
                    write_graph(graph, path)
                runs[name] = run_and_report(spec, graph, folder)
    estimator = runs["hpgmn"]["label_estimator"]
    table = Table("model", "test accuracy %", title=f"{graph.name}: 3 splits")
    table.add_row(
        "label estimator (attributes only)",
        mean_and_deviation(estimator["test_accuracy_mean"], estimator["test_accuracy_std"]),
    )
    for name, words in (
        ("mlp", "MLP (attributes only)"),
        ("gcn", "GCN (averages neighbours)"),
        ("hpgmn", "HP-GMN"),
    ):
        row = runs[name]
        table.add_row(words, mean_and_deviation(row["test_score_mean"], row["test_score_std"]))
    table.add_row("best attainable", f"{100 * made.best_accuracy:.1f}")
    out.print(table)
    seconds = time.perf_counter() - started
    say(f"{seconds:.0f} seconds. The page: {out_folder / 'report.html'}")


def _is_demo(folder: Path, graph: Path) -> bool:
    """Whether a run folder is an earlier demo's, which the next one replaces; no other is."""
    from hpgmn.runs.folder import read_spec

    try:
        return Path(read_spec(folder).graph).name == graph.name
    except HPGMNError:
        return graph.exists()
