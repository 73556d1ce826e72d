"""Settings without tuning: when a portfolio is tried, and what is said about it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Column, Table

from hpgmn.cli.console import out, say, stop_on_signal, training_progress
from hpgmn.errors import HPGMNError, SettingError

if TYPE_CHECKING:
    from hpgmn.experiments.portfolio import Choice
    from hpgmn.experiments.run import RunSpec
    from hpgmn.graph import Graph
    from hpgmn.training.replicas import Progress


def wants_portfolio(source: str, asked: bool | None, said: Mapping[str, Any]) -> bool:
    """Whether model and settings are to be chosen from the portfolio.

    Args:
        source: the graph as the user named it.
        asked: what ``--portfolio`` or ``--no-portfolio`` says, if given.
        said: the values of the options that name a model or settings.
    """
    from hpgmn.shipped import has_settings_for

    named = [option for option, value in said.items() if value]
    if asked and named:
        raise SettingError(
            f"--portfolio chooses model and settings itself. Leave out {' and '.join(named)}, or "
            "--portfolio."
        )
    if asked is not None:
        return asked
    return not named and not has_settings_for(source)


def chosen_or_kept(
    spec: RunSpec, graph: Graph, folder: Path | None, *, resume: bool, overwrite: bool
) -> Choice | None:
    """The choice of the portfolio for a run; that of an interrupted run is read, not made again.

    None where ``--resume`` meets a run whose settings were not chosen.

    Args:
        spec: the run with its default settings: splits, metric and device are its own.
        graph: the graph.
        folder: the run folder, if named.
        resume: an interrupted run is to go on.
        overwrite: an earlier run is to be replaced.
    """
    from hpgmn.experiments.run import earlier_run

    before = folder and earlier_run(folder, resume=resume, overwrite=overwrite)
    if folder is not None and before is not None and resume:
        return _kept(folder)
    choice = _choose(spec, graph)
    print_choice(choice.as_dict())
    say(choice.sentence())
    return choice


def _kept(folder: Path) -> Choice | None:
    from hpgmn.experiments.portfolio import Choice
    from hpgmn.experiments.run import PORTFOLIO_FILE

    path = folder / PORTFOLIO_FILE
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise HPGMNError(f"{path} is damaged. Start anew with --overwrite.") from None
    choice = Choice.from_dict(content)
    say(f"The settings were chosen before: '{choice.name}' ({choice.model}).")
    return choice


def _choose(spec: RunSpec, graph: Graph) -> Choice:
    from hpgmn.experiments.portfolio import choose, splits_to_try
    from hpgmn.experiments.portfolio_members import members_for

    members, note = members_for(graph)
    count = len(splits_to_try(graph, spec.splits))
    say(
        f"Trying {len(members)} settings on the validation nodes of {count} "
        f"split{'s' * (count > 1)}; --no-portfolio trains the default instead."
    )
    if note is not None:
        say(note)
    with training_progress(f"{graph.name} portfolio") as step, stop_on_signal() as should_stop:

        def report(names: str, now: Progress) -> None:
            step(dataclasses.replace(now, stage=f"{names}, {now.stage}"))

        return choose(
            graph,
            spec.splits,
            device=spec.device,
            metric=spec.metric,
            positive=spec.positive,
            report=report,
            should_stop=should_stop,
        )


def print_choice(content: Mapping[str, Any]) -> None:
    """One line per member that was trained: validation score and seconds, best first."""
    from hpgmn.metrics import metric_words

    table = Table(
        Column("settings", overflow="fold"),
        Column("model", no_wrap=True),
        Column("validation", justify="right"),
        Column("seconds", justify="right"),
        box=None,
        padding=(0, 2, 0, 0),
        title=f"Portfolio: {metric_words(content['metric'], content.get('positive'))} %",
    )
    scored = [row for row in content["members"] if row["failure"] is None]
    for row in sorted(scored, key=lambda row: (-row["val_score_mean"], row["val_loss_mean"])):
        score = f"{100 * row['val_score_mean']:.1f}"
        table.add_row(row["name"], row["model"], score, f"{row['seconds']:.1f}")
    out.print(table)
