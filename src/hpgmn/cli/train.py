"""Commands that train: train and demo."""

from __future__ import annotations

import dataclasses
import datetime
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.text import mean_and_deviation
from hpgmn.cli.choice import NOT_TRIED, chosen_or_kept, known_assignments, wants_portfolio
from hpgmn.cli.console import METRIC_HELP, note, out, refuse_url, say, step_progress
from hpgmn.cli.engines import Address, EngineName, Place, check_engine, opened
from hpgmn.cli.several import (
    folder_name,
    how_to_go_on,
    model_names,
    shared_assignments,
    train_one,
    train_several,
)
from hpgmn.cli.tables import (
    GRAPH_HELP,
    Categories,
    Directed,
    DroppedColumns,
    DropUnknownEdges,
    IdColumn,
    LabelColumn,
    SourceColumn,
    SplitBy,
    SplitColumn,
    TargetColumn,
    WeightColumn,
    column_options,
)

if TYPE_CHECKING:
    from hpgmn.graph import Graph
    from hpgmn.runs.spec import RunSpec

logger = logging.getLogger(__name__)

Positive = Annotated[
    str | None,
    typer.Option(
        metavar="CLASS",
        help="Of two classes, the one that average_precision and precision@K look for [the rarer].",
    ),
]


Deterministic = Annotated[
    bool | None,
    typer.Option(
        "--deterministic/--not-deterministic",
        show_default=False,
        help="Let a GPU give the same bits each time, which takes longer; a CPU always does [no].",
    ),
]


def train(
    graph: Annotated[
        str | None, typer.Argument(help=f"{GRAPH_HELP} A run's config.yaml names one.")
    ] = None,
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
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    splits: Annotated[str | None, typer.Option(help="all, or numbers: 0,3 [all].")] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds per split [1].")] = None,
    protocol: Annotated[str | None, typer.Option(help="A published protocol's splits.")] = None,
    metric: Annotated[str | None, typer.Option(help=METRIC_HELP)] = None,
    positive: Positive = None,
    calibration: Annotated[
        bool | None,
        typer.Option(
            "--calibration/--no-calibration",
            show_default=False,
            help="Scale probabilities by a temperature fitted to the validation nodes [on].",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda [auto].")] = None,
    deterministic: Deterministic = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="The run folder [runs/GRAPH-MODEL-TIME].")
    ] = None,
    portfolio: Annotated[
        bool | None,
        typer.Option(
            "--portfolio/--no-portfolio",
            show_default=False,
            help="Try a few settings and take the best on validation [where no model or settings "
            "are named and none are shipped for the graph]. With --set, each is tried with that.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue the interrupted run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace the run in --out.")] = False,
    engine: EngineName = "local",
    address: Address = None,
    workers: Annotated[
        int | None,
        typer.Option(help="With --engine ray: how many runs at a time [one for each core]."),
    ] = None,
    id_: IdColumn = None,
    label: LabelColumn = None,
    split_column: SplitColumn = None,
    source: SourceColumn = None,
    target: TargetColumn = None,
    weight: WeightColumn = None,
    drop: DroppedColumns = None,
    category: Categories = None,
    split_by: SplitBy = None,
    drop_unknown_edges: DropUnknownEdges = False,
    directed: Directed = None,
) -> None:
    """Train every asked split and seed at once and write a run folder.

    Several models give one run folder each and a table that sets them against hpgmn. On a graph
    without shipped settings, and with no model or settings named, a portfolio of settings is tried
    on validation nodes and the best is trained.
    """
    from hpgmn.graph.datasets import check_column_options, load
    from hpgmn.models import is_custom
    from hpgmn.models.shipped import read_config

    check_engine(engine, address, workers)
    if engine == "local" and workers is not None:
        raise SettingError(
            "--workers is of --engine ray: here splits and seeds are trained at once. Leave it out."
        )
    refuse_url("--out", out_folder)
    if resume and out_folder is None:
        raise SettingError("--resume needs a folder. Give that of the interrupted run with --out.")
    if resume and overwrite:
        raise SettingError(
            "--resume and --overwrite exclude each other. Give --resume to go on, or --overwrite "
            "to begin anew."
        )
    given = read_config(config) if config is not None else {}
    graph = _named_graph(graph, given, config)
    said = {"--model": model, "--config": config}
    is_chosen = wants_portfolio(graph, portfolio, said, set_)
    options = {
        "splits": splits,
        "seeds": seeds,
        "protocol": protocol,
        "metric": metric,
        "positive": positive,
        "device": device,
        "calibrate": calibration,
        "deterministic": deterministic,
    }
    given |= {name: value for name, value in options.items() if value is not None}
    names = model_names(model or [given.get("model", "hpgmn")])
    if model is None and is_custom(names[0]):
        raise SettingError(
            f"The config names a model of your own, '{names[0]}', and code is imported only when "
            f"you name it. Add --model {names[0]}."
        )
    if len(names) > 1 and config is not None:
        raise SettingError("--config holds the settings of one model. Name one with --model.")
    if given.get("model", names[0]) != names[0]:
        raise SettingError(
            f"The config is of {given['model']}, not of {names[0]}. Leave --model out, or --config."
        )
    assignments = shared_assignments(names, [] if is_chosen else set_ or [])
    columns = column_options(
        *(id_, label, split_column, source, target, weight, drop),
        *(category, split_by, drop_unknown_edges, directed),
    )
    given["tables"] = check_column_options(given.get("tables", {}) | columns)
    protocol = given.get("protocol")
    with step_progress() as progress:
        loaded = load(graph, protocol, **given["tables"], log=note, progress=progress)
    with opened(engine, address, given.get("device", "auto"), workers) as place:
        given["device"] = place.device
        asked = _Asked(graph, given, names, assignments, set_ or [], is_chosen, resume, overwrite)
        specs, warnings = _specifications(asked, loaded)
        _tell_changes(given, specs[0], loaded)
        if set_ and not is_chosen and wants_portfolio(graph, portfolio, said):
            note(NOT_TRIED)
        for line in warnings:  # before minutes of work
            logger.warning(line)
        _train(asked, specs, loaded, out_folder, place)


