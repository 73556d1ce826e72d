"""The command that lists and downloads datasets."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from hpgmn.cli.console import err, out


def datasets(
    json_: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
    download: Annotated[
        str | None, typer.Option(help="Fetch this dataset into the user's cache.")
    ] = None,
) -> None:
    """List the known datasets: size, classes, homophily, local copies, known defects."""
    from hpgmn.graph.datasets import DATASETS, find_file
    from hpgmn.graph.download import download as fetch

    if download is not None:
        err.print(f"Wrote {fetch(download)}.", highlight=False)
        return
    rows: list[dict[str, Any]] = [
        {
            "name": dataset.name,
            "nodes": dataset.num_nodes,
            "edges": dataset.num_edges,
            "attributes": dataset.num_features,
            "classes": dataset.num_classes,
            "homophily": dataset.homophily,
            "metric": dataset.metric,
            "here": find_file(dataset.name) is not None,
            "get": "download" if dataset.download is not None else "bring the file",
            "defects": dataset.defects,
        }
        for dataset in DATASETS.values()
    ]
    if json_:
        print(json.dumps(rows, indent=1))
        return
    sizes = ("nodes", "edges", "attributes", "classes")
    columns: list[Any] = [Column("name", no_wrap=True)]
    columns += [Column(key, justify="right") for key in (*sizes, "homophily")]
    table = Table(*columns, "here", box=None, padding=(0, 1, 0, 0))  # fits 80 columns
    for row in rows:
        homophily = "" if row["homophily"] is None else f"{row['homophily']:.2f}"
        here = "yes" if row["here"] else row["get"].removesuffix(" the file")
        table.add_row(row["name"], *(f"{row[key]:,}" for key in sizes), homophily, here)
    out.print(table)
    out.print("\nKnown defects", style="bold")
    for row in rows:
        if row["defects"]:
            out.print(f"{row['name']}: {row['defects']}", highlight=False)
    err.print(
        "Edges as listed by the source. Get one with `hpgmn datasets --download NAME`, or put "
        "NAME.npz into the folder that HPGMN_DATA names.",
        highlight=False,
    )
