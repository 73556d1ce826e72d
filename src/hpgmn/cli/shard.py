"""``hpgmn shard``: cut a graph into row shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpgmn.base.errors import DataNotFoundError, HPGMNError, Remedy, SettingError
from hpgmn.cli.console import say, step_progress
from hpgmn.cli.options import Address, EngineName, Settings, check_engine, open_engine

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
            help="Labels of neighbours: estimated (train labels, pseudo-labels for all "
            "others), train (train labels alone), a run folder (train labels, and the run's "
            "predictions), or FILE.npy with N class numbers."
        ),
    ] = "estimated",
    split: Annotated[int, typer.Option(min=0, help="Which split.")] = 0,
    memory: Annotated[float, typer.Option(min=0.001, help="GiB that a task holds at once.")] = 1.0,
    workers: Annotated[
        int | None, typer.Option(help="How many tasks at a time [1; ray: one for each core].")
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the edges in ranges.")] = False,
    set_: Settings = None,
) -> None:
    """Cut a graph into node ranges and compute its statistics as row shards.

    Run the same command again to resume. The folder is complete when it contains manifest.json.
    """
    from hpgmn.base.settings import make_settings, parse_assignments
    from hpgmn.graph.datasets import DATASETS
    from hpgmn.models import settings_for
    from hpgmn.models.hpgmn import HPGMNSettings
    from hpgmn.shards import shard as cut

    check_engine(engine, address, workers)
    changes = parse_assignments(set_ or [])
    defaults = _shipped(settings_for(graph if graph in DATASETS else None), changes)
    settings = make_settings(HPGMNSettings, defaults | changes)
    if settings.refinement:
        raise SettingError(
            "Shards are computed from labels or from the label estimator's pseudo-labels, not "
            "from those of a first training.",
            Remedy("Switch refinement off", setting="refinement", value=False),
        )
    size = int(memory * 2**30)
    source = _source(graph)
    known = _labels(labels, source, settings, split)
    with open_engine(engine, address, "cpu", workers) as (session, _), step_progress() as progress:
        outcome = cut(
            *(source, out, known.values, settings),
            ranges=ranges,
            split=split,
            memory=size,
            engine=session,
            progress=progress,
            keep=keep,
        )
    _write_origin(out, graph, known)
    for name, facts in outcome.shards.statistics.items():
        kind = "sparse" if facts["is_sparse"] else facts["dtype"]
        say(f"{name}: {facts['width']:,} columns, {kind}")
    reused = f" ({outcome.reused} already done)" if outcome.reused else ""
    say(f"{out}: {len(outcome.shards)} ranges, {outcome.units} tasks{reused}.")


def _shipped(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return default settings without those that shards do not support, and print which.

    Args:
        settings: the shipped defaults.
        changes: the settings set by the user, which are not changed.
    """
    from hpgmn.models.hpgmn import HPGMNSettings
    from hpgmn.shards.plan import has_shards

    names = settings.get("statistics", HPGMNSettings().statistics)
    supported = {
        "refinement": False,
        "soft_counts": False,
        "statistics": [name for name in names if has_shards(name)],
    }
    changed = {
        key: value
        for key, value in supported.items()
        if key not in changes and key in settings and settings[key] != value
    }
    left_out = [key for key in changed if key != "statistics"]
    if "statistics" in changed:
        left_out += [name for name in names if not has_shards(name)]
    if left_out:
        say(
            f"Shards do not support all default settings: leaving out {', '.join(left_out)}. "
            "Scores may differ from those of `hpgmn train`."
        )
    return {**settings, **changed}


def _source(graph: str) -> Any:
    """Return the path of a graph folder, to be read in parts, or a loaded graph.

    A graph folder without splits is loaded, so that it gets those of `hpgmn train`.
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
        values: (N,) class numbers, -1 unknown.
        graph: the whole graph, if it was read.
        estimator: the parameters of the label estimator, if it predicted them.
    """

    values: Array
    graph: Graph | None
    estimator: Parameters | None = None


def _labels(labels: str, source: Any, settings: Any, split: int) -> _Labels:
    import numpy as np

    from hpgmn.graph.files import read_graph
    from hpgmn.training.trainer import estimate_labels

    if labels not in ("estimated", "train"):
        values = _read_labels(labels, source, split)
        return _Labels(values, None if isinstance(source, Path) else source)
    graph = read_graph(source) if isinstance(source, Path) else source
    if labels == "train":
        return _Labels(np.where(graph.split(split).train, graph.y, -1), graph)
    estimated = estimate_labels(graph, settings, split)
    return _Labels(estimated.labels, graph, estimated.parameters)


def _read_labels(file: str, source: Any, split: int) -> Array:
    """Read labels from a file, or from the predictions of a run."""
    from hpgmn.base.parsing import read_array
    from hpgmn.runs.folder import METRICS_FILE, PREDICTIONS_FILE
    from hpgmn.runs.outputs import read_pseudo_labels, refuse_other_graph

    path = Path(file).expanduser()
    if (path / PREDICTIONS_FILE).is_file():
        if isinstance(source, Path):
            names, facts = _class_names(source), (_num_nodes(source), None)
        else:
            names, facts = source.class_names, (source.num_nodes, source.fingerprint)
        refuse_other_graph(path / METRICS_FILE, *facts)
        return read_pseudo_labels(path / PREDICTIONS_FILE, names, split)
    if path.suffix != ".npy" or not path.is_file():
        raise DataNotFoundError(
            f"--labels takes estimated, train, the folder of a finished run, or an existing "
            f"FILE.npy (got '{file}')."
        )
    try:
        values = read_array(path)
    except (OSError, ValueError) as error:
        raise HPGMNError(
            f"{path} is no array of plain numbers ({error}).", "Write it with numpy.save."
        ) from None
    if values.dtype.kind not in "iu":
        raise HPGMNError(f"{path} must hold whole numbers (got {values.dtype}).")
    return values


def _num_nodes(folder: Path) -> int:
    """Return the number of nodes of a graph folder."""
    from hpgmn.shards.files import RowFile

    return len(RowFile(folder / "edges_indptr.npy")) - 1


def _class_names(folder: Path) -> list[str]:
    """Return the classes of a graph folder."""
    from hpgmn.shards.files import small_array

    if not (folder / "class_names.npy").is_file():
        raise HPGMNError(
            f"The graph folder {folder} names no classes (class_names.npy), so the run's are not "
            "known to be its own.",
            "Write it with hpgmn.write_graph.",
        )
    return [str(name) for name in small_array(folder / "class_names.npy")]


def _write_origin(out: Path, graph: str, known: _Labels) -> None:
    """Write what a model trained on the shards needs to be used on graphs."""
    from hpgmn.base.files import write_tensors
    from hpgmn.graph.datasets import DATASETS
    from hpgmn.shards import ESTIMATOR_FILE, note_origin

    if known.estimator is not None:
        write_tensors(out / ESTIMATOR_FILE, known.estimator, {})
    if known.graph is not None:
        source = graph if graph in DATASETS else str(Path(graph).expanduser().resolve())
        note_origin(out, source, known.graph)
