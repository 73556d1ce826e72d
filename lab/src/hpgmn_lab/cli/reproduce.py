"""The command ``hpgmn reproduce``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpgmn.base.errors import HPGMNError, mean_and_deviation
from hpgmn.cli.console import say, step_progress, stop_on_signal
from hpgmn.cli.options import Address, EngineName, open_engine

if TYPE_CHECKING:
    from hpgmn.engines import Engine
    from hpgmn.training.replicas import Progress
    from hpgmn_lab.reproduction.facts import Facts
    from hpgmn_lab.reproduction.plan import Experiment
    from hpgmn_lab.reproduction.tasks import Outcome


def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            help="all, or one of table1 to table4, figure3, sound, options, citation-options; "
            "ensembles and single, which all does not include."
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Few graphs and epochs: two minutes on two cores.")
    ] = False,
    out_folder: Annotated[
        str | None,
        typer.Option(
            "--out",
            help="Folder, or a URL supported by fsspec [runs/reproduction, "
            "runs/reproduction-quick].",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    workers: Annotated[
        int | None, typer.Option(help="Number of cells in parallel [1; ray: one per core].")
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    graphs: Annotated[
        str | None, typer.Option(help="ensembles and single: graphs, such as texas,cora [all].")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="ensembles and single: seeds of each member in an ensemble [2]."),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="ensembles and single: seconds for training the members of a graph [no limit]."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the means as JSON instead of tables.")
    ] = False,
) -> None:
    """Reproduce the paper's experiments cell by cell; finished cells are not repeated."""
    if experiment in ("ensembles", "single"):
        _reproduce_pools(
            experiment,
            out_folder or "runs/ensembles",
            device,
            graphs=[name for name in (graphs or "").split(",") if name],
            options={"seeds": seeds, "time_limit": time_limit},
            as_json=as_json,
        )
        return
    from hpgmn_lab.rendering import print_table
    from hpgmn_lab.reproduction import plan, tasks
    from hpgmn_lab.reproduction.cells import Records
    from hpgmn_lab.reproduction.documents import document, write_documents
    from hpgmn_lab.reproduction.work import CELLS_FOLDER

    budget = plan.QUICK if quick else plan.FULL
    names = plan.EXPERIMENTS if experiment == "all" else (experiment,)
    requested = [plan.experiment(name, budget) for name in names]
    name = out_folder or f"runs/{'reproduction-quick' if quick else 'reproduction'}"
    with (
        _open_folder(name) as (folder, upload),
        tasks.lock_folder(folder),
        open_engine(engine, address, device, workers) as (session, device),
    ):
        experiments, missing = tasks.local_experiments(requested)
        if missing:
            remedy = tasks.download_remedy(missing).render(cli=True)
            say(f"Skipping graphs without a local copy: {', '.join(missing)}. {remedy}")
        facts, failures = _facts(experiments, folder)
        outcomes = _work(experiments, folder, session, device, upload)
        records = Records.read(folder / CELLS_FOLDER)
        documents = [document(each, records, is_quick=quick) for each in experiments]
        others = [plan.experiment(name, budget) for name in plan.EXPERIMENTS]
        files = write_documents(
            folder, documents, [document(each, records, is_quick=quick) for each in others]
        )
    paths = [f"{name.rstrip('/')}/{path.relative_to(folder).as_posix()}" for path in files]
    means = {each.name: _means(each, outcomes) for each in experiments}
    total = len(facts) + len(failures) + len(outcomes)
    failures |= {each.cell.name: each.reason for each in outcomes if each.record is None}
    if as_json:
        content = {
            "folder": name,
            "facts": {each.graph: dataclasses.asdict(each) for each in facts},
            "experiments": means,
            "missing": missing,
            "failures": failures,
            "files": paths,
        }
        print(json.dumps(content, indent=1))
    else:
        for shown in documents:
            for grid in shown.grids[: 2 if shown.name == "table1" else 1]:
                print_table(shown.name, grid.frame)
    say(f"Records: {name.rstrip('/')}/{CELLS_FOLDER}")
    for path in paths:
        say(path)
    _raise_failures(failures, total, outcomes)


