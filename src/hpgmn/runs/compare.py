"""Train several models on one graph and compare each with a reference, run by run."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpgmn.base.errors import HPGMNError, SettingError, format_score
from hpgmn.base.files import LOCK_FILE, is_draft, lock_folder, remove_stale_drafts, write_text
from hpgmn.base.metrics import plain_score
from hpgmn.base.settings import settings_names
from hpgmn.evaluation.scores import Difference, paired_difference
from hpgmn.graph import Graph
from hpgmn.models import MODELS, find_model
from hpgmn.runs.fit import Monitor, ProgressCallback, make_monitor
from hpgmn.runs.folder import (
    COMPARISON_FILE,
    CONTINUE,
    GRAPH_FILE,
    METRICS_FILE,
    OTHER_FOLDER,
    REPLACE,
    REPORT_FILE,
    check_resume,
    interruptible,
    prepare_folder,
    record_log,
)
from hpgmn.runs.outputs import read_metrics
from hpgmn.runs.portfolio import ensemble_selection
from hpgmn.runs.spec import CONFIG_FILE, RunSpec, check_run, choose_metric, make_spec
from hpgmn.runs.train import (
    Job,
    default_folder,
    folder_name,
    keeps_graph,
    open_graph,
    read_options,
    refuse_engine,
)
from hpgmn.training.ensemble import ENSEMBLE

if TYPE_CHECKING:
    from hpgmn.engines import Engine

logger = logging.getLogger(__name__)

ALL = "all"
Metrics = Mapping[str, Any]
"""The content of a run's ``metrics.json``."""


@dataclass(frozen=True)
class Comparison:
    """The runs of several models on the same splits.

    Attributes:
        folder: holds a run folder for each model.
        content: that of ``comparison.json``: ``reference``, and ``rows`` with scores and the paired
            difference to the reference.
        failures: model → why it could not be trained.
    """

    folder: Path
    content: dict[str, Any]
    failures: dict[str, str]

    def __repr__(self) -> str:
        rows = ", ".join(
            f"{row['model']} {format_score(self.content['metric'], row['test_score_mean'])}"
            for row in self.content["rows"]
            if row["test_score_mean"] is not None
        )
        return f"Comparison({str(self.folder)!r}: {rows})"

    def _repr_html_(self) -> str:
        from hpgmn.report.notebook import comparison_html

        return comparison_html(self.content, self.failures)


def model_names(requested: str | Sequence[str]) -> list[str]:
    """Return the models behind names, names with commas, and ``all``."""
    parts = [requested] if isinstance(requested, str) else requested
    names = [name.strip() for part in parts for name in part.split(",") if name.strip()]
    if not names:
        raise SettingError("A model needs a name.", "See `hpgmn models`")
    if ALL in names:
        names = [*MODELS, *(name for name in names if name != ALL)]
    return list(dict.fromkeys(names))


