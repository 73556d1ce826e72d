"""One run, or several models on the same splits and the table that compares them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Column, Table

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.locking import LOCK_FILE, lock_folder
from hpgmn.base.text import mean_and_deviation
from hpgmn.cli.console import (
    earlier_records,
    out,
    say,
    step_progress,
    stop_on_signal,
    training_progress,
)
from hpgmn.cli.engines import tell_lost

if TYPE_CHECKING:
    from hpgmn.engines import Engine
    from hpgmn.graph import Graph
    from hpgmn.runs.spec import RunSpec
    from hpgmn.training.replicas import Progress

ALL = "all"


def model_names(asked: Sequence[str]) -> list[str]:
    """The models behind repeated ``--model`` options, names with commas and ``all``."""
    from hpgmn.models import MODELS

    names = [name.strip() for one in asked for name in one.split(",") if name.strip()]
    if not names:
        raise SettingError("--model needs a name. See `hpgmn models`.")
    if ALL in names:
        names = [*MODELS, *(name for name in names if name != ALL)]
    return list(dict.fromkeys(names))


def shared_assignments(names: Sequence[str], assignments: Sequence[str]) -> dict[str, list[str]]:
    """For each model those of the ``--set`` options that are for it.

    ``key=value`` is for every model that knows the key, and one must; ``model.key=value`` is for
    that model alone.
    """
    from hpgmn.base.settings import describe_settings, parse_assignments
    from hpgmn.models import find_model

    known = {
        name: {row["name"] for row in describe_settings(find_model(name).settings)}
        for name in names
    }
    found: dict[str, list[str]] = {name: [] for name in names}
    for path, value in parse_assignments(list(assignments)).items():
        model, dot, key = path.rpartition(".")
        if dot and model not in names:
            raise SettingError.unknown("model in --set", model, names)
        takers = [model] if model else [name for name in names if key in known[name]]
        if not takers or (model and key not in known[model]):
            asked = [known[name] for name in ([model] if model else names)]
            raise SettingError.unknown("setting", key, sorted(set().union(*asked)))
        for name in takers:
            found[name].append(f"{key}={value}")
    return found


def folder_name(model: str) -> str:
    """A model's name as part of a path.

    >>> folder_name("own_model:TwoHop")
    'own_model-TwoHop'
    """
    return model.replace(":", "-")


def run_and_report(spec: RunSpec, graph: Graph, folder: Path) -> dict[str, Any]:
    """Train with progress, a log and the report page."""
    from hpgmn.runs.folder import LOG_FILE, log_file, warnings_among
    from hpgmn.runs.train import train_folder

    earlier = earlier_records()
    with (
        log_file(folder / LOG_FILE, earlier),
        training_progress(f"{graph.name} {spec.model}") as report,
        stop_on_signal() as should_stop,
    ):
        metrics = train_folder(
            *(spec, graph, folder),
            report=report,
            should_stop=should_stop,
            warnings=warnings_among(earlier),
        )
    explain_and_report(spec, graph, folder)
    return metrics


def explain_and_report(spec: RunSpec, graph: Graph, folder: Path) -> None:
    """What the graph and the trained model are like, as files, and the page made of them."""
    from hpgmn.models import is_custom
    from hpgmn.runs.report_data import write_report
    from hpgmn.runs.spec import resolve_device
    from hpgmn.runs.understanding import understand
    from hpgmn.training.saved import MODEL_FILE, SavedModel

    if spec.device == "cuda" and resolve_device("auto") == "cpu":  # it was trained elsewhere
        spec = dataclasses.replace(spec, device="cpu")
    model = SavedModel.read(folder / MODEL_FILE, spec.model if is_custom(spec.model) else None)
    with step_progress() as progress:
        understand(spec, graph, model, progress).write(folder)
        progress("Report", 0, None)
        write_report(folder)


def how_to_go_on(folder: Path, *, is_replacing: bool) -> str:
    """The sentence for whoever has interrupted a training."""
    instead = ", in place of --overwrite" if is_replacing else ""
    return f"To go on, repeat the command with --resume --out {folder}{instead}"


@contextmanager
def telling_kept(folder: Path) -> Iterator[None]:
    """Of a training that does not come to its end say where the run before it is kept."""
    from hpgmn.runs.folder import METRICS_FILE, kept_words

    try:
        yield
    except (HPGMNError, KeyboardInterrupt):
        words = "" if (folder / METRICS_FILE).exists() else kept_words(folder)
        if words:
            say(words)
        raise


def train_into(
    spec: RunSpec,
    graph: Graph,
    folder: Path,
    *,
    resume: bool,
    overwrite: bool,
    choice: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The metrics of a run in a folder of its own; what was done before is not done again."""
    from hpgmn.runs.folder import finished_run, prepare_folder

    prepare_folder(folder, spec, resume=resume, overwrite=overwrite, choice=choice)
    metrics = finished_run(folder) if resume else None
    if metrics is None:
        return run_and_report(spec, graph, folder)
    explain_and_report(spec, graph, folder)
    return metrics


