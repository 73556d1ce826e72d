"""Commands that train: train and demo."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from hpgmn.cli.console import err, log_file, out, stop_on_signal, training_progress
from hpgmn.errors import HPGMNError, SettingError, unknown_name

if TYPE_CHECKING:
    from hpgmn.experiments.run import RunSpec
    from hpgmn.graph import Graph

_DEVICES = ("auto", "cpu", "cuda")


def train(
    graph: Annotated[str, typer.Argument(help="A dataset's name or a .npz graph file.")],
    model: Annotated[str | None, typer.Option(help="The model's name; see `hpgmn models`.")] = None,
    config: Annotated[
        str | None,
        typer.Option(help="A YAML file (also a run's config.yaml), or a shipped name: paper."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    splits: Annotated[str | None, typer.Option(help="all, or numbers: 0,3 [all].")] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds per split [1].")] = None,
    protocol: Annotated[str | None, typer.Option(help="A published protocol's splits.")] = None,
    metric: Annotated[str | None, typer.Option(help="accuracy or roc_auc.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda [auto].")] = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="The run folder [runs/GRAPH-MODEL-TIME].")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue the interrupted run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace the run in --out.")] = False,
) -> None:
    """Train every asked split and seed at once and write a run folder."""
    from hpgmn.datasets import load
    from hpgmn.experiments.run import check_run, finished_run, prepare_folder
    from hpgmn.report import write_report
    from hpgmn.shipped import read_config

    if resume and out_folder is None:
        raise SettingError("--resume needs --out, the folder of the interrupted run.")
    if resume and overwrite:
        raise SettingError("--resume and --overwrite exclude each other; give one.")
    given = read_config(config) if config is not None else {}
    options = {
        "model": model,
        "splits": splits,
        "seeds": seeds,
        "protocol": protocol,
        "metric": metric,
        "device": device,
    }
    given |= {name: value for name, value in options.items() if value is not None}
    loaded = load(graph, given.get("protocol"))
    spec = _specification(graph, loaded, given, set_ or [])
    check_run(spec, loaded)
    folder = out_folder or _default_folder(loaded.name, spec.model)
    prepare_folder(folder, spec, resume=resume, overwrite=overwrite)
    metrics = finished_run(folder) if resume else None
    if metrics is not None:
        write_report(folder)
    else:
        try:
            metrics = run_and_report(spec, loaded, folder)
        except KeyboardInterrupt:
            _say(f"To go on, repeat the command with --resume --out {folder}")
            raise
    print_scores([metrics])
    _say(f"Run folder: {folder}")


def _say(line: str) -> None:
    err.print(line, markup=False, highlight=False, soft_wrap=True)


def run_and_report(spec: RunSpec, graph: Graph, folder: Path) -> dict[str, Any]:
    """Train with progress, a log and the report page."""
    from hpgmn.experiments.run import LOG_FILE, run
    from hpgmn.report import write_report

    with (
        log_file(folder / LOG_FILE),
        training_progress(f"{graph.name} {spec.model}") as report,
        stop_on_signal() as should_stop,
    ):
        metrics = run(spec, graph, folder, report=report, should_stop=should_stop)
    write_report(folder)
    return metrics


def _specification(
    source: str, graph: Graph, given: Mapping[str, Any], assignments: list[str]
) -> RunSpec:
    """The run that is asked for.

    Args:
        source: the graph as the user named it.
        graph: the graph.
        given: what the options and the config say; the rest has its default.
        assignments: what ``--set`` changes in the config's or else the shipped settings.
    """
    from hpgmn.config import make_settings, parse_assignments, settings_dict
    from hpgmn.datasets import DATASETS
    from hpgmn.experiments.run import RunSpec, resolve_device
    from hpgmn.models import find_model
    from hpgmn.shipped import settings_for

    name = given.get("model", "hpgmn")
    entry = find_model(name)
    known = source in DATASETS
    values = given.get("settings")
    if values is None:
        values = settings_for(source if known else None, name)
    chosen = make_settings(entry.settings, values | parse_assignments(assignments))
    device = given.get("device", "auto")
    if device not in _DEVICES:
        raise SettingError(unknown_name("device", device, _DEVICES))
    default_metric = DATASETS[source].metric if known else "accuracy"
    return RunSpec(
        graph=source if known else str(Path(source).expanduser().resolve()),
        model=name,
        settings=settings_dict(chosen),
        splits=_split_numbers(given.get("splits", "all"), graph),
        seeds=given.get("seeds", 1),
        protocol=given.get("protocol"),
        metric=given.get("metric", default_metric),
        device=resolve_device(device),
    )


def _split_numbers(asked: str | Sequence[int], graph: Graph) -> tuple[int, ...]:
    """The splits behind ``all``, ``0,3`` or the list of a config."""
    if graph.splits is None:
        raise HPGMNError(
            f"'{graph.name}' has no splits and too few labels to make some. Give at least two "
            "classes with five labelled nodes each, or store train_mask and val_mask."
        )
    every = range(len(graph.splits))
    if asked == "all":
        return tuple(every)
    try:
        parts = asked.split(",") if isinstance(asked, str) else asked
        numbers = tuple(int(part) for part in parts)
    except ValueError:
        raise SettingError(f"--splits takes all or numbers such as 0,3 (got '{asked}').") from None
    if len(set(numbers)) != len(numbers):
        raise SettingError(f"--splits names a split twice (got '{asked}'). Name each once.")
    for number in numbers:
        if number not in every:
            known = "only split 0" if len(every) == 1 else f"splits 0 to {len(every) - 1}"
            raise SettingError(
                f"Unknown split {number}: '{graph.name}' has {known}. Choose with --splits."
            )
    return numbers


def _default_folder(graph: str, model: str) -> Path:
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{graph}-{model}-{now}"


def print_scores(rows: list[dict[str, Any]]) -> None:
    """One line per run: test score, validation score, time."""
    test_column = Column("test", no_wrap=True)
    table = Table("graph", "model", "runs", test_column, "validation", "label estimator", "seconds")
    for row in rows:
        runs = len(row["val_score"])
        mean = sum(row["val_score"]) / runs
        test = _percent(row["test_score_mean"], row["test_score_std"])
        estimator = row["label_estimator"] or {}
        guess = _percent(estimator.get("test_accuracy_mean"), estimator.get("test_accuracy_std"))
        table.add_row(
            row["graph"],
            row["model"],
            str(runs),
            f"{row['metric']} {test}",
            f"{100 * mean:.1f}",
            guess,
            f"{row['seconds']:.1f}",
        )
    out.print(table)


def _percent(mean: float | None, std: float | None) -> str:
    if mean is None:
        return "–"
    return f"{100 * mean:.1f} ± {100 * (std or 0):.1f}"


def demo(
    out_folder: Annotated[Path, typer.Option("--out", help="The run folder.")] = Path("runs/demo"),
    nodes: Annotated[int, typer.Option(help="Nodes of the generated graph.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the generated graph.")] = 0,
) -> None:
    """The built-in trading network, end to end: generate, train, score, explain."""
    from hpgmn.datasets import trading_network, write_graph
    from hpgmn.experiments.run import prepare_folder
    from hpgmn.statistics.homophily import node_homophily

    path = out_folder / "trading-network.npz"
    ours = path.exists()  # the demo replaces its own earlier run, no other
    made = trading_network(num_nodes=nodes, seed=seed)
    graph = made.graph
    _say(f"{graph}, node homophily {node_homophily(graph):.2f}: most trades are between classes.")
    spec = _specification(str(path), graph, {"splits": [0, 1, 2]}, [])
    spec = dataclasses.replace(spec, graph=str(path))
    prepare_folder(out_folder, spec, resume=False, overwrite=ours)
    write_graph(graph, path)
    metrics = run_and_report(spec, graph, out_folder)
    estimator = metrics["label_estimator"]
    table = Table("model", "test accuracy %", title=f"{graph.name}: {len(spec.splits)} splits")
    table.add_row(
        "label estimator (attributes only)",
        _percent(estimator["test_accuracy_mean"], estimator["test_accuracy_std"]),
    )
    table.add_row("HP-GMN", _percent(metrics["test_score_mean"], metrics["test_score_std"]))
    table.add_row("best attainable", f"{100 * made.best_accuracy:.1f}")
    out.print(table)
    _say(f"{metrics['seconds']:.0f} seconds. The page: {out_folder / 'report.html'}")
