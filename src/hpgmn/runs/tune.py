"""Search settings by validation score: ``hpgmn.tune``.

This process alone writes the study. A task trains one trial, asks now and then whether to continue,
and returns the record; so the number of trials is exact, and a lost process leaves a known trial.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpgmn.base.errors import HPGMNError, Remedy, SettingError
from hpgmn.engines import Channel, Engine, Task, TaskResult
from hpgmn.graph import Graph
from hpgmn.graph.datasets import load
from hpgmn.models import find_model, is_custom
from hpgmn.runs.fit import Monitor, ProgressCallback, make_monitor
from hpgmn.runs.search import Search, TuneSpec, check_names
from hpgmn.runs.spec import check_run, choose_metric, make_spec, resolve_device
from hpgmn.runs.study import (
    best_trial,
    claim,
    identity_of,
    lock_study,
    open_study,
    refuse_other,
    study_exists,
)
from hpgmn.runs.trials import run_trials
from hpgmn.runs.tune_results import write_results
from hpgmn.training.checks import class_number
from hpgmn.training.replicas import Progress
from hpgmn.training.trainer import deterministic_algorithms

if TYPE_CHECKING:
    from optuna.trial import Trial

logger = logging.getLogger(__name__)

PRUNING_INTERVAL = 20
"""Epochs between two decisions whether to prune a trial."""
TRIES = 2
"""How often one call starts a trial whose process or machine is lost."""

_OPTIONS = ("model", "space", "sampler", "splits", "seeds", "protocol", "metric")


@dataclass(frozen=True)
class TuneResult:
    """What a search has found.

    Attributes:
        study: the study file.
        content: everything as JSON: ``trials`` counted by state, ``best`` with its settings and
            scores, ``importance`` of the settings, and the ``files`` written.
        done: finished, pruned and refused trials.
        requested: trials requested.
        is_late: whether the timeout ended the search.
        lost_workers: processes that died.
    """

    study: Path
    content: dict[str, Any]
    done: int = 0
    requested: int = 0
    is_late: bool = False
    lost_workers: int = 0

    @property
    def settings(self) -> dict[str, Any] | None:
        """The settings of the best trial; None without a finished one."""
        best = self.content["best"]
        return None if best is None else dict(best["settings"])

    def __repr__(self) -> str:
        best = self.content["best"]
        score = (
            "" if best is None else f", best {self.content['metric']} {best['val_score_mean']:.3f}"
        )
        return (
            f"TuneResult({str(self.study)!r}: {self.content['trials']['finished']} trials{score})"
        )


def tune(
    graph: Graph | str | Path,
    trials: int,
    *,
    study: str | Path | None = None,
    model: str | None = None,
    space: str | None = None,
    sampler: str | None = None,
    splits: str | int | Sequence[int] | None = None,
    seeds: int | None = None,
    protocol: str | None = None,
    metric: str | None = None,
    settings: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    columns: Mapping[str, Any] | None = None,
    device: str = "auto",
    deterministic: bool | None = None,
    pruning: bool | None = None,
    engine: Engine | None = None,
    progress: ProgressCallback | None = None,
    notify: Callable[[str], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> TuneResult:
    """Search settings by validation score; the study file keeps every trial. Needs Optuna.

    A trial is trained on all splits and seeds at once. Test labels are never read. Repeating the
    call continues the study.

    Args:
        graph: a graph, a dataset name, a graph file or folder, or tables.
        trials: trials in all, earlier ones included; 0 returns what a study has found.
        study: the study file [runs/GRAPH-MODEL-tuning.db].
        model: a model's name [hpgmn].
        space: "ours", the values for this kind of graph, or "paper" [ours].
        sampler: "tpe", or "random": the planned trials of a comparison [tpe].
        splits: "all", a number or numbers [the first three].
        seeds: seeds per split [1].
        protocol: a published protocol, whose splits are used.
        metric: what is optimised [that of the dataset, or one that fits the classes].
        settings: fixed in all trials.
        timeout: seconds after which no trial starts.
        columns: keywords of ``hpgmn.load`` about the columns of tables.
        device: "auto", "cpu" or "cuda".
        deterministic: bit-identical results on a GPU [no].
        pruning: stop trials below the median of the others [with tpe].
        engine: what trains trials; None: this process's machine, one at a time.
        progress: called after each trial.
        notify: called with remarks.
        should_stop: polled; True ends the search and raises KeyboardInterrupt.
    """
    monitor = make_monitor(progress, notify, should_stop)
    if trials < 0:
        raise SettingError(
            f"trials must be 0 or more (got {trials}).", Remedy("Raise it", option="trials")
        )
    if timeout is not None and not timeout > 0:
        raise SettingError(
            f"timeout must be above 0 seconds (got {timeout:g}).",
            Remedy("Raise it", option="timeout"),
        )
    given = {
        "model": model,
        "space": space,
        "sampler": sampler,
        "splits": splits,
        "seeds": seeds,
        "protocol": protocol,
        "metric": metric,
        "settings": dict(settings) if settings else None,
        "deterministic": deterministic,
        "tables": dict(columns) if columns else None,
    }
    options = {name: value for name, value in given.items() if value is not None}
    source = graph.name if isinstance(graph, Graph) else str(graph)
    path = _default_study(source, model) if study is None else Path(study).expanduser()
    exists = study_exists(path)
    if trials == 0:
        if not exists:
            remedy = Remedy("Run trials", option="trials")
            raise HPGMNError(f"There is no study {path} to show.", remedy)
        return _show(path, graph, source, options)
    if engine is None:
        from hpgmn.engines.processes import LocalEngine

        engine = LocalEngine(1)
    device = resolve_device(device, engine)
    spec, loaded, warnings = make_tune_spec(graph, source, options, device, pruning, monitor.note)
    with lock_study(path), open_study(path) as opened:
        claim(opened, path, spec.identity(loaded))
        for line in warnings:
            logger.warning(line)
        search = Search(opened, spec, loaded, engine.workers)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        lost = run_search(engine, search, trials, deadline, monitor)
        result = TuneResult(
            *(path, write_results(opened, path, source)),
            done=trials - len(search.pending(trials)),
            requested=trials,
            is_late=time.monotonic() > deadline,
            lost_workers=lost,
        )
        if not result.content["trials"]["finished"]:
            for trial in opened.get_trials(deepcopy=False):
                if (text := trial.user_attrs.get("error")) is not None:
                    error = search.errors.get(trial.number, HPGMNError(text))
                    raise error.prefixed("No trial could be trained. The first error: ")
        return result


def _default_study(source: str, model: str | None) -> Path:
    return Path("runs") / f"{Path(source).stem}-{(model or 'hpgmn').replace(':', '-')}-tuning.db"


def make_tune_spec(
    graph: Graph | str | Path,
    source: str,
    options: Mapping[str, Any],
    device: str,
    pruning: bool | None,
    notify: Callable[[str], None] = logger.info,
) -> tuple[TuneSpec, Graph, list[str]]:
    """Return what is searched, its graph, and warnings; refuse what cannot be searched.

    Args:
        source: the graph's name or path.
        options: options of :func:`tune` that are given; ``settings`` are fixed in all trials.
        device: "cpu" or "cuda".
        pruning: None: with tpe.
    """
    space, sampler = options.get("space", "ours"), options.get("sampler", "tpe")
    check_names(space, sampler, options.get("model", "hpgmn"))
    fixed = options.get("settings", {})
    tables = options.get("tables", {})
    if isinstance(graph, Graph):
        loaded = graph
    else:
        loaded = load(graph, options.get("protocol"), **tables, log=notify)
    first = "all" if loaded.splits is None or len(loaded.splits) < 3 else "0,1,2"
    complete = {"splits": first, **options, "settings": {}, "device": device}
    remarks = choose_metric(loaded, source, complete)
    run = make_spec(loaded, source, complete, fixed)
    run = replace(run, settings={name: run.settings[name] for name in fixed})
    _, warnings = check_run(run, loaded)
    for line in remarks:
        notify(line)
    spec = TuneSpec(run, space, sampler, sampler == "tpe" if pruning is None else pruning)
    spec.choices(loaded)
    return spec, loaded, warnings


def _show(
    path: Path, graph: Graph | str | Path, source: str, options: Mapping[str, Any]
) -> TuneResult:
    """Return what a study has found; options that are not given are those of the study."""
    with open_study(path) as opened:
        before = identity_of(opened)
        if before is None:
            remedy = Remedy("Run some", option="trials")
            raise HPGMNError(f"The study {path} holds no trial yet.", remedy)
        if is_custom(before["model"]) and "model" not in options:
            raise SettingError(
                f"The study is of a model of your own, '{before['model']}', and code is imported "
                "only when you name it.",
                Remedy("Name it", option="model", value=before["model"]),
            )
        recorded = {name: before[name] for name in _OPTIONS}
        recorded["deterministic"] = before.get("deterministic", False)
        recorded["settings"], recorded["tables"] = before["fixed"], before.get("tables", {})
        spec, loaded, _ = make_tune_spec(graph, source, {**recorded, **options}, "cpu", None)
        identity = spec.identity(loaded)
        del identity["values"]  # a study of another version can be shown, too
        refuse_other(path, before, identity)
        return TuneResult(path, write_results(opened, path, source))


def run_search(
    engine: Engine,
    search: Search,
    count: int,
    deadline: float = math.inf,
    monitor: Monitor | None = None,
) -> int:
    """Train the trials that are not done yet; return how many workers died.

    Args:
        count: trials in all.
        deadline: no trial starts later, by ``time.monotonic``.
        monitor: its progress is called after each trial.
    """
    monitor = monitor or Monitor()
    places = search.pending(count)
    starts: Counter[int] = Counter()
    running: dict[str, Trial] = {}
    lost_workers = 0

    def show_progress() -> None:
        best = best_trial(search.study)
        score = "" if best is None else f", best {abs(best.value or 0):.3f}"
        task = f"{search.graph.name} {search.spec.run.model}: trials{score}"
        done = count - len(search.pending(count))
        monitor.progress("", monitor.step_progress(task, done, count))

    def next_task() -> Task | None:
        if not places or time.monotonic() > deadline:
            return None
        place = places.pop(0)
        starts[place] += 1
        trial = search.start(place)
        running[str(trial.number)] = trial
        argument = (search.spec, trial.user_attrs["settings"])
        return Task(str(trial.number), trial_task, argument, search.graph)

    def on_message(name: str, message: tuple[int, float]) -> bool:
        return search.should_prune(running[name], *message)

    def on_result(result: TaskResult) -> None:
        nonlocal lost_workers
        if result.trace:
            raise RuntimeError(f"A worker failed:\n{result.trace}")
        if result.value is None and not result.is_lost:
            raise HPGMNError(result.reason)
        trial = running.pop(result.name)
        if result.is_lost:
            search.fail(trial)
            place = trial.user_attrs["place"]
            if starts[place] < TRIES:
                places.insert(0, place)
            lost_workers += 1
            logger.warning("Trial %d counts as failed. %s", trial.number, result.reason)
            return
        state, content = result.value
        if state == "done":
            search.finish(trial, content)
        elif state == "pruned":
            search.prune(trial)
        else:
            search.fail(trial, content)
        show_progress()

    show_progress()
    try:
        engine.run(
            next_task,
            on_result,
            on_message=on_message,
            should_stop=monitor.should_stop,
            max_tasks=len(places),
        )
    finally:
        for trial in running.values():
            search.fail(trial)
    return lost_workers


class _PrunedTrialError(Exception):
    """Ends the training of a trial."""


def trial_task(
    argument: tuple[TuneSpec, Mapping[str, Any]], graph: Graph, line: Channel
) -> tuple[str, Any]:
    """Train one trial; return "done", "pruned" or "error", and the record or the error.

    Args:
        argument: what is searched, and the settings of the trial.
        line: the connection to the process that decides whether the trial is pruned.
    """
    spec, settings = argument
    run = spec.run
    last_stage = list(find_model(run.model).stages)[-1]
    last_epoch = 0

    def on_epoch(now: Progress) -> None:
        """Ask whether to continue, at the same epochs in every trial.

        Runs in several batches are trained to their end: their scores are not comparable. A GPU
        reports by time, so an epoch stands for the few after it.
        """
        nonlocal last_epoch
        epoch = now.epoch // PRUNING_INTERVAL * PRUNING_INTERVAL
        is_scored = now.stage == last_stage and not math.isnan(now.val_score)
        if is_scored and now.batches == 1 and epoch > last_epoch:
            last_epoch = epoch
            if line.request((epoch, now.val_score)):
                raise _PrunedTrialError

    try:
        with deterministic_algorithms(run.deterministic, run.device):
            [record] = run_trials(
                graph,
                run.model,
                [settings],
                splits=run.splits,
                seeds=run.seeds,
                device=run.device,
                metric=run.metric,
                positive=class_number(run.positive, graph.class_names),
                report=on_epoch,
                should_stop=line.should_stop,
                memory_share=line.share.memory,
            )
    except _PrunedTrialError:
        return "pruned", None
    except HPGMNError as error:
        return "error", error
    return "done", record
