"""``hpgmn demo``: a generated graph, end to end."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hpgmn.base.errors import HPGMNError, mean_and_deviation
from hpgmn.base.files import write_error, write_text
from hpgmn.cli.console import monitored, out, print_table, say

_BASELINES = {
    "mlp": "MLP (attributes only)",
    "gcn": "GCN (direction selected)",
    "dirgcn": "Dir-GCN (both directions)",
    "linkx": "LINKX (adjacency rows, direction selected)",
}
_MEMBERS = ("hpgmn-both", "linkx-out", "boosting")
_TITLES = {**_BASELINES, "hpgmn": "HP-GMN", "ensemble": "ensemble (HP-GMN, LINKX, boosted trees)"}


def demo(
    out_folder: Annotated[Path, typer.Option("--out", help="The run folder.")] = Path("runs/demo"),
    nodes: Annotated[int, typer.Option(help="Nodes of the generated graph.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the generated graph.")] = 0,
    time_limit: Annotated[
        float, typer.Option("--time-limit", help="Seconds for the members of the ensemble.")
    ] = 30.0,
    tables: Annotated[
        Path | None,
        typer.Option(
            "--tables", metavar="FOLDER", help="Only write a bank's tables there, to train on."
        ),
    ] = None,
) -> None:
    """Generate a network of purchases; train, compare and explain."""
    if tables is not None:
        write_bank(tables, seed)
        return
    from hpgmn.graph.synthetic import supply_network
    from hpgmn.runs.train import train

    network = supply_network(num_nodes=nodes, seed=seed)
    graph = network.graph
    say(
        f"{graph}. A firm's sector shows in the sizes of its suppliers, sector by sector, and in "
        "no mean over all of them."
    )
    started = time.perf_counter()
    metrics: dict[str, dict[str, Any]] = {}
    with monitored() as callbacks:
        options: dict[str, Any] = {"splits": [0, 1], "metric": "accuracy", **callbacks}
        options["overwrite"] = _is_demo(out_folder, graph.name)
        metrics["hpgmn"] = train(graph, model="hpgmn", out=out_folder, **options).metrics
        options["report"] = False
        for name in _BASELINES:
            metrics[name] = train(graph, model=name, out=out_folder / name, **options).metrics
        # Deterministic: the limit counts epochs, so that every machine gets the same ensemble.
        options |= {"members": _MEMBERS, "time_limit": time_limit, "deterministic": True}
        options |= {"ensemble": True, "report": True}
        metrics["ensemble"] = train(graph, out=out_folder / "ensemble", **options).metrics
    rows = []
    for name, title in _TITLES.items():
        row = metrics[name]
        rows.append((title, mean_and_deviation(row["test_score_mean"], row["test_score_std"])))
    rows.append(("best attainable", f"{100 * network.best_accuracy:.1f}"))
    title = f"{graph.name}: 2 splits"
    print_table(("model", "test accuracy %"), rows, title=title, has_lines=True)
    say(conclusion({name: run["test_score_mean"] for name, run in metrics.items()}))
    pages = f"{out_folder / 'report.html'} (HP-GMN), {out_folder / 'ensemble' / 'report.html'}"
    say(f"{time.perf_counter() - started:.0f} seconds. The pages: {pages}")


def write_bank(folder: Path, seed: int) -> None:
    """Write the tables of a generated bank, and of its accounts of tomorrow; print what is next."""
    from hpgmn.graph.bank import bank_transfers

    for place, tomorrow in ((folder, False), (folder / "tomorrow", True)):
        pair = bank_transfers(seed, tomorrow=tomorrow)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(place, error) from None
        for name, table in zip(("nodes.csv", "edges.csv"), pair, strict=True):
            text = io.StringIO()
            rows = zip(*table.values(), strict=True)
            csv.writer(text, lineterminator="\n").writerows([table, *rows])
            _write_new(place / name, text.getvalue())
        say(f"{place}: {len(pair[0]['id']):,} accounts, {len(pair[1]['from']):,} transfers.")
    say(
        "3 % of the accounts are mules, which receive stolen money and forward it: column 'fraud', "
        "for 60 % of the accounts. Next:"
    )
    for line in (
        f"hpgmn train {folder} --label fraud --time-limit 120 --out runs/bank",
        "hpgmn predict runs/bank --top 10 --out top.csv",
        f"hpgmn predict runs/bank {folder / 'tomorrow'} --add --top 10 --out tomorrow.csv",
    ):
        out.print(line, highlight=False, soft_wrap=True)


def _write_new(path: Path, text: str) -> None:
    """Write a file; refuse to replace one with another content."""
    if path.exists() and path.read_bytes() != text.encode():
        raise HPGMNError(f"'{path}' exists and differs.", "Name another folder")
    write_text(path, text)


def conclusion(scores: Mapping[str, float]) -> str:
    """Say who is ahead, and by how much."""

    def gap(name: str, other: str) -> str:
        points = 100 * (scores[name] - scores[other])
        return f"{abs(points):.1f} points {'above' if points >= 0 else 'below'}"

    best = max(_BASELINES, key=lambda name: scores[name])
    return (
        f"HP-GMN is {gap('hpgmn', best)} {_TITLES[best].partition(' (')[0]}, the best of these "
        f"baselines; the ensemble is {gap('ensemble', 'hpgmn')} HP-GMN."
    )


def _is_demo(folder: Path, name: str) -> bool:
    """Return whether a run folder is an earlier demo's, which may be replaced."""
    from hpgmn.graph.files import read_graph
    from hpgmn.runs.folder import GRAPH_FILE

    try:
        return read_graph(folder / GRAPH_FILE).name == name
    except HPGMNError:
        return (folder / f"{name}.npz").exists()  # of an earlier version
