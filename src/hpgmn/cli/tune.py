"""``hpgmn tune``: search settings by validation score."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpgmn.base.errors import HPGMNError, count_noun, mean_and_deviation, unit_of
from hpgmn.cli.console import monitored, out, print_table, say
from hpgmn.cli.options import (
    Address,
    Deterministic,
    EngineName,
    GraphSource,
    Json,
    Metric,
    Protocol,
    Seeds,
    check_engine,
    column_options,
    open_engine,
    refuse_url,
)

if TYPE_CHECKING:
    from hpgmn.runs.tune import TuneResult

_SHOWN = 10  # lines of importance


@column_options()
def tune(
    graph: GraphSource,
    *,
    trials: Annotated[int, typer.Option(help="Trials in total; 0 shows the results of a study.")],
    study: Annotated[
        Path,
        typer.Option(
            help="The SQLite file that stores the trials; pass the same file to continue."
        ),
    ],
    model: Annotated[str | None, typer.Option(help="A model's name [hpgmn].")] = None,
    space: Annotated[
        str | None,
        typer.Option(
            help="ours: the values for this kind of graph; paper: those that the paper prints, on "
            "top of its settings (hpgmn only) [ours]."
        ),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            help="tpe: learns from earlier trials; random: a fixed random sequence, the "
            "same for every model, without pruning [tpe]."
        ),
    ] = None,
    splits: Annotated[
        str | None, typer.Option(help="all, or numbers: 0,3 [the first three].")
    ] = None,
    seeds: Seeds = None,
    protocol: Protocol = None,
    metric: Metric = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Fix a setting in all trials; may be repeated."
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds after which no trial starts.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Trials trained at a time, each in a process; 1 for a GPU [1; ray: one for each "
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
            help="Stop trials below the median of the others after as many epochs [tpe: yes].",
        ),
    ] = None,
    as_json: Json = False,
    columns: dict[str, Any],
) -> None:
    """Search settings by validation score; the study file keeps every trial.

    A trial is trained on all requested splits and seeds at once. Test labels are never read.
    """
    from hpgmn.base.settings import parse_assignments
    from hpgmn.runs.tune import tune as search

    check_engine(engine, address, workers)
    refuse_url("--study", study)
    options: dict[str, Any] = {
        "study": study,
        "model": model,
        "space": space,
        "sampler": sampler,
        "splits": splits,
        "seeds": seeds,
        "protocol": protocol,
        "metric": metric,
        "settings": parse_assignments(set_ or []),
        "deterministic": deterministic,
        "pruning": pruning,
        "timeout": timeout,
        "columns": columns,
    }
    if trials == 0:
        _print(search(graph, 0, **options).content, as_json)
        return
    with (
        open_engine(engine, address, device, workers) as (options["engine"], options["device"]),
        monitored() as callbacks,
    ):
        try:
            result = search(graph, trials, **options, **callbacks)
        except KeyboardInterrupt:
            say("Repeat the command to continue.")
            raise
    _print(result.content, as_json)
    _check_complete(result)


def _print(content: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(content, indent=1))
        return
    counts, best = content["trials"], content["best"]
    titles = {
        "finished": "finished",
        "pruned": "pruned",
        "refused": "that cannot be trained",
        "failed": "cut off (run again)",
        "running": "running",
    }
    parts = [f"{counts[key]} {titles[key]}" for key in titles if counts[key] or key == "finished"]
    out.print(f"Trials: {', '.join(parts)}.", highlight=False, soft_wrap=True)
    if best is None:
        return
    metric = content["metric"]
    score = mean_and_deviation(best["val_score_mean"], best["val_score_std"], metric)
    runs = len(best["val_score"])
    line = (
        f"Best: trial {best['trial']}, validation {metric} {score}{unit_of(metric)} "
        f"({count_noun(runs, 'run')})."
    )
    out.print(line, highlight=False, soft_wrap=True)
    if content["importance"]:
        shares = list(content["importance"].items())[:_SHOWN]
        print_table(
            ("setting", f"importance % ({counts['finished']} trials)"),
            [(name, f"{100 * share:.0f}") for name, share in shares],
        )
    else:
        say("Importance of the settings: too few finished trials.")
    out.print("Train with it:", highlight=False)
    out.print(f"  {best['command']}", highlight=False, soft_wrap=True)
    say(f"The same as a file for --config: {content['files']['config']}")
    if "png" in content["files"]:
        say(f"Pictures: {content['files']['png']} and {content['files']['svg']}")


def _check_complete(result: TuneResult) -> None:
    """Report trials that lost workers or the timeout left undone."""
    if result.done == result.requested:
        return
    if not result.is_late:
        raise HPGMNError(
            f"Only {result.done} of {result.requested} trials are done, because workers died.",
            "Repeat the command, with fewer --workers if memory is short.",
        )
    say(
        f"Time limit reached: {result.done} of {result.requested} trials are done. Repeat the "
        "command to continue."
    )
    if result.lost_workers:
        dead = count_noun(result.lost_workers, "worker")
        say(f"{dead} died. Use fewer --workers if memory is short.")