def _reproduce_pools(
    experiment: str,
    name: str,
    device: str,
    *,
    graphs: Sequence[str],
    options: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Train the members of each graph's pool, select ensembles, and print a line per graph.

    Needs no table library: it runs where only the product is installed.
    """
    from hpgmn.base.files import lock_folder
    from hpgmn.runs.fit import make_monitor
    from hpgmn.runs.spec import check_seeds, resolve_device
    from hpgmn_lab.reproduction import ensembles

    given = {key: value for key, value in options.items() if value is not None}
    check_seeds(given.get("seeds", 1))
    device, folder = resolve_device(device), Path(name)
    plans = ensembles.plans(graphs, **given)
    means: dict[str, Any] = {}
    with lock_folder(folder), step_progress() as step, stop_on_signal() as should_stop:

        def report(graph: str, now: Progress) -> None:
            step(f"{graph}: {now.stage} {now.epoch}/{now.epochs}", len(means), len(plans))

        monitor = make_monitor(report, None, should_stop)
        for plan in plans:
            record, is_known = ensembles.do_pool(plan, folder, device, monitor)
            found = means[plan.graph] = ensembles.summary(record)
            shown = found[experiment]
            text = mean_and_deviation(shown["mean"], shown["std"])
            note = "already finished" if is_known else f"{record['seconds']:.0f} s"
            say(f"{len(means)} of {len(plans)} {plan.graph} {text}, {note}")
    if as_json:
        print(json.dumps(means, indent=1))
    say(f"Records: {folder / ensembles.RECORDS_FILE}")


@contextmanager
def _open_folder(name: str) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Yield the working folder, and a function that uploads it if the name is a URL."""
    from hpgmn_lab.reproduction.remote import is_url, remote_folder

    if not is_url(name):
        yield Path(name), lambda: None
        return
    with remote_folder(name) as remote:

        def upload() -> None:
            try:
                remote.upload()
            except HPGMNError as error:
                say(f"Warning: {error.render(cli=True)} Retrying after the next cell.")

        yield remote.local, upload


def _work(
    experiments: Sequence[Experiment],
    folder: Path,
    engine: Engine,
    device: str,
    upload: Callable[[], None],
) -> list[Outcome]:
    """Return the outcome of every cell; print a line for each that is not finished yet."""
    from hpgmn_lab.reproduction.tasks import cell_states, cells_of, work_on

    cells = cells_of(experiments)
    states = cell_states(cells, folder)
    if states.finished:
        say(f"{len(states.finished)} of {len(cells)} cells are already finished.")
    outcomes = [*states.finished]
    with step_progress() as step, stop_on_signal() as should_stop:

        def on_outcome(outcome: Outcome) -> None:
            outcomes.append(outcome)
            say(f"{len(outcomes)} of {len(cells)} {outcome.cell.name} {_outcome_text(outcome)}")
            step(outcome.cell.name, len(outcomes), len(cells))
            upload()

        def report(name: str, now: Progress) -> None:
            step(f"{name}: {now.stage} {now.epoch}/{now.epochs}", len(outcomes), len(cells))

        for failed in states.failed:
            on_outcome(failed)
        try:
            work_on(
                *(engine, states.waiting, folder),
                device=device,
                on_outcome=on_outcome,
                report=report,
                should_stop=should_stop,
                on_lost=lambda name: say(f"Warning: restarting cell {name}: its machine is lost."),
            )
        except KeyboardInterrupt:
            say(
                f"{len(outcomes)} of {len(cells)} cells are finished. "
                "Repeat the command to continue."
            )
            raise
    return outcomes


def _outcome_text(outcome: Outcome) -> str:
    if outcome.record is None:
        return f"failed: {outcome.reason}"
    metrics = outcome.record.metrics
    score = mean_and_deviation(metrics["test_score_mean"], metrics["test_score_std"])
    return f"{score}, {outcome.seconds:.0f} s"


def _facts(experiments: Sequence[Experiment], folder: Path) -> tuple[list[Facts], dict[str, str]]:
    """Return the facts of Table 1, and the errors by cell."""
    from hpgmn_lab.reproduction.facts import do_facts
    from hpgmn_lab.reproduction.work import CELLS_FOLDER

    facts, failures = [], {}
    for graph in (graph for each in experiments if each.name == "table1" for graph in each.graphs):
        try:
            facts.append(do_facts(graph, folder / CELLS_FOLDER))
        except HPGMNError as error:
            failures[f"{graph}-facts"] = str(error)
    return facts, failures


def _means(plan: Experiment, outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Return row → graph → mean and deviation of the test score; None where a cell failed."""
    records = {outcome.cell.name: outcome.record for outcome in outcomes}
    means: dict[str, dict[str, Any]] = {}
    for row in plan.rows:
        means[row.label] = {}
        for graph, cell in row.cells.items():
            record = records[cell.name]
            metrics = None if record is None else record.metrics
            if metrics is not None and row.is_ensemble:
                metrics = metrics["ensemble"]
            means[row.label][graph] = metrics and {
                "mean": metrics["test_score_mean"],
                "std": metrics["test_score_std"],
            }
    return means


def _raise_failures(failures: Mapping[str, str], total: int, outcomes: Sequence[Outcome]) -> None:
    """Exit with code 2 if cells failed for known reasons, 1 after an unexpected error."""
    if not failures:
        return
    unexpected = next((each for each in outcomes if each.trace), None)
    [name, reason], *_ = failures.items()
    if unexpected is None:
        raise HPGMNError(f"{len(failures)} of {total} cells failed. {name}: {reason}")
    say(unexpected.trace.rstrip())
    say(f"{len(failures)} of {total} cells failed. {unexpected.cell.name}: {unexpected.reason}")
    raise typer.Exit(1)
