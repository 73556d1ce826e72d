"""The command that cuts a graph into row shards: shard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpgmn.cli.console import say, step_progress
from hpgmn.cli.engines import Address, EngineName, check_engine, opened
from hpgmn.errors import DataNotFoundError, HPGMNError, SettingError

if TYPE_CHECKING:
    from hpgmn.graph import Array


def shard(
    graph: Annotated[
        str,
        typer.Argument(
            help="A dataset's name, or a graph file or folder (a folder if it is large)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the shards.")],
    ranges: Annotated[int, typer.Option(min=1, help="Into how many ranges of nodes to cut.")] = 8,
    labels: Annotated[
        str,
        typer.Option(
            help="By which neighbours are counted: estimated (train labels, and guesses for all "
            "others), train (train labels alone), or FILE.npy with N numbers of classes."
        ),
    ] = "estimated",
    split: Annotated[int, typer.Option(min=0, help="Which split.")] = 0,
    memory: Annotated[float, typer.Option(min=0.001, help="GiB that a task holds at once.")] = 1.0,
    workers: Annotated[
        int | None,
        typer.Option(help="How many tasks at a time [1; ray: one for each core]."),
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the edges in ranges.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
) -> None:
    """Cut a graph into node ranges and compute its statistics as row shards.

    The same command goes on where an interrupted one stopped. The folder is then complete when it
    holds manifest.json.
    """
    from hpgmn.config import make_settings, parse_assignments
    from hpgmn.datasets import DATASETS
    from hpgmn.models.hpgmn import HPGMNSettings
    from hpgmn.sharding import shard as cut
    from hpgmn.shipped import settings_for

    check_engine(engine, address, workers)
    own = settings_for(graph if graph in DATASETS else None)
    settings = make_settings(HPGMNSettings, own | parse_assignments(set_ or []))
    if settings.refinement:
        raise SettingError(
            "Shards rest on given labels or on the label estimator's guesses, not on a first "
            "training's. Set refinement=false."
        )
    size = int(memory * 2**30)
    source = _source(graph)
    known = _labels(labels, source, settings, split)
    with opened(engine, address, "cpu", workers) as place, step_progress() as progress:
        done = cut(
            *(source, out, known, settings),
            ranges=ranges,
            split=split,
            memory=size,
            engine=place.engine,
            progress=progress,
            keep=keep,
        )
    for name, about in done.shards.statistics.items():
        kind = "sparse" if about["is_sparse"] else about["dtype"]
        say(f"{name}: {about['width']:,} columns, {kind}")
    before = f", {done.found} of them found finished" if done.found else ""
    say(f"{out}: {len(done.shards)} ranges, {done.units} pieces of work{before}.")


def _source(graph: str) -> Any:
    """A graph folder as its path, so that it is read in parts; any other graph as it is."""
    from hpgmn.datasets import DATASETS, load

    path = Path(graph).expanduser()
    if graph not in DATASETS and (path / "edges_indptr.npy").is_file():
        return path
    return load(graph)


def _labels(labels: str, source: Any, settings: Any, split: int) -> Array:
    import numpy as np

    from hpgmn.classifier import estimate_labels
    from hpgmn.datasets import read_graph

    if labels not in ("estimated", "train"):
        path = Path(labels).expanduser()
        if path.suffix != ".npy" or not path.is_file():
            raise DataNotFoundError(
                f"--labels takes estimated, train, or an existing FILE.npy (got '{labels}')."
            )
        try:
            found: Array = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise HPGMNError(
                f"{path} cannot be read ({error}). Write it with numpy.save."
            ) from None
        if found.dtype.kind not in "iu":
            raise HPGMNError(f"{path} must hold whole numbers (got {found.dtype}).")
        return found
    graph = read_graph(source) if isinstance(source, Path) else source
    if labels == "train":
        return np.where(graph.split(split).train, graph.y, -1)
    return estimate_labels(graph, settings, split)[0]
