"""The command that reproduces the paper's experiments."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from hpgmn.base.errors import HPGMNError
from hpgmn.base.text import mean_and_deviation
from hpgmn.cli.console import out, say, step_progress, stop_on_signal
from hpgmn.cli.engines import Address, EngineName, Place, opened, tell_lost

if TYPE_CHECKING:
    from hpgmn.training.replicas import Progress
    from hpgmn_lab.reproduction.facts import Facts
    from hpgmn_lab.reproduction.plan import Experiment
    from hpgmn_lab.reproduction.todo import Outcome


def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            help="all, or one of table1 to table4, figure3, sound, options, citation-options."
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Few graphs and epochs: two minutes on two cores.")
    ] = False,
    out_folder: Annotated[
        str | None,
        typer.Option(
            "--out",
            help="The folder, or a URL that fsspec opens [runs/reproduction, "
            "runs/reproduction-quick].",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    workers: Annotated[
        int | None,
        typer.Option(help="How many cells are worked on at once [1; ray: one for each core]."),
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the means as JSON instead of tables.")
    ] = False,
) -> None:
    """The paper's experiments, cell by cell; what is done already is not done again."""
    from hpgmn_lab.reproduction import plan, todo
    from hpgmn_lab.reproduction.html import write_reproduction
    from hpgmn_lab.reproduction.work import CELLS_FOLDER

    budget = plan.QUICK if quick else plan.FULL
    names = plan.EXPERIMENTS if experiment == "all" else (experiment,)
    asked = [plan.experiment(name, budget) for name in names]
    name = out_folder or f"runs/{'reproduction-quick' if quick else 'reproduction'}"
    with (
        _folder(name) as (folder, send),
        todo.only_one(folder),
        opened(engine, address, device, workers) as place,
    ):
        experiments, missing = todo.on_this_machine(asked)
        if missing:
            say(f"Left out: {', '.join(missing)}. {todo.what_to_do(missing)}")
        facts, failures = _facts(experiments, folder)
        outcomes = _work(experiments, folder, place, send)
        files = write_reproduction(
            folder,
            experiments,
            cells_folder=folder / CELLS_FOLDER,
            options=" --quick" if quick else "",
            others=[plan.experiment(name, budget) for name in plan.EXPERIMENTS],
        )
    means = {one.name: _means(one, outcomes) for one in experiments}
    total = len(facts) + len(failures) + len(outcomes)
    failures |= {one.cell.name: one.reason for one in outcomes if one.record is None}
    if as_json:
        content = {
            "folder": name,
            "facts": {one.graph: dataclasses.asdict(one) for one in facts},
            "experiments": means,
            "missing": missing,
            "failures": failures,
            "files": [_shown(path, folder, name) for path in files],
        }
        print(json.dumps(content, indent=1))
    else:
        _print_facts(facts)
        for one in experiments:
            _print_means(one, means[one.name])
    say(f"Records: {_shown(folder / CELLS_FOLDER, folder, name)}")
    for path in files:
        say(_shown(path, folder, name))
    _refuse_failures(failures, total, outcomes)


@contextmanager
def _folder(name: str) -> Iterator[tuple[Path, Callable[[], None]]]:
    """The folder to work in, and what keeps its content; for a URL one that stands for it."""
    from hpgmn_lab.reproduction.remote import is_url, remote_folder

    if not is_url(name):
        yield Path(name), lambda: None
        return
    with remote_folder(name) as remote:

        def send() -> None:
            try:
                remote.send()
            except HPGMNError as error:
                say(f"Warning: {error} It is tried again after the next cell.")

        yield remote.here, send


def _shown(path: Path, folder: Path, name: str) -> str:
    """A path below the folder as the user knows it."""
    return f"{name.rstrip('/')}/{path.relative_to(folder).as_posix()}"


def _work(
    experiments: Sequence[Experiment], folder: Path, place: Place, send: Callable[[], None]
) -> list[Outcome]:
    """The outcome of every cell, with a line for each that is worked on."""
    from hpgmn_lab.reproduction.tasks import work_on
    from hpgmn_lab.reproduction.todo import cells_of, sort_out

    cells = cells_of(experiments)
    every = sort_out(cells, folder)
    if every.done:
        say(f"{len(every.done)} of {len(cells)} cells are done already.")
    told = [*every.done]
    with step_progress() as step, stop_on_signal() as should_stop:
        tell = _teller(told, len(cells), step, send)
        for failed in every.failed:
            tell(failed)

        def report(name: str, now: Progress) -> None:
            step(f"{name}: {now.stage} {now.epoch}/{now.epochs}", len(told), len(cells))

        try:
            work_on(
                *(place.engine, every.waiting, folder),
                device=place.device,
                tell=tell,
                report=report,
                should_stop=should_stop,
                lost=tell_lost("cell"),
            )
        except KeyboardInterrupt:
            say(f"{len(told)} of {len(cells)} cells are done. To go on, repeat the command.")
            raise
    return told


