"""A program that runs commands of hpgmn in processes of their own, some of which it kills.

It imports everything once and forks for each command, so that a command costs no start. What it is
asked comes as lines of JSON, and so does what it answers. A command can be killed after some
seconds, or by itself when it is about to touch a file for the n-th time; or, with the signal 0, it
finds the disk full from that touch on. With some room, it is only then that a file which grows
beyond so many bytes has it killed, in the middle of the write, or has that write fail.
"""

import contextlib
import ctypes
import errno
import importlib
import json
import os
import pkgutil
import resource
import signal
import sys
import time
from sqlite3 import dbapi2

PACKAGES = ("hpgmn", "hpgmn_lab")
FIGURES = (
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
)
NOT_LOADED = ("hpgmn.__main__", "hpgmn.base.kernels", "hpgmn.transforms")
"""Runs when imported, or needs Triton or PyTorch Geometric."""
SEARCH = ("optuna", "optuna.importance", "sqlalchemy.dialects.sqlite", "alembic.command")
"""What a search needs besides."""
TOUCHES = ("open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "shutil.rmtree")
LONGEST = 120.0
"""Seconds that a command may take."""
HUNG = 999
"""The exit code of one that takes longer."""


class Watch:
    """Notes which files below a folder are touched, and signals the process at one of them.

    What is moved to its place and a database that is about to commit have a size, too.
    """

    def __init__(self, job):
        self.root, self.last, self.number = job["folder"], job["touch"], job["signal"]
        self.room, self.is_group = job["room"], job["is_group"]
        self.seen: list[tuple[str, str, int]] = []
        self.connect = dbapi2.connect
        dbapi2.connect = self.connected  # what is written in C is not heard of otherwise
        sys.addaudithook(self)

    def __call__(self, event, arguments):
        if event == "os.rename":
            self.touch(event, arguments[1], arguments[0])
        elif event == "os.link":
            self.touch(event, arguments[1])
        elif event == "open":
            if (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.touch(event, arguments[0])
        elif event in TOUCHES:
            self.touch(event, arguments[0])

    def connected(self, path, *arguments, **options):
        """A connection to a database whose commits count as touches."""

        def tell(statement):
            if statement.startswith("COMMIT"):
                self.touch("commit", path, path)

        connection = self.connect(path, *arguments, **options)
        connection.execute("PRAGMA synchronous = OFF")  # a kill is no power cut
        connection.set_trace_callback(tell)
        return connection

    def touch(self, event, name, content=None):
        if not isinstance(name, str | bytes | os.PathLike):
            return
        name = os.path.join(self.root, os.fsdecode(name))
        if not name.startswith(self.root):
            return
        self.seen.append((event, name.removeprefix(self.root), size_of(content)))
        is_last = len(self.seen) == self.last
        if self.room is not None:
            if is_last:
                resource.setrlimit(resource.RLIMIT_FSIZE, (self.room, resource.RLIM_INFINITY))
        elif self.number and is_last:
            os.kill(0 if self.is_group else os.getpid(), self.number)
        elif not self.number and len(self.seen) >= self.last and event in ("open", "os.mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)


def size_of(path):
    """The bytes of a file, or of the largest in a folder."""
    if path is None or not os.path.exists(path):
        return 0
    if os.path.isdir(path):
        return max((one.stat().st_size for one in os.scandir(path) if one.is_file()), default=0)
    return os.stat(path).st_size


def work(job):
    """Run a command in this process, a fork."""
    os.chdir(job["folder"])
    os.environ |= job["environment"]
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(f"{job['answer']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    if job["room"] is not None and job["signal"]:  # Python ignores it: a write fails instead
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    watch = Watch(job)
    exec(job["before"], {})
    if job["is_bound"]:
        give_up_privileges()
    from hpgmn.cli import main

    code = main(job["words"]) if job["words"] else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with open(f"{job['answer']}.seen", "w") as file:
        json.dump(watch.seen, file)
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def give_up_privileges():
    """Have permissions of files hold for this process, even if it is root's."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # the version of the call, and this process
    if ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "privileges cannot be given up")


def forked(job):
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


def answered(jobs):
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
                if code != -signal.SIGKILL or job["is_group"]:
                    os.killpg(child, signal.SIGKILL)
            continue
        for child, job in running.items():
            if now > (LONGEST if job["seconds"] is None else job["seconds"]):
                job["hung"] = job["seconds"] is None
                os.kill(-child if job["is_group"] else child, signal.SIGKILL)
        time.sleep(0.001)
    return [{"code": job["code"], "seconds": job["seconds"]} for job in jobs]


def serve():
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name not in NOT_LOADED:
                importlib.import_module(module.name)
    for name in FIGURES:
        importlib.import_module(name)
    with contextlib.suppress(ImportError):
        for name in SEARCH:
            importlib.import_module(name)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answered(json.loads(line))), flush=True)


if __name__ == "__main__":
    serve()