def settings_by_model(
    names: Sequence[str], settings: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Distribute settings: ``key`` to every model that has it, ``model.key`` to that model."""
    known = {
        name: settings_names(find_model(name).settings) if name != ENSEMBLE else frozenset[str]()
        for name in names
    }
    chosen: dict[str, dict[str, Any]] = {name: {} for name in names}
    for path, value in settings.items():
        model, dot, key = path.rpartition(".")
        if dot and model not in names:
            raise SettingError.unknown("model of a setting", model, names)
        takers = [model] if model else [name for name in names if key in known[name]]
        if not takers or (model and key not in known[model]):
            choices = [known[name] for name in ([model] if model else names)]
            raise SettingError.unknown("setting", key, sorted(set().union(*choices)))
        for name in takers:
            chosen[name][key] = value
    return chosen


def compare(
    graph: Graph | str | Path,
    models: str | Sequence[str],
    *,
    settings: Mapping[str, Any] | None = None,
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
) -> Comparison:
    """Train models with their shipped settings, each into a run folder, and compare them.

    A model that cannot be trained is skipped with a warning. Other keywords are those of
    :func:`hpgmn.train`.

    Args:
        models: names of models, among them "ensemble", or "all".
        settings: ``key`` for every model that has it, ``model.key`` for one.
        out: the folder of the runs [runs/GRAPH-comparison-TIME].
        resume: finished models are kept, interrupted ones continue.
        overwrite: replace the runs of these models.
    """
    check_resume(out, resume=resume, overwrite=overwrite)
    monitor = make_monitor(progress, notify, should_stop)
    names = model_names(models)
    options = read_options(
        None,
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
    by_model = settings_by_model(names, settings or {})
    with record_log() as records:
        source, loaded, is_in_memory = open_graph(graph, options, columns, engine, monitor)
        if loaded.is_regression and ALL in models:
            names = [n for n in names if n == ENSEMBLE or find_model(n).predicts_targets]
        remarks = choose_metric(loaded, source, options)
        folder = Path(out) if out is not None else default_folder(loaded.name, "comparison")
        keeps = keeps_graph(loaded, None if is_in_memory else source, keep_graph, monitor.note)
        checks = []
        for name in names:
            try:
                selection = ensemble_selection(time_limit) if name == ENSEMBLE else {}
                values = {**options, "model": name, "selection": selection}
                path = folder / folder_name(name) / GRAPH_FILE if is_in_memory else source
                spec = make_spec(loaded, str(path), values, by_model[name])
                refuse_engine(spec, engine)
                checks.append((spec, check_run(spec, loaded)))
            except SettingError as error:
                raise error.prefixed(f"{name}: ") from None
        for line in remarks:
            monitor.note(line)
        for line in checks[0][1][1]:  # the warnings are the same for all
            logger.warning(line)
        earlier = tuple(records)
        jobs = [
            Job(spec, loaded, folder / folder_name(spec.model), checked, earlier, keeps)
            for spec, checked in checks
        ]
        with lock_folder(folder), interruptible(folder, monitor.notify):
            _check_folder(folder, resume=resume, overwrite=overwrite)
            flags = {"resume": resume, "overwrite": overwrite}
            return _train_all(jobs, folder, monitor, report, engine, **flags)


def _check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    if (folder / CONFIG_FILE).exists():
        raise HPGMNError(
            f"{folder} is the folder of one run; several models need a folder of run folders.",
            OTHER_FOLDER,
        )
    names = [path.name for path in folder.iterdir()]
    is_taken = any(name != LOCK_FILE and not is_draft(name) for name in names)
    if is_taken and not (resume or overwrite):
        raise HPGMNError(f"The folder {folder} exists.", CONTINUE | REPLACE | OTHER_FOLDER)
    remove_stale_drafts(folder, older_than=0)


def _train_all(
    jobs: Sequence[Job],
    folder: Path,
    monitor: Monitor,
    report: bool,
    engine: Engine | None,
    *,
    resume: bool,
    overwrite: bool,
) -> Comparison:
    """Train model after model, or all at once on a cluster, and write ``comparison.json``."""
    failed: dict[Path, HPGMNError] = {}
    if engine is not None:
        failed = _train_unfinished(engine, jobs, monitor, resume=resume, overwrite=overwrite)
        resume, overwrite = True, False
    runs: list[dict[str, Any]] = []
    errors: dict[str, HPGMNError] = {}
    for number, job in enumerate(jobs, start=1):
        model, metrics = job.spec.model, job.folder / METRICS_FILE
        monitor.notify(f"{number} of {len(jobs)}: {model}")
        try:
            if job.folder in failed:
                raise failed[job.folder]
            with lock_folder(job.folder), interruptible(job.folder, monitor.notify):
                has_report = (job.folder / REPORT_FILE).exists() or not report
                if resume and has_report and metrics.exists():
                    prepare_folder(job.folder, job.spec, resume=True, overwrite=False)
                    runs.append(read_metrics(metrics))
                    continue
                run = job.run(monitor, resume=resume, overwrite=overwrite, report=report)
                runs.append(run.metrics)
        except HPGMNError as error:
            errors[model] = error.with_traceback(None)  # which would keep this frame alive
            logger.warning("Skipping %s: %s", model, error)
    if not runs:
        [model, first], *_ = errors.items()
        raise first.prefixed(f"{len(errors)} of {len(jobs)} models failed. {model}: ")
    content = comparison(runs + _other_runs(folder, runs))
    write_text(folder / COMPARISON_FILE, json.dumps(content, indent=1) + "\n")
    return Comparison(folder, content, {model: str(error) for model, error in errors.items()})


def _train_unfinished(
    engine: Engine, jobs: Sequence[Job], monitor: Monitor, *, resume: bool, overwrite: bool
) -> dict[Path, HPGMNError]:
    """Train unfinished models on a cluster; return the errors by folder."""
    from hpgmn.runs.tasks import train_on_engine

    waiting: dict[Path, RunSpec] = {}
    failed: dict[Path, HPGMNError] = {}
    with ExitStack() as stack:
        for job in jobs:
            try:
                stack.enter_context(lock_folder(job.folder))
                prepare_folder(job.folder, job.spec, resume=resume, overwrite=overwrite)
                job.store_graph()
            except HPGMNError as error:
                failed[job.folder] = error.with_traceback(None)
                continue
            if not (job.folder / METRICS_FILE).exists():
                stack.enter_context(interruptible(job.folder, monitor.notify))
                waiting[job.folder] = job.spec
        graph, records = jobs[0].graph, jobs[0].records
        return failed | train_on_engine(engine, waiting, graph, records, monitor)


def _other_runs(folder: Path, runs: Sequence[Metrics]) -> list[dict[str, Any]]:
    """Return the metrics of other finished models in the folder that used the same splits."""
    keys = ("graph", "metric", "positive", "splits", "seeds", "refit")
    others = []
    for path in sorted(folder.glob(f"[!.]*/{METRICS_FILE}")):
        try:
            metrics = read_metrics(path, ["model"])
        except HPGMNError as error:
            logger.warning("Skipping %s in the table: %s", path.parent.name, error)
            continue
        is_new = metrics["model"] not in [run["model"] for run in runs]
        if is_new and all(metrics.get(key) == runs[0].get(key) for key in keys):
            others.append(metrics)
    return others


def is_ours(model: str) -> bool:
    """Whether a model is a form of HP-GMN: hpgmn, hpgmn-gcn, hpgmn-appnp."""
    return model.split("-")[0] == "hpgmn"


def reference_of(runs: Sequence[Metrics]) -> str:
    """Return the reference: HP-GMN, of several forms the best on validation, else the first run."""
    ours = [run for run in runs if is_ours(run["model"])]
    best = max(
        ours,
        key=lambda run: plain_score(run["metric"], float(np.mean(run["val_score"]))),
        default=runs[0],
    )
    return str(best["model"])


def difference(run: Metrics, reference: Metrics) -> Difference | None:
    """Return a run's score minus the reference's; None without test scores.

    Both must be of the same splits of one graph; the numbers of train and test nodes come from
    whichever of the two has them.
    """
    if not run["test_score"] or not reference["test_score"]:
        return None
    if run["splits"] != reference["splits"] or run["metric"] != reference["metric"]:
        raise ValueError(f"{run['model']} and {reference['model']} have other splits or metrics.")
    nodes = run.get("nodes") or reference.get("nodes")
    if nodes is None:
        raise HPGMNError(
            f"The runs of {run['model']} and {reference['model']} on {run['graph']} do not record "
            "how many nodes they had.",
            "Train one of them again",
        )
    return paired_difference(
        run["test_score"],
        reference["test_score"],
        splits=len(run["splits"]),
        test_per_train=float(np.mean(np.divide(nodes["test"], nodes["train"]))),
    )


def comparison(runs: Sequence[Metrics]) -> dict[str, Any]:
    """Return the content of ``comparison.json``: a row per run, with its paired difference."""
    name = reference_of(runs)
    reference = next(run for run in runs if run["model"] == name)
    rows = []
    for run in runs:
        delta = None if run is reference else difference(run, reference)
        rows.append(
            {
                "model": run["model"],
                "test_score_mean": run["test_score_mean"],
                "test_score_std": run["test_score_std"],
                "val_score_mean": float(np.mean(run["val_score"])),
                "difference": None if delta is None else dataclasses.asdict(delta),
                "seconds": run["seconds"],
                "peak_memory_mb": run["peak_memory_mb"],
            }
        )
    first = runs[0]
    return {
        "graph": first["graph"],
        "metric": first["metric"],
        "positive": first.get("positive"),
        "splits": first["splits"],
        "seeds": first["seeds"],
        **({"refit": True} if first.get("refit") else {}),
        "reference": name,
        "rows": rows,
    }