def _teller(
    told: list[Outcome],
    total: int,
    step: Callable[[str, int, int | None], None],
    send: Callable[[], None],
) -> Callable[[Outcome], None]:
    """Keeps an outcome and says it in one line."""

    def tell(outcome: Outcome) -> None:
        told.append(outcome)
        words = f"failed: {outcome.reason}"
        if outcome.record is not None:
            metrics = outcome.record.metrics
            score = mean_and_deviation(metrics["test_score_mean"], metrics["test_score_std"])
            words = f"{score}, {outcome.seconds:.0f} s"
        say(f"{len(told)} of {total} {outcome.cell.name} {words}")
        step(outcome.cell.name, len(told), total)
        send()

    return tell


def _facts(experiments: Sequence[Experiment], folder: Path) -> tuple[list[Facts], dict[str, str]]:
    """The lines of Table 1, which need no training, and why those that are missing are."""
    from hpgmn_lab.reproduction.facts import do_facts
    from hpgmn_lab.reproduction.work import CELLS_FOLDER

    found, failures = [], {}
    for graph in (graph for one in experiments if one.name == "table1" for graph in one.graphs):
        try:
            found.append(do_facts(graph, folder / CELLS_FOLDER))
        except HPGMNError as error:
            failures[f"{graph}-facts"] = str(error)
    return found, failures


def _print_facts(facts: Sequence[Facts]) -> None:
    """Ours, with the printed number in brackets where it differs, and what explains that."""
    from hpgmn_lab.reproduction.facts_grid import KEYS, differs, fact_words

    if not facts:
        return
    table = Table("", *(Column(name, justify="right") for name in KEYS), title="table1", box=None)
    for one in facts:
        words = [
            fact_words(getattr(one, name))
            + (f" ({fact_words(one.printed[name])})" if differs(one, name) else "")
            for name in KEYS
        ]
        table.add_row(one.graph, *words)
    out.print(table)
    for one in facts:
        for name in KEYS:
            if differs(one, name):
                line = f"{one.graph}, {name}: {one.explanations[name]}."
                out.print(line, highlight=False, soft_wrap=True)


def _means(one: Experiment, outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Row → graph → mean and deviation of the test score; None where a cell failed."""
    records = {outcome.cell.name: outcome.record for outcome in outcomes}
    found: dict[str, dict[str, Any]] = {}
    for row in one.rows:
        found[row.label] = {}
        for graph, cell in row.cells.items():
            record = records[cell.name]
            metrics = None if record is None else record.metrics
            if metrics is not None and row.is_ensemble:
                metrics = metrics["ensemble"]
            found[row.label][graph] = metrics and {
                "mean": metrics["test_score_mean"],
                "std": metrics["test_score_std"],
            }
    return found


def _print_means(one: Experiment, means: Mapping[str, Mapping[str, Any]]) -> None:
    if not means:
        return
    graphs = [Column(graph, no_wrap=True, justify="right") for graph in one.graphs]
    table = Table("", *graphs, title=one.name, box=None, padding=(0, 2, 0, 0))
    for label, cells in means.items():
        shown = (cells.get(graph) or {"mean": None, "std": None} for graph in one.graphs)
        table.add_row(label, *(mean_and_deviation(cell["mean"], cell["std"]) for cell in shown))
    out.print(table)


def _refuse_failures(failures: Mapping[str, str], total: int, outcomes: Sequence[Outcome]) -> None:
    """Exit code 2 where cells failed for known reasons, 1 where one has to be looked into."""
    if not failures:
        return
    unforeseen = next((one for one in outcomes if one.trace), None)
    [name, reason], *_ = failures.items()
    if unforeseen is None:
        raise HPGMNError(f"{len(failures)} of {total} cells failed. {name}: {reason}")
    say(unforeseen.trace.rstrip())
    say(f"{len(failures)} of {total} cells failed. {unforeseen.cell.name}: {unforeseen.reason}")
    raise typer.Exit(1)
