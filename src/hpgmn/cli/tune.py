"""The command that searches settings by validation score."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.table import Table

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.text import format_setting, mean_and_deviation
from hpgmn.cli.console import METRIC_HELP, out, refuse_url, say, step_progress, stop_on_signal
from hpgmn.cli.engines import Address, EngineName, Place, check_engine, open_engine
from hpgmn.cli.train import Deterministic

if TYPE_CHECKING:
    from optuna.study import Study

    from hpgmn.graph import Graph
    from hpgmn.runs.tune import TuneSpec

_SHOWN = 10  # lines of importance
_OPTIONS = ("model", "space", "sampler", "splits", "seeds", "protocol", "metric")


def tune(
    graph: Annotated[str, typer.Argument(help="A dataset's name, or a graph file or folder.")],
    trials: Annotated[
        int,
        typer.Option(
            help="How many trials there are to be in all; 0 shows what a study has found."
        ),
    ],
    study: Annotated[
        Path, typer.Option(help="The file that keeps the trials (SQLite); repeat to go on.")
    ],
    model: Annotated[str | None, typer.Option(help="A model's name [hpgmn].")] = None,
    space: Annotated[
        str | None,
        typer.Option(
            help="ours: the values for this kind of graph; paper: those that the paper prints, on "
            "top of its settings (hpgmn alone) [ours]."
        ),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            help="tpe: learns from the trials before; random: the planned trials that every model "
            "of a comparison table gets, in their order, each trained to its end [tpe]."
        ),
    ] = None,
    splits: Annotated[
        str | None, typer.Option(help="all, or numbers: 0,3 [the first three].")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds per split [1].")] = None,
    protocol: Annotated[str | None, typer.Option(help="A published protocol's splits.")] = None,
    metric: Annotated[str | None, typer.Option(help=METRIC_HELP)] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Fix a setting in all trials; may be repeated."
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="No trial begins after so many seconds.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Trials trained at a time, each in a process; a GPU wants 1 [1; ray: one for each "
            "core]."
        ),
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    deterministic: Deterministic = None,
    pruning: Annotated[
        bool | None,
        typer.Option(
            "--pruning/--no-pruning",
            help="Give up trials below the median of the others after as many epochs [tpe: yes].",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Search settings by validation score; the study file keeps every trial.

    A trial is trained on all asked splits and seeds at once. Test labels are never read.
    """
    from hpgmn.runs.study import alone, claim, open_study, study_exists

    _check_numbers(trials, timeout)
    check_engine(engine, address, workers)
    refuse_url("--study", study)
    study = study.expanduser()
    exists = study_exists(study)
    if trials == 0 and not exists:
        raise HPGMNError(f"There is no study {study} to show. Give --trials, or another --study.")
    given = {
        "model": model,
        "space": space,
        "sampler": sampler,
        "splits": splits,
        "seeds": seeds,
        "protocol": protocol,
        "metric": metric,
        "set": set_ or None,
        "deterministic": deterministic,
    }
    asked = {name: value for name, value in given.items() if value is not None}
    if trials == 0:
        _show(study, graph, asked, as_json)
        return
    with open_engine(engine, address, device, workers) as place:
        spec, loaded, warnings = specification(graph, asked, place.device, pruning)
        identity = spec.identity(loaded)
        with alone(study), open_study(study) as kept:
            claim(kept, study, identity)
            for line in warnings:
                say(f"Warning: {line}")
            try:
                ending = _search(kept, spec, loaded, trials, place, timeout)
            except KeyboardInterrupt:
                say("To go on, repeat the command.")
                raise
            _tell(kept, study, graph, as_json)
            _complain(kept, trials, ending)


def _check_numbers(trials: int, timeout: float | None) -> None:
    if trials < 0:
        raise SettingError(f"--trials must be 0 or more (got {trials}).")
    if timeout is not None and not timeout > 0:
        raise SettingError(f"--timeout must be above 0 seconds (got {timeout:g}).")


