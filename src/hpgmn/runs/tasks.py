"""Runs as tasks of an engine, such as a Ray cluster: each comes back as the files of its folder."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpgmn.base.files import write_bytes
from hpgmn.base.parsing import parse_json
from hpgmn.engines import Ended, Engine, Line, Seldom, Task
from hpgmn.graph import Graph
from hpgmn.runs.folder import (
    LOG_FILE,
    METRICS_FILE,
    PORTFOLIO_FILE,
    drop,
    log_file,
    prepare_folder,
    warnings_among,
)
from hpgmn.runs.spec import RunSpec
from hpgmn.runs.train import train_folder
from hpgmn.training.replicas import Progress

logger = logging.getLogger(__name__)

TRIES = 3
"""A run whose machine is lost is not begun more often than this by one command."""


def run_task(
    argument: tuple[RunSpec, Mapping[str, bytes], Sequence[logging.LogRecord]],
    graph: Graph,
    line: Line,
) -> dict[str, bytes]:
    """The files of a run (name → content), made in a folder that exists so long as the work.

    Args:
        argument: what is trained, files that are to lie in its folder, and what was logged earlier.
        graph: its graph.
        line: where progress goes.
    """
    spec, files, earlier = argument
    logging.getLogger("hpgmn").setLevel(logging.INFO)  # as the commands do
    is_time = Seldom()

    def report(now: Progress) -> None:
        if is_time():
            line.tell(now)

    with tempfile.TemporaryDirectory(prefix="hpgmn-") as place:
        folder = Path(place)
        prepare_folder(folder, spec, resume=False, overwrite=False)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        with log_file(folder / LOG_FILE, earlier):
            train_folder(
                spec,
                graph,
                folder,
                report=report,
                should_stop=line.should_stop,
                memory_share=line.share.memory,
                warnings=warnings_among(earlier),
            )
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def run_on(
    engine: Engine,
    runs: Mapping[Path, RunSpec],
    graph: Graph,
    *,
    earlier: Sequence[logging.LogRecord] = (),
    told: Callable[[Path, str], None] = lambda folder, reason: None,
    report: Callable[[Path, Progress], None] = lambda folder, progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    lost: Callable[[str], None] = lambda name: None,
) -> None:
    """Train runs into their folders, which are prepared; only the reports are left to write.

    Args:
        engine: where tasks run.
        runs: folder → what is trained.
        graph: the graph of all of them.
        earlier: what was logged before, for the beginning of each log.
        told: called with the folder of each run that ends, and why it failed or "".
        report: called with a run's folder and its progress.
        should_stop: asked all the time; True raises KeyboardInterrupt with all kept.
        lost: called with the folder of a run that is begun again because its machine is lost.
    """
    waiting = iter(runs.items())

    def next_task() -> Task | None:
        for folder, spec in waiting:
            choice = folder / PORTFOLIO_FILE
            known = {choice.name: choice.read_bytes()} if choice.exists() else {}
            return Task(str(folder), run_task, (spec, known, earlier), graph)
        return None

    def ended(end: Ended) -> None:
        if end.trace:
            raise RuntimeError(f"A worker failed:\n{end.trace}")
        if end.value is not None:
            write_files(Path(end.name), end.value)
            drop(Path(end.name))
            for line in parse_json(end.value[METRICS_FILE])["warnings"]:
                logger.warning(line)
        told(Path(end.name), end.reason)

    engine.run(
        next_task,
        ended,
        answer=lambda name, now: report(Path(name), now),
        should_stop=should_stop,
        tries=TRIES,
        lost=lost,
        at_a_time=len(runs),
    )


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a run, each whole; its metrics come last, since they say it is done."""
    for name in sorted(files, key=lambda name: name == METRICS_FILE):
        write_bytes(folder / name, files[name])
