"""Settings without tuning: when a portfolio is tried, and what is said about it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Column, Table

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.cli.console import note, out, say, stop_on_signal, training_progress

if TYPE_CHECKING:
    from hpgmn.graph import Graph
    from hpgmn.runs.portfolio import Choice
    from hpgmn.runs.spec import RunSpec
    from hpgmn.training.replicas import Progress


logger = logging.getLogger(__name__)

NOT_TRIED = (
    "The portfolio of settings is not tried, because --set names some; --portfolio tries it with "
    "them."
)
"""What is said where settings alone have switched the portfolio off."""


def wants_portfolio(
    source: str,
    asked: bool | None,
    said: Mapping[str, Any],
    assignments: Sequence[str] | None = None,
) -> bool:
    """Whether model and settings are to be chosen from the portfolio.

    Args:
        source: the graph as the user named it.
        asked: what ``--portfolio`` or ``--no-portfolio`` says, if given.
        said: the values of the options that name a model and all its settings.
        assignments: single settings; ``--portfolio`` is needed to try it with them.
    """
    from hpgmn.models.shipped import has_settings_for

    named = [option for option, value in said.items() if value]
    if asked and named:
        raise SettingError(
            f"--portfolio chooses model and settings itself. Leave out {' and '.join(named)}, or "
            "--portfolio."
        )
    if asked is not None:
        return asked
    return not named and not assignments and not has_settings_for(source)


def known_assignments(model: str, assignments: Sequence[str]) -> list[str]:
    """Those of the ``--set`` options whose setting a model has."""
    from hpgmn.base.settings import parse_assignments, settings_names
    from hpgmn.models import find_model

    known = settings_names(find_model(model).settings)
    return [
        f"{key}={value}"
        for key, value in parse_assignments(list(assignments)).items()
        if key in known
    ]


def chosen_or_kept(
    spec: RunSpec,
    graph: Graph,
    assignments: Sequence[str],
    folder: Path | None,
    *,
    resume: bool,
    overwrite: bool,
) -> Choice | None:
    """The choice of the portfolio for a run; that of an interrupted run is read, not made again.

    None where ``--resume`` meets a run whose settings were not chosen.

    Args:
        spec: the run with its default settings: splits, metric and device are its own.
        graph: the graph.
        assignments: settings that every member gets.
        folder: the run folder, if named.
        resume: an interrupted run is to go on.
        overwrite: an earlier run is to be replaced.
    """
    from hpgmn.runs.folder import earlier_run

    before = folder and earlier_run(folder, resume=resume, overwrite=overwrite)
    if folder is not None and before is not None and resume:
        return _kept(folder)
    try:
        choice = _choose(spec, graph, assignments)
    except KeyboardInterrupt:
        say(
            "No settings were chosen yet and nothing is kept. Repeat the command, or take the "
            "default with --no-portfolio."
        )
        raise
    print_choice(choice.as_dict())
    note(choice.sentence())
    return choice


def _kept(folder: Path) -> Choice | None:
    from hpgmn.base.parsing import read_json
    from hpgmn.runs.folder import PORTFOLIO_FILE
    from hpgmn.runs.portfolio import Choice

    path = folder / PORTFOLIO_FILE
    if not path.exists():
        return None
    try:
        content = read_json(path)
    except ValueError:
        raise HPGMNError(f"{path} is damaged. Start anew with --overwrite.") from None
    choice = Choice.from_dict(content)
    say(f"The settings were chosen before: '{choice.name}' ({choice.model}).")
    return choice


def _choose(spec: RunSpec, graph: Graph, assignments: Sequence[str]) -> Choice:
    from hpgmn.base.settings import parse_assignments
    from hpgmn.runs.members import members_for
    from hpgmn.runs.portfolio import choose, splits_to_try
    from hpgmn.training.numerics import deterministic_algorithms

    members, reason = members_for(graph)
    count = len(splits_to_try(graph, spec.splits))
    note(
        f"Trying {len(members)} settings on the validation nodes of {count} "
        f"split{'s' * (count > 1)}; --no-portfolio trains the default instead."
    )
    if reason is not None:
        note(reason)
    with (
        training_progress(f"{graph.name} portfolio") as step,
        stop_on_signal() as should_stop,
        deterministic_algorithms(spec.deterministic, spec.device),
    ):

        def report(names: str, now: Progress) -> None:
            step(dataclasses.replace(now, stage=f"{names}, {now.stage}"))

        return choose(
            graph,
            spec.splits,
            device=spec.device,
            metric=spec.metric,
            positive=spec.positive,
            settings=parse_assignments(list(assignments)),
            report=report,
            should_stop=should_stop,
        )


def print_choice(content: Mapping[str, Any]) -> None:
    """One line per member that was trained: validation score and seconds, best first."""
    from hpgmn.base.metrics import metric_words

    metric = metric_words(content["metric"], content.get("positive"))
    table = Table(
        Column("settings", overflow="fold"),
        Column("model", no_wrap=True),
        Column("validation", justify="right"),
        Column("seconds", justify="right"),
        box=None,
        padding=(0, 2, 0, 0),
        title=f"Portfolio: {metric} %",
    )
    scored = [row for row in content["members"] if row["failure"] is None]
    for row in sorted(scored, key=lambda row: (-row["val_score_mean"], row["val_loss_mean"])):
        score = f"{100 * row['val_score_mean']:.1f}"
        table.add_row(row["name"], row["model"], score, f"{row['seconds']:.1f}")
        logger.info(
            "Portfolio: '%s' (%s), %s %s, %.1f seconds",
            row["name"],
            row["model"],
            metric,
            score,
            row["seconds"],
        )
    out.print(table)
