"""Every measurement is a fresh process, so that its peak memory is its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import hpgmn
import hpgmn_lab
from hpgmn.base.errors import HPGMNError
from hpgmn.base.parsing import read_json
from hpgmn_lab.bench.records import Record

NO_MEMORY = "out of memory"


class ProcessFailed(HPGMNError):
    """A measured process ended without an answer; the message says why."""


def measured(
    task: str, *, patience: float | None = None, threads: int | None = None, **arguments: Any
) -> Record:
    """The answer of one task, done in a fresh process that prints its progress itself.

    Args:
        task: a name in :data:`hpgmn_lab.bench.worker.TASKS`.
        patience: the process is ended after so many seconds; None lets it work.
        threads: how many threads it has; None for as many as this one would have.
        **arguments: what the task is called with, as JSON knows it.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "asked.json", Path(folder) / "answer.json"
        asked.write_text(json.dumps({"task": task, "arguments": arguments}), encoding="utf-8")
        command = [sys.executable, "-m", "hpgmn_lab.bench.worker", str(asked), str(answer)]
        try:
            done = subprocess.run(  # this Python, a module of ours, two paths  # nosec B603
                command,
                env=environment(threads),
                stdout=subprocess.DEVNULL,
                timeout=patience,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ProcessFailed(f"no answer after {patience:.0f} s") from None
        if done.returncode == -signal.SIGKILL:  # what Linux does to a process that takes too much
            raise ProcessFailed(f"{NO_MEMORY}: the system ended the process")
        if done.returncode == -signal.SIGINT or done.returncode == 130:
            raise KeyboardInterrupt
        if not answer.exists():
            raise HPGMNError(
                f"The process that measures '{task}' broke off with code {done.returncode}. Read "
                "what it printed above, and measure again."
            )
        content: Record = read_json(answer)
    if "failed" in content:
        raise ProcessFailed(content["failed"])
    return content


def required(task: str, **options: Any) -> Record:
    """As :func:`measured`, of what nothing can be said without.

    Raises:
        HPGMNError: the process ended without an answer; it says what to do.
    """
    try:
        return measured(task, **options)
    except ProcessFailed as error:
        reason = str(error).rstrip(".")
        raise HPGMNError(
            f"Nothing was measured: {reason}. Choose smaller sizes, or a larger machine."
        ) from None


def environment(threads: int | None = None) -> dict[str, str]:
    """This environment, in which Python finds this package and no other of its name.

    Args:
        threads: of each process; None for as many as it would have.
    """
    sources = [str(Path(str(package.__file__)).parents[1]) for package in (hpgmn, hpgmn_lab)]
    path = [*dict.fromkeys(sources), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)} | own
