"""Measure in fresh processes: start one, time its training stages, observe the machine.

    python -m hpgmn_lab.bench.process REQUEST.json ANSWER.json

runs one task. User errors and lack of memory are answers, too: ``{"failed": message}``.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hpgmn
import hpgmn_lab
from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import write_text
from hpgmn.base.machine import peak_memory_mb, reset_peak_memory
from hpgmn.base.parsing import read_json
from hpgmn.graph import Graph
from hpgmn.models import find_model
from hpgmn.models.stage import Replica
from hpgmn.training.replicas import Fitted, Progress, fit_replicas
from hpgmn_lab.bench.records import Record

TASKS = {
    "deterministic": ("deterministic", "train_models"),
    "graph": ("graphs", "write_generated"),
    "growth": ("growth", "run_stages"),
    "peer": ("trials", "run_trials"),
    "shards": ("shard_costs", "measure_statistics"),
    "workers": ("workers", "run_cells"),
}
"""Module and function of each task."""

PROGRESS_SECONDS = 5.0
_SMALLER = Remedy("Choose smaller sizes, or a larger machine")


class ProcessFailed(HPGMNError):
    """A measured process ended without a result; the message says why."""


def say(line: str) -> None:
    """Print a line of progress on standard error."""
    print(line, file=sys.stderr, flush=True)


def run_task(
    task: str, *, timeout: float | None = None, threads: int | None = None, **arguments: Any
) -> Record:
    """Run a task of :data:`TASKS` in a fresh process, so that its peak memory is its own.

    After ``timeout`` seconds the process is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        request.write_text(json.dumps({"task": task, "arguments": arguments}), encoding="utf-8")
        command = [sys.executable, "-m", "hpgmn_lab.bench.process", str(request), str(answer)]
        try:
            done = subprocess.run(  # this Python, a module of ours, two paths  # nosec B603
                command,
                env=environment(threads),
                stdout=subprocess.DEVNULL,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ProcessFailed(f"no result after {timeout:.0f} s", _SMALLER) from None
        if done.returncode == -signal.SIGKILL:  # sent by Linux's out-of-memory killer
            raise ProcessFailed("out of memory: the system killed the process", _SMALLER)
        if done.returncode in (-signal.SIGINT, 130):
            raise KeyboardInterrupt
        if not answer.exists():
            raise HPGMNError(
                f"The process that measures '{task}' exited with code {done.returncode}.",
                "See its output above",
            )
        content: Record = read_json(answer)
    if "failed" in content:
        raise ProcessFailed(content["failed"])
    return content


def environment(threads: int | None = None) -> dict[str, str]:
    """Return this environment with both packages first on PYTHONPATH."""
    sources = [str(Path(str(package.__file__)).parents[1]) for package in (hpgmn, hpgmn_lab)]
    paths = [*dict.fromkeys(sources), *filter(None, [os.environ.get("PYTHONPATH")])]
    changes = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | changes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the task of a request file and write its answer; return the exit code."""
    request_path, answer_path = map(Path, sys.argv[1:] if arguments is None else arguments)
    request = read_json(request_path)
    module, function = TASKS[request["task"]]
    work = getattr(importlib.import_module(f"hpgmn_lab.bench.{module}"), function)
    try:
        content = work(**request["arguments"])
    except KeyboardInterrupt:
        return 130
    except (HPGMNError, MemoryError) as error:
        content = {"failed": str(error) or "out of memory"}
    write_text(answer_path, json.dumps(content))
    return 0


# Observe the machine.


def seconds_since_start() -> float:
    """Return the seconds since this process was started."""
    import psutil

    return time.time() - float(psutil.Process().create_time())


def peak_bytes() -> int:
    """Return this process's peak memory since it was last reset."""
    return round(peak_memory_mb("cpu") * 1e6)


class OtherLoad:
    """Count the cores that other processes, perhaps except children, use from construction on."""

    def __init__(self, *, with_children: bool = False) -> None:
        self._with_children = with_children
        self._started, self._before = time.perf_counter(), self._seconds()

    def cores(self) -> float:
        """Return the mean number of cores that other processes used."""
        others = self._seconds() - self._before
        return max(0.0, others) / max(time.perf_counter() - self._started, 1e-9)

    def _seconds(self) -> float:
        """Return the processor time of the machine without that of this process."""
        import psutil

        times = psutil.cpu_times()
        fields = ("user", "nice", "system", "irq", "softirq")
        busy = sum(getattr(times, name, 0.0) for name in fields)
        if not self._with_children:
            return float(busy - time.process_time())
        own = psutil.Process()
        for process in (own, *own.children(recursive=True)):
            try:
                busy -= sum(process.cpu_times()[:4])  # its own, and that of its exited children
            except psutil.Error:  # exited meanwhile
                continue
        return float(busy)


class Meter:
    """Measure this process from construction on, after its start-up."""

    def __init__(self, device: str) -> None:
        self._startup, self._device = seconds_since_start(), device
        reset_peak_memory(device)
        self._level, self._load = peak_bytes(), OtherLoad()

    def record(self) -> Record:
        """Return seconds of start-up, peak memory, its level at first, and the load of others."""
        on_gpu = self._device == "cuda"
        return {
            "startup_seconds": self._startup,
            "peak_bytes": peak_bytes(),
            "level_bytes": self._level,
            "device_peak_bytes": round(peak_memory_mb("cuda") * 1e6) if on_gpu else None,
            "cores_taken_by_others": self._load.cores(),
        }


# Time a training.


class StageClock:
    """Time the stages and epochs of one batch of replicas; a ``report`` of ``fit_replicas``.

    Training synchronises with the device before it reports, so times on a GPU are correct.

    Attributes:
        prepared: seconds before the first epoch of each stage (statistics, transfers).
        epochs: seconds of each epoch by stage; epochs reported together share the mean.
        curve: (seconds since construction, best validation score) after each epoch of the
            current stage.
        peaks: peak memory at the end of each stage.
    """

    def __init__(self, report: Callable[[Progress], None] | None = None) -> None:
        self.prepared: dict[str, float] = {}
        self.epochs: dict[str, list[float]] = {}
        self.curve: list[tuple[float, float]] = []
        self.peaks: dict[str, int] = {}
        self._report, self._statistics = report, 0.0
        self.started = self.last = time.perf_counter()

    def __call__(self, progress: Progress) -> None:
        """Record an epoch."""
        now, stage = time.perf_counter(), progress.stage
        prepared = progress.seconds_statistics - self._statistics
        self._statistics = progress.seconds_statistics
        if stage not in self.epochs:
            self.epochs[stage], self.prepared[stage], self.curve = [], 0.0, []
        self.prepared[stage] += prepared
        count = max(progress.epoch - len(self.epochs[stage]), 1)  # a GPU reports several at once
        self.epochs[stage] += [(now - self.last - prepared) / count] * count
        self.curve.append((now - self.started, progress.val_score))
        self.peaks[stage] = peak_bytes()
        self.last = now
        if self._report is not None:
            self._report(progress)

    def seconds(self, stage: str) -> float:
        """Return all seconds of a stage, its preparation included."""
        return self.prepared[stage] + sum(self.epochs[stage])


class ProgressLines:
    """Print progress as plain lines with a common prefix, at most one every few seconds."""

    def __init__(self, prefix: str) -> None:
        self.prefix, self._printed = prefix, time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Print the epoch, unless a line was printed recently."""
        if time.monotonic() - self._printed > PROGRESS_SECONDS:
            epoch = f"{progress.stage} epoch {progress.epoch}/{progress.epochs}"
            self.print(f"{epoch} val {progress.val_score:.3f}")

    def print(self, text: str) -> None:
        """Print a line now."""
        self._printed = time.monotonic()
        say(f"{self.prefix}: {text}")


def fit_once(
    graph: Graph, model: str, settings: Any, *, split: int = 0, seed: int = 0, **options: Any
) -> Fitted:
    """Train one model on one split, as ``hpgmn train`` does; options are ``fit_replicas``'s."""
    masks = graph.split(split)
    replicas = [Replica(split, seed, settings)]
    return fit_replicas(graph, find_model(model), replicas, [(masks.train, masks.val)], **options)


if __name__ == "__main__":
    sys.exit(main())
