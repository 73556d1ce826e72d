"""Runs as tasks of an engine, such as a Ray cluster: a task returns the files of a run folder."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpgmn.base.files import write_bytes
from hpgmn.base.parsing import parse_json
from hpgmn.engines import Channel, Engine, RateLimiter, Task, TaskResult
from hpgmn.graph import Graph
from hpgmn.runs.fit import Monitor, fit_run
from hpgmn.runs.folder import (
    LOG_FILE,
    METRICS_FILE,
    PORTFOLIO_FILE,
    drop_backup,
    log_file,
    prepare_folder,
    warnings_among,
)
from hpgmn.runs.spec import RunSpec
from hpgmn.training.replicas import Progress

logger = logging.getLogger(__name__)

TRIES = 3
"""How often one command starts a run whose machine is lost."""


def run_task(
    argument: tuple[RunSpec, Mapping[str, bytes], Sequence[logging.LogRecord]],
    graph: Graph,
    line: Channel,
) -> dict[str, bytes]:
    """Train in a temporary folder and return its files (name → content).

    Args:
        argument: what is trained, files to put into its folder, and what was logged earlier.
        graph: the graph.
        line: the connection to the process that started the task.
    """
    spec, files, earlier = argument
    logging.getLogger("hpgmn").setLevel(logging.INFO)  # as the commands do
    is_time = RateLimiter()

    def report(now: Progress) -> None:
        if is_time():
            line.send(now)

    with tempfile.TemporaryDirectory(prefix="hpgmn-") as path:
        folder = Path(path)
        prepare_folder(folder, spec, resume=False, overwrite=False)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        with log_file(folder / LOG_FILE, earlier):
            fit_run(
                *(spec, graph, folder),
                report=report,
                should_stop=line.should_stop,
                memory_share=line.share.memory,
                warnings=warnings_among(earlier),
            )
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def train_elsewhere(
    engine: Engine,
    runs: Mapping[Path, RunSpec],
    graph: Graph,
    records: Sequence[logging.LogRecord],
    monitor: Monitor,
) -> dict[Path, str]:
    """Train runs into prepared folders, all but their reports; return folder → error message."""
    failures: dict[Path, str] = {}
    ended = 0

    def on_end(folder: Path, reason: str) -> None:
        nonlocal ended
        ended += 1
        if reason:
            failures[folder] = reason
        monitor.step(f"{graph.name} {runs[folder].model}", ended, len(runs))

    def on_progress(folder: Path, now: Progress) -> None:
        task = f"{graph.name} {runs[folder].model}: {now.stage} {now.epoch}/{now.epochs}"
        monitor.progress("", monitor.step_progress(task, ended, len(runs)))

    run_on(
        *(engine, runs, graph),
        earlier=tuple(records),
        ended=on_end,
        report=on_progress,
        should_stop=monitor.should_stop,
        lost=lambda name: logger.warning("The machine of run %s is lost; restarting it.", name),
    )
    return failures


def run_on(
    engine: Engine,
    runs: Mapping[Path, RunSpec],
    graph: Graph,
    *,
    earlier: Sequence[logging.LogRecord] = (),
    ended: Callable[[Path, str], None] = lambda folder, reason: None,
    report: Callable[[Path, Progress], None] = lambda folder, progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    lost: Callable[[str], None] = lambda name: None,
) -> None:
    """Train runs into their prepared folders; only the reports are missing then.

    Args:
        engine: where tasks run.
        runs: folder → what is trained.
        graph: the graph of all runs.
        earlier: what was logged before, for the beginning of each log.
        ended: called with the folder of each run that ends, and why it failed or "".
        report: called with a run's folder and its progress.
        should_stop: polled; True raises KeyboardInterrupt with finished runs kept.
        lost: called with the folder of a run that is restarted because its machine is lost.
    """
    waiting = iter(runs.items())

    def next_task() -> Task | None:
        for folder, spec in waiting:
            choice = folder / PORTFOLIO_FILE
            known = {choice.name: choice.read_bytes()} if choice.exists() else {}
            return Task(str(folder), run_task, (spec, known, earlier), graph)
        return None

    def on_end(end: TaskResult) -> None:
        if end.trace:
            raise RuntimeError(f"A worker failed:\n{end.trace}")
        if end.value is not None:
            write_files(Path(end.name), end.value)
            drop_backup(Path(end.name))
            for line in parse_json(end.value[METRICS_FILE])["warnings"]:
                logger.warning(line)
        ended(Path(end.name), end.reason)

    engine.run(
        next_task,
        on_end,
        on_message=lambda name, now: report(Path(name), now),
        should_stop=should_stop,
        tries=TRIES,
        on_lost=lost,
        max_tasks=len(runs),
    )


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a run; the metrics come last, since they mark it as finished."""
    for name in sorted(files, key=lambda name: name == METRICS_FILE):
        write_bytes(folder / name, files[name])
