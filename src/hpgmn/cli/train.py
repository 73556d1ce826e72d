"""Commands that train: train and demo."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

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
        str | None, typer.Option(help="A YAML file, or a shipped name: paper.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    splits: Annotated[str, typer.Option(help="all, or numbers: 0,3.")] = "all",
    seeds: Annotated[int, typer.Option(help="Seeds per split.")] = 1,
    protocol: Annotated[str | None, typer.Option(help="A published protocol's splits.")] = None,
    metric: Annotated[str | None, typer.Option(help="accuracy or roc_auc.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="The run folder [runs/GRAPH-MODEL-TIME].")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue the interrupted run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace the run in --out.")] = False,
) -> None:
    """Train every asked split and seed at once and write a run folder."""
    from hpgmn.datasets import load
    from hpgmn.experiments.run import METRICS_FILE, check_run, prepare_folder

    if resume and out_folder is None:
        raise SettingError("--resume needs --out, the folder of the interrupted run.")
    if resume and overwrite:
        raise SettingError("--resume and --overwrite exclude each other; give one.")
    loaded = load(graph, protocol)
    spec = _specification(
        graph, loaded, model, config, set_ or [], splits, seeds, protocol, metric, device
    )
    check_run(spec, loaded)
    folder = out_folder or _default_folder(loaded.name, spec.model)
    prepare_folder(folder, resume=resume, overwrite=overwrite)
    if resume and (folder / METRICS_FILE).exists():
        raise HPGMNError(f"The run in {folder} is finished. Read {folder / METRICS_FILE}.")
    metrics = run_and_report(spec, loaded, folder)
    print_scores([metrics])
    err.print(f"Run folder: {folder}", markup=False, highlight=False, soft_wrap=True)


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
    source: str,
    graph: Graph,
    model: str | None,
    config: str | None,
    assignments: list[str],
    splits: str,
    seeds: int,
    protocol: str | None,
    metric: str | None,
    device: str,
) -> RunSpec:
    """The run that the options ask for: shipped settings, then the config, then --set."""
    from hpgmn.config import make_settings, parse_assignments, settings_dict
    from hpgmn.datasets import DATASETS
    from hpgmn.experiments.run import RunSpec, resolve_device
    from hpgmn.models import find_model
    from hpgmn.shipped import read_config, settings_for

    given = read_config(config) if config is not None else {}
    name = model or str(given.get("model", "hpgmn"))
    entry = find_model(name)
    known = source in DATASETS
    values = dict(given["settings"]) if given else settings_for(source if known else None, name)
    chosen = make_settings(entry.settings, values | parse_assignments(assignments))
    if device not in _DEVICES:
        raise SettingError(unknown_name("device", device, _DEVICES))
    default_metric = DATASETS[source].metric if known else "accuracy"
    return RunSpec(
        graph=source if known else str(Path(source).expanduser().resolve()),
        model=name,
        settings=settings_dict(chosen),
        splits=_split_numbers(splits, graph),
        seeds=seeds,
        protocol=protocol,
        metric=metric or default_metric,
        device=resolve_device(device),
    )


def _split_numbers(text: str, graph: Graph) -> tuple[int, ...]:
    """The splits behind ``all`` or ``0,3``."""
    if graph.splits is None:
        raise HPGMNError(
            f"'{graph.name}' has no splits and too few labels to make some. Give at least two "
            "classes with five labelled nodes each, or store train_mask and val_mask."
        )
    if text == "all":
        return tuple(range(len(graph.splits)))
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SettingError(f"--splits takes all or numbers such as 0,3 (got '{text}').") from None
    if len(set(numbers)) != len(numbers):
        raise SettingError(f"--splits names a split twice (got '{text}').")
    return numbers


def _default_folder(graph: str, model: str) -> Path:
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{graph}-{model}-{now}"


def print_scores(rows: list[dict[str, Any]]) -> None:
    """One line per run: test score, validation score, time."""
    table = Table("graph", "model", "runs", "test", "validation", "label estimator", "seconds")
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
    from hpgmn.experiments.run import CONFIG_FILE, prepare_folder
    from hpgmn.statistics.homophily import node_homophily

    ours = (out_folder / CONFIG_FILE).exists()  # the demo replaces its own earlier run
    made = trading_network(num_nodes=nodes, seed=seed)
    graph = made.graph
    err.print(
        f"{graph}, node homophily {node_homophily(graph):.2f}: most trades are between classes.",
        markup=False,
        highlight=False,
    )
    prepare_folder(out_folder, resume=False, overwrite=ours)
    path = out_folder / "trading-network.npz"
    write_graph(graph, path)
    spec = _specification(
        str(path), graph, None, None, ["neighbors=both"], "0,1,2", 1, None, None, "auto"
    )
    spec = dataclasses.replace(spec, graph=str(path))
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
    err.print(
        f"{metrics['seconds']:.0f} seconds. The page: {out_folder / 'report.html'}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
