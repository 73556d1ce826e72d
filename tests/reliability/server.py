"""A program that runs commands of hpgmn in processes of their own, some of which it kills.

It imports everything once and forks for each command, so that a command costs no start. What it is
asked comes as lines of JSON, and so does what it answers. A command can be killed after some
seconds, or by itself when it is about to touch a file for the n-th time; or, with the signal 0, it
finds the disk full from that touch on.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

LOADED = (
    *("hpgmn.cli", "hpgmn.datasets", "hpgmn.tables", "hpgmn.classifier", "hpgmn.statistics"),
    *("hpgmn.experiments.run", "hpgmn.experiments.explorer", "hpgmn.experiments.understanding"),
    *("hpgmn.report", "hpgmn.report.reproduction", "hpgmn.experiments.reproduction.tasks"),
    *("hpgmn.experiments.tuning_tasks", "hpgmn.sharding", "matplotlib.figure"),
)
TOUCHES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
LONGEST = 120.0
"""Seconds that a command may take."""
HUNG = 999
"""The exit code of one that takes longer."""


class Watch:
    """Notes which files below a folder are touched, and signals the process at one of them."""

    def __init__(self, root: str, touch: int, number: int) -> None:
        self.root, self.last, self.number, self.seen = root, touch, number, []
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in TOUCHES:
            return
        if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        name = arguments[1 if event == "os.rename" else 0]
        if not isinstance(name, str | bytes | os.PathLike):
            return
        name = os.path.join(self.root, os.fsdecode(name))
        if not name.startswith(self.root):
            return
        self.seen.append([event, name.removeprefix(self.root)])
        if self.number and len(self.seen) == self.last:
            os.kill(os.getpid(), self.number)
        if not self.number and len(self.seen) >= self.last and event in ("open", "os.mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)


def work(job: dict[str, Any]) -> int:
    """Run a command in this process, a fork."""
    os.chdir(job["folder"])
    os.environ |= job["environment"]
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(f"{job['answer']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    watch = Watch(job["folder"], job["touch"], job["signal"])
    exec(job["before"], {})
    from hpgmn.cli import main

    code = main(job["words"]) if job["words"] else 0
    Path(f"{job['answer']}.seen").write_text(json.dumps(watch.seen))
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def forked(job: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    os.setpgid(0, 0)
    code = 1
    try:
        code = work(job)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    os._exit(code)


def answered(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run commands at the same time; what became of each."""
    began = time.monotonic()
    running = {forked(job): job for job in jobs}
    while running:
        child, status, _ = os.wait3(os.WNOHANG)
        now = time.monotonic() - began
        if child:
            job = running.pop(child)
            code = os.waitstatus_to_exitcode(status)
            job["seconds"], job["code"] = now, HUNG if job.get("hung") else code
            with contextlib.suppress(ProcessLookupError):  # its workers, if any are left
                if code != -signal.SIGKILL:
                    os.killpg(child, signal.SIGKILL)
            continue
        for child, job in running.items():
            if now > (LONGEST if job["seconds"] is None else job["seconds"]):
                job["hung"] = job["seconds"] is None
                os.kill(child, signal.SIGKILL)
        time.sleep(0.001)
    return [{"code": job["code"], "seconds": job["seconds"]} for job in jobs]


def serve() -> None:
    for name in LOADED:
        importlib.import_module(name)
    with contextlib.suppress(ImportError):
        importlib.import_module("optuna")
        importlib.import_module("sqlalchemy.dialects.sqlite")
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answered(json.loads(line))), flush=True)


if __name__ == "__main__":
    serve()
