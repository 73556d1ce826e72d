"""Runs as tasks of an engine, such as a Ray cluster: a task returns the files of a run folder."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import write_bytes
from hpgmn.base.parsing import parse_json
from hpgmn.engines import Channel, Engine, RateLimiter, Task, TaskResult
from hpgmn.graph import Graph
from hpgmn.runs.fit import Monitor
from hpgmn.runs.folder import (
    LOG_FILE,
    METRICS_FILE,
    drop_backup,
    log_file,
    prepare_folder,
    warnings_among,
)
from hpgmn.runs.pool import fit_spec
from hpgmn.runs.spec import RunSpec
from hpgmn.training.replicas import Progress

logger = logging.getLogger(__name__)

TRIES = 3
"""How often one command starts a run whose machine is lost."""


def run_task(
    argument: tuple[RunSpec, Sequence[logging.LogRecord]], graph: Graph, line: Channel
) -> dict[str, bytes] | HPGMNError:
    """Train in a temporary folder; return its files (name → content), or a user's mistake.

    Args:
        argument: what is trained, and what was logged earlier.
        line: the connection to the process that started the task.
    """
    spec, earlier = argument
    logging.getLogger("hpgmn").setLevel(logging.INFO)  # as the commands do
    is_time = RateLimiter()

    def report(now: Progress) -> None:
        if is_time():
            line.send(now)

    with tempfile.TemporaryDirectory(prefix="hpgmn-") as path:
        folder = Path(path)
        prepare_folder(folder, spec, resume=False, overwrite=False)
        try:
            with log_file(folder / LOG_FILE, earlier):
                fit_spec(
                    *(spec, graph, folder),
                    report=report,
                    should_stop=line.should_stop,
                    memory_share=line.share.memory,
                    warnings=warnings_among(earlier),
                )
        except HPGMNError as error:
            return error  # with its remedy
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def train_on_engine(
    engine: Engine,
    runs: Mapping[Path, RunSpec],
    graph: Graph,
    records: Sequence[logging.LogRecord],
    monitor: Monitor,
) -> dict[Path, HPGMNError]:
    """Train runs into their prepared folders, all but the reports; return the errors by folder.

    Args:
        records: what was logged before, for the beginning of each log.
    """
    failures: dict[Path, HPGMNError] = {}
    waiting = iter(runs.items())
    ended = 0

    def next_task() -> Task | None:
        for folder, spec in waiting:
            return Task(str(folder), run_task, (spec, tuple(records)), graph)
        return None

    def on_result(result: TaskResult) -> None:
        nonlocal ended
        ended += 1
        folder = Path(result.name)
        if result.trace:
            raise RuntimeError(f"A worker failed:\n{result.trace}")
        if isinstance(result.value, HPGMNError):
            failures[folder] = result.value
        elif result.value is None:
            failures[folder] = HPGMNError(result.reason)
        else:
            write_files(folder, result.value)
            drop_backup(folder)
            for line in parse_json(result.value[METRICS_FILE])["warnings"]:
                logger.warning(line)
        monitor.step(f"{graph.name} {runs[folder].model}", ended, len(runs))

    def on_progress(name: str, now: Progress) -> None:
        stage = now.member or now.stage
        task = f"{graph.name} {runs[Path(name)].model}: {stage} {now.epoch}/{now.epochs}"
        monitor.progress("", monitor.step_progress(task, ended, len(runs)))

    engine.run(
        next_task,
        on_result,
        on_message=on_progress,
        should_stop=monitor.should_stop,
        tries=TRIES,
        on_lost=lambda name: logger.warning("The machine of run %s is lost; restarting it.", name),
        max_tasks=len(runs),
    )
    return failures


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a run; the metrics come last, since they mark it as finished."""
    for name in sorted(files, key=lambda name: name == METRICS_FILE):
        write_bytes(folder / name, files[name])
