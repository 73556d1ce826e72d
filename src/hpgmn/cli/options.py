"""Options that several commands share: settings, columns of tables, and where work runs."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from hpgmn.base.errors import Remedy, SettingError
from hpgmn.cli.console import say

if TYPE_CHECKING:
    from hpgmn.engines import Engine

GRAPH_HELP = (
    "A dataset's name, a graph file or folder, or a folder with tables nodes and edges (.csv or "
    ".parquet)."
)
GraphSource: TypeAlias = Annotated[
    str, typer.Argument(help="A dataset's name, a graph file or folder, or a folder of tables.")
]
RunFolder: TypeAlias = Annotated[Path, typer.Argument(help="A run folder.")]
OtherGraph: TypeAlias = Annotated[
    str | None, typer.Argument(help="Another graph [the trained one].")
]
OwnModel: TypeAlias = Annotated[
    str | None,
    typer.Option("--model", help="Your own model, package.module:Class, if the run has one."),
]
Add: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--add",
        help="The graph holds only new nodes and edges, as tables; they are added to the trained "
        "graph, whose nodes the edges may name.",
    ),
]
ModelsSplit: TypeAlias = Annotated[
    int | None, typer.Option(help="Which split's models [the first].")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
]
Protocol: TypeAlias = Annotated[str | None, typer.Option(help="A published protocol's splits.")]
Seeds: TypeAlias = Annotated[int | None, typer.Option(help="Seeds per split [1].")]
Metric: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="The metric that selects epochs and is reported: accuracy, balanced_accuracy, "
        "macro_f1, roc_auc, average_precision, or for two classes precision@K, such as "
        "precision@50 [the dataset's, or one that fits the classes]."
    ),
]
Positive: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="CLASS",
        help="Of two classes, the one that average_precision and precision@K look for [the rarer].",
    ),
]
Calibration: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--calibration/--no-calibration",
        show_default=False,
        help="Calibrate probabilities on the validation nodes [on].",
    ),
]
Threshold: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="RULE",
        help="Of two classes, the probability from which the positive one is predicted, chosen on "
        "validation nodes: f1, precision=0.9, recall=0.8, cost=10:1 (a missed node costs ten false "
        "alarms), or a number [the more likely class is predicted].",
    ),
]
Deterministic: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--deterministic/--not-deterministic",
        show_default=False,
        help="Bit-identical results on a GPU, at some cost, and a time limit that counts epochs "
        "instead of seconds; a CPU always computes the same [no].",
    ),
]
Overwrite: TypeAlias = Annotated[bool, typer.Option(help="Replace the run in --out.")]


def refuse_url(option: str, path: Path | None) -> None:
    """Refuse a URL where a path of this machine is required.

    >>> refuse_url("--out", Path("runs/mine"))
    """
    if path is not None and re.match(r"[a-z][a-z0-9+.-]+:/", str(path)):
        raise SettingError(
            f"{option} takes a path of this machine (got '{path}'); a URL is for `hpgmn reproduce "
            "--out` alone."
        )


def require_graph(graph: str | None, add: bool) -> None:
    """Refuse --add without tables."""
    if add and graph is None:
        raise SettingError(
            "--add is about tables of new nodes and edges.",
            "Name their folder (hpgmn explain: --graph FOLDER)",
        )


# Columns of tables.

_COLUMNS: dict[str, Any] = {
    "id": Annotated[
        str | None, typer.Option("--id", help="The node ids [id, node, node_id or name].")
    ],
    "label": Annotated[
        str | None,
        typer.Option("--label", help="The classes [label, class, y or target]; '' for none."),
    ],
    "split": Annotated[
        str | None, typer.Option("--split-column", help="Train, val and test [split]; '' for none.")
    ],
    "source": Annotated[
        str | None, typer.Option("--source", help="The edges' sources [source, src or from].")
    ],
    "target": Annotated[
        str | None, typer.Option("--target", help="The edges' targets [target, dst or to].")
    ],
    "weight": Annotated[
        str | None, typer.Option("--weight", help="The edge weights [weight]; '' for none.")
    ],
    "edge_type": Annotated[
        str | None,
        typer.Option("--edge-type", help="The edges' types: statistics are computed per type."),
    ],
    "drop": Annotated[
        list[str] | None,
        typer.Option("--drop", help="Leave out this node column; may be repeated."),
    ],
    "categories": Annotated[
        list[str] | None,
        typer.Option(
            "--category", help="Node column of numbers to read as categories; may be repeated."
        ),
    ],
    "edge_drop": Annotated[
        list[str] | None,
        typer.Option("--edge-drop", help="Leave out this edge column; may be repeated."),
    ],
    "edge_categories": Annotated[
        list[str] | None,
        typer.Option(
            "--edge-category", help="Edge column of numbers to read as categories; may be repeated."
        ),
    ],
    "edge_time": Annotated[
        str | None,
        typer.Option(
            "--edge-time",
            metavar="COLUMN",
            help="The times of edges [the only edge column of dates]; '' for none.",
        ),
    ],
    "as_of": Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="DATE",
            help="Train on the edges up to this date; later ones are for tests and predictions "
            "only [with --split-by time: the time of the newest validation node].",
        ),
    ],
    "split_by": Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--split-by",
            metavar="group|time COLUMN",
            help="Make splits that keep groups together, or that train on the oldest nodes and "
            "test on the newest [random, stratified].",
        ),
    ],
    "task": Annotated[
        str | None,
        typer.Option(
            "--task",
            help="classification, or regression: the labels are numbers to predict [by the labels: "
            "regression if some are no integers].",
        ),
    ],
    "drop_unknown_edges": Annotated[
        bool | None, typer.Option("--drop-unknown-edges", help="Leave out edges to unknown nodes.")
    ],
    "directed": Annotated[
        bool | None,
        typer.Option(
            "--directed/--undirected",
            help="Whether the tables' edges are directed [directed; GraphML: as the file says].",
        ),
    ],
}
"""Keyword of ``hpgmn.load`` → its option."""

COLUMN_FLAGS = {
    str(kind.__metadata__[0].default).partition("/")[0]  # where typer keeps the option's name
    for kind in _COLUMNS.values()
}
"""The options about columns, not all of which every command has."""


def column_options(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter ``columns`` of a command by the options about columns of tables.

    The command gets the options that are given as keywords of ``hpgmn.load``.
    """
    columns = {name: kind for name, kind in _COLUMNS.items() if name not in without}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**options: Any) -> None:
            given = {name: options.pop(f"column_{name}") for name in columns}
            command(
                **options,
                columns={
                    name: list(value) if isinstance(value, tuple) else value
                    for name, value in given.items()
                    if value is not None and value != []
                },
            )

        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name != "columns":
                parameters.append(parameter)
                continue
            parameters += [
                inspect.Parameter(f"column_{name}", parameter.kind, default=None, annotation=kind)
                for name, kind in columns.items()
            ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


# Where work runs.

EngineName: TypeAlias = Annotated[
    str, typer.Option("--engine", help="local: this machine; ray: a Ray cluster.")
]
Address: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="With --engine ray: the cluster, HOST:PORT or auto [RAY_ADDRESS, else Ray is started "
        "on this machine]."
    ),
]
ENGINES = ("local", "ray")


