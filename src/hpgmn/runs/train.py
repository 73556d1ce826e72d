"""Train a run: read the graph, choose settings, train, score once, write the run folder."""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpgmn.base.errors import Remedy, SettingError
from hpgmn.base.files import lock_folder
from hpgmn.graph import Graph, Split
from hpgmn.graph.datasets import DATASETS, check_column_options, load
from hpgmn.models import find_model, has_settings_for, is_custom, read_config
from hpgmn.runs.fit import FittedRun, Monitor, ProgressCallback, fit_run, make_monitor
from hpgmn.runs.folder import (
    LOG_FILE,
    PORTFOLIO_FILE,
    finished_run,
    interruptible,
    log_file,
    prepare_folder,
    record_log,
    warnings_among,
)
from hpgmn.runs.run import Run, open_run
from hpgmn.runs.spec import RunSpec, changes, check_run, made_with, make_spec, resolve_device

if TYPE_CHECKING:
    from hpgmn.engines import Engine

logger = logging.getLogger(__name__)


def train(
    graph: Graph | str | Path | None = None,
    *,
    model: str | None = None,
    settings: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
    splits: str | int | Sequence[int] | None = None,
    seeds: int | None = None,
    protocol: str | None = None,
    metric: str | None = None,
    positive: str | None = None,
    device: str | None = None,
    deterministic: bool | None = None,
    calibrate: bool | None = None,
    portfolio: bool | None = None,
    columns: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    report: bool = True,
    engine: Engine | None = None,
    progress: ProgressCallback | None = None,
    notify: Callable[[str], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Run:
    """Train every requested split and seed at once and write a run folder.

    Without a model, settings or a config, and on a graph without shipped settings, a portfolio of
    settings is tried on validation nodes and the best is trained.

    Args:
        graph: a graph, a dataset name, a graph file or tables; None: that of the config.
        model: a model's name, or ``package.module:Class`` of your own [hpgmn].
        settings: what differs from the settings of the config, or else from the shipped ones.
        config: a YAML file, the ``config.yaml`` of a run, or a shipped name such as "paper".
        splits: "all", a number or numbers [all].
        seeds: seeds per split [1].
        protocol: a published protocol, whose splits are used.
        metric: what selects epochs and is reported [that of the dataset, or accuracy].
        positive: of two classes the one that average_precision and precision@K look for [the
            rarer].
        device: "auto", "cpu" or "cuda" [auto].
        deterministic: bit-identical results on a GPU [no].
        calibrate: fit a temperature to the validation nodes [yes].
        portfolio: whether to try the portfolio [only where nothing else gives settings].
        columns: keywords of ``hpgmn.load`` about the columns of tables.
        out: the run folder [runs/GRAPH-MODEL-TIME].
        resume: continue the interrupted run in ``out``.
        overwrite: replace the run in ``out``.
        report: whether to write ``report.html`` and what it explains.
        engine: a cluster to train on; None for this machine.
        progress: called with what is running and its :class:`~hpgmn.training.replicas.Progress`.
        notify: called with remarks about the data and about decisions.
        should_stop: polled after each epoch; True saves the state and raises KeyboardInterrupt.
    """
    check_resume(out, resume=resume, overwrite=overwrite)
    monitor = make_monitor(progress, notify, should_stop)
    options = read_options(
        config,
        model=model,
        splits=splits,
        seeds=seeds,
        protocol=protocol,
        metric=metric,
        positive=positive,
        device=device,
        deterministic=deterministic,
        calibrate=calibrate,
    )
    if model is None and is_custom(options.get("model", "")):
        raise SettingError(
            f"The config names a model of your own, '{options['model']}', and code is imported "
            "only when you name it.",
            Remedy("Name it", option="model", value=options["model"]),
        )
    with record_log() as records:
        source, loaded = load_source(graph, options, columns, monitor)
        is_in_memory = isinstance(graph, Graph) and source not in DATASETS
        options["device"] = resolve_device(options.get("device", "auto"), engine)
        named = {"model": model, "config": config}
        is_chosen = uses_portfolio(source, portfolio, named, settings)
        spec = make_spec(loaded, source, options, {} if is_chosen else settings)
        checked = check_run(spec, loaded)
        _warn_changes(options, spec, loaded)
        if settings and not is_chosen and uses_portfolio(source, portfolio, named, None):
            monitor.note("The portfolio is not tried, because settings are given.")
        for line in checked[1]:  # before minutes of work
            logger.warning(line)
        choice = None
        if is_chosen:
            choice = _choose(spec, loaded, settings, out, engine, monitor, resume, overwrite)
        if choice is not None:
            options |= {"model": choice.model, "settings": choice.settings}
            kind = find_model(choice.model).settings
            known = {key: value for key, value in (settings or {}).items() if hasattr(kind, key)}
            spec = make_spec(loaded, source, options, known)
            checked = check_run(spec, loaded)
        folder = Path(out) if out is not None else default_folder(loaded.name, spec.model)
        if is_in_memory:
            spec = replace(spec, graph=str(graph_file(folder, loaded).resolve()))
        job = Job(
            *(spec, loaded, folder, checked, records),
            choice=None if choice is None else choice.as_dict(),
            is_in_memory=is_in_memory,
        )
        with lock_folder(folder), interruptible(folder, monitor.notify):
            return job.run(
                monitor, resume=resume, overwrite=overwrite, report=report, engine=engine
            )


def check_resume(out: str | Path | None, *, resume: bool, overwrite: bool) -> None:
    """Refuse to resume without a folder, or to resume and overwrite."""
    if resume and out is None:
        raise SettingError(
            "Resuming needs the folder of the interrupted run.", Remedy("Name it", option="out")
        )
    if resume and overwrite:
        raise SettingError(
            "Resuming and overwriting exclude each other.",
            Remedy("Continue the run", option="resume", value=True)
            | Remedy("Replace it", option="overwrite", value=True),
        )


def read_options(config: str | Path | None, **options: Any) -> dict[str, Any]:
    """Merge a config with the options that are given."""
    merged = {} if config is None else read_config(str(config))
    if merged.get("made_with", {}).get("shards") is not None:
        raise SettingError(
            "The config is of a run on row shards.",
            Remedy("Repeat it", command="train-shards", option="config", value=str(config)),
        )
    model = options.get("model")
    if model is not None and merged.get("model", model) != model:
        raise SettingError(
            f"The config is of {merged['model']}, not of {model}.",
            "Leave out the model, or the config",
        )
    return merged | {name: value for name, value in options.items() if value is not None}


def load_source(
    graph: Graph | str | Path | None,
    options: dict[str, Any],
    columns: Mapping[str, Any] | None,
    monitor: Monitor,
) -> tuple[str, Graph]:
    """Return the name or path of a graph, and the graph; ``options`` get the roles of columns."""
    if isinstance(graph, Graph):
        return graph.name, graph
    source = graph if graph is not None else options.get("graph")
    if source is None:
        raise SettingError(
            "No graph is given.",
            "Name a dataset, a graph file or tables, or use the config.yaml of a run",
        )
    options["tables"] = check_column_options({**options.get("tables", {}), **(columns or {})})
    loaded = load(
        source,
        options.get("protocol"),
        **options["tables"],
        log=monitor.note,
        progress=monitor.step,
    )
    return str(source), loaded


def _warn_changes(options: Mapping[str, Any], spec: RunSpec, graph: Graph) -> None:
    """Warn of what has changed since the run of the config, if it is trained again."""
    if options.get("made_with") and options.get("graph") == spec.graph:
        for line in changes(options, made_with(graph, spec.splits, spec.device)):
            logger.warning(line)


def uses_portfolio(
    source: str,
    requested: bool | None,
    named: Mapping[str, Any],
    settings: Mapping[str, Any] | None,
) -> bool:
    """Return whether a portfolio chooses model and settings.

    Args:
        source: the graph's name or path.
        requested: what the user requests, if anything.
        named: options that name a model and all its settings, with their values.
        settings: single settings; with them the portfolio is tried on request only.
    """
    given = [option for option, value in named.items() if value]
    if requested and given:
        raise SettingError(
            "The portfolio chooses model and settings itself.",
            Remedy(f"Leave out {' and '.join(given)}")
            | Remedy("Switch the portfolio off", option="portfolio", value=False),
        )
    if requested is not None:
        return requested
    return not given and not settings and not has_settings_for(source)


def _choose(
    spec: RunSpec,
    graph: Graph,
    settings: Mapping[str, Any] | None,
    out: str | Path | None,
    engine: Engine | None,
    monitor: Monitor,
    resume: bool,
    overwrite: bool,
) -> Any:
    """Return the choice of the portfolio, that of the interrupted run, or None if it has none."""
    from hpgmn.runs.folder import earlier_run
    from hpgmn.runs.portfolio import choose_settings, read_choice

    before = out and earlier_run(Path(out), resume=resume, overwrite=overwrite)
    if out is not None and before is not None and resume:
        choice = read_choice(Path(out) / PORTFOLIO_FILE)
        if choice is not None:
            monitor.note(f"The settings were chosen before: '{choice.name}' ({choice.model}).")
        return choice
    device = spec.device
    if engine is not None:
        monitor.note("The portfolio is tried on this machine, its choice trained on the cluster.")
        device = resolve_device("auto")
    try:
        return choose_settings(replace(spec, device=device), graph, settings, monitor)
    except KeyboardInterrupt:
        monitor.notify("No settings were chosen yet; nothing is saved.")
        raise


def default_folder(graph: str, model: str) -> Path:
    """Return ``runs/GRAPH-MODEL-TIME``."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{graph}-{folder_name(model)}-{now}"


def folder_name(model: str) -> str:
    """Return a model's name as part of a path.

    >>> folder_name("own_model:TwoHop")
    'own_model-TwoHop'
    """
    return model.replace(":", "-")


def graph_file(folder: Path, graph: Graph) -> Path:
    """Return where a graph in memory is stored, so that the run can be opened later."""
    name = re.sub(r"[^\w.-]+", "-", graph.name) or "graph"
    return folder / f"{name}.npz"


@dataclass(frozen=True)
class Job:
    """A run that is ready to be trained into its folder, which is locked.

    Attributes:
        spec: what is trained.
        graph: the graph.
        folder: the run folder.
        checked: splits and warnings of :func:`~hpgmn.runs.spec.check_run`.
        records: what was logged before.
        choice: how a portfolio chose the settings.
        is_in_memory: whether the graph exists in memory only.
    """

    spec: RunSpec
    graph: Graph
    folder: Path
    checked: tuple[list[Split], list[str]]
    records: Sequence[logging.LogRecord]
    choice: Mapping[str, Any] | None = None
    is_in_memory: bool = False

    def run(
        self,
        monitor: Monitor,
        *,
        resume: bool,
        overwrite: bool,
        report: bool = True,
        engine: Engine | None = None,
    ) -> Run:
        """Train, or finish what an earlier process has left; return the run."""
        spec, graph, folder = self.spec, self.graph, self.folder
        made = made_with(graph, spec.splits, spec.device)
        prepare_folder(
            *(folder, spec),
            resume=resume,
            overwrite=overwrite,
            choice=self.choice,
            made=None if engine else made,
        )
        if self.is_in_memory:
            from hpgmn.graph.files import write_graph

            write_graph(graph, Path(spec.graph))
        metrics, fitted = finished_run(folder) if resume or engine else None, None
        if metrics is None and engine is not None:
            from hpgmn.runs.tasks import train_on_engine

            failures = train_on_engine(engine, {folder: spec}, graph, self.records, monitor)
            if failures:
                raise failures[folder]
            metrics = finished_run(folder)
        if metrics is not None:  # only the report is missing
            run = open_run(folder, spec.model if is_custom(spec.model) else None)
            run = Run(folder, spec, run.model, graph=graph, metrics=metrics, device=spec.device)
        else:
            earlier = list(self.records)
            with log_file(folder / LOG_FILE, earlier):
                fitted = fit_run(
                    *(spec, graph, folder),
                    checked=self.checked,
                    made=made,
                    report=monitor.epochs_of(f"{graph.name} {spec.model}"),
                    should_stop=monitor.should_stop,
                    warnings=warnings_among(earlier),
                )
            run = Run(
                *(folder, spec, fitted.model),
                graph=graph,
                metrics=fitted.metrics,
                device=spec.device,
            )
        if report:
            explain_run(run, monitor, fitted)
        return run


def explain_run(run: Run, monitor: Monitor, fitted: FittedRun | None = None) -> None:
    """Write the audit, the explanations and the report of a finished run.

    Args:
        run: the run.
        monitor: its callbacks.
        fitted: the training, if it is in memory; the report then reads no files.
    """
    from hpgmn.runs.report_data import explain_training, fitted_report_data, write_report

    spec = run.spec
    if spec.device == "cuda" and resolve_device("auto") == "cpu":  # it was trained elsewhere
        spec = replace(spec, device="cpu")
    explanations = explain_training(spec, run.graph, run.model, monitor.step)
    explanations.write(run.folder)
    monitor.step("Report")
    data = None
    if fitted is not None:
        data = fitted_report_data(run.folder, run.graph, fitted, explanations)
    write_report(run.folder, data)