def specification(
    source: str, asked: Mapping[str, Any], device: str, pruning: bool | None
) -> tuple[TuneSpec, Graph, list[str]]:
    """The search that is asked for, its graph, and warnings; what can be refused is refused here.

    Args:
        source: the graph as the user named it.
        asked: options that the user gave; the rest has its default.
        device: "cpu" or "cuda".
        pruning: whether to give up hopeless trials; None: with tpe.
    """
    from hpgmn.base.settings import make_settings, parse_assignments
    from hpgmn.graph.datasets import DATASETS, load
    from hpgmn.models import find_model
    from hpgmn.runs.spec import RunSpec, check_run, split_numbers
    from hpgmn.runs.tune import Choices, TuneSpec, check_names
    from hpgmn.training.checks import positive_class, seen_labels

    model, sampler = asked.get("model", "hpgmn"), asked.get("sampler", "tpe")
    check_names(asked.get("space", "ours"), sampler, model)
    entry = find_model(model)
    typed = parse_assignments(asked.get("set", []))
    checked = make_settings(entry.settings, typed)
    graph = load(source, asked.get("protocol"))
    default = "all" if graph.splits is None or len(graph.splits) < 3 else "0,1,2"
    known = source in DATASETS
    spec = TuneSpec(
        graph=source if known else str(Path(source).expanduser().resolve()),
        model=model,
        space=asked.get("space", "ours"),
        sampler=sampler,
        splits=split_numbers(asked.get("splits", default), graph),
        seeds=asked.get("seeds", 1),
        protocol=asked.get("protocol"),
        metric=asked.get("metric", DATASETS[source].metric if known else "accuracy"),
        fixed={name: getattr(checked, name) for name in typed},
        device=device,
        pruning=sampler == "tpe" if pruning is None else pruning,
        deterministic=bool(asked.get("deterministic")),
    )
    Choices.of(spec, graph)
    seen = seen_labels(graph, [graph.split(number) for number in spec.splits])
    sought = positive_class(spec.metric, seen, graph.class_names)
    spec = dataclasses.replace(spec, positive=sought)
    run = RunSpec(spec.graph, model, dict(typed), spec.splits, spec.seeds, metric=spec.metric)
    _, warnings = check_run(run, graph)
    return spec, graph, warnings


def _show(path: Path, source: str, asked: Mapping[str, Any], as_json: bool) -> None:
    """Print what a study has found; options that are not given are those of the study."""
    from hpgmn.models import is_custom
    from hpgmn.runs.study import identity_of, open_study, refuse_other

    with open_study(path) as opened:
        before = identity_of(opened)
        if before is None:
            raise HPGMNError(f"The study {path} holds no trial yet. Give --trials.")
        if is_custom(before["model"]) and "model" not in asked:
            raise SettingError(
                f"The study is of a model of your own, '{before['model']}', and code is imported "
                f"only when you name it. Add --model {before['model']}."
            )
        own = {name: before[name] for name in _OPTIONS}
        own["deterministic"] = before.get("deterministic", False)
        own["set"] = [f"{name}={format_setting(value)}" for name, value in before["fixed"].items()]
        spec, loaded, _ = specification(source, {**own, **asked}, "cpu", None)
        now = spec.identity(loaded)
        del now["values"]  # of another version, perhaps, and can be shown all the same
        refuse_other(path, before, now)
        _tell(opened, path, source, as_json)


class _Ending(NamedTuple):
    """How many workers have died in a search, and whether its time was over at its end."""

    deaths: int
    is_late: bool


def _search(
    study: Study, spec: TuneSpec, graph: Graph, trials: int, place: Place, timeout: float | None
) -> _Ending:
    """Train the trials that are still to be done, with progress."""
    from hpgmn.runs.tune import Tuning
    from hpgmn.runs.tune_summary import best_trial
    from hpgmn.runs.tune_tasks import tune_on

    tuning = Tuning(study, spec, graph, place.engine.workers)
    deaths = 0

    def lost(line: str) -> None:
        nonlocal deaths
        deaths += 1
        say(f"Warning: {line}")

    deadline = math.inf if timeout is None else time.monotonic() + timeout
    with step_progress() as progress, stop_on_signal() as should_stop:

        def told() -> None:
            best = best_trial(study)
            score = "" if best is None else f", best {100 * (best.value or 0):.1f}"
            done = trials - len(tuning.places(trials))
            progress(f"{graph.name} {spec.model}: trials{score}", done, trials)

        told()
        tune_on(
            *(place.engine, tuning, trials),
            deadline=deadline,
            should_stop=should_stop,
            told=told,
            lost=lost,
        )
    return _Ending(deaths, time.monotonic() > deadline)