def check_engine(engine: str, address: str | None, workers: int | None = None) -> None:
    """Refuse options that exclude each other, and Ray if it is not installed."""
    if engine not in ENGINES:
        raise SettingError.unknown("engine", engine, ENGINES)
    if address is not None and engine != "ray":
        raise SettingError(
            "--address requires --engine ray.",
            Remedy("Use Ray", option="engine", value="ray") | "Leave out --address",
        )
    if workers is not None and workers < 1:
        raise SettingError(f"--workers must be at least 1 (got {workers}).")
    if engine == "ray":
        from hpgmn.engines.ray import require_ray

        require_ray()


@contextmanager
def open_engine(
    engine: str, address: str | None, device: str, workers: int | None = None
) -> Iterator[tuple[Engine, str]]:
    """Yield the requested engine, ready to work, and its device: "cpu" or "cuda".

    Args:
        device: "auto", "cpu" or "cuda"; auto takes GPUs where the engine has some.
        workers: tasks at a time; None: one on this machine, all cores of a cluster.
    """
    from hpgmn.runs.spec import DEVICES, resolve_device

    check_engine(engine, address, workers)
    if engine == "local":
        from hpgmn.engines.processes import LocalEngine

        yield LocalEngine(workers or 1), resolve_device(device)
        return
    if device not in DEVICES:
        raise SettingError.unknown("device", device, DEVICES)
    from hpgmn.engines.ray import RayEngine, connect_ray

    with connect_ray(address) as ray:
        if device == "auto":
            device = "cuda" if ray.cluster_resources().get("GPU", 0) >= 1 else "cpu"
        cluster = RayEngine(ray, device, workers)
        say(f"{cluster}.")
        yield cluster, device
