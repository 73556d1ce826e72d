"""``hpgmn models``, ``settings`` and ``datasets``: list what is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column

from hpgmn.cli.console import out, print_table, say
from hpgmn.cli.options import Json


def models(json_: Json = False) -> None:
    """List the models with their citations."""
    from hpgmn.models import listings

    rows = [
        {"name": name, "summary": listing.summary, "citation": listing.citation}
        for name, listing in listings().items()
    ]
    if json_:
        print(json.dumps(rows))
        return
    columns = (Column("name", no_wrap=True), "description", "source")
    print_table(columns, [tuple(row.values()) for row in rows], has_lines=True)


def settings(
    graph: Annotated[
        str | None, typer.Argument(help="A dataset, graph file or folder: show the values for it.")
    ] = None,
    model: Annotated[str, typer.Option(help="The model's name.")] = "hpgmn",
    json_: Json = False,
) -> None:
    """List the --set keys with meaning, value and allowed values."""
    from hpgmn.base.settings import describe_settings, make_settings, settings_dict
    from hpgmn.graph.datasets import known_dataset
    from hpgmn.models import find_model, settings_for

    entry = find_model(model)
    if graph is not None and not Path(graph).expanduser().exists():
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
    title = Column(f"value for {graph or 'a new graph'}", overflow="fold")
    print_table(
        (Column("key", no_wrap=True), title, "allowed", "meaning"),
        [(row["name"], _value_text(row["value"]), row["allowed"], row["help"]) for row in rows],
        has_lines=True,
    )


def _value_text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def datasets(
    json_: Json = False,
    download: Annotated[
        str | None, typer.Option(help="Fetch this dataset into the user's cache.")
    ] = None,
) -> None:
    """List the known datasets: size, classes, homophily, local copies, known defects."""
    from hpgmn.graph.datasets import DATASETS, find_file
    from hpgmn.graph.download import download as fetch

    if download is not None:
        say(f"Wrote {fetch(download)}.")
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
    print_table(
        (Column("name", no_wrap=True), *(*sizes, "homophily", "here")),
        [
            (
                row["name"],
                *(f"{row[key]:,}" for key in sizes),
                "" if row["homophily"] is None else f"{row['homophily']:.2f}",
                "yes" if row["here"] else row["get"].removesuffix(" the file"),
            )
            for row in rows
        ],
        padding=1,
    )
    out.print("\nKnown defects", style="bold")
    for row in rows:
        if row["defects"]:
            out.print(f"{row['name']}: {row['defects']}", highlight=False)
    say(
        "Edges as listed by the source. Get one with `hpgmn datasets --download NAME`, or put "
        "NAME.npz into the folder that HPGMN_DATA names."
    )
