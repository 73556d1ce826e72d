"""Train a run: read the graph, select what is left open, train, score once, write the folder."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpgmn.base.errors import Remedy, SettingError, format_bytes
from hpgmn.base.files import lock_folder
from hpgmn.base.metrics import metric as find_metric
from hpgmn.base.thresholds import parse_threshold
from hpgmn.graph import Graph, Split
from hpgmn.graph.datasets import DATASETS, load, with_random_splits
from hpgmn.graph.files import graph_size, write_graph
from hpgmn.models import has_settings_for, is_custom, read_config
from hpgmn.runs.fit import EpochCallback, Monitor, ProgressCallback, make_monitor
from hpgmn.runs.folder import (
    GRAPH_FILE,
    LOG_FILE,
    METRICS_FILE,
    PREDICTIONS_FILE,
    check_resume,
    finished_run,
    interruptible,
    log_file,
    prepare_folder,
    record_log,
    warnings_among,
)
from hpgmn.runs.pool import fit_spec
from hpgmn.runs.portfolio import portfolio_selection, selected_members
from hpgmn.runs.run import Run, open_run
from hpgmn.runs.spec import (
    RunSpec,
    changes,
    check_run,
    check_seeds,
    choose_metric,
    make_spec,
    parse_splits,
    resolve_device,
    run_environment,
)
from hpgmn.training.ensemble import ENSEMBLE

if TYPE_CHECKING:
    from hpgmn.engines import Engine

logger = logging.getLogger(__name__)

LARGEST_COPY = 1 << 30
"""Bytes of a graph up to which its run folder keeps a copy unless told otherwise."""


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
    threshold: str | float | None = None,
    conformal: bool | None = None,
    first_seed: int | None = None,
    ensemble: bool = False,
    single: bool = False,
    members: str | Sequence[str] | None = None,
    portfolio: bool = True,
    time_limit: float | None = None,
    refit: bool | None = None,
    columns: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    report: bool = True,
    keep_graph: bool | None = None,
    engine: Engine | None = None,
    progress: ProgressCallback | None = None,
    notify: Callable[[str], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    callbacks: Sequence[EpochCallback] = (),
) -> Run:
    """Train every requested split and seed at once and write a run folder.

    Without a model, settings or a config, and on a graph without shipped settings, the members of a
    portfolio are trained and combined. Of a baseline or your own model without the setting
    ``neighbors``, the edge direction is selected on validation nodes.

    Args:
        graph: a graph, a dataset name, a graph file or tables; None: that of the config.
        model: a model's name, ``package.module:Class`` of your own, or "ensemble" [hpgmn].
        settings: what differs from the settings of the config, or else from the shipped ones.
        config: a YAML file, the ``config.yaml`` of a run, or a shipped name such as "paper".
        splits: "all", a number or numbers [all].
        seeds: seeds per split [1].
        protocol: a published protocol, whose splits are used.
        metric: what selects epochs and is reported [that of the dataset; else by the classes of
            train nodes: accuracy, average_precision or balanced_accuracy].
        positive: of two classes the one that average_precision and precision@K look for [the
            rarer].
        device: "auto", "cpu" or "cuda" [auto].
        deterministic: bit-identical results on a GPU [no].
        calibrate: calibrate probabilities on the validation nodes [yes].
        threshold: of two classes, the probability from which the positive one is predicted, chosen
            on validation nodes: "f1", "precision=0.9", "recall=0.8", "cost=10:1" (a missed node
            costs ten false alarms), or a number [the more likely class is predicted].
        conformal: reserve half of the validation nodes for prediction sets: they select nothing
            [no; yes for regressions].
        first_seed: the first of the seeds [0].
        ensemble: train the portfolio, with the shipped settings of the dataset, and combine members
            [where nothing else gives a model or settings].
        single: train the portfolio and keep the best member.
        members: names of members to train instead of all, in a list or with commas.
        portfolio: False trains the default model.
        time_limit: seconds for the training of members [300].
        refit: train again on train and validation nodes after selection [no].
        columns: keywords of ``hpgmn.load`` about the columns of tables.
        out: the run folder [runs/GRAPH-MODEL-TIME].
        resume: continue the interrupted run in ``out``.
        overwrite: replace the run in ``out``.
        report: whether to write ``report.html`` and what it explains.
        keep_graph: whether the run folder keeps a copy of the graph, so that the run can predict
            and explain after the graph was moved or changed [if it has at most 1 GiB].
        engine: a cluster to train on; None for this machine.
        progress: called with what is running and its :class:`~hpgmn.training.replicas.Progress`.
        notify: called with remarks about the data and about decisions.
        should_stop: polled after each epoch; True saves the state and raises KeyboardInterrupt.
        callbacks: called with a :class:`~hpgmn.training.replicas.Progress` after each epoch, such
            as those of :mod:`hpgmn.training.callbacks`; on this machine only.
    """
    check_resume(out, resume=resume, overwrite=overwrite)
    if engine is not None and callbacks:
        raise SettingError("Callbacks see trainings of this machine only.", "Leave out the engine")
    monitor = make_monitor(progress, notify, should_stop, callbacks)
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
        threshold=threshold,
        conformal=conformal,
        first_seed=first_seed,
        refit=refit,
    )
    source = (
        options.get("graph") if graph is None else graph.name if isinstance(graph, Graph) else graph
    )
    options["selection"] = selection = portfolio_selection(
        str(source),
        model=model,
        config={} if config is None else options,
        settings=settings,
        portfolio=portfolio,
        ensemble=ensemble,
        single=single,
        members=members,
        time_limit=time_limit,
    )
    with record_log() as records:
        source, loaded, is_in_memory = open_graph(graph, options, columns, engine, monitor)
        remarks = choose_metric(loaded, source, options)
        if selection:
            options["model"] = ENSEMBLE
            selected_members(selection, loaded, source)  # refuses unknown names
        elif settings and portfolio and model is config is None and not has_settings_for(source):
            remarks.append("The portfolio is not trained, because settings are given.")
        spec = make_spec(loaded, source, options, settings)
        refuse_engine(spec, engine)
        checked = check_run(spec, loaded)
        if options.get("made_with") and options.get("graph") == spec.graph:
            for line in changes(options, run_environment(loaded, spec.splits, spec.device)):
                logger.warning(line)
        for line in remarks:
            monitor.note(line)
        for line in checked[1]:  # before minutes of work
            logger.warning(line)
        kind = "best" if single else spec.model
        folder = Path(out) if out is not None else default_folder(loaded.name, kind)
        if is_in_memory:
            spec = replace(spec, graph=str((folder / GRAPH_FILE).resolve()))
        keeps = keeps_graph(loaded, None if is_in_memory else spec.graph, keep_graph, monitor.note)
        job = Job(spec, loaded, folder, checked, records, keeps)
        with lock_folder(folder), interruptible(folder, monitor.notify):
            return job.run(
                monitor, resume=resume, overwrite=overwrite, report=report, engine=engine
            )


def refuse_engine(spec: RunSpec, engine: Engine | None) -> None:
    """Refuse to train an ensemble on a cluster."""
    if engine is not None and spec.selection.get("portfolio") == "ensemble":
        raise SettingError(
            "An ensemble is trained on one machine.",
            Remedy("Keep the best member", option="single", value=True)
            | Remedy("Name a model", option="model")
            | "Leave out the engine",
        )


def read_options(config: str | Path | None, **options: Any) -> dict[str, Any]:
    """Merge a config with the options that are given."""
    merged = {} if config is None else read_config(str(config))
    if merged.get("made_with", {}).get("shards") is not None:
        raise SettingError(
            "The config is of a run on row shards.",
            Remedy("Repeat it", command="train-shards", option="config", value=str(config)),
        )
    model, requested = merged.get("model"), options.get("model")
    if model is not None and requested is None and is_custom(model):
        raise SettingError(
            f"The config names a model of your own, '{model}', and code is imported only when you "
            "name it.",
            Remedy("Name it", option="model", value=model),
        )
    if model is not None and requested not in (None, model):
        raise SettingError(
            f"The config is of {model}, not of {requested}.", "Leave out the model, or the config"
        )
    merged |= {name: value for name, value in options.items() if value is not None}
    check_seeds(merged.get("seeds", 1))
    if "metric" in merged:
        find_metric(str(merged["metric"]))
    parse_splits(merged.get("splits", "all"))
    if "threshold" in merged:
        merged["threshold"] = str(merged["threshold"])  # may be a number
        parse_threshold(merged["threshold"])
    return merged


def open_graph(
    graph: Graph | str | Path | None,
    options: dict[str, Any],
    columns: Mapping[str, Any] | None,
    engine: Engine | None,
    monitor: Monitor,
) -> tuple[str, Graph, bool]:
    """Return the name or path of a graph, the graph, and whether it exists in memory only.

    The device in ``options`` is resolved; of tables they also get the roles of columns.
    """
    options["device"] = resolve_device(options.get("device", "auto"), engine)
    if isinstance(graph, Graph):
        if graph.splits is None:
            graph = with_random_splits(graph, True, monitor.note)
        return graph.name, graph, graph.name not in DATASETS
    source = graph if graph is not None else options.get("graph")
    if source is None:
        raise SettingError(
            "No graph is given.",
            "Name a dataset, a graph file or tables, or use the config.yaml of a run",
        )
    tables = {**options.get("tables", {}), **(columns or {})}
    if tables:
        from hpgmn.tables.options import check_column_options

        tables = check_column_options(tables, "entry of tables:")
    options["tables"] = tables
    loaded = load(
        source,
        options.get("protocol"),
        **options["tables"],
        log=monitor.note,
        progress=monitor.step,
    )
    return str(source), loaded, False


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


def keeps_graph(
    graph: Graph, source: str | None, requested: bool | None, note: Callable[[str], None]
) -> bool:
    """Return whether a run folder keeps a copy of the graph; note if it does not.

    Args:
        source: where the graph was read; None for a graph in memory, kept whatever its size.
    """
    size = graph_size(graph)
    if requested or (requested is None and (source is None or size <= LARGEST_COPY)):
        return True
    needs = "the same graph in memory" if source is None else source
    reason = "" if requested is False else f" of {format_bytes(size)} (keep_graph)"
    note(f"The run folder keeps no copy of the graph{reason}: predictions will need {needs}.")
    return False


@dataclass(frozen=True)
class Job:
    """A run that is ready to be trained into its folder, which is locked.

    Attributes:
        checked: splits and warnings of :func:`~hpgmn.runs.spec.check_run`.
        records: what was logged before.
        keeps_graph: whether the folder gets a copy of the graph.
    """

    spec: RunSpec
    graph: Graph
    folder: Path
    checked: tuple[list[Split], list[str]]
    records: Sequence[logging.LogRecord]
    keeps_graph: bool = True

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
        made = run_environment(graph, spec.splits, spec.device)
        prepare_folder(
            *(folder, spec), resume=resume, overwrite=overwrite, made=None if engine else made
        )
        self.store_graph()
        metrics = finished_run(folder) if resume or engine else None
        if metrics is None and engine is not None:
            from hpgmn.runs.tasks import train_on_engine

            failures = train_on_engine(engine, {folder: spec}, graph, self.records, monitor)
            if failures:
                raise failures[folder]
            metrics = finished_run(folder)
        if metrics is not None:  # only the report is missing
            opened = open_run(folder, spec.model if is_custom(spec.model) else None)
            spec, model = opened.spec, opened.model
        else:
            earlier = list(self.records)
            with log_file(folder / LOG_FILE, earlier):
                fitted = fit_spec(
                    *(spec, graph, folder),
                    checked=self.checked,
                    made=made,
                    warnings=warnings_among(earlier),
                    report=lambda now: monitor.epoch(f"{graph.name} {spec.model}", now),
                    notify=monitor.note,
                    should_stop=monitor.should_stop,
                )
            spec, model, metrics = fitted.spec, fitted.model, fitted.metrics
            if metrics.get("interrupted"):  # a second Ctrl-C still ends the report
                monitor = replace(monitor, should_stop=lambda: False)
        run = Run(folder, spec, model, graph=graph, metrics=metrics, device=spec.device)
        if report:
            explain_run(run, monitor)
        return run

    def store_graph(self) -> None:
        """Write the copy of the graph into the folder of an unfinished run."""
        if self.keeps_graph and not (self.folder / METRICS_FILE).exists():
            write_graph(self.graph, self.folder / GRAPH_FILE, as_copy=True)


def explain_run(run: Run, monitor: Monitor) -> None:
    """Write the audit, the explanations and the report of a finished run."""
    from hpgmn.runs.report_data import explain_training, rank_nodes, write_report

    spec = run.spec
    if spec.device == "cuda" and resolve_device("auto") == "cpu":  # it was trained elsewhere
        spec = replace(spec, device="cpu")
    predictions = run.folder / PREDICTIONS_FILE
    names = [str(name) for name in run.graph.class_names]
    ranking = rank_nodes(predictions, run.metrics, names)
    ranked = [row["node"] for row in ranking.get("rows", ())]
    explain_training(spec, run.graph.full, run.model, monitor.step, ranked).write(run.folder)
    monitor.step("Report")
    write_report(run.folder)
