"""``hpgmn train``: train one model, or several and compare them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column

from hpgmn.base.errors import (
    MISSING,
    HPGMNError,
    SettingError,
    count_noun,
    format_difference,
    format_score,
    mean_and_deviation,
    unit_of,
)
from hpgmn.cli.console import monitored, print_table, say
from hpgmn.cli.options import (
    GRAPH_HELP,
    Address,
    Calibration,
    Deterministic,
    EngineName,
    Metric,
    Overwrite,
    Positive,
    Protocol,
    Seeds,
    Settings,
    Threshold,
    check_engine,
    column_options,
    open_engine,
    refuse_url,
)

if TYPE_CHECKING:
    from hpgmn.runs.run import Run


@column_options()
def train(
    graph: Annotated[
        str | None, typer.Argument(help=f"{GRAPH_HELP} A run's config.yaml names one.")
    ] = None,
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A model's name (see `hpgmn models`), several with commas or repeated, all, or "
            "your own package.module:Class [hpgmn]."
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            help="A YAML file, or a shipped name: paper. With a run's config.yaml alone the run is "
            "trained again."
        ),
    ] = None,
    set_: Settings = None,
    splits: Annotated[str | None, typer.Option(help="all, or numbers: 0,3 [all].")] = None,
    seeds: Seeds = None,
    first_seed: Annotated[int | None, typer.Option(help="The first of the seeds [0].")] = None,
    protocol: Protocol = None,
    metric: Metric = None,
    positive: Positive = None,
    calibration: Calibration = None,
    threshold: Threshold = None,
    conformal: Annotated[
        bool | None,
        typer.Option(
            "--conformal",
            help="Reserve half of the validation nodes for the prediction sets of `hpgmn predict "
            "--coverage`: they select nothing [no].",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda [auto].")] = None,
    deterministic: Deterministic = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="The run folder [runs/GRAPH-MODEL-TIME].")
    ] = None,
    ensemble: Annotated[
        bool,
        typer.Option(
            "--ensemble",
            help="Train the portfolio and combine its members [where no model or settings are "
            "named and none are shipped for the graph]. Settings of --set apply to each.",
        ),
    ] = False,
    single: Annotated[
        bool, typer.Option("--single", help="Train the portfolio and keep the best member.")
    ] = False,
    members: Annotated[
        str | None, typer.Option(help="Members to train, with commas [all of the portfolio].")
    ] = None,
    no_portfolio: Annotated[
        bool, typer.Option("--no-portfolio", help="Train the default model.")
    ] = False,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds for the training of members [300].")
    ] = None,
    refit: Annotated[
        bool | None,
        typer.Option(
            "--refit",
            help="Train again on train and validation nodes, for the epochs that were selected.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue the interrupted run in --out.")] = False,
    overwrite: Overwrite = False,
    keep_graph: Annotated[
        bool | None,
        typer.Option(
            "--keep-graph/--no-graph",
            show_default=False,
            help="Keep a copy of the graph in the run folder, so that the run works after its "
            "tables were moved or changed [up to 1 GiB].",
        ),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write live learning curves for TensorBoard.")
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Write the learning curves as a CSV file."),
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: Annotated[
        int | None,
        typer.Option(help="With --engine ray: how many runs at a time [one for each core]."),
    ] = None,
    columns: dict[str, Any],
) -> None:
    """Train every requested split and seed at once and write a run folder.

    Several models give one run folder each and a table of differences to hpgmn. On a graph without
    shipped settings, and with no model or settings named, the members of a portfolio are trained
    within --time-limit and combined. Ctrl-C then combines and saves what is trained so far.
    """
    from hpgmn.base.settings import parse_assignments
    from hpgmn.models import read_config
    from hpgmn.runs.compare import model_names

    check_engine(engine, address, workers)
    if engine == "local" and workers is not None:
        raise SettingError(
            "--workers requires --engine ray; locally all splits and seeds are trained together.",
            "Leave it out.",
        )
    for option, path in (("--out", out_folder), ("--tensorboard", tensorboard), ("--csv", csv)):
        refuse_url(option, path)
    if csv is not None and (csv.is_dir() or (csv.exists() and not overwrite)):
        raise SettingError(f"{csv} exists already.", "Choose another file for --csv.")
    if tensorboard is not None and tensorboard.is_file():
        raise SettingError(f"{tensorboard} is a file.", "Choose a folder for --tensorboard.")
    options: dict[str, Any] = {
        "splits": splits,
        "seeds": seeds,
        "first_seed": first_seed,
        "refit": refit,
        "time_limit": time_limit,
        "protocol": protocol,
        "metric": metric,
        "positive": positive,
        "calibrate": calibration,
        "threshold": threshold,
        "conformal": conformal,
        "deterministic": deterministic,
        "settings": parse_assignments(set_ or []),
        "columns": columns,
        "out": out_folder,
        "resume": resume,
        "overwrite": overwrite,
        "keep_graph": keep_graph,
    }
    names = [] if model is None else model_names(model)
    with ExitStack() as stack:
        options["device"] = device
        if engine == "ray":
            shipped = {} if config is None else read_config(config)
            requested = device or str(shipped.get("device", "auto"))
            opened = open_engine(engine, address, requested, workers)
            options["engine"], options["device"] = stack.enter_context(opened)
        options |= stack.enter_context(monitored())
        if len(names) > 1:
            if config is not None:
                raise SettingError(
                    "--config holds the settings of one model.", "Name one with --model."
                )
            if ensemble or single or members or no_portfolio:
                raise SettingError(
                    "Several models are named.", "Name 'ensemble' as one of them, or none."
                )
            if tensorboard or csv:
                raise SettingError(
                    "--tensorboard and --csv are of one model.", "Name one with --model."
                )
            _compare(graph, names, options)
        else:
            options |= {
                "ensemble": ensemble,
                "single": single,
                "members": members,
                "portfolio": not no_portfolio,
            }
            if tensorboard is not None:
                from hpgmn.training.callbacks import TensorBoard

                options["callbacks"] = [TensorBoard(tensorboard)]
            run = _train(graph, names[0] if names else None, config, options)
            if csv is not None:
                _write_csv(csv, run.history)
            if run.metrics.get("interrupted"):
                raise typer.Exit(130)


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    from csv import DictWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _train(
    graph: str | None, model: str | None, config: str | None, options: Mapping[str, Any]
) -> Run:
    from hpgmn.runs.train import train

    run = train(graph, model=model, config=config, **options)
    if "portfolio" in run.metrics:
        print_members(run.metrics)
    print_scores(run.metrics)
    say(f"Run folder: {run.folder}")
    return run


def _compare(graph: str | None, names: list[str], options: Mapping[str, Any]) -> None:
    from hpgmn.runs.compare import compare

    if graph is None:
        raise SettingError(
            "No graph is given.", "Name a dataset, a graph file or folder, or a node table."
        )
    comparison = compare(graph, names, **options)
    print_comparison(comparison.content)
    say(f"Run folders: {comparison.folder}")
    if comparison.failures:
        [model, first], *_ = comparison.failures.items()
        count = len(comparison.failures)
        raise HPGMNError(f"{count} of {len(names)} models failed. {model}: {first}")


def print_scores(row: Mapping[str, Any]) -> None:
    """Print one line: test and validation score, label estimator where there is one, time."""
    from hpgmn.base.metrics import metric_words

    runs = len(row["val_score"])
    metric = row["metric"]
    test = mean_and_deviation(row["test_score_mean"], row["test_score_std"], metric)
    cells = {
        "graph": row["graph"],
        "model": row["model"],
        "runs": str(runs),
        "test": _line_broken(metric_words(metric, row.get("positive"))) + test,
        "validation": format_score(metric, sum(row["val_score"]) / runs),
    }
    if row.get("refit"):
        cells["model"] += " (refit)"
    if estimator := row["label_estimator"]:
        cells["label estimator"] = mean_and_deviation(
            estimator["test_score_mean"], estimator["test_score_std"], metric
        )
    cells["seconds"] = f"{row['seconds']:.1f}"
    columns = [Column(name, no_wrap=name == "test", overflow="fold") for name in cells]
    print_table(columns, [tuple(cells.values())])
    if threshold := row.get("threshold"):
        say(_threshold_words(threshold))
    if noise := row.get("val_noise"):
        from hpgmn.evaluation.rankings import noise_words

        say(noise_words(noise, row["metric"]))


def _threshold_words(content: Mapping[str, Any]) -> str:
    """Describe the chosen thresholds, and what they do on test nodes."""
    values = ", ".join(f"{value:.3g}" for value in content["value"])
    text = f"Threshold of '{content['positive']}' ({content['rule']}): {values}"
    if test := content.get("test"):
        precision, recall = (
            MISSING if test[key] is None else f"{100 * test[key]:.1f}"
            for key in ("precision", "recall")
        )
        text += f"; on test nodes precision {precision}, recall {recall}"
    return f"{text}."


def _line_broken(metric: str) -> str:
    """Return a metric before its score: a long one on lines of its own, so that the table fits."""
    short = len("accuracy")
    return f"{metric} " if len(metric) <= short else metric.replace(" of ", "\nof ") + "\n"


def print_members(metrics: Mapping[str, Any]) -> None:
    """Print one line per trained member of the portfolio, best first, with its weight."""
    from hpgmn.base.metrics import metric_words, plain_score

    content = metrics["portfolio"]
    metric = content["metric"]
    weights = {row["name"]: row["weight"] for row in metrics.get("members", ())}
    scored = [row for row in content["members"] if row["failure"] is None]
    print_table(
        (
            Column("member", overflow="fold"),
            Column("model", no_wrap=True),
            *("validation", "seconds", *(["weight"] if weights else [])),
        ),
        [
            (
                row["name"],
                row["model"],
                format_score(metric, plain_score(metric, row["val_score_mean"])),
                f"{row['seconds']:.1f}",
                *([f"{weights.get(row['name'], 0):.2f}"] if weights else []),
            )
            for row in sorted(scored, key=lambda r: (-r["val_score_mean"], r["val_loss_mean"]))
        ],
        title=f"Portfolio: {metric_words(metric, content.get('positive'))}{unit_of(metric)}",
    )


def print_comparison(content: Mapping[str, Any]) -> None:
    """Print one line per model: scores, and the difference to the reference with its interval."""
    from hpgmn.base.metrics import metric_words

    splits, seeds = len(content["splits"]), content["seeds"]
    metric = metric_words(content["metric"], content.get("positive"))
    print_table(
        (
            Column("model", overflow="fold"),
            Column("test", no_wrap=True),
            "validation",
            Column(f"minus {content['reference']} (95 %)", no_wrap=True),
            "seconds",
        ),
        [
            (
                row["model"],
                mean_and_deviation(
                    row["test_score_mean"], row["test_score_std"], content["metric"]
                ),
                format_score(content["metric"], row["val_score_mean"]),
                format_difference(row["difference"], content["metric"]),
                f"{row['seconds']:.1f}",
            )
            for row in content["rows"]
        ],
        title=f"{content['graph']}: {metric}{unit_of(content['metric'])}, "
        f"{count_noun(splits * seeds, 'run')} each" + (", refit" if content.get("refit") else ""),
    )
    if splits > 1:
        say(
            f"Differences are paired over {splits} splits; intervals are corrected for overlapping "
            "splits (Nadeau and Bengio)."
        )
    elif seeds > 1:
        say("One split: intervals are over seeds (Welch) and hold for this split only.")
    else:
        say("One run each: no interval. Train more splits or --seeds.")