def train_one(
    spec: RunSpec,
    graph: Graph,
    folder: Path,
    *,
    resume: bool,
    overwrite: bool,
    choice: Mapping[str, Any] | None = None,
    cluster: Engine | None = None,
) -> dict[str, Any]:
    """The metrics of a run, here or on a cluster, with its report."""
    from hpgmn.runs.folder import finished_run, prepare_folder

    with lock_folder(folder), telling_kept(folder):
        if cluster is not None:
            prepare_folder(folder, spec, resume=resume, overwrite=overwrite, choice=choice)
            if finished_run(folder) is None:
                failures = _train_elsewhere(cluster, {folder: spec}, graph)
                if failures:
                    raise HPGMNError(failures[folder])
            resume, overwrite = True, False
        return train_into(spec, graph, folder, resume=resume, overwrite=overwrite, choice=choice)


def _train_elsewhere(
    cluster: Engine, runs: Mapping[Path, RunSpec], graph: Graph
) -> dict[Path, str]:
    """Train runs into prepared folders, all but their reports; folder → why it failed."""
    from hpgmn.runs.tasks import run_on

    failures: dict[Path, str] = {}
    ended = 0
    with step_progress() as step, stop_on_signal() as should_stop:

        def told(folder: Path, reason: str) -> None:
            nonlocal ended
            ended += 1
            if reason:
                failures[folder] = reason
            step(f"{graph.name} {runs[folder].model}", ended, len(runs))

        def report(folder: Path, now: Progress) -> None:
            step(
                f"{graph.name} {runs[folder].model}: {now.stage} {now.epoch}/{now.epochs}",
                ended,
                len(runs),
            )

        run_on(
            *(cluster, runs, graph),
            earlier=earlier_records(),
            told=told,
            report=report,
            should_stop=should_stop,
            lost=tell_lost("run"),
        )
    return failures


def train_several(
    specs: Sequence[RunSpec],
    graph: Graph,
    folder: Path,
    *,
    resume: bool,
    overwrite: bool,
    cluster: Engine | None = None,
) -> None:
    """Train model after model, each into a run folder of its own, and print the comparison.

    A model that cannot be trained is left out and named at the end; the others go on. On a cluster
    they are trained at the same time; their reports are written here.
    """
    with lock_folder(folder):
        _train_several(specs, graph, folder, resume, overwrite, cluster)


def _train_several(
    specs: Sequence[RunSpec],
    graph: Graph,
    folder: Path,
    resume: bool,
    overwrite: bool,
    cluster: Engine | None,
) -> None:
    from hpgmn.base.files import is_draft, remove_stale_drafts, write_text
    from hpgmn.runs.compare import COMPARISON_FILE, comparison
    from hpgmn.runs.folder import CONFIG_FILE

    if (folder / CONFIG_FILE).exists():
        raise HPGMNError(
            f"{folder} is the folder of one run, and several models need one that has a folder for "
            "each. Choose another --out."
        )
    names = [path.name for path in folder.iterdir()]
    is_taken = any(name != LOCK_FILE and not is_draft(name) for name in names)
    if is_taken and not (resume or overwrite):
        raise HPGMNError(
            f"The folder {folder} exists. Continue it with --resume, replace its runs with "
            "--overwrite, or choose another --out."
        )
    remove_stale_drafts(folder, older_than=0)
    failed: dict[Path, str] = {}
    if cluster is not None:
        failed = _several_elsewhere(
            cluster, specs, graph, folder, resume=resume, overwrite=overwrite
        )
        resume, overwrite = True, False
    runs, failures = [], {}
    for number, spec in enumerate(specs, start=1):
        say(f"{number} of {len(specs)}: {spec.model}")
        try:
            own = folder / folder_name(spec.model)
            with telling_kept(own):
                if own in failed:
                    raise HPGMNError(failed[own])
                runs.append(_one_of_several(spec, graph, own, resume=resume, overwrite=overwrite))
        except KeyboardInterrupt:
            say(how_to_go_on(folder, is_replacing=overwrite))
            raise
        except HPGMNError as error:
            failures[spec.model] = error.render(cli=True)
            say(f"{spec.model} is left out: {failures[spec.model]}")
    if runs:
        content = comparison(runs + _others_in(folder, runs))
        write_text(folder / COMPARISON_FILE, json.dumps(content, indent=1) + "\n")
        print_comparison(content)
        say(f"Run folders: {folder}")
    if failures:
        [model, first], *_ = failures.items()
        raise HPGMNError(f"{len(failures)} of {len(specs)} models failed. {model}: {first}")