def _named_graph(graph: str | None, given: Mapping[str, Any], config: str | None) -> str:
    """The graph that an argument names, or else the config of a run."""
    shards = given.get("made_with", {}).get("shards")
    if shards is not None:
        raise SettingError(
            f"The config is of a run on row shards. Repeat it with `hpgmn train-shards --config "
            f"{config} --out FOLDER`."
        )
    if graph is not None:
        return graph
    if given.get("graph") is None:
        raise SettingError(
            "Name the graph: a dataset's name, a graph file or folder, or tables. The config.yaml "
            "of a run names its own (--config)."
        )
    return str(given["graph"])


def _tell_changes(given: Mapping[str, Any], spec: RunSpec, graph: Graph) -> None:
    """Say what has changed since the run of the config, where its graph is trained on again."""
    from hpgmn.runs.spec import changes, made_with

    if given.get("made_with") and given.get("graph") == spec.graph:
        for line in changes(given, made_with(graph, spec.splits, spec.device)):
            logger.warning(line)


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What the options ask for.

    Attributes:
        source: the graph as the user named it.
        given: what the options and the config say.
        names: the models.
        assignments: model → what ``--set`` changes.
        set_: what ``--set`` says, where the portfolio chooses the model.
        is_chosen: whether the portfolio chooses model and settings.
        resume: an interrupted run is to go on.
        overwrite: an earlier run is to be replaced.
    """

    source: str
    given: Mapping[str, Any]
    names: Sequence[str]
    assignments: Mapping[str, list[str]]
    set_: Sequence[str]
    is_chosen: bool
    resume: bool
    overwrite: bool


def _train(
    asked: _Asked, specs: list[RunSpec], graph: Graph, out_folder: Path | None, place: Place
) -> None:
    """Train what is asked for, wherever that is, and print the scores."""
    from hpgmn.runs.spec import resolve_device

    names, cluster = asked.names, None if place.engine.is_local else place.engine
    after = {"resume": asked.resume, "overwrite": asked.overwrite}
    choice = None
    if asked.is_chosen:
        here = specs[0]
        if cluster is not None:
            say(
                "The portfolio is tried on this machine; what it chooses is trained on the cluster."
            )
            here = dataclasses.replace(here, device=resolve_device("auto"))
        choice = chosen_or_kept(here, graph, asked.set_, out_folder, **after)
    if choice is not None:
        names = [choice.model]
        best = {**asked.given, "model": choice.model, "settings": choice.settings}
        own = known_assignments(choice.model, asked.set_)
        specs = [specification(asked.source, graph, best, own)]
    folder = out_folder or _default_folder(graph.name, names)
    if len(specs) > 1:
        train_several(specs, graph, folder, cluster=cluster, **after)
        return
    kept = None if choice is None else choice.as_dict()
    try:
        metrics = train_one(specs[0], graph, folder, cluster=cluster, choice=kept, **after)
    except KeyboardInterrupt:
        say(how_to_go_on(folder, is_replacing=asked.overwrite))
        raise
    print_scores(metrics)
    say(f"Run folder: {folder}")


def _specifications(asked: _Asked, graph: Graph) -> tuple[list[RunSpec], list[str]]:
    """A run for each model, and warnings, the same for all; what can be refused is refused here."""
    from hpgmn.runs.spec import check_run

    specs = []
    for name in asked.names:
        own = {**asked.given, "model": name}
        try:
            spec = specification(asked.source, graph, own, asked.assignments[name])
            _, warnings = check_run(spec, graph)
        except SettingError as error:
            raise (error.prefixed(f"{name}: ") if len(asked.names) > 1 else error) from None
        specs.append(spec)
    return specs, warnings


def specification(
    source: str, graph: Graph, given: Mapping[str, Any], assignments: list[str]
) -> RunSpec:
    """The run that is asked for.

    Args:
        source: the graph as the user named it.
        graph: the graph.
        given: what the options and the config say; but for the device the rest has its default.
        assignments: what ``--set`` changes in the config's or else the shipped settings.
    """
    from hpgmn.base.settings import make_settings, parse_assignments, settings_dict
    from hpgmn.graph.datasets import DATASETS
    from hpgmn.models import find_model
    from hpgmn.models.shipped import settings_for
    from hpgmn.runs.spec import RunSpec
    from hpgmn.training.checks import positive_class, seen_labels

    name = given.get("model", "hpgmn")
    entry = find_model(name)
    known = source in DATASETS
    values = given.get("settings")
    if values is None:
        values = settings_for(source if known else None, name)
    chosen = make_settings(entry.settings, values | parse_assignments(assignments))
    metric = given.get("metric", DATASETS[source].metric if known else "accuracy")
    numbers = split_numbers(given.get("splits", "all"), graph)
    seen = seen_labels(graph, [graph.split(number) for number in numbers])
    return RunSpec(
        graph=source if known else str(Path(source).expanduser().resolve()),
        model=name,
        settings=settings_dict(chosen),
        splits=numbers,
        seeds=given.get("seeds", 1),
        protocol=given.get("protocol"),
        metric=metric,
        device=given["device"],
        calibrate=given.get("calibrate", True),
        tables=given.get("tables", {}),
        positive=positive_class(metric, seen, graph.class_names, given.get("positive")),
        deterministic=given.get("deterministic", False),
    )


def split_numbers(asked: str | Sequence[int], graph: Graph) -> tuple[int, ...]:
    """The splits behind ``all``, ``0,3`` or the list of a config."""
    if graph.splits is None:
        own = "store train_mask and val_mask"
        if graph.preparation is not None:
            own = "write train, val and test into a column 'split'"
        raise HPGMNError(
            f"'{graph.name}' has no splits and too few labels to make some. Give at least two "
            f"classes with five labelled nodes each, or {own}."
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


def _default_folder(graph: str, names: Sequence[str]) -> Path:
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    what = folder_name(names[0]) if len(names) == 1 else "comparison"
    return Path("runs") / f"{graph}-{what}-{now}"


def print_scores(row: dict[str, Any]) -> None:
    """The run in one line: test score, validation score, label estimator where it has one, time."""
    from hpgmn.base.metrics import metric_words

    runs = len(row["val_score"])
    test = mean_and_deviation(row["test_score_mean"], row["test_score_std"])
    cells = {
        "graph": row["graph"],
        "model": row["model"],
        "runs": str(runs),
        "test": _broken(metric_words(row["metric"], row.get("positive"))) + test,
        "validation": f"{100 * sum(row['val_score']) / runs:.1f}",
    }
    if estimator := row["label_estimator"]:
        guess = mean_and_deviation(estimator["test_accuracy_mean"], estimator["test_accuracy_std"])
        about = "" if row["metric"] == "accuracy" else "accuracy "  # beside another metric
        cells["label estimator"] = f"{about}{guess}"
    cells["seconds"] = f"{row['seconds']:.1f}"
    columns = [Column(name, no_wrap=name == "test", overflow="fold") for name in cells]
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))  # seven columns in 80 characters
    table.add_row(*cells.values())
    out.print(table)


def _broken(metric: str) -> str:
    """A metric before its score: a long one on lines of its own, so that the table fits."""
    short = len("accuracy")
    return f"{metric} " if len(metric) <= short else metric.replace(" of ", "\nof ") + "\n"
