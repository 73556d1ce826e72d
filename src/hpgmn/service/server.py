"""Run the service: one process that owns graph and journal, or several that serve a fixed graph."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import math
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpgmn.base.errors import HPGMNError, Remedy, SettingError
from hpgmn.runs.run import open_run
from hpgmn.service.journal import Journal

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

_BACKLOG = 2048
_HANG_SECONDS = 60  # without a sign of life, after which a worker is replaced

Notify = Callable[[str], None]


@dataclass(frozen=True)
class ServeOptions:
    """How a run is served.

    Args:
        model: ``package.module:Class`` of your own model, where the run has one.
        split: whose models predict; None for the first.
        port: 0 for a free one.
        read_only: serve the graph as it is, with what the journal holds.
        workers: processes; several only with ``read_only``.
        token: the bearer token that every route but /health requires; None for none.
        max_body: bytes of a request.
        timeout: seconds of a request.
    """

    folder: Path
    model: str | None = None
    split: int | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    read_only: bool = False
    workers: int = 1
    token: str | None = field(default=None, repr=False)
    max_body: int = 2**20
    timeout: float = 30.0

    @property
    def of_requests(self) -> dict[str, Any]:
        """What requests must fulfil."""
        return {"max_body": self.max_body, "timeout": self.timeout, "token": self.token}


def require_extra() -> None:
    """Raise HPGMNError if a package of the service is not installed."""
    for name in ("fastapi", "prometheus_client", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise HPGMNError(
                f"The service needs {name}, which is not installed.",
                "Run: pip install 'hpgmn[serve]'",
            )


def serve(options: ServeOptions, notify: Notify) -> None:
    """Serve a run until SIGTERM or SIGINT; running requests are finished first.

    Returns after SIGTERM; SIGINT ends in KeyboardInterrupt.

    Args:
        notify: called with a line when the service is ready.
    """
    require_extra()
    if options.workers > 1 and not options.read_only:
        raise SettingError(
            "A graph that grows is served by one process.",
            Remedy("Serve the graph as it is", option="read_only", value=True)
            | Remedy("Use one process", option="workers", value=1),
        )
    with _listen(options.host, options.port) as listener:
        if options.workers > 1:
            _serve_workers(options, listener, notify)
        else:
            _serve_process(options, listener, notify)


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, so that a second service on the port is refused at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        is_used = error.errno == errno.EADDRINUSE
        reason = "another process uses it" if is_used else error.strerror or str(error)
        remedy = Remedy("Choose another port", option="port", value=0 if port == 8001 else 8001)
        if not is_used:
            remedy |= Remedy("Choose another address", option="host", value="127.0.0.1")
        raise HPGMNError(f"Cannot listen on port {port} of {host}: {reason}.", remedy) from None


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _config(options: ServeOptions, app: Any, **more: Any) -> uvicorn.Config:
    import uvicorn

    return uvicorn.Config(
        app,
        lifespan="on",
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(options.timeout),
        **more,
    )


def _serve_process(options: ServeOptions, listener: socket.socket, notify: Notify) -> None:
    """Serve from this process, which loads the graph in the background."""
    import uvicorn

    from hpgmn.service.app import make_app
    from hpgmn.service.state import ServedRun

    run = open_run(options.folder, options.model)
    journal = Journal(run, is_writable=not options.read_only)
    failures: list[BaseException] = []

    def finish_loading(failure: BaseException | None) -> None:
        if failure is None:
            sizes = ", ".join(f"{count:,} {name}" for name, count in served.sizes.items())
            notify(f"Serving {options.folder} ({sizes}) at {_address(listener)}")
        else:
            failures.append(failure)
            server.should_exit = True

    with contextlib.closing(ServedRun(run, journal, options.split)) as served:
        app = make_app(served, on_loaded=finish_loading, **options.of_requests)
        server = uvicorn.Server(_config(options, app))
        with _ignoring_sigterm():  # uvicorn stops on it, then raises it again
            server.run(sockets=[listener])
    if failures:
        raise failures[0]


@contextlib.contextmanager
def _ignoring_sigterm() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _serve_workers(options: ServeOptions, listener: socket.socket, notify: Notify) -> None:
    """Serve from several processes, which uvicorn starts, restarts and stops."""
    from uvicorn.supervisors import Multiprocess

    from hpgmn.service.app import METRICS_VARIABLE

    run = open_run(options.folder, options.model)
    run.models_of(options.split)
    with contextlib.closing(Journal(run, is_writable=False)) as journal:
        num_entries = journal.num_entries  # the same for all, whoever adds meanwhile
    del run
    with tempfile.TemporaryDirectory(prefix="hpgmn-serve-") as folder:
        os.environ[METRICS_VARIABLE] = folder  # the workers inherit it
        factory = partial(_make_worker_app, options, num_entries)
        more = {"factory": True, "workers": options.workers}
        more["timeout_worker_healthcheck"] = _HANG_SECONDS
        workers = Multiprocess(_config(options, factory, **more), [listener])
        notify(f"Serving {options.folder} at {_address(listener)}, {options.workers} workers")
        workers.run()
    if any(worker.exitcode not in (0, -signal.SIGTERM) for worker in workers.processes):
        raise HPGMNError("A worker process could not start.", "See its error above")


def _make_worker_app(options: ServeOptions, num_entries: int) -> FastAPI:
    """Build the service of a worker process, which ends with its parent."""
    from hpgmn.service.app import make_app
    from hpgmn.service.state import ServedRun

    threading.Thread(target=_stop_with_parent, daemon=True).start()
    run = open_run(options.folder, options.model)
    journal = Journal(run, is_writable=False, num_entries=num_entries)
    served = ServedRun(run, journal, options.split, workers=options.workers)
    return make_app(served, **options.of_requests)


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
