"""Commands that show what there is: datasets, models, settings."""

from __future__ import annotations

import json
from pathlib import Path
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
    """Every known dataset: size, classes, homophily, whether it is here, known defects."""
    from hpgmn.graph.datasets import DATASETS, find_file
    from hpgmn.graph.download import download as fetch

    if download is not None:
        path = fetch(download)
        err.print(f"Wrote {path}.", highlight=False)
        return
    rows: list[dict[str, Any]] = [
        {
            "name": one.name,
            "nodes": one.num_nodes,
            "edges": one.num_edges,
            "attributes": one.num_features,
            "classes": one.num_classes,
            "homophily": one.homophily,
            "metric": one.metric,
            "here": find_file(one.name) is not None,
            "get": "download" if one.download is not None else "bring the file",
            "defects": one.defects,
        }
        for one in DATASETS.values()
    ]
    if json_:
        print(json.dumps(rows, indent=1))
        return
    columns: list[Any] = [Column("name", no_wrap=True)]
    for word in ("nodes", "edges", "attributes", "classes", "homophily"):
        columns.append(Column(word, justify="right"))
    table = Table(*columns, "here", box=None, padding=(0, 1, 0, 0))  # fits 80 columns
    for row in rows:
        sizes = [f"{row[key]:,}" for key in ("nodes", "edges", "attributes", "classes")]
        homophily = "" if row["homophily"] is None else f"{row['homophily']:.2f}"
        here = "yes" if row["here"] else row["get"].removesuffix(" the file")
        table.add_row(row["name"], *sizes, homophily, here)
    out.print(table)
    out.print("\nKnown defects", style="bold")
    for row in rows:
        if row["defects"]:
            out.print(f"{row['name']}: {row['defects']}", highlight=False)
    err.print(
        "Edges as listed by the source. Get one with `hpgmn datasets --download NAME`, or bring "
        "NAME.npz into the folder named by HPGMN_DATA.",
        highlight=False,
    )


def models(
    json_: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Every model with its citation."""
    from hpgmn.models import MODELS

    if json_:
        keys = ("name", "summary", "citation")
        print(json.dumps([{key: getattr(one, key) for key in keys} for one in MODELS.values()]))
        return
    table = Table(Column("name", no_wrap=True), "what it is", "source")
    for one in MODELS.values():
        table.add_row(one.name, one.summary, one.citation)
    out.print(table)


def settings(
    graph: Annotated[
        str | None, typer.Argument(help="A dataset, graph file or folder: show the values for it.")
    ] = None,
    model: Annotated[str, typer.Option(help="The model's name.")] = "hpgmn",
    json_: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Every --set key with its meaning, value and allowed values."""
    from hpgmn.base.settings import describe_settings, make_settings, settings_dict
    from hpgmn.graph.datasets import DATASETS, known_dataset
    from hpgmn.models import find_model
    from hpgmn.models.shipped import settings_for

    entry = find_model(model)
    if graph is not None and graph not in DATASETS and not Path(graph).expanduser().exists():
        known_dataset(graph)
    values = settings_dict(make_settings(entry.settings, settings_for(graph, model)))
    rows = [
        {key: row[key] for key in ("name", "type", "allowed", "help")}
        | {"value": values[row["name"]]}
        for row in describe_settings(entry.settings)
    ]
    if json_:
        print(json.dumps(rows, indent=1))
        return
    values_for = Column(f"value for {graph or 'a new graph'}", overflow="fold")
    table = Table(Column("key", no_wrap=True), values_for, "allowed", "meaning")
    for row in rows:
        value = ", ".join(row["value"]) if isinstance(row["value"], list) else str(row["value"])
        table.add_row(row["name"], value, row["allowed"], row["help"])
    out.print(table)