def _tell(study: Study, path: Path, source: str, as_json: bool) -> None:
    """Write the best settings and the pictures, and print what was found."""
    from hpgmn.runs.tune_summary import files_of, summary, write_best

    found = summary(study, source)
    files: dict[str, str] = {}
    if found["best"] is not None:
        places = files_of(path)
        write_best(places["config"], found, found["best"]["settings"])
        files["config"] = str(places["config"])
        if _draw(study, found, places["png"]):
            files |= {kind: str(places[kind]) for kind in ("png", "svg")}
    found = {"study": str(path), **found, "files": files}
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        _print(found)


def _draw(study: Study, found: Mapping[str, Any], path: Path) -> bool:
    """Draw the pictures; returns whether there is anything to draw."""
    from hpgmn.runs.sensitivity import draw_sensitivity, panels
    from hpgmn.runs.study import identity_of
    from hpgmn.runs.tune_summary import finished_trials

    identity = identity_of(study)
    assert identity is not None
    has_memory = "num_patterns" in found["best"]["settings"]
    names = panels(identity["values"], found["importance"], has_memory)
    if not names:
        return False
    trials = [
        {"settings": one.user_attrs["settings"], "score": one.value}
        for one in finished_trials(study)
    ]
    title = f"{found['graph']}, {found['model']}: {len(trials)} trials"
    draw_sensitivity(trials, names, title, found["metric"], path)
    return True


def _print(found: Mapping[str, Any]) -> None:
    """What was found, for people."""
    counts, best = found["trials"], found["best"]
    words = {
        "finished": "finished",
        "pruned": "pruned (given up early)",
        "refused": "that cannot be trained",
        "failed": "cut off (run again)",
        "running": "running",
    }
    told = [f"{counts[key]} {words[key]}" for key in words if counts[key] or key == "finished"]
    out.print(f"Trials: {', '.join(told)}.", highlight=False, soft_wrap=True)
    if best is None:
        return
    score = mean_and_deviation(best["val_score_mean"], best["val_score_std"])
    runs = len(best["val_score"])
    line = (
        f"Best: trial {best['trial']}, validation {found['metric']} {score} % "
        f"({runs} run{'s' * (runs > 1)})."
    )
    out.print(line, highlight=False, soft_wrap=True)
    if found["importance"]:
        table = Table(
            "setting", f"importance % ({counts['finished']} trials)", box=None, padding=(0, 2, 0, 0)
        )
        for name, share in list(found["importance"].items())[:_SHOWN]:
            table.add_row(name, f"{100 * share:.0f}")
        out.print(table)
    else:
        say("Importance of the settings: too few finished trials to say.")
    out.print("Train with it:", highlight=False)
    out.print(f"  {best['command']}", highlight=False, soft_wrap=True)
    say(f"The same as a file for --config: {found['files']['config']}")
    if "png" in found["files"]:
        say(f"Pictures: {found['files']['png']} and {found['files']['svg']}")


def _complain(study: Study, trials: int, ending: _Ending) -> None:
    """Say what is missing: nothing finished, or trials that deaths or the time left undone."""
    from hpgmn.runs.tune import is_done
    from hpgmn.runs.tune_summary import first_error, trial_counts

    done = {
        one.user_attrs["place"]
        for one in study.get_trials(deepcopy=False)
        if is_done(one) and one.user_attrs["place"] < trials
    }
    error = first_error(study)
    if not trial_counts(study)["finished"] and error is not None:
        raise HPGMNError(f"No trial could be trained. The first said: {error}")
    if len(done) == trials:
        return
    if not ending.is_late:
        raise HPGMNError(
            f"Only {len(done)} of {trials} trials are done, because the workers died. Repeat the "
            "command, with fewer --workers if memory is short."
        )
    say(f"The time is over: {len(done)} of {trials} trials are done. Repeat to go on.")
    if ending.deaths:
        say(f"Workers that died: {ending.deaths}. Take fewer --workers if memory is short.")
