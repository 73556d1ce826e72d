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
from hpgmn.base.settings import make_settings
from hpgmn.engines import Channel, Engine, Task, TaskResult
from hpgmn.graph import Graph
from hpgmn.graph.datasets import DATASETS, load
from hpgmn.models import find_model, is_custom
from hpgmn.runs.fit import Monitor, ProgressCallback, make_monitor
from hpgmn.runs.spec import RunSpec, check_run, resolve_device, split_numbers
from hpgmn.runs.study import (
    best_trial,
    claim,
    files_of,
    finished_trials,
    first_error,
    identity_of,
    lock_study,
    open_study,
    refuse_other,
    study_exists,
    summary,
    write_best,
)
from hpgmn.runs.tuning import (
    Choices,
    HopelessTrialError,
    TuneSpec,
    Tuning,
    check_names,
    is_done,
    train_trial,
)
from hpgmn.training.checks import positive_class, seen_labels

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

logger = logging.getLogger(__name__)

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
        score = "" if best is None else f", best {100 * best['val_score_mean']:.1f} %"
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
        graph: a graph, a dataset name, a graph file or folder.
        trials: trials in all, earlier ones included; 0 returns what a study has found.
        study: the study file [runs/GRAPH-MODEL-tuning.db].
        model: a model's name [hpgmn].
        space: "ours", the values for this kind of graph, or "paper" [ours].
        sampler: "tpe", or "random": the planned trials of a comparison [tpe].
        splits: "all", a number or numbers [the first three].
        seeds: seeds per split [1].
        protocol: a published protocol, whose splits are used.
        metric: what is optimised [that of the dataset, or accuracy].
        settings: fixed in all trials.
        timeout: no trial starts after so many seconds.
        device: "auto", "cpu" or "cuda".
        deterministic: bit-identical results on a GPU [no].
        pruning: stop trials below the median of the others [with tpe].
        engine: what trains trials; None: this process's machine, one at a time.
        progress: called after each trial.
        notify: called with remarks.
        should_stop: polled; True ends the search and raises KeyboardInterrupt.
    """
    monitor = make_monitor(progress, notify, should_stop)
    _check_numbers(trials, timeout)
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
    }
    options = {name: value for name, value in given.items() if value is not None}
    source = graph.name if isinstance(graph, Graph) else str(graph)
    path = Path(study).expanduser() if study is not None else _default_study(source, model)
    exists = study_exists(path)
    if trials == 0:
        if not exists:
            raise HPGMNError(f"There is no study {path} to show.", Remedy("Run trials", "trials"))
        return _show(path, graph, source, options)
    if engine is None:
        from hpgmn.engines.processes import LocalEngine

        engine = LocalEngine(1)
    device = resolve_device(device, engine)
    spec, loaded, warnings = make_tune_spec(graph, source, options, device, pruning)
    with lock_study(path), open_study(path) as opened:
        claim(opened, path, spec.identity(loaded))
        for line in warnings:
            logger.warning(line)
        tuning = Tuning(opened, spec, loaded, engine.workers)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        lost = _run_trials(engine, tuning, trials, deadline, monitor)
        done = sum(
            is_done(trial) and trial.user_attrs["place"] < trials
            for trial in opened.get_trials(deepcopy=False)
        )
        result = TuneResult(
            *(path, write_results(opened, path, source), done, trials),
            is_late=time.monotonic() > deadline,
            lost_workers=lost,
        )
        error = first_error(opened)
        if not result.content["trials"]["finished"] and error is not None:
            raise HPGMNError(f"No trial could be trained. The first error: {error}")
        return result


def _check_numbers(trials: int, timeout: float | None) -> None:
    if trials < 0:
        raise SettingError(
            f"trials must be 0 or more (got {trials}).", Remedy("Raise it", "trials")
        )
    if timeout is not None and not timeout > 0:
        raise SettingError(
            f"timeout must be above 0 seconds (got {timeout:g}).", Remedy("Raise it", "timeout")
        )


def _default_study(source: str, model: str | None) -> Path:
    return Path("runs") / f"{Path(source).stem}-{(model or 'hpgmn').replace(':', '-')}-tuning.db"


def make_tune_spec(
    graph: Graph | str | Path,
    source: str,
    options: Mapping[str, Any],
    device: str,
    pruning: bool | None,
) -> tuple[TuneSpec, Graph, list[str]]:
    """Return what is searched, its graph, and warnings; refuse what cannot be searched.

    Args:
        graph: the graph, its name or path.
        source: its name or path.
        options: fields of :class:`TuneSpec`, and ``settings`` that are fixed.
        device: "cpu" or "cuda".
        pruning: whether to stop hopeless trials; None: with tpe.
    """
    model, sampler = options.get("model", "hpgmn"), options.get("sampler", "tpe")
    check_names(options.get("space", "ours"), sampler, model)
    fixed = options.get("settings", {})
    checked = make_settings(find_model(model).settings, fixed)
    loaded = graph if isinstance(graph, Graph) else load(graph, options.get("protocol"))
    default = "all" if loaded.splits is None or len(loaded.splits) < 3 else "0,1,2"
    dataset = DATASETS.get(source)
    spec = TuneSpec(
        graph=source if dataset else str(Path(source).expanduser().resolve()),
        model=model,
        space=options.get("space", "ours"),
        sampler=sampler,
        splits=split_numbers(options.get("splits", default), loaded),
        seeds=options.get("seeds", 1),
        protocol=options.get("protocol"),
        metric=options.get("metric", dataset.metric if dataset else "accuracy"),
        fixed={name: getattr(checked, name) for name in fixed},
        device=device,
        pruning=sampler == "tpe" if pruning is None else pruning,
        deterministic=bool(options.get("deterministic")),
    )
    Choices.of(spec, loaded)
    labels = seen_labels(loaded, [loaded.split(number) for number in spec.splits])
    spec = replace(spec, positive=positive_class(spec.metric, labels, loaded.class_names))
    run = RunSpec(spec.graph, model, dict(fixed), spec.splits, spec.seeds, metric=spec.metric)
    _, warnings = check_run(run, loaded)
    return spec, loaded, warnings


def _show(
    path: Path, graph: Graph | str | Path, source: str, options: Mapping[str, Any]
) -> TuneResult:
    """Return what a study has found; options that are not given are those of the study."""
    with open_study(path) as opened:
        before = identity_of(opened)
        if before is None:
            raise HPGMNError(f"The study {path} holds no trial yet.", Remedy("Run some", "trials"))
        if is_custom(before["model"]) and "model" not in options:
            raise SettingError(
                f"The study is of a model of your own, '{before['model']}', and code is imported "
                "only when you name it.",
                Remedy("Name it", option="model", value=before["model"]),
            )
        recorded = {name: before[name] for name in _OPTIONS}
        recorded["deterministic"] = before.get("deterministic", False)
        recorded["settings"] = before["fixed"]
        spec, loaded, _ = make_tune_spec(graph, source, {**recorded, **options}, "cpu", None)
        identity = spec.identity(loaded)
        del identity["values"]  # of another version, perhaps, and can be shown all the same
        refuse_other(path, before, identity)
        return TuneResult(path, write_results(opened, path, source))


def write_results(study: Study, path: Path, source: str) -> dict[str, Any]:
    """Write the best settings and the pictures; return everything found."""
    content = summary(study, source)
    files: dict[str, str] = {}
    if content["best"] is not None:
        paths = files_of(path)
        write_best(paths["config"], content, content["best"]["settings"])
        files["config"] = str(paths["config"])
        if draw(study, content, paths["png"]):
            files |= {kind: str(paths[kind]) for kind in ("png", "svg")}
    return {"study": str(path), **content, "files": files}


def draw(study: Study, content: Mapping[str, Any], path: Path) -> bool:
    """Draw the pictures; return whether there is anything to draw."""
    from hpgmn.runs.sensitivity import draw_sensitivity, panels

    identity = identity_of(study)
    assert identity is not None
    has_memory = "num_patterns" in content["best"]["settings"]
    names = panels(identity["values"], content["importance"], has_memory)
    if not names:
        return False
    trials = [
        {"settings": trial.user_attrs["settings"], "score": trial.value}
        for trial in finished_trials(study)
    ]
    title = f"{content['graph']}, {content['model']}: {len(trials)} trials"
    draw_sensitivity(trials, names, title, content["metric"], path)
    return True


def _run_trials(
    engine: Engine, tuning: Tuning, trials: int, deadline: float, monitor: Monitor
) -> int:
    """Train the trials that are not done yet; return how many workers died."""
    lost_workers = 0

    def on_lost(line: str) -> None:
        nonlocal lost_workers
        lost_workers += 1
        logger.warning(line)

    def on_trial() -> None:
        best = best_trial(tuning.study)
        score = "" if best is None else f", best {100 * (best.value or 0):.1f}"
        done = trials - len(tuning.places(trials))
        task = f"{tuning.graph.name} {tuning.spec.model}: trials{score}"
        monitor.progress("", monitor.step_progress(task, done, trials))

    on_trial()
    tune_on(
        *(engine, tuning, trials),
        deadline=deadline,
        should_stop=monitor.should_stop,
        on_trial=on_trial,
        on_lost=on_lost,
    )
    return lost_workers


TRIES = 2
"""How often one command starts a trial whose process or machine is lost."""


def trial_task(
    argument: tuple[TuneSpec, Mapping[str, Any]], graph: Graph, line: Channel
) -> tuple[str, Any]:
    """Train one trial; return "done", "hopeless" or "error", and the record or the message.

    Args:
        argument: what is searched, and the settings of the trial.
        graph: the graph.
        line: the connection to the process that decides whether the trial is hopeless.
    """
    spec, settings = argument

    def judge(epoch: int, score: float) -> bool:
        return bool(line.request((epoch, score)))

    try:
        record = train_trial(graph, spec, settings, judge, line.should_stop, line.share.memory)
    except HopelessTrialError:
        return "hopeless", None
    except HPGMNError as error:
        return "error", str(error)
    return "done", record


def tune_on(
    engine: Engine,
    tuning: Tuning,
    count: int,
    *,
    deadline: float = math.inf,
    should_stop: Callable[[], bool] = lambda: False,
    on_trial: Callable[[], None] = lambda: None,
    on_lost: Callable[[str], None] = lambda line: None,
) -> None:
    """Train the trials that are not done yet.

    Args:
        engine: where tasks run.
        tuning: the search.
        count: trials in all.
        deadline: no trial starts later, by ``time.monotonic``.
        should_stop: polled; True ends the search as Ctrl-C does.
        on_trial: called after each trial.
        on_lost: called with a message when the machine of a trial is lost.
    """
    places = tuning.places(count)
    number = len(places)
    starts: Counter[int] = Counter()
    running: dict[str, Trial] = {}

    def next_task() -> Task | None:
        if not places or time.monotonic() > deadline:
            return None
        place = places.pop(0)
        starts[place] += 1
        trial = tuning.begin(place)
        running[str(trial.number)] = trial
        settings = trial.user_attrs["settings"]
        return Task(str(trial.number), trial_task, (tuning.spec, settings), tuning.graph)

    def answer(name: str, message: tuple[int, float]) -> bool:
        return tuning.judge(running[name], *message)

    def ended(end: TaskResult) -> None:
        trial = running[end.name]
        if end.trace:
            raise RuntimeError(f"A worker failed:\n{end.trace}")
        if end.value is None and not end.is_lost:
            raise HPGMNError(end.reason)
        del running[end.name]
        if end.is_lost:
            tuning.abandon(trial)
            place = trial.user_attrs["place"]
            if starts[place] < TRIES:
                places.insert(0, place)
            on_lost(f"Trial {trial.number} counts as failed. {end.reason}")
            return
        kind, content = end.value
        if kind == "done":
            tuning.end(trial, content)
        elif kind == "hopeless":
            tuning.give_up(trial)
        else:
            tuning.refuse(trial, content)
        on_trial()

    try:
        engine.run(next_task, ended, on_message=answer, should_stop=should_stop, max_tasks=number)
    finally:
        for trial in running.values():
            tuning.abandon(trial)
