"""The command that cuts a graph into row shards: shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpgmn.base.errors import DataNotFoundError, HPGMNError, SettingError
from hpgmn.cli.console import say, step_progress
from hpgmn.cli.engines import Address, EngineName, check_engine, open_engine

if TYPE_CHECKING:
    from hpgmn.graph import Array, Graph
    from hpgmn.models.stage import Parameters


def shard(
    graph: Annotated[
        str,
        typer.Argument(
            help="A dataset's name, a graph file or folder (a folder if it is large), or a folder "
            "with tables nodes and edges."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the shards.")],
    ranges: Annotated[int, typer.Option(min=1, help="Into how many ranges of nodes to cut.")] = 8,
    labels: Annotated[
        str,
        typer.Option(
            help="By which neighbours are counted: estimated (train labels, and guesses for all "
            "others), train (train labels alone), a run folder (train labels, and the run's "
            "predictions), or FILE.npy with N numbers of classes."
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
    from hpgmn.base.settings import make_settings, parse_assignments
    from hpgmn.graph.datasets import DATASETS
    from hpgmn.models.hpgmn import HPGMNSettings
    from hpgmn.models.shipped import settings_for
    from hpgmn.shards import shard as cut

    check_engine(engine, address, workers)
    given = parse_assignments(set_ or [])
    own = _shipped(settings_for(graph if graph in DATASETS else None), given)
    settings = make_settings(HPGMNSettings, own | given)
    if settings.refinement:
        raise SettingError(
            "Shards rest on given labels or on the label estimator's guesses, not on a first "
            "training's. Set refinement=false."
        )
    size = int(memory * 2**30)
    source = _source(graph)
    made = _labels(labels, source, settings, split)
    with open_engine(engine, address, "cpu", workers) as place, step_progress() as progress:
        done = cut(
            *(source, out, made.values, settings),
            ranges=ranges,
            split=split,
            memory=size,
            engine=place.engine,
            progress=progress,
            keep=keep,
        )
    _write_origin(out, graph, made)
    for name, about in done.shards.statistics.items():
        kind = "sparse" if about["is_sparse"] else about["dtype"]
        say(f"{name}: {about['width']:,} columns, {kind}")
    before = f", {done.reused} of them found finished" if done.reused else ""
    say(f"{out}: {len(done.shards)} ranges, {done.units} pieces of work{before}.")


def _shipped(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Shipped settings without what shards cannot have, and a line that says so.

    Args:
        settings: the shipped ones.
        given: what the user sets anyway.
    """
    from hpgmn.models.hpgmn import HPGMNSettings
    from hpgmn.statistics.settings import averaged_statistic

    names = settings.get("statistics", HPGMNSettings().statistics)
    wanted = {
        "refinement": False,
        "soft_counts": False,
        "statistics": [name for name in names if averaged_statistic(name) is None],
    }
    changed = {
        key: value
        for key, value in wanted.items()
        if key not in given and key in settings and settings[key] != value
    }
    left_out = [key for key in changed if key != "statistics"]
    if "statistics" in changed:
        left_out += [name for name in names if averaged_statistic(name) is not None]
    if left_out:
        say(
            f"Shards cannot have all of the shipped settings: without {', '.join(left_out)}. "
            "Scores may differ from those of `hpgmn train`."
        )
    return {**settings, **changed}


def _source(graph: str) -> Any:
    """A graph folder as its path, so that it is read in parts; any other graph as it is.

    A graph folder without splits is loaded, too: it then has those that `hpgmn train` makes.
    """
    from hpgmn.graph.datasets import DATASETS, load

    path = Path(graph).expanduser()
    needed = ("edges_indptr.npy", "train_mask.npy")
    if graph not in DATASETS and all((path / name).is_file() for name in needed):
        return path
    with step_progress() as progress:
        return load(graph, log=say, progress=progress)


@dataclass(frozen=True)
class _Labels:
    """The labels by which neighbours are counted.

    Attributes:
        values: (N,) numbers of classes, -1 unknown.
        graph: the whole graph, where it had to be read.
        estimator: the parameters of the label estimator that guessed them, if one did.
    """

    values: Array
    graph: Graph | None
    estimator: Parameters | None = None


def _labels(labels: str, source: Any, settings: Any, split: int) -> _Labels:
    import numpy as np

    from hpgmn.classifier import estimate_labels
    from hpgmn.graph.files import read_graph

    if labels not in ("estimated", "train"):
        found = _read_labels(labels, source, split)
        return _Labels(found, None if isinstance(source, Path) else source)
    graph = read_graph(source) if isinstance(source, Path) else source
    if labels == "train":
        return _Labels(np.where(graph.split(split).train, graph.y, -1), graph)
    guessed = estimate_labels(graph, settings, split)
    return _Labels(guessed.labels, graph, guessed.parameters)


def _read_labels(file: str, source: Any, split: int) -> Array:
    """The labels in a file, or the predictions of a run."""
    from hpgmn.base.parsing import read_array
    from hpgmn.runs.folder import METRICS_FILE, PREDICTIONS_FILE
    from hpgmn.runs.predictions import guessed_labels, refuse_other_graph

    path = Path(file).expanduser()
    if (path / PREDICTIONS_FILE).is_file():
        if isinstance(source, Path):
            names, about = _class_names(source), (_num_nodes(source), None)
        else:
            names, about = source.class_names, (source.num_nodes, source.fingerprint)
        refuse_other_graph(path / METRICS_FILE, *about)
        return guessed_labels(path / PREDICTIONS_FILE, names, split)
    if path.suffix != ".npy" or not path.is_file():
        raise DataNotFoundError(
            f"--labels takes estimated, train, the folder of a finished run, or an existing "
            f"FILE.npy (got '{file}')."
        )
    try:
        found = read_array(path)
    except (OSError, ValueError) as error:
        raise HPGMNError(
            f"{path} is no array of plain numbers ({error}). Write it with numpy.save."
        ) from None
    if found.dtype.kind not in "iu":
        raise HPGMNError(f"{path} must hold whole numbers (got {found.dtype}).")
    return found


def _num_nodes(folder: Path) -> int:
    """The nodes of a graph folder, each with a place in the edges."""
    from hpgmn.shards.files import RowFile

    return len(RowFile(folder / "edges_indptr.npy")) - 1


def _class_names(folder: Path) -> list[str]:
    """The classes of a graph folder."""
    from hpgmn.shards.files import small_array

    if not (folder / "class_names.npy").is_file():
        raise HPGMNError(
            f"The graph folder {folder} names no classes (class_names.npy), so the run's are not "
            "known to be its own. Write it with hpgmn.write_graph."
        )
    return [str(name) for name in small_array(folder / "class_names.npy")]


def _write_origin(out: Path, graph: str, made: _Labels) -> None:
    """What a model trained on the shards needs to be used on graphs; the same each time."""
    from hpgmn.graph.datasets import DATASETS
    from hpgmn.shards import ESTIMATOR_FILE, note_origin
    from hpgmn.training.checkpoint import write_tensors

    if made.estimator is not None:
        write_tensors(out / ESTIMATOR_FILE, made.estimator, {})
    if made.graph is not None:
        source = graph if graph in DATASETS else str(Path(graph).expanduser().resolve())
        note_origin(out, source, made.graph)