def _several_elsewhere(
    cluster: Engine,
    specs: Sequence[RunSpec],
    graph: Graph,
    folder: Path,
    *,
    resume: bool,
    overwrite: bool,
) -> dict[Path, str]:
    """Train those models that are not trained yet on a cluster; folder → why it failed."""
    from hpgmn.runs.folder import METRICS_FILE, prepare_folder

    waiting: dict[Path, RunSpec] = {}
    failed: dict[Path, str] = {}
    with ExitStack() as held:
        for spec in specs:
            own = folder / folder_name(spec.model)
            try:
                held.enter_context(lock_folder(own))
                prepare_folder(own, spec, resume=resume, overwrite=overwrite)
            except HPGMNError as error:
                failed[own] = error.render(cli=True)
                continue
            if not (own / METRICS_FILE).exists():
                held.enter_context(telling_kept(own))
                waiting[own] = spec
        try:
            return failed | _train_elsewhere(cluster, waiting, graph)
        except KeyboardInterrupt:
            say(how_to_go_on(folder, is_replacing=overwrite))
            raise


def _others_in(folder: Path, runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The metrics of finished runs of other models in the same folder, on the same splits.

    One that is damaged is told and left out.
    """
    from hpgmn.runs.folder import METRICS_FILE
    from hpgmn.runs.metrics import read_metrics

    keys = ("graph", "metric", "positive", "splits", "seeds")
    found = []
    for path in sorted(folder.glob(f"[!.]*/{METRICS_FILE}")):
        try:
            metrics = read_metrics(path)
            if "model" not in metrics:
                raise HPGMNError(f"{path} is damaged: it names no model. Train that run again.")
        except HPGMNError as error:
            say(f"{path.parent.name} is left out of the table: {error}")
            continue
        is_new = metrics["model"] not in [run["model"] for run in runs]
        if is_new and all(metrics.get(key) == runs[0].get(key) for key in keys):
            found.append(metrics)
    return found


def _one_of_several(
    spec: RunSpec, graph: Graph, own: Path, *, resume: bool, overwrite: bool
) -> dict[str, Any]:
    """The metrics of one model's run in its own folder; a finished one is read."""
    from hpgmn.runs.folder import METRICS_FILE, REPORT_FILE, prepare_folder
    from hpgmn.runs.metrics import read_metrics

    with lock_folder(own):
        if resume and (own / REPORT_FILE).exists() and (own / METRICS_FILE).exists():
            prepare_folder(own, spec, resume=resume, overwrite=overwrite)  # refuses other options
            return read_metrics(own / METRICS_FILE)
        return train_into(spec, graph, own, resume=resume, overwrite=overwrite)


def print_comparison(content: Mapping[str, Any]) -> None:
    """One line per model: scores, and the difference to the reference with its interval."""
    from hpgmn.base.metrics import metric_words

    reference, over = content["reference"], "splits" if len(content["splits"]) > 1 else "seeds"
    runs = len(content["splits"]) * content["seeds"]
    metric = metric_words(content["metric"], content.get("positive"))
    table = Table(
        Column("model", overflow="fold"),
        Column("test", no_wrap=True, justify="right"),
        Column("validation", justify="right"),
        Column(f"minus {reference} (95 %)", no_wrap=True, justify="right"),
        Column("seconds", justify="right"),
        box=None,  # so that it fits 80 columns
        padding=(0, 2, 0, 0),
        title=f"{content['graph']}: {metric} %, {runs} run{'s' * (runs > 1)} each",
    )
    for row in content["rows"]:
        table.add_row(
            row["model"],
            mean_and_deviation(row["test_score_mean"], row["test_score_std"]),
            f"{100 * row['val_score_mean']:.1f}",
            difference_words(row["difference"]),
            f"{row['seconds']:.1f}",
        )
    out.print(table)
    if over == "splits":
        say(
            f"Differences are paired over {len(content['splits'])} splits; their intervals are "
            "corrected for overlapping splits (Nadeau and Bengio)."
        )
    elif content["seeds"] > 1:
        say("One split: intervals are over seeds (Welch) and speak of this split alone.")
    else:
        say("One run each: no interval. More splits or --seeds give one.")


def difference_words(difference: Mapping[str, Any] | None) -> str:
    """A difference in points with its interval.

    >>> difference_words({"mean": -0.0744, "low": -0.091, "high": -0.0575})
    '-7.4 (-9.1 to -5.8)'
    """
    if difference is None:
        return ""
    if difference["low"] is None:
        return f"{100 * difference['mean']:+.1f}"
    mean, low, high = (100 * difference[key] for key in ("mean", "low", "high"))
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
